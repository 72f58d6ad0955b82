//! `rnic-ctl client`: the programs that have ports of rnicd.

use clap::{ArgGroup, Args, Subcommand};
use rnic_manager::Administrator;

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
    /// End a port, or all ports of a process: nothing is sent or received there any more, and its
    /// connections end. The process goes on, unless the port is a hardware queue: rnicd cannot take
    /// that away otherwise, and ends (SIGKILL) all processes of the user that have its socket
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
    if let Some(port) = port {
        return administrator.end_port(port).map_err(failed(WHAT));
    }
    let of_process = |administrator: &mut Administrator| -> Outcome<Vec<u32>> {
        let all = administrator.ports().map_err(failed(WHAT))?;
        let own = all.into_iter().filter(|port| Some(port.pid) == pid);
        Ok(own.map(|port| port.port).collect())
    };
    let ports = of_process(&mut administrator)?;
    if ports.is_empty() {
        let pid = pid.unwrap_or_default();
        let why = format!("process {pid} has no port; `rnic-ctl port show` lists who has");
        return Err(Failure::operation(WHAT, why));
    }
    for port in ports {
        // Others may have ended with the process, if one was a hardware queue.
        if of_process(&mut administrator)?.contains(&port) {
            administrator.end_port(port).map_err(failed(WHAT))?;
        }
    }
    Ok(())
}
