//! Asking the clients of ports, and telling what they say from what rnicd knows. A client may lie
//! of itself, and of nobody else. A process whose device rnicd does not know is asked as a client is,
//! and what is certain of it is what the kernel says.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rnic_manager::channel::ChannelError;
use rnic_manager::states::{LeaseState, PortState};
use rnic_manager::{
    Administrator, AskError, DeviceProcess, Inspected, InspectionEnd, inspect_processes,
};
use rnic_verbs::resource::{DeviceResource, Resource};
use serde_json::Value;

use super::access::{Access, Printer, Style, failed};
use super::filter::Filter;
use super::line::Line;
use super::said::{read, word};
use super::words::Users;
use crate::failure::{Failure, Outcome};
use crate::out::{self, printable};

/// What is done, for messages.
const WHAT: &str = "ask clients";
/// What there is not either.
const NOR_PROCESSES: &str =
    "; and no process in this network namespace that you may ask has such a device without rnicd";
/// What is said of processes at whose sockets as many wait as may.
const NOT_REACHED: &str = "more in this network namespace may have such devices, and cannot be asked: \
    others keep their sockets (`ss -xlp | grep rnic/device`) busy; ask again, with a longer --timeout";
/// Why a process that runs closes the connection without a word.
const TAKES_ANOTHER: &str =
    "it gives no answer: in its user namespace you are another user than it is; ask from there";

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

/// Asks clients of rnicd, and processes with devices that rnicd does not know. Prints a line for each
/// object as the answers come: what they say may be long.
pub(super) fn show(
    asking: &Asking,
    style: Style,
    (what, filter): (&str, &Filter),
    line: impl Fn(Resource) -> Option<Line>,
) -> Outcome<ExitCode> {
    let mut report = Report {
        printer: asking.access.printer(style),
        is_json: style.json,
        code: ExitCode::SUCCESS,
        users: Users::default(),
        what,
        within: asking.timeout,
        filter,
    };
    let has_processes = match asking.access.names_rnicd() {
        true => false,
        false => report.processes(&line)?,
    };
    match ports(asking, filter) {
        Ok((administrator, ports)) => report.clients(administrator, &ports, &line)?,
        // There is no rnicd, or it has nothing of what the filter names. The processes have.
        Err(Missing {
            is_certain: true, ..
        }) if has_processes => {}
        Err(missing) => return Err(missing.failure),
    }
    report.printer.end()?;
    Ok(report.code)
}

/// Why there are no ports to ask for.
struct Missing {
    failure: Failure,
    /// It is not that rnicd does not do what it should.
    is_certain: bool,
}

/// Returns the ports whose clients are asked.
fn ports(asking: &Asking, filter: &Filter) -> Result<(Administrator, Vec<PortState>), Missing> {
    let broken = |failure| Missing {
        failure,
        is_certain: false,
    };
    let mut administrator = asking.access.administrator().map_err(|error| {
        let is_certain = matches!(
            error,
            AskError::Channel(
                ChannelError::NoDaemon { .. }
                    | ChannelError::NotPermitted { .. }
                    | ChannelError::Path { .. }
            )
        );
        let mut failure = failed("connect to rnicd")(error);
        if !asking.access.names_rnicd() {
            failure.why.push_str(NOR_PROCESSES);
        }
        Missing {
            failure,
            is_certain,
        }
    })?;
    let ports = administrator.ports();
    let ports = ports.map_err(failed(WHAT)).map_err(broken)?;
    let chosen = filter.choose(ports, &mut administrator, WHAT);
    let ports = chosen.map_err(|failure| Missing {
        failure,
        is_certain: true,
    })?;
    Ok((administrator, ports))
}

/// What is printed of clients.
struct Report<'a> {
    printer: Printer,
    is_json: bool,
    code: ExitCode,
    users: Users,
    what: &'a str,
    within: Duration,
    filter: &'a Filter,
}

