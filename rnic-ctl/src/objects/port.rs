//! `rnic-ctl port`: the ports of rnicd, which are clients' shares of devices.

use clap::Subcommand;
use rnic_manager::states::{PortState, QueueState};

use super::access::{ObjectArgs, Style};
use super::dev::kernel;
use super::filter::PORTS;
use super::line::Line;
use super::words::{Users, time};
use crate::failure::Outcome;

/// Shows the ports of rnicd, which are clients' shares of devices.
///
/// A line has whose the port is, and since when; if it is a hardware queue of the device, also
/// that, and whether its frames are copied. With -d also what became of the frames that the client
/// sent, and what the kernel says of the host end of the port. Users other than root see their own.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the ports, or one of them
    #[command(visible_alias = "list")]
    Show {
        /// The number of the port, or what must be so: dev NAME, port N, pid N, user NAME
        #[arg(value_name = "FILTER")]
        filter: Vec<String>,
    },
}

/// Runs the command.
pub(crate) fn run(args: &ObjectArgs<Verb>, style: Style) -> Outcome {
    let words = args.verb.as_ref().map(|Verb::Show { filter }| filter);
    let filter = PORTS.parse(words.map_or(&[], Vec::as_slice))?;
    let ports = filter.all_ports(&mut args.access.connect()?, "show the ports")?;
    let mut users = Users::default();
    let lines: Vec<_> = ports.iter().map(|port| line(port, &mut users)).collect();
    args.access.print(style, &lines)
}

fn line(port: &PortState, users: &mut Users) -> Line {
    let line = Line::default()
        .with("port", port.port)
        .with("dev", port.netdev.as_str())
        .with("user", users.name(port.uid))
        .with("uid", port.uid)
        .with("program", port.program.as_str())
        .with("pid", port.pid)
        .with("connected", port.connected);
    let line = match port.ending {
        true => line.with("state", "ending"),
        false => line,
    };
    let line = line
        .with("leases", port.leases)
        .with("frames", port.frames)
        .with("hugepages", port.huge_octets)
        .with("since", time(port.since * 1000));
    let line = match &port.queue {
        Some(QueueState { queue, copied }) => {
            let line = line
                .with("queue", *queue)
                .with("zero_copy", copied.is_none());
            match copied {
                Some(why) => line.detail("copied", why.as_str()),
                None => line,
            }
        }
        None => line,
    };
    let line = counters(line, port, Line::detail);
    kernel(line, "host_end", port.host_end.as_ref())
}

/// Adds the counters of what the client sent, each by `add`.
pub(super) fn counters(
    mut line: Line,
    port: &PortState,
    add: impl Fn(Line, String, u64) -> Line,
) -> Line {
    for sent in &port.sent {
        line = add(line, format!("sent.{}.frames", sent.verdict), sent.frames);
        line = add(line, format!("sent.{}.octets", sent.verdict), sent.octets);
    }
    line
}
