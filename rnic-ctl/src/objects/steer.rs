//! `rnic-ctl steer`: what the XDP programs of this host take from the kernel, asked of the kernel
//! itself.

use clap::Subcommand;
use nix::unistd::geteuid;
use rnic_xdp::steering::{Entry, SteeringError, steered, steered_devices};

use super::access::{ObjectArgs, Style};
use super::filter::STEERED;
use super::line::Line;
use crate::failure::{Failure, Outcome};

const WHAT: &str = "show what is steered";

/// Shows the local addresses and ports whose frames go to rnic, of rnicd's clients and of processes
/// that have an interface alone.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show them, or those of one interface, as root
    #[command(visible_alias = "list")]
    Show {
        /// The interface, or what must be so: dev NAME, and of rnicd's clients port N, pid N, user
        /// NAME
        #[arg(value_name = "FILTER")]
        filter: Vec<String>,
    },
}

/// Runs the command.
pub(crate) fn run(args: &ObjectArgs<Verb>, style: Style) -> Outcome {
    let words = args.verb.as_ref().map(|Verb::Show { filter }| filter);
    let filter = STEERED.parse(words.map_or(&[], Vec::as_slice))?;
    let devices = match &filter.dev {
        Some(dev) => vec![dev.clone()],
        None => steered_devices().map_err(failed)?,
    };
    // The kernel shows programs to root alone.
    if devices.is_empty() && !geteuid().is_root() {
        return Err(Failure::environment(WHAT, "only root may (`sudo`)"));
    }
    // The kernel knows no processes and users.
    let ports = match filter.is_of_clients() {
        true => Some(filter.ports(&mut args.access.connect()?, WHAT)?),
        false => None,
    };
    let admits = |number: Option<u32>| {
        let ports = ports.as_ref();
        ports.is_none_or(|ports| ports.iter().any(|port| Some(port.port) == number))
    };
    let mut lines = Vec::new();
    for dev in &devices {
        let entries = steered(dev).map_err(failed)?;
        let entries = entries.iter().filter(|(_, port)| admits(*port));
        lines.extend(entries.map(|entry| line(dev, entry)));
    }
    args.access.print(style, &lines)
}

fn line(dev: &str, (entry, port): &(Entry, Option<u32>)) -> Line {
    Line::default()
        .with("steer", entry.local.to_string())
        .with("vlan", (entry.vlan != 0).then_some(entry.vlan))
        .with("dev", dev)
        .with("port", *port)
}

fn failed(why: SteeringError) -> Failure {
    match why {
        SteeringError::NotDriven(_) | SteeringError::OtherProgram { .. } => {
            Failure::operation(WHAT, why)
        }
        _ => Failure::environment(WHAT, why),
    }
}
