//! `rnic-ctl lease`: the local addresses and TCP ports that ports of rnicd have leased.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use clap::Subcommand;
use rnic_manager::states::LeaseState;

use super::access::{ObjectArgs, Style, failed};
use super::filter::LEASES;
use super::line::Line;
use super::words::{Users, time};
use crate::failure::Outcome;

/// Shows or revokes leases, the local addresses and TCP ports of ports.
///
/// From a lease a port may send, and what arrives there is the port's. Users other than root see
/// their own.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the leases, or those of one port
    #[command(visible_alias = "list")]
    Show {
        /// The number of the port, or what must be so of it: dev NAME, port N, pid N, user NAME
        #[arg(value_name = "FILTER")]
        filter: Vec<String>,
    },
    /// Take a lease away from its port, as root: nothing arrives there and nothing is sent from
    /// there any more
    Revoke {
        /// The number of the port
        port: u32,
        /// What it has leased, such as 192.0.2.1:4420 or [2001:db8::1]:4420
        #[arg(value_name = "ADDR")]
        local: SocketAddr,
    },
}

/// Runs the command.
pub(crate) fn run(args: &ObjectArgs<Verb>, style: Style) -> Outcome {
    const SHOW: &str = "show the leases";
    let words = match &args.verb {
        Some(Verb::Revoke { port, local }) => {
            let revoked = args.access.connect()?.revoke(*port, *local);
            return revoked.map_err(failed("revoke a lease"));
        }
        Some(Verb::Show { filter }) => filter.as_slice(),
        None => &[],
    };
    let filter = LEASES.parse(words)?;
    let mut administrator = args.access.connect()?;
    let leases = administrator.leases().map_err(failed(SHOW))?;
    let ports = filter.ports(&mut administrator, SHOW)?;
    let ports: BTreeSet<_> = ports.iter().map(|port| port.port).collect();
    let mut users = Users::default();
    let lines: Vec<_> = leases
        .into_iter()
        .filter(|lease| ports.contains(&lease.port))
        .map(|lease| line(&lease, &mut users))
        .collect();
    args.access.print(style, &lines)
}

fn line(lease: &LeaseState, users: &mut Users) -> Line {
    Line::default()
        .with("lease", lease.local.to_string())
        .with("known_as", lease.known_as.map(|at| at.to_string()))
        .with("port", lease.port)
        .with("dev", lease.netdev.as_str())
        .with("user", users.name(lease.uid))
        .with("uid", lease.uid)
        .with("since", lease.since.map(|since| time(since * 1000)))
}