impl Report<'_> {
    /// Asks clients of rnicd.
    fn clients(
        &mut self,
        mut administrator: Administrator,
        ports: &[PortState],
        line: impl Fn(Resource) -> Option<Line>,
    ) -> Outcome {
        let before = leases(&mut administrator)?;
        let numbers: Vec<_> = ports.iter().map(|port| port.port).collect();
        let (what, within) = (self.what, self.within);
        let mut printed = Ok(());
        let print = |administrator: &mut Administrator, answers: Vec<(u32, Inspected)>| {
            // Connections come and go meanwhile: what was leased before or is leased now, is.
            printed = leases(administrator).and_then(|now| {
                let leases = [before.as_slice(), &now].concat();
                answers.iter().try_for_each(|(of, answer)| {
                    let port = ports.iter().find(|port| port.port == *of);
                    port.map_or(Ok(()), |port| self.client(port, answer, &leases, &line))
                })
            });
            printed.is_ok()
        };
        let asked = administrator.inspect(&numbers, what, within, print);
        asked.map_err(failed(WHAT))?;
        printed
    }

    /// Prints what a client says, beside what rnicd knows of it.
    fn client(
        &mut self,
        port: &PortState,
        answer: &Inspected,
        leases: &[LeaseState],
        line: impl Fn(Resource) -> Option<Line>,
    ) -> Outcome {
        let known = known(port, &mut self.users);
        let mut printed = Ok(());
        let fault = read(answer, (self.what, self.within), |resource| {
            let local = local(&resource);
            let passes = printed.is_ok() && self.filter.admits(&resource);
            let Some(said) = passes.then(|| line(resource)).flatten() else {
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
        let PortState { pid, program, .. } = port;
        let of = format!("port {} (pid {pid}, {program})", port.port);
        fault.map_or(Ok(()), |fault| self.fault(known, &of, &fault))
    }

    /// Asks processes of this network namespace that have devices without rnicd. Returns whether
    /// there are any such as the filter wants.
    fn processes(&mut self, line: impl Fn(Resource) -> Option<Line>) -> Outcome<bool> {
        let (what, within, filter) = (self.what, self.within, self.filter);
        let (mut has_any, mut printed) = (false, Ok(()));
        let wanted = |process: &DeviceProcess| filter.admits_process(process);
        let not_reached = inspect_processes(what, within, wanted, |some| {
            printed = some.iter().try_for_each(|(process, answer)| {
                has_any |= self.process(process, answer, &line)?;
                Ok(())
            });
            printed.is_ok()
        });
        printed?;
        if not_reached > 0 {
            self.code = ExitCode::FAILURE;
            out::note(format_args!("rnic-ctl: {not_reached} {NOT_REACHED}"));
        }
        Ok(has_any || not_reached > 0)
    }

    /// Prints what a process says, beside what the kernel knows of it. Returns whether its device is
    /// one that the filter wants.
    fn process(
        &mut self,
        process: &DeviceProcess,
        answer: &Inspected,
        line: impl Fn(Resource) -> Option<Line>,
    ) -> Outcome<bool> {
        let (mut device, mut printed) = (None, Ok(()));
        let fault = read(answer, (self.what, self.within), |resource| {
            if let Resource::Device(said) = resource {
                device.get_or_insert(said);
                return;
            }
            let passes = self.filter.admits_device(device.as_ref());
            let passes = passes && printed.is_ok() && self.filter.admits(&resource);
            let Some(said) = passes.then(|| line(resource)).flatten() else {
                return;
            };
            let known = known_process(process, device.as_ref(), &mut self.users);
            printed = self.printer.print(&known.behind("client", said));
        });
        printed?;
        if !self.filter.admits_device(device.as_ref()) {
            return Ok(false);
        }
        let is_over = answer.said.is_empty() && answer.end == InspectionEnd::Closed;
        if is_over && process.has_ended() {
            return Ok(false);
        }
        let fault = match is_over {
            true => Some(TAKES_ANOTHER.to_owned()),
            false => fault,
        };
        if let Some(fault) = fault {
            let known = known_process(process, device.as_ref(), &mut self.users);
            self.fault(known, &format!("pid {}", process.pid), &fault)?;
        }
        Ok(true)
    }

    /// Prints why somebody has not said all.
    fn fault(&mut self, known: Line, of: &str, fault: &str) -> Outcome {
        self.code = ExitCode::FAILURE;
        if self.is_json {
            return self.printer.print(&known.with("error", fault));
        }
        let text = format!("{of}: {fault}");
        out::note(format_args!("rnic-ctl: {}", printable(&text)));
        Ok(())
    }
}

fn leases(administrator: &mut Administrator) -> Outcome<Vec<LeaseState>> {
    administrator.leases().map_err(failed("show the leases"))
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

/// Returns what the kernel knows of a process, and what that says of its device. Text has the latter
/// in front all the same, where lines of rnicd's clients have it.
fn known_process(
    process: &DeviceProcess,
    device: Option<&DeviceResource>,
    users: &mut Users,
) -> Line {
    let said = |of: fn(&DeviceResource) -> &str| device.map(|device| word(of(device)));
    Line::default()
        .with("dev", said(|device| &device.netdev))
        .with("port", Value::Null)
        .with("via", said(|device| &device.via))
        .with("user", users.name(process.uid))
        .detail("uid", process.uid)
        .with("pid", process.pid)
        .with("program", said(|device| &device.program))
}

#[cfg(test)]
mod tests {
    use super::*;

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
