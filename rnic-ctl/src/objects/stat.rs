//! `rnic-ctl stat`: the counters of ports, and their rates.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use clap::Subcommand;
use rnic_manager::Administrator;
use rnic_manager::states::PortState;

use super::access::{ObjectArgs, Style, failed};
use super::filter::{Filter, PORTS};
use super::line::Line;
use super::port::counters;
use super::rates::{Sums, key};
use crate::failure::Outcome;
use crate::interrupt::Interrupt;

const READ: &str = "read the counters";
/// How often rates are shown.
const PERIOD: Duration = Duration::from_secs(1);

/// Shows the counters of ports, or their rates.
///
/// They count the frames that clients sent and received, and those that were dropped, with the
/// reason. What a client with a hardware queue sends and receives is not counted. Users other than
/// root see their own.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the counters of the ports, or of one of them; with -d those that are zero too
    #[command(visible_alias = "list")]
    Show {
        /// The number of the port, or what must be so: dev NAME, port N, pid N, user NAME
        #[arg(value_name = "FILTER")]
        filter: Vec<String>,
    },
    /// Show each second how much each port, or one of them, sends and receives in a second
    Watch {
        /// The number of the port, or what must be so: dev NAME, port N, pid N, user NAME
        #[arg(value_name = "FILTER")]
        filter: Vec<String>,
        /// End after this many seconds
        #[arg(short = 'n', long, value_name = "SECONDS")]
        count: Option<u64>,
    },
}

/// Runs the command.
pub(crate) fn run(args: &ObjectArgs<Verb>, style: Style, interrupt: &Interrupt) -> Outcome {
    let words = match &args.verb {
        Some(Verb::Watch { filter, .. } | Verb::Show { filter }) => filter.as_slice(),
        None => &[],
    };
    let filter = PORTS.parse(words)?;
    let mut administrator = args.access.connect()?;
    let ports = filter.ports(&mut administrator, READ)?;
    if let Some(Verb::Watch { count, .. }) = args.verb {
        let style = args.access.style(style);
        let seconds = count.unwrap_or(u64::MAX);
        return watch(
            &mut administrator,
            ports,
            (&filter, seconds),
            style,
            interrupt,
        );
    }
    let lines: Vec<_> = ports.iter().map(line).collect();
    args.access.print(style, &lines)
}

fn line(port: &PortState) -> Line {
    let line = Line::default()
        .with("port", port.port)
        .with("dev", port.netdev.as_str());
    // Nothing counts what a hardware queue sends and receives.
    if let Some(of) = &port.queue {
        return line.with("queue", of.queue).with("counted", false);
    }
    let sums = Sums::of(port);
    let line = line
        .with("tx_frames", sums.tx_frames)
        .with("tx_octets", sums.tx_octets)
        .with("rx_frames", sums.rx_frames)
        .with("rx_octets", sums.rx_octets)
        .with("dropped_frames", sums.dropped_frames);
    counters(line, port, Line::unless_zero)
}

/// Shows rates, until a number of seconds is over or the user stops it.
fn watch(
    administrator: &mut Administrator,
    ports: Vec<PortState>,
    (filter, seconds): (&Filter, u64),
    style: Style,
    interrupt: &Interrupt,
) -> Outcome {
    let mut before = (Instant::now(), ports);
    for _ in 0..seconds {
        let due = before.0 + PERIOD;
        while let Some(rest) = due.checked_duration_since(Instant::now()) {
            if interrupt.is_signalled() {
                return Ok(());
            }
            // No event was asked for: this waits, and finds out if rnicd goes away.
            let waited = administrator.next_event(rest.max(Duration::from_millis(1)));
            waited.map_err(failed(READ))?;
        }
        // Ports come and go.
        let ports = administrator.ports().map_err(failed(READ))?;
        let now = (Instant::now(), ports);
        let old: HashMap<_, _> = before.1.iter().map(|port| (key(port), port)).collect();
        let ports = now.1.iter();
        let counted = ports.filter(|port| port.queue.is_none());
        for port in counted.filter(|port| filter.admits_port(port)) {
            let sums = old.get(&key(port)).map(|port| Sums::of(port));
            let rates = Sums::of(port).rates(sums.unwrap_or_default(), now.0 - before.0);
            style.print(&rates_line(port, rates))?;
        }
        before = now;
    }
    Ok(())
}

fn rates_line(port: &PortState, rates: Sums) -> Line {
    Line::default()
        .with("port", port.port)
        .with("dev", port.netdev.as_str())
        .with("tx_frames_per_second", rates.tx_frames)
        .with("tx_bits_per_second", rates.tx_octets.saturating_mul(8))
        .with("rx_frames_per_second", rates.rx_frames)
        .with("rx_bits_per_second", rates.rx_octets.saturating_mul(8))
        .with("dropped_frames_per_second", rates.dropped_frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hardware_queue_has_no_counters_that_would_be_zero() {
        let port = |queue: &str| -> PortState {
            let json = format!(
                r#"{{"port":3,"netdev":"eth1","uid":0,"program":"p","pid":9,"connected":true,
                    "frames":1,"huge_octets":0,"leases":0,"since":0,"sent":[],"host_end":null{queue}}}"#
            );
            serde_json::from_str(&json).unwrap()
        };
        let counted = line(&port("")).text(false);
        assert!(counted.contains(" tx_frames 0 "), "{counted}");
        let queue = port(r#","queue":{"queue":2,"copied":null}"#);
        assert_eq!(
            line(&queue).text(true),
            "port 3 dev eth1 queue 2 counted no"
        );
    }
}
