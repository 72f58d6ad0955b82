//! `rnic-ctl stat`: the counters of ports, and their rates.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use rnic_xdp::manager::Administrator;
use rnic_xdp::manager::states::PortState;
use rnic_xdp::sharing::PoliceVerdict;

use super::access::{Access, Style, failed};
use super::line::Line;
use super::port::{counters, select};
use crate::failure::Outcome;
use crate::interrupt::Interrupt;

/// How often rates are shown.
const PERIOD: Duration = Duration::from_secs(1);

/// Shows the counters of ports, or their rates.
///
/// They count the frames that clients sent and received, and those that were dropped, with the reason. Users other than root see
/// their own.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    access: Access,

    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Show the counters of the ports, or of one of them; with -d those that are zero too
    #[command(visible_alias = "list")]
    Show {
        /// The number of the port
        port: Option<u32>,
    },
    /// Show each second how much each port, or one of them, sends and receives in a second
    Watch {
        /// The number of the port
        port: Option<u32>,
        /// End after this many seconds
        #[arg(short = 'n', long, value_name = "SECONDS")]
        count: Option<u64>,
    },
}

/// Runs the command.
pub(crate) fn run(args: &StatArgs, style: Style, interrupt: &Interrupt) -> Outcome {
    let mut administrator = args.access.connect()?;
    match args.verb {
        Some(Verb::Watch { port, count }) => {
            let style = args.access.style(style);
            let seconds = count.unwrap_or(u64::MAX);
            watch(&mut administrator, (port, seconds), style, interrupt)
        }
        Some(Verb::Show { port }) => show(args, &mut administrator, port, style),
        None => show(args, &mut administrator, None, style),
    }
}

fn show(
    args: &StatArgs,
    administrator: &mut Administrator,
    port: Option<u32>,
    style: Style,
) -> Outcome {
    let ports = read(administrator, port)?;
    let lines: Vec<_> = ports.iter().map(line).collect();
    args.access.print(style, &lines)
}

fn read(administrator: &mut Administrator, port: Option<u32>) -> Outcome<Vec<PortState>> {
    let ports = administrator.ports();
    select(ports.map_err(failed("read the counters"))?, port)
}

fn line(port: &PortState) -> Line {
    let sums = Sums::of(port);
    let line = Line::default()
        .with("port", port.port)
        .with("dev", port.netdev.as_str())
        .with("tx_frames", sums.tx_frames)
        .with("tx_octets", sums.tx_octets)
        .with("rx_frames", sums.rx_frames)
        .with("rx_octets", sums.rx_octets)
        .with("dropped_frames", sums.dropped_frames);
    counters(line, port, Line::unless_zero)
}

/// The counters of a port, as its client sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    tx_frames: u64,
    tx_octets: u64,
    rx_frames: u64,
    rx_octets: u64,
    /// Sent by the client, and not let out.
    dropped_frames: u64,
}

impl Sums {
    fn of(port: &PortState) -> Self {
        let mut sums = Self::default();
        let goes_out = [PoliceVerdict::ToNic, PoliceVerdict::ToPort].map(PoliceVerdict::name);
        for sent in &port.sent {
            if goes_out.contains(&sent.verdict.as_str()) {
                sums.tx_frames += sent.frames;
                sums.tx_octets += sent.octets;
            } else {
                sums.dropped_frames += sent.frames;
            }
        }
        // What the host end sends is what the client receives.
        if let Some(host_end) = &port.host_end {
            sums.rx_frames = host_end.tx_packets;
            sums.rx_octets = host_end.tx_octets;
        }
        sums
    }

    /// Returns what was counted in each second of a time.
    fn rates(self, before: Self, time: Duration) -> Self {
        let rate = |now: u64, before: u64| {
            let counted = u128::from(now.saturating_sub(before));
            let nanos = time.as_nanos().max(1);
            u64::try_from(counted * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
        };
        Self {
            tx_frames: rate(self.tx_frames, before.tx_frames),
            tx_octets: rate(self.tx_octets, before.tx_octets),
            rx_frames: rate(self.rx_frames, before.rx_frames),
            rx_octets: rate(self.rx_octets, before.rx_octets),
            dropped_frames: rate(self.dropped_frames, before.dropped_frames),
        }
    }
}

/// Shows rates, until a number of seconds is over or the user stops it.
fn watch(
    administrator: &mut Administrator,
    (wanted, seconds): (Option<u32>, u64),
    style: Style,
    interrupt: &Interrupt,
) -> Outcome {
    let mut before = (Instant::now(), read(administrator, wanted)?);
    for _ in 0..seconds {
        let due = before.0 + PERIOD;
        while let Some(rest) = due.checked_duration_since(Instant::now()) {
            if interrupt.is_signalled() {
                return Ok(());
            }
            // No event was asked for: this waits, and finds out if rnicd goes away.
            let waited = administrator.next_event(rest.max(Duration::from_millis(1)));
            waited.map_err(failed("read the counters"))?;
        }
        let now = (Instant::now(), read(administrator, None)?);
        let old: HashMap<_, _> = before.1.iter().map(|port| (key(port), port)).collect();
        let ports = now.1.iter();
        for port in ports.filter(|port| wanted.is_none_or(|wanted| wanted == port.port)) {
            let sums = old.get(&key(port)).map(|port| Sums::of(port));
            let rates = Sums::of(port).rates(sums.unwrap_or_default(), now.0 - before.0);
            style.print(&rates_line(port, rates))?;
        }
        before = now;
    }
    Ok(())
}

/// What tells a port from a later one of the same number.
fn key(port: &PortState) -> (u32, u64, i32) {
    (port.port, port.since, port.pid)
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
    fn rates_are_for_a_second() {
        let sums = |value| Sums {
            tx_frames: value,
            tx_octets: 2 * value,
            rx_frames: 3 * value,
            rx_octets: 4 * value,
            dropped_frames: 5 * value,
        };
        let half = Duration::from_millis(500);
        assert_eq!(sums(30).rates(sums(10), half), sums(40));
        assert_eq!(sums(10).rates(sums(30), half), sums(0));
        let most = sums(u64::MAX / 5).rates(sums(0), Duration::ZERO);
        assert_eq!(
            most,
            Sums {
                tx_frames: u64::MAX,
                tx_octets: u64::MAX,
                rx_frames: u64::MAX,
                rx_octets: u64::MAX,
                dropped_frames: u64::MAX,
            }
        );
    }
}
