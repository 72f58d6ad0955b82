//! `rnic-ctl top`: devices, clients and users with their rates, on the whole screen.

// From the ground up:
// connections < model < view < text < screen
mod connections;
mod model;
mod screen;
mod text;
mod view;

use std::io::{IsTerminal, stdin, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use rnic_manager::Administrator;

use super::access::{Style, connect, failed};
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::out;
use connections::{Connections, Patience};
use model::{Rows, Sample, WHAT};
use screen::PATIENCE;
use view::View;

/// What is printed has the word of all clients.
const ALL: Patience = Patience {
    most: usize::MAX,
    within: Duration::from_secs(2),
};
/// The width of what is printed.
const BATCH_WIDTH: u16 = 100;

/// Shows devices, clients and users with what they send and receive in a second, on the whole
/// screen.
///
/// A client is a port. CONNS are its connections, as it says itself; "-" stands for one that does
/// not. Frames (f/s) and octets (B/s) are those of the last interval, each way as the client sees
/// it; DROP/s are the frames that it sent and that were not let out (`rnic-ctl -d stat show` has
/// the reasons). Of devices, the kernel counts. Users other than root see their own clients.
///
/// Keys: q quit, p pause, / filter (Enter keeps it, Esc drops it), < and > choose the column to
/// sort by, r reverses, arrows and PgUp, PgDn scroll.
#[derive(Clone, Debug, Args)]
pub(crate) struct TopArgs {
    /// The Unix socket of rnicd. The default is RNICD_SOCKET of the environment, or
    /// /run/rnic/rnicd.sock
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// The seconds between two looks, such as 0.5
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = delay)]
    delay: Duration,

    /// End after this many looks
    #[arg(short = 'n', long, value_name = "COUNT")]
    count: Option<u64>,

    /// Print each look, for scripts; with -j as JSON, one object for each
    #[arg(short, long)]
    batch: bool,
}

fn delay(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let seconds = seconds.filter(|seconds| (0.1..=3600.0).contains(seconds));
    let seconds = seconds.ok_or("a number from 0.1 to 3600 is needed")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Runs the command.
pub(crate) fn run(args: &TopArgs, style: Style, interrupt: &Interrupt) -> Outcome {
    let looks = args.count.unwrap_or(u64::MAX);
    if args.batch {
        return batch(args, looks, style, interrupt);
    }
    if style.json {
        return Err(Failure::usage(WHAT, "the screen is no JSON; add -b"));
    }
    if !stdout().is_terminal() || !stdin().is_terminal() {
        let why = "this is no terminal; -b prints what the screen shows, `rnic-ctl stat watch` a line for each port";
        return Err(Failure::usage(WHAT, why));
    }
    // What fails at first is said as by any other command.
    let mut administrator = connect(args.socket.as_deref()).map_err(failed("connect to rnicd"))?;
    let first = Sample::read(&mut administrator, Connections::default(), screen::SOME);
    let first = first.map_err(failed(WHAT))?;
    let source = screen::Source {
        socket: args.socket.clone(),
        delay: args.delay,
        connections: first.connections.clone(),
        administrator: Some(administrator),
    };
    screen::run(source, first, looks, interrupt)
}

/// Prints looks until they are enough or the user stops it.
fn batch(args: &TopArgs, looks: u64, style: Style, interrupt: &Interrupt) -> Outcome {
    let mut administrator = connect(args.socket.as_deref()).map_err(failed("connect to rnicd"))?;
    let read = |administrator: &mut Administrator| {
        let sample = Sample::read(administrator, Connections::default(), ALL);
        sample.map_err(failed(WHAT))
    };
    let mut before = read(&mut administrator)?;
    for look in 0..looks {
        let due = before.at + args.delay;
        while let Some(rest) = due.checked_duration_since(Instant::now()) {
            if interrupt.is_signalled() {
                return Ok(());
            }
            // No event was asked for: this waits, and finds out if rnicd goes away.
            let waited = administrator.next_event(rest.clamp(Duration::from_millis(1), PATIENCE));
            waited.map_err(failed(WHAT))?;
        }
        let now = read(&mut administrator)?;
        let rows = Rows::of(&now, Some(&before));
        if style.json {
            style.value(&rows.json())?;
        } else {
            let gap = if look > 0 { "\n" } else { "" };
            let text = text::tables(&rows, &View::default(), BATCH_WIDTH);
            out::write(&format!("{gap}{}\n", text.join("\n")))?;
        }
        before = now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_seconds() {
        assert_eq!(delay("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(delay("3600"), Ok(Duration::from_secs(3600)));
        for wrong in ["0", "-1", "NaN", "inf", "1s", "", "3601"] {
            assert!(delay(wrong).is_err(), "{wrong}");
        }
    }
}
