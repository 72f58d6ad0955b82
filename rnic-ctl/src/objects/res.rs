//! `rnic-ctl res`: the RDMA objects of clients, and of processes with devices of their own.

use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use rnic_verbs::resource::Resource;

use super::access::{ObjectArgs, Style};
use super::asked::{self, Asking};
use super::filter::{QPS, RESOURCES};
use super::line::Line;
use super::said;
use crate::failure::Outcome;

/// Shows RDMA objects, as `rdma resource` does those of adapters.
///
/// They are those of rnicd's clients, and those of the processes in this network namespace that use
/// sockets of the kernel or have an interface for themselves (whose lines have "via"; --socket
/// leaves them out). A line has what rnicd knows of the client, or the kernel of the process, and
/// behind "client:" what the program says of itself, which nobody can check. A local address that it has not leased has "leased no". If a client
/// does not answer, the exit code is 1, and -j has an object with "error" in its place. Users other
/// than root see the objects of their own ports.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show how many objects each client has, or those of one kind
    #[command(visible_alias = "list")]
    Show {
        /// The kind of objects
        kind: Option<Kind>,
        /// Show only what is so: dev NAME, port N, pid N, user NAME; of queue pairs also qpn N,
        /// state STATE
        #[arg(value_name = "FILTER")]
        filter: Vec<String>,
    },
}

/// Kinds of objects.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Kind {
    /// Queue pairs
    Qp,
    /// Memory regions and windows
    Mr,
    /// Protection domains
    Pd,
    /// Completion queues
    Cq,
    /// Shared receive queues
    Srq,
    /// Listeners
    Listener,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Qp => "qp",
            Self::Mr => "mr",
            Self::Pd => "pd",
            Self::Cq => "cq",
            Self::Srq => "srq",
            Self::Listener => "listener",
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &ObjectArgs<Verb, Asking>, style: Style) -> Outcome<ExitCode> {
    let (kind, words) = match &args.verb {
        Some(Verb::Show { kind, filter }) => (*kind, filter.as_slice()),
        None => (None, [].as_slice()),
    };
    let filters = match kind {
        Some(Kind::Qp) => QPS,
        _ => RESOURCES,
    };
    let filter = filters.parse(words)?;
    let what = kind.map_or("summary", Kind::name);
    asked::show(&args.access, style, (what, &filter), line)
}

fn line(resource: Resource) -> Option<Line> {
    const QUEUES: &[&str] = &["sq_used", "sq_depth", "rq_used", "rq_depth", "ird", "ord"];
    match resource {
        Resource::Summary(counts) => Some(said::line(&counts, &[])),
        Resource::Qp(qp) => Some(said::line(&qp, QUEUES)),
        Resource::Mr(mr) => Some(said::line(&mr, &[])),
        Resource::Pd(pd) => Some(said::line(&pd, &[])),
        Resource::Cq(cq) => Some(said::line(&cq, &[])),
        Resource::Srq(srq) => Some(said::line(&srq, &[])),
        Resource::Listener(listener) => Some(said::line(&listener, &[])),
        _ => None,
    }
}
