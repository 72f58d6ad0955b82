//! `rnic-ctl stat`: the counters of ports, and their rates.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use rnic_xdp::manager::Administrator;
use rnic_xdp::manager::states::PortState;

use super::access::{Access, Style, failed};
use super::line::Line;
use super::port::{counters, select};
use super::rates::{Sums, key};
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
