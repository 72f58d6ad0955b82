//! `rnic-ctl steer`: what the XDP programs of this host take from the kernel, asked of the kernel itself.

use clap::{Args, Subcommand};
use rnic_xdp::steering::{Entry, SteeringError, steered, steered_devices};

use super::access::{Access, Style};
use super::line::Line;
use crate::failure::{Failure, Outcome};

/// Shows the local addresses and ports whose frames go to rnic, of rnicd's clients and of processes that have an interface alone.
#[derive(Clone, Debug, Args)]
pub(crate) struct SteerArgs {
    #[command(flatten)]
    access: Access,

    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Show them, or those of one interface, as root
    #[command(visible_alias = "list")]
    Show {
        /// The interface
        dev: Option<String>,
    },
}

/// Runs the command.
pub(crate) fn run(args: &SteerArgs, style: Style) -> Outcome {
    let wanted = args
        .verb
        .as_ref()
        .and_then(|Verb::Show { dev }| dev.clone());
    let devices = match wanted {
        Some(dev) => vec![dev],
        None => steered_devices().map_err(failed)?,
    };
    let mut lines = Vec::new();
    for dev in &devices {
        let entries = steered(dev).map_err(failed)?;
        lines.extend(entries.iter().map(|entry| line(dev, entry)));
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
    const WHAT: &str = "show what is steered";
    match why {
        SteeringError::NotDriven(_) | SteeringError::OtherProgram { .. } => {
            Failure::operation(WHAT, why)
        }
        _ => Failure::environment(WHAT, why),
    }
}
