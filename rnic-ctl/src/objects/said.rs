//! Asking the clients of ports, and telling what they say from what rnicd knows. A client may lie
//! of itself, and of nobody else.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rnic_manager::states::{LeaseState, PortState};
use rnic_manager::{Administrator, Inspected, InspectionEnd, MAX_SAID};
use rnic_verbs::resource::Resource;
use serde::Serialize;
use serde_json::Value;

use super::access::{Access, Printer, Style, failed};
use super::filter::Filter;
use super::line::Line;
use super::words::Users;
use crate::failure::Outcome;
use crate::out::{self, printable};

/// The most characters of a word that a client says.
const MAX_CHARACTERS: usize = 64;
/// The most octets of a line: many times what any object takes.
const MAX_OCTETS: usize = 64 << 10;

/// How to ask.
#[derive(Clone, Debug, Args)]
pub(crate) struct Asking {
    #[command(flatten)]
    access: Access,

    /// How long each client may take to answer: 60 seconds at most
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds, global = true)]
    timeout: Duration,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (0.001..=60.0).contains(seconds));
    let seconds = seconds.ok_or("choose from 0.001 to 60 seconds")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Asks clients, and prints a line for each object as the answers come: what they say may be long.
pub(super) fn show(
    asking: &Asking,
    style: Style,
    (what, filter): (&str, &Filter),
    line: impl Fn(Resource) -> Option<Line>,
) -> Outcome<ExitCode> {
    const WHAT: &str = "ask clients";
    let mut administrator = asking.access.connect()?;
    let mut report = Report {
        printer: asking.access.printer(style),
        is_json: style.json,
        code: ExitCode::SUCCESS,
        users: Users::default(),
    };
    let before = leases(&mut administrator)?;
    let ports = filter.ports(&mut administrator, WHAT)?;
    let numbers: Vec<_> = ports.iter().map(|port| port.port).collect();
    let mut printed = Ok(());
    let print = |administrator: &mut Administrator, answers: Vec<Inspected>| {
        // Connections come and go meanwhile: what was leased before or is leased now, is.
        printed = leases(administrator).and_then(|now| {
            let leases = [before.as_slice(), &now].concat();
            answers.iter().try_for_each(|answer| {
                let port = ports.iter().find(|port| port.port == answer.port);
                let passes = |one: Resource| filter.admits(&one).then(|| line(one)).flatten();
                port.map_or(Ok(()), |port| {
                    report.client(port, answer, (what, asking.timeout), &leases, passes)
                })
            })
        });
        printed.is_ok()
    };
    let asked = administrator.inspect(&numbers, what, asking.timeout, print);
    asked.map_err(failed(WHAT))?;
    printed?;
    report.printer.end()?;
    Ok(report.code)
}

/// What is printed of clients.
struct Report {
    printer: Printer,
    is_json: bool,
    code: ExitCode,
    users: Users,
}

impl Report {
    /// Prints what a client says, beside what rnicd knows of it.
    fn client(
        &mut self,
        port: &PortState,
        answer: &Inspected,
        (what, within): (&str, Duration),
        leases: &[LeaseState],
        line: impl Fn(Resource) -> Option<Line>,
    ) -> Outcome {
        let known = known(port, &mut self.users);
        let mut printed = Ok(());
        let fault = read(answer, (what, within), |resource| {
            let local = local(&resource);
            let Some(said) = line(resource).filter(|_| printed.is_ok()) else {
                return;
            };
            let is_leased = |local| leases.iter().any(|lease| has(lease, port.port, local));
            let said = match local {
                Some(local) if !is_leased(local) => said.with("leased", false),
                _ => said,
            };
            printed = self.printer.print(&known.clone().behind("client", said));
        });
        printed?;
        let Some(fault) = fault else {
            return Ok(());
        };
        self.code = ExitCode::FAILURE;
        if self.is_json {
            return self.printer.print(&known.with("error", fault));
        }
        note(port, &fault);
        Ok(())
    }
}

fn leases(administrator: &mut Administrator) -> Outcome<Vec<LeaseState>> {
    administrator.leases().map_err(failed("show the leases"))
}

