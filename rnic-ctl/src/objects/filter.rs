//! Filters of `res show` and `conn show`: "port 3", "user alice state rts".

use rnic_verbs::resource::Resource;
use rnic_xdp::manager::states::PortState;

use super::words::Users;
use crate::failure::{Failure, Outcome};

/// What filters there are, for help and errors.
pub(super) const FILTERS: &str = "dev NAME, port N, pid N, user NAME, qpn N, state STATE";

/// What must be so of an object that is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    dev: Option<String>,
    port: Option<u32>,
    pid: Option<i32>,
    user: Option<String>,
    qpn: Option<u32>,
    state: Option<String>,
}

impl Filter {
    /// Reads keys and values.
    pub(super) fn parse(words: &[String]) -> Outcome<Self> {
        let mut filter = Self::default();
        for pair in words.chunks(2) {
            let [key, value] = pair else {
                return Err(unknown(&format!("{:?} needs a value", pair[0])));
            };
            match key.as_str() {
                "dev" => filter.dev = Some(value.clone()),
                "port" => filter.port = Some(number(key, value)?),
                "pid" => filter.pid = Some(number(key, value)?),
                "user" => filter.user = Some(value.clone()),
                "qpn" => filter.qpn = Some(number(key, value)?),
                "state" => filter.state = Some(value.clone()),
                _ => return Err(unknown(&format!("there is no filter {key:?}"))),
            }
        }
        Ok(filter)
    }

    /// Whether the client of a port is asked.
    pub(super) fn admits_port(&self, port: &PortState, users: &mut Users) -> bool {
        let is_of = |user: &String| *user == port.uid.to_string() || user == users.name(port.uid);
        self.dev.as_ref().is_none_or(|dev| *dev == port.netdev)
            && self.port.is_none_or(|number| number == port.port)
            && self.pid.is_none_or(|pid| pid == port.pid)
            && self.user.as_ref().is_none_or(is_of)
    }

    /// Whether an object is shown. One without a queue pair or state is not one with a certain one.
    pub(super) fn admits(&self, resource: &Resource) -> bool {
        let (qpn, state) = match resource {
            Resource::Qp(qp) => (Some(qp.qpn), Some(&qp.state)),
            Resource::Connection(connection) => (connection.qpn, Some(&connection.state)),
            _ => (None, None),
        };
        let has = |wanted: &String| state.is_some_and(|state| state.eq_ignore_ascii_case(wanted));
        self.qpn.is_none_or(|wanted| qpn == Some(wanted)) && self.state.as_ref().is_none_or(has)
    }
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Outcome<T> {
    let number = value.parse();
    number.map_err(|_| unknown(&format!("{key} {value:?} is no number")))
}

fn unknown(why: &str) -> Failure {
    let why = format!("{why}; the filters are {FILTERS}");
    Failure::usage("understand the filters", why)
}

#[cfg(test)]
mod tests {
    use rnic_verbs::resource::{MrResource, QpResource};

    use super::*;

    fn filter(line: &str) -> Outcome<Filter> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        Filter::parse(&words)
    }

    #[test]
    fn filters_have_a_key_and_a_value() {
        assert_eq!(filter("").unwrap(), Filter::default());
        let both = filter("port 3 user alice").unwrap();
        assert_eq!((both.port, both.user.as_deref()), (Some(3), Some("alice")));
        for wrong in ["port", "port x", "pid 1 port", "colour red", "qpn -1"] {
            let why = filter(wrong).unwrap_err();
            assert!(why.why.ends_with(FILTERS), "{why}");
        }
    }

    #[test]
    fn objects_without_the_key_do_not_pass() {
        let qp = Resource::Qp(QpResource {
            qpn: 7,
            state: "RTS".into(),
            ..QpResource::default()
        });
        let mr = Resource::Mr(MrResource::default());
        let admits = |line: &str| [&qp, &mr].map(|one| filter(line).unwrap().admits(one));
        assert_eq!(admits("pid 1"), [true, true]);
        assert_eq!(admits("qpn 7"), [true, false]);
        assert_eq!(admits("state rts"), [true, false]);
        assert_eq!(admits("qpn 7 state err"), [false, false]);
    }

    #[test]
    fn ports_are_told_apart_by_what_rnicd_knows() {
        let port: PortState = serde_json::from_str(
            r#"{"port":3,"netdev":"eth1","uid":0,"program":"p","pid":9,"connected":true,
                "frames":1,"huge_octets":0,"leases":0,"since":0,"sent":[],"host_end":null}"#,
        )
        .unwrap();
        let admits = |line: &str| {
            filter(line)
                .unwrap()
                .admits_port(&port, &mut Users::default())
        };
        for yes in ["dev eth1 port 3 pid 9 user root", "user 0", "state RTS"] {
            assert!(admits(yes), "{yes}");
        }
        for no in ["dev eth2", "port 4", "pid 8", "user alice", "port 3 pid 8"] {
            assert!(!admits(no), "{no}");
        }
    }
}
