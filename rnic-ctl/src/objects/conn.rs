//! `rnic-ctl conn`: the connections of clients, and of processes with devices of their own.

use std::process::ExitCode;

use clap::Subcommand;
use rnic_verbs::resource::Resource;
use serde_json::Value;

use super::access::{ObjectArgs, Style};
use super::asked::{self, Asking};
use super::filter::CONNECTIONS;
use super::line::Line;
use super::said;
use crate::failure::Outcome;

/// Shows RDMA connections, as `ss` does those of the kernel.
///
/// They are those of rnicd's clients, and those of the processes in this network namespace that use
/// sockets of the kernel or have an interface for themselves. Of the latter a line has "via": "tcp",
/// "sctp" or "xdp"; --socket leaves them out.
///
/// A line has what rnicd knows of the client, or the kernel of the process, and behind "client:"
/// what the program says of its connection, which nobody can check. With -d lines below have what was agreed on in MPA
/// start-up, and TCP in the words of `ss -ti`: times in milliseconds, windows in segments. -j has
/// sizes and windows in octets, rates in octets a second. A client whose program drives its
/// connections by polling answers when it polls next. If a client does not answer, the exit code is
/// 1, and -j has an object with "error" in its place. Users other than root see their own.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the connections
    #[command(visible_alias = "list")]
    Show {
        /// Show only what is so: dev NAME, port N, pid N, user NAME, qpn N, state STATE
        #[arg(value_name = "FILTER")]
        filter: Vec<String>,
    },
}

/// Runs the command.
pub(crate) fn run(args: &ObjectArgs<Verb, Asking>, style: Style) -> Outcome<ExitCode> {
    let words = match &args.verb {
        Some(Verb::Show { filter }) => filter.as_slice(),
        None => &[],
    };
    let filter = CONNECTIONS.parse(words)?;
    asked::show(&args.access, style, ("connection", &filter), line)
}

fn line(resource: Resource) -> Option<Line> {
    let Resource::Connection(connection) = resource else {
        return None;
    };
    let brief = said::line(&*connection, &[]).without(&["mpa", "tcp"]);
    let with_mpa = match connection.mpa {
        Some(mpa) => brief.below("mpa", said::line(&mpa, &[])),
        None => brief.with("mpa", Value::Null),
    };
    let mut tcp = connection.tcp;
    let fields = said::line(&tcp, &[]);
    tcp.congestion = said::word(&tcp.congestion);
    Some(with_mpa.below_as("tcp", fields, &tcp.to_string()))
}
