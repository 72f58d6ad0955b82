//! Filters of what is shown: "port 3", "user alice state rts".

use nix::unistd::User;
use rnic_manager::states::PortState;
use rnic_manager::{Administrator, AskError, DeviceProcess};
use rnic_verbs::resource::{DeviceResource, Resource};

use super::access::failed;
use crate::failure::{Failure, Outcome};

/// The filters that a command has.
#[derive(Debug)]
pub(super) struct Filters {
    /// The key of a word that stands alone in front.
    short: Option<&'static str>,
    /// For help and errors: each key, and what its value is.
    keys: &'static [&'static str],
    /// What can be the value of the key "state".
    states: &'static [&'static str],
}

const OF_PORTS: &[&str] = &["dev NAME", "port N", "pid N", "user NAME"];
const OF_QPS: &[&str] = &[
    "dev NAME",
    "port N",
    "pid N",
    "user NAME",
    "qpn N",
    "state STATE",
];

/// Ports, and their counters.
pub(super) const PORTS: Filters = Filters {
    short: Some("port"),
    keys: OF_PORTS,
    states: &[],
};
/// Leases.
pub(super) const LEASES: Filters = PORTS;
/// What is steered.
pub(super) const STEERED: Filters = Filters {
    short: Some("dev"),
    ..PORTS
};
/// Objects of clients that have no state.
pub(super) const RESOURCES: Filters = Filters {
    short: None,
    ..PORTS
};
/// Queue pairs, with their states as ibverbs calls them.
pub(super) const QPS: Filters = Filters {
    short: None,
    keys: OF_QPS,
    states: &["INIT", "RTR", "RTS", "SQD", "SQE", "ERR"],
};
/// Connections, with the states of TCP.
pub(super) const CONNECTIONS: Filters = Filters {
    short: None,
    keys: OF_QPS,
    states: &[
        "SynSent",
        "SynReceived",
        "Established",
        "FinWait1",
        "FinWait2",
        "CloseWait",
        "Closing",
        "LastAck",
        "TimeWait",
        "Closed",
    ],
};

/// What must be so of an object that is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) dev: Option<String>,
    pub(super) port: Option<u32>,
    pid: Option<i32>,
    uid: Option<u32>,
    qpn: Option<u32>,
    state: Option<String>,
}

impl Filters {
    /// Reads keys and values.
    pub(super) fn parse(&self, words: &[String]) -> Outcome<Filter> {
        let mut filter = Filter::default();
        let rest = match (self.short, words) {
            (Some(key), [value, rest @ ..]) if rest.len() % 2 == 0 && !self.has(value) => {
                self.set(&mut filter, key, value)?;
                rest
            }
            _ => words,
        };
        for pair in rest.chunks(2) {
            let [key, value] = pair else {
                return Err(self.unknown(&format!("{:?} needs a value", pair[0])));
            };
            if !self.has(key) {
                return Err(self.unknown(&format!("there is no filter {key:?}")));
            }
            self.set(&mut filter, key, value)?;
        }
        Ok(filter)
    }

    fn has(&self, key: &str) -> bool {
        let mut keys = self.keys.iter().map(|key| key.split(' ').next());
        keys.any(|known| known == Some(key))
    }

    fn set(&self, filter: &mut Filter, key: &str, value: &str) -> Outcome {
        match key {
            "dev" => filter.dev = Some(value.to_owned()),
            "port" => filter.port = Some(self.number(key, value)?),
            "pid" => filter.pid = Some(self.number(key, value)?),
            "user" => filter.uid = Some(uid(value)?),
            "qpn" => filter.qpn = Some(self.number(key, value)?),
            _ => {
                let mut states = self.states.iter();
                if !states.any(|state| state.eq_ignore_ascii_case(value)) {
                    let states = self.states.join(", ");
                    let why = format!("there is no state {value:?}; the states are {states}");
                    return Err(Failure::usage(WHAT, why));
                }
                filter.state = Some(value.to_owned());
            }
        }
        Ok(())
    }

    fn number<T: std::str::FromStr>(&self, key: &str, value: &str) -> Outcome<T> {
        let number = value.parse();
        number.map_err(|_| self.unknown(&format!("{key} {value:?} is no number")))
    }

    fn unknown(&self, why: &str) -> Failure {
        let why = format!("{why}; the filters are {}", self.keys.join(", "));
        Failure::usage(WHAT, why)
    }
}

const WHAT: &str = "understand the filters";

fn uid(value: &str) -> Outcome<u32> {
    if let Ok(uid) = value.parse() {
        return Ok(uid);
    }
    match User::from_name(value) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => {
            let why = format!("there is no user {value:?} here; a number can stand in its place");
            Err(Failure::operation(WHAT, why))
        }
        Err(error) => Err(Failure::operation(WHAT, error)),
    }
}

impl Filter {
    /// Asks for the ports that pass. It is an error if the filter names what is not there.
    pub(super) fn ports(
        &self,
        administrator: &mut Administrator,
        what: &'static str,
    ) -> Outcome<Vec<PortState>> {
        let ports = administrator.ports().map_err(failed(what))?;
        self.choose(ports, administrator, what)
    }

    /// Asks for the ports that pass, those included that have ended while somebody still has their
    /// sockets.
    pub(super) fn all_ports(
        &self,
        administrator: &mut Administrator,
        what: &'static str,
    ) -> Outcome<Vec<PortState>> {
        let ports = administrator.all_ports().map_err(failed(what))?;
        self.choose(ports, administrator, what)
    }

