//! `rnic-ctl metrics`: counters and gauges of what rnicd shares, for Prometheus.

// From the ground up:
// exposition, http, place < snapshot < sheet < connection < serve
mod connection;
mod exposition;
mod http;
mod place;
mod serve;
mod sheet;
mod snapshot;

use std::time::{Duration, Instant};

use clap::Args;

use self::place::Place;
use self::snapshot::Snapshot;
use super::access::Access;
use super::words::Users;
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::out;

/// How long those who ask at about the same time get the same answer, so that nobody keeps rnicd
/// busy by asking.
const FRESH: Duration = Duration::from_secs(1);

/// Prints counters and gauges of what rnicd shares in the text format of Prometheus, as root, or
/// serves them over HTTP.
///
/// Without --listen it prints them once, for the textfile collector of node_exporter:
/// `rnic-ctl metrics | sponge /var/lib/prometheus/node-exporter/rnic.prom`. If rnicd does not run,
/// `rnic_up` is 0 and nothing else is known.
#[derive(Clone, Debug, Args)]
pub(crate) struct MetricsArgs {
    #[command(flatten)]
    access: Access,

    /// Serve http://ADDR/metrics until a signal comes: 127.0.0.1:9752, [::1]:9752, or the path of a
    /// Unix socket as unix:/run/rnic-metrics/metrics.sock. Every local user can read it; a
    /// directory keeps others from a Unix socket
    #[arg(long, value_name = "ADDR")]
    listen: Option<Place>,

    /// Allow addresses other than loopback: whoever reaches them over the network reads who sends
    /// how much, unencrypted and without a password
    #[arg(long, requires = "listen")]
    reachable_from_network: bool,

    /// Count at most this many ports also each by itself: those with the lowest numbers
    #[arg(long, value_name = "PORTS", default_value_t = 0)]
    by_port: usize,
}

/// Runs the command.
pub(crate) fn run(args: &MetricsArgs, interrupt: &Interrupt) -> Outcome {
    let Some(place) = &args.listen else {
        return out::write(&text(args, &mut Users::default())?);
    };
    if !place.is_local() && !args.reachable_from_network {
        let why = "it can be reached over the network, and metrics have no password; listen on 127.0.0.1, [::1] or unix:/PATH, or \
                   say --reachable-from-network";
        return Err(Failure::usage(format!("listen on {place}"), why));
    }
    let listener = place.listen()?;
    out::line(format_args!("listening on {}", listener.place()))?;
    let mut users = Users::default();
    let mut last: Option<(Instant, Outcome<String>)> = None;
    let metrics = || match &last {
        Some((at, text)) if at.elapsed() < FRESH => text.clone(),
        _ => {
            let text = text(args, &mut users);
            last = Some((Instant::now(), text.clone()));
            text
        }
    };
    serve::serve(&listener, metrics, interrupt)
}

/// Asks rnicd, and puts it in the form of Prometheus.
fn text(args: &MetricsArgs, users: &mut Users) -> Outcome<String> {
    let snapshot = Snapshot::take(&args.access, args.by_port)?;
    sheet::text(snapshot.as_ref(), users)
}
