//! `rnic-ctl client`: the programs that have ports of rnicd.

use clap::{ArgGroup, Args, Subcommand};

use super::access::{Access, failed};
use crate::failure::{Failure, Outcome};

/// Takes ports away from their clients, as root.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClientArgs {
    #[command(flatten)]
    access: Access,

    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// End a port, or all ports of a process: nothing is sent or received there any more, and its connections end. The process goes
    /// on
    #[command(group = ArgGroup::new("which").required(true))]
    Kill {
        /// The number of the port
        #[arg(group = "which")]
        port: Option<u32>,
        /// The process, as `rnic-ctl port show` has it
        #[arg(long, group = "which")]
        pid: Option<i32>,
    },
}

/// Runs the command.
pub(crate) fn run(args: &ClientArgs) -> Outcome {
    const WHAT: &str = "end a port";
    let Verb::Kill { port, pid } = args.verb;
    let mut administrator = args.access.connect()?;
    let mut ports: Vec<_> = port.into_iter().collect();
    if let Some(pid) = pid {
        let all = administrator.ports().map_err(failed(WHAT))?;
        let own = all.into_iter().filter(|port| port.pid == pid);
        ports.extend(own.map(|port| port.port));
        if ports.is_empty() {
            let why = format!("process {pid} has no port; `rnic-ctl port show` lists who has");
            return Err(Failure::operation(WHAT, why));
        }
    }
    ports
        .into_iter()
        .try_for_each(|port| administrator.end_port(port).map_err(failed(WHAT)))
}
