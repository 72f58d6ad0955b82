//! `rnic-ctl steering`: what the XDP program of an interface does with its frames.

use clap::Args;
use rnic_xdp::steering;
use serde_json::{Map, json};

use crate::failure::{Failure, Outcome};
use crate::out;

/// Explains what became of the frames that an interface has received, and lists which local ports
/// are steered to rnic.
#[derive(Clone, Debug, Args)]
pub(crate) struct SteeringArgs {
    /// The network interface
    #[arg(long, value_name = "IF")]
    netdev: String,
}

/// Runs the command.
pub(crate) fn run(args: &SteeringArgs, json: bool) -> Outcome {
    let netdev = &args.netdev;
    let failed = |why| failure(netdev, &why);
    let counters = steering::counters(netdev).map_err(failed)?;
    let ports = steering::entries(netdev).map_err(failed)?;
    if json {
        let counters: Map<_, _> = counters
            .entries()
            .map(|(name, frames)| (name.to_owned(), frames.into()))
            .collect();
        let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
        let report = json!({ "netdev": netdev, "frames": counters, "steered": ports });
        return out::line(format_args!("{report:#}"));
    }
    out::line(format_args!(
        "{netdev}: frames received, by what became of them"
    ))?;
    for (name, frames) in counters.entries() {
        let (name, meaning) = (name.replace('_', " "), explain(name));
        out::line(format_args!("  {name:<12} {frames:>14}  {meaning}"))?;
    }
    out::line(format_args!(
        "{netdev}: local addresses and ports steered to rnic"
    ))?;
    for port in &ports {
        out::line(format_args!("  {port}"))?;
    }
    if ports.is_empty() {
        out::line("  none")?;
    }
    Ok(())
}

fn failure(netdev: &str, why: &steering::SteeringError) -> Failure {
    use steering::SteeringError::{NotDriven, OtherProgram};
    let what = format!("read the steering of {netdev}");
    match why {
        NotDriven(_) | OtherProgram { .. } => Failure::operation(what, why),
        _ => Failure::environment(what, why),
    }
}

fn explain(counter: &str) -> &'static str {
    match counter {
        "redirected" => "to rnic; the kernel's TCP saw none of them",
        "no_socket" => "to the kernel: for a steered port, on a queue that rnic has not opened yet",
        "not_steered" => "to the kernel: TCP for other ports",
        "fragments" => "to the kernel: IP fragments",
        "not_tcp" => "to the kernel: other protocols",
        "strangers" => {
            "to the kernel: for a steered port, from peers that may not connect (--allow)"
        }
        "to_ports" => "to the clients that share the interface",
        "no_port" => "to the kernel: for a client whose interface is gone",
        "wrong_queue" => "dropped: for a client that has a hardware queue, but from another queue",
        "unprotected" => {
            "dropped: for a client that speaks protected there or not at all, and unprotected"
        }
        "loopback" => "to the kernel: from or to a loopback address",
        "truncated" => "to the kernel: shorter than their headers say",
        "other_host" => {
            "to the kernel: for a steered port, but to another host's MAC address or VLAN"
        }
        _ => "",
    }
}