/// Reads what a client says, object by object, and returns why it is not all, if it is not.
pub(super) fn read(
    answer: &Inspected,
    (what, within): (&str, Duration),
    mut each: impl FnMut(Resource),
) -> Option<String> {
    let mut fault = None;
    let mut lines = answer.said.split_inclusive(|&octet| octet == b'\n');
    let ended = loop {
        // The last line may be a part of one.
        let Some(line) = lines.next().and_then(|line| line.strip_suffix(b"\n")) else {
            break false;
        };
        if line.len() > MAX_OCTETS {
            return Some("what it says of an object is too long".to_owned());
        }
        match serde_json::from_slice(line) {
            Ok(Resource::End) => break true,
            Ok(Resource::Newer) => {}
            Ok(Resource::Unknown) => {
                fault = Some("its version of rnic does not know that".to_owned())
            }
            Ok(Resource::Idle { .. }) => fault = Some(idle(within)),
            Ok(resource) if kind(&resource) == what => each(resource),
            Ok(_) => return Some("it says what it was not asked for".to_owned()),
            Err(error) => {
                let error: String = error.to_string().chars().take(128).collect();
                return Some(format!("what it says is malformed: {error}"));
            }
        }
    };
    if !ended {
        fault = Some(broken(answer, within));
    }
    fault
}

fn idle(within: Duration) -> String {
    format!(
        "no answer within {} s; its program does not poll now, which alone drives its connections",
        within.as_secs_f64()
    )
}

/// Returns why an answer has no end.
fn broken(answer: &Inspected, within: Duration) -> String {
    let seconds = within.as_secs_f64();
    match (&answer.end, answer.said.is_empty()) {
        (InspectionEnd::Refused(refused), _) => refused.message.clone(),
        (InspectionEnd::NotAsked, _) => {
            "it was not asked: other clients that do not answer took all the time".to_owned()
        }
        (InspectionEnd::TimedOut, true) => {
            format!("no answer within {seconds} s; its process may be stopped")
        }
        (InspectionEnd::TimedOut, false) => {
            format!("its answer has no end within {seconds} s; --timeout gives it more time")
        }
        (InspectionEnd::TooLong, _) => format!("it says more than {} MiB", MAX_SAID >> 20),
        (InspectionEnd::Closed, true) => {
            "it gives no answer: it ends, or its version of rnic cannot be asked".to_owned()
        }
        (InspectionEnd::Closed, false) => "its answer breaks off".to_owned(),
    }
}

/// Returns what has to be asked for to hear of an object.
fn kind(resource: &Resource) -> &'static str {
    match resource {
        Resource::Summary(_) => "summary",
        Resource::Pd(_) => "pd",
        Resource::Mr(_) => "mr",
        Resource::Cq(_) => "cq",
        Resource::Qp(_) => "qp",
        Resource::Srq(_) => "srq",
        Resource::Listener(_) => "listener",
        Resource::Connection(_) => "connection",
        Resource::Idle { .. } | Resource::Unknown | Resource::End | Resource::Newer => "",
    }
}

/// Returns the local address of an object, which must be leased if it is true.
fn local(resource: &Resource) -> Option<SocketAddr> {
    match resource {
        Resource::Listener(listener) => Some(listener.local),
        Resource::Connection(connection) => Some(connection.local),
        // That of a connection that is over is not leased any more.
        Resource::Qp(qp) if qp.state == "RTS" => qp.local,
        _ => None,
    }
}

fn has(lease: &LeaseState, port: u32, local: SocketAddr) -> bool {
    let any: IpAddr = match local {
        SocketAddr::V4(_) => [0; 4].into(),
        SocketAddr::V6(_) => [0; 16].into(),
    };
    let is_at = |ip: IpAddr| ip == local.ip() || ip == any;
    lease.port == port && lease.local.port() == local.port() && is_at(lease.local.ip())
}

/// Returns what rnicd knows of a client.
fn known(port: &PortState, users: &mut Users) -> Line {
    Line::default()
        .with("dev", port.netdev.as_str())
        .with("port", port.port)
        .with("user", users.name(port.uid))
        .detail("uid", port.uid)
        .with("pid", port.pid)
        .with("program", port.program.as_str())
}

fn note(port: &PortState, fault: &str) {
    let PortState {
        port, pid, program, ..
    } = port;
    let text = format!("port {port} (pid {pid}, {program}): {fault}");
    out::note(format_args!("rnic-ctl: {}", printable(&text)));
}

/// Returns a word of a client in a form that is safe, and not too long.
pub(super) fn word(text: &str) -> String {
    let text: String = text.chars().take(MAX_CHARACTERS).collect();
    printable(&text)
}