    /// Returns those of all ports that pass. It is an error if the filter names what is not there.
    pub(super) fn choose(
        &self,
        mut ports: Vec<PortState>,
        administrator: &mut Administrator,
        what: &'static str,
    ) -> Outcome<Vec<PortState>> {
        self.check(&ports, what)?;
        if let Some(dev) = &self.dev
            && !ports.iter().any(|port| port.netdev == *dev)
        {
            check_device(administrator, dev, what)?;
        }
        ports.retain(|port| self.admits_port(port));
        Ok(ports)
    }

    /// Returns an error if the filter names a port or process that is not there.
    fn check(&self, ports: &[PortState], what: &'static str) -> Outcome {
        let absent = match (self.port, self.pid) {
            (Some(port), _) if !ports.iter().any(|one| one.port == port) => format!("port {port}"),
            (_, Some(pid)) if !ports.iter().any(|one| one.pid == pid) => {
                format!("port of process {pid}")
            }
            _ => return Ok(()),
        };
        let why = format!("you see no {absent}; `rnic-ctl port show` lists those that you see");
        Err(Failure::operation(what, why))
    }

    /// Returns whether a port passes, or the objects of its client may.
    pub(super) fn admits_port(&self, port: &PortState) -> bool {
        self.dev.as_ref().is_none_or(|dev| *dev == port.netdev)
            && self.port.is_none_or(|number| number == port.port)
            && self.pid.is_none_or(|pid| pid == port.pid)
            && self.uid.is_none_or(|uid| uid == port.uid)
    }

    /// Returns whether the objects of a process that has no port may pass.
    pub(super) fn admits_process(&self, process: &DeviceProcess) -> bool {
        self.port.is_none()
            && self.pid.is_none_or(|pid| pid == process.pid)
            && self.uid.is_none_or(|uid| uid == process.uid)
    }

    /// Returns whether what such a process says of its device passes.
    pub(super) fn admits_device(&self, device: Option<&DeviceResource>) -> bool {
        let has = |dev: &String| device.is_some_and(|device| device.netdev == *dev);
        self.dev.as_ref().is_none_or(has)
    }

    /// Returns whether what belongs to a port passes only for some ports.
    pub(super) fn is_of_clients(&self) -> bool {
        self.port.is_some() || self.pid.is_some() || self.uid.is_some()
    }

    /// Returns whether an object of a client passes. One without a queue pair or state is not one
    /// with a certain one.
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

/// Returns an error if rnicd does not share a device. Root alone sees those that have no port.
fn check_device(administrator: &mut Administrator, dev: &str, what: &'static str) -> Outcome {
    let devices = match administrator.devices() {
        Err(AskError::Refused(_)) => return Ok(()),
        devices => devices.map_err(failed(what))?,
    };
    if devices.iter().any(|device| device.netdev == dev) {
        return Ok(());
    }
    let why = format!("rnicd does not share {dev}; `rnic-ctl dev show` lists what it shares");
    Err(Failure::operation(what, why))
}

#[cfg(test)]
mod tests {
    use rnic_verbs::resource::{MrResource, QpResource};

    use super::*;

    fn read(filters: &Filters, line: &str) -> Outcome<Filter> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        filters.parse(&words)
    }

    fn filter(line: &str) -> Outcome<Filter> {
        read(&QPS, line)
    }

    #[test]
    fn filters_have_a_key_and_a_value() {
        assert_eq!(filter("").unwrap(), Filter::default());
        let both = filter("port 3 user root").unwrap();
        assert_eq!((both.port, both.uid), (Some(3), Some(0)));
        for wrong in ["port", "port x", "pid 1 port", "colour red", "qpn -1"] {
            let why = filter(wrong).unwrap_err();
            assert!(why.why.ends_with(", qpn N, state STATE"), "{why}");
        }
        let why = filter("user no-such-user").unwrap_err();
        assert!(
            why.why.starts_with("there is no user \"no-such-user\""),
            "{why}"
        );
    }

    #[test]
    fn a_state_is_one_that_such_an_object_can_be_in() {
        let why = filter("state foo").unwrap_err().why;
        let states = "the states are INIT, RTR, RTS, SQD, SQE, ERR";
        assert_eq!(why, format!("there is no state \"foo\"; {states}"));
        assert!(read(&CONNECTIONS, "state rts").is_err());
        assert!(read(&CONNECTIONS, "state established").is_ok());
        let why = read(&RESOURCES, "state rts").unwrap_err().why;
        assert!(why.starts_with("there is no filter \"state\"; "), "{why}");
    }

    #[test]
    fn a_word_alone_in_front_has_the_key_that_is_used_most() {
        let short = |filters, line| read(filters, line).unwrap();
        assert_eq!(short(&PORTS, "3 dev a"), short(&PORTS, "port 3 dev a"));
        assert_eq!(short(&STEERED, "eth1"), short(&STEERED, "dev eth1"));
        for wrong in ["dev", "port", "3 dev", "port 3 dev", "eth1"] {
            assert!(read(&PORTS, wrong).is_err(), "{wrong}");
        }
        assert!(read(&QPS, "3").is_err());
    }

    #[test]
    fn a_port_that_is_not_there_is_an_error() {
        for line in ["port 9", "pid 9", "port 9 dev eth1"] {
            let why = filter(line).unwrap().check(&[], "show").unwrap_err().why;
            assert!(why.starts_with("you see no port "), "{why}");
        }
        filter("user root state rts")
            .unwrap()
            .check(&[], "show")
            .unwrap();
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
        let admits = |line: &str| filter(line).unwrap().admits_port(&port);
        for yes in ["dev eth1 port 3 pid 9 user root", "user 0", "state RTS"] {
            assert!(admits(yes), "{yes}");
        }
        for no in ["dev eth2", "port 4", "pid 8", "user 7", "port 3 pid 8"] {
            assert!(!admits(no), "{no}");
        }
    }
}