/// Makes a line of the fields of an object, of which text has the others with `-d`.
pub(super) fn line(object: &impl Serialize, details: &[&str]) -> Line {
    let Ok(Value::Object(fields)) = serde_json::to_value(object) else {
        return Line::default();
    };
    fields
        .into_iter()
        .fold(Line::default(), |line, (key, value)| {
            let value = match value {
                Value::String(text) => word(&text).into(),
                other => other,
            };
            match details.contains(&key.as_str()) {
                true => line.detail(key, value),
                false => line.with(key, value),
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(2);

    fn heard(said: &[u8], end: InspectionEnd) -> (Vec<Resource>, Option<String>) {
        let said = said.to_vec();
        let answer = Inspected { port: 1, said, end };
        let mut heard = Vec::new();
        let fault = read(&answer, ("pd", SOON), |one| heard.push(one));
        (heard, fault)
    }

    #[test]
    fn an_answer_is_whole_only_with_its_end() {
        let pd = "{\"type\":\"pd\",\"pdn\":1,\"users\":2,\"new\":[]}\n";
        let closed = |said: &str| heard(said.as_bytes(), InspectionEnd::Closed);
        let (said, fault) = closed(&format!(
            "{pd}{{\"type\":\"news\"}}\n{pd}{{\"type\":\"end\"}}\n"
        ));
        assert_eq!((said.len(), fault), (2, None));
        for (said, words) in [
            ("".to_owned(), "cannot be asked"),
            (pd.to_owned(), "breaks off"),
            (format!("{pd}{{\"type\":\"end\"}}"), "breaks off"),
            (format!("{pd}x\n"), "malformed"),
            (format!("{pd}\n"), "malformed"),
            (format!("{pd}{}\n", "[".repeat(70_000)), "too long"),
            (format!("{pd}{{\"type\":\"pd\",\"pdn\":-1}}\n"), "malformed"),
            (format!("{pd}{{\"type\":\"mr\"}}\n"), "not asked for"),
            (
                format!("{pd}{{\"type\":\"unknown\"}}\n{{\"type\":\"end\"}}\n"),
                "does not know",
            ),
            (
                format!("{pd}{{\"type\":\"idle\",\"engines\":1}}\n{{\"type\":\"end\"}}\n"),
                "does not poll",
            ),
        ] {
            let (heard, fault) = closed(&said);
            assert_eq!(heard.len(), usize::from(!said.is_empty()), "{said}");
            assert!(fault.unwrap().contains(words), "{said}");
        }
        for (end, words) in [
            (InspectionEnd::TimedOut, "no end within 2 s"),
            (InspectionEnd::TooLong, "more than 16 MiB"),
        ] {
            let (said, fault) = heard(pd.as_bytes(), end);
            assert!(said.len() == 1 && fault.unwrap().contains(words));
        }
        let (said, fault) = heard(b"", InspectionEnd::TimedOut);
        assert!(said.is_empty() && fault.unwrap().contains("may be stopped"));
    }

    #[test]
    fn words_of_a_client_are_short_and_harmless() {
        let wicked = "\u{1b}[2J\u{9b}\u{202e}".repeat(100);
        let resource = rnic_verbs::resource::MrResource {
            kind: wicked,
            ..Default::default()
        };
        let line = line(&resource, &[]);
        let json = line.json()["kind"].as_str().unwrap().to_owned();
        assert!(json.len() < 1000 && json.chars().all(|char| matches!(char, ' '..='~')));
    }

    #[test]
    fn a_lease_of_any_address_covers_each() {
        let lease = |local: &str| LeaseState {
            port: 3,
            local: local.parse().unwrap(),
            known_as: None,
            netdev: "eth1".into(),
            uid: 0,
            since: None,
        };
        let at = |lease: &LeaseState, port, local: &str| has(lease, port, local.parse().unwrap());
        for any in ["0.0.0.0:7", "192.0.2.1:7"] {
            assert!(at(&lease(any), 3, "192.0.2.1:7"));
            assert!(!at(&lease(any), 4, "192.0.2.1:7"));
            assert!(!at(&lease(any), 3, "192.0.2.1:8"));
        }
        assert!(!at(&lease("0.0.0.0:7"), 3, "[2001:db8::1]:7"));
        assert!(!at(&lease("192.0.2.2:7"), 3, "192.0.2.1:7"));
    }
}
