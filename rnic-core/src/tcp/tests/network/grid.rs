//! Goodput of one connection over a grid of paths, beside what theory says for their loss rates.
//!
//! The table is kept in a file, so that a change shows. `RNIC_WRITE_GRID=1` writes it anew.

use core::fmt::Write;
use core::time::Duration;
use std::path::Path;

use super::{Bottleneck, Network};
use crate::tcp::TcpConfig;

/// Jumbo frames with timestamps.
const PAYLOAD: u64 = 8948;
const CONFIG_MSS: u16 = 8960;
const EVENTS: u64 = 200_000;
const LONGEST: Duration = Duration::from_secs(60);
/// For paths with rare losses, so that a dozen losses occur.
const MORE: u32 = 10;

struct Cell {
    bandwidth: u64,
    round_trip: Duration,
    /// Chances in a million.
    loss: u64,
    reordered: bool,
}

impl Cell {
    fn path(&self) -> Bottleneck {
        let product = self.bandwidth / 8 * self.round_trip.as_micros() as u64 / 1_000_000;
        Bottleneck {
            bandwidth: self.bandwidth,
            queue: product.max(256 * 1024),
            loss: self.loss,
            reordering: if self.reordered { 10_000 } else { 0 },
            late: self.round_trip / 8,
            mark_above: None,
        }
    }

    /// Returns the goodput in megabits per second, after slow start, measured as long as the time
    /// for a test allows.
    fn goodput(&self) -> f64 {
        let config = TcpConfig {
            mss: CONFIG_MSS,
            receive_window: 512 << 20,
            ..TcpConfig::default()
        };
        let more = if self.are_losses_rare() { MORE } else { 1 };
        let mut network = Network::new(self.path());
        let flow = network.open(&config, self.round_trip, Duration::ZERO);
        // The first third is slow start.
        network.run(LONGEST * more / 3, EVENTS * u64::from(more) / 3);
        let (at, octets) = (network.now(), network.received(flow));
        network.run(LONGEST * more, EVENTS * u64::from(more));
        let time = network.now().since(at).as_secs_f64();
        (network.received(flow) - octets) as f64 * 8.0 / time / 1e6
    }

    fn are_losses_rare(&self) -> bool {
        self.loss == 100 && self.round_trip > Duration::from_millis(1)
    }

    /// Returns the megabits per second of a window of so many segments.
    fn rate(&self, segments: f64) -> f64 {
        let share = PAYLOAD as f64 / (PAYLOAD + super::OVERHEAD) as f64;
        let limit = self.bandwidth as f64 * share / 1e6;
        (segments * PAYLOAD as f64 * 8.0 / self.round_trip.as_secs_f64() / 1e6).min(limit)
    }

    fn chance(&self) -> f64 {
        self.loss as f64 / 1e6
    }

    /// Returns the window of Reno (Mathis, Semke, Mahdavi, Ott 1997).
    fn mathis(&self) -> f64 {
        self.rate((1.5 / self.chance()).sqrt())
    }

    /// Returns the average window of CUBIC (RFC 9438 section 5.1), where it is larger than that of
    /// Reno.
    fn cubic(&self) -> f64 {
        let factor = (0.4_f64 * (3.0 + 0.7) / (4.0 * (1.0 - 0.7))).powf(0.25);
        let window = factor * (self.round_trip.as_secs_f64() / self.chance()).powf(0.75);
        self.rate(window).max(self.mathis())
    }
}

fn table() -> String {
    let mut table = String::from(
        "Goodput of one CUBIC connection in Mb/s, segments of 8948 octets, by the simulation and by theory.\n\
         Reordered: one segment in a hundred comes an eighth of a round trip late. A run has 200000 events or 60 s, or ten\n\
         times as much at a loss of 0.01 % on long paths; the last three quarters of it count.\n\n  \
         link   RTT    loss | in order reordered | Reno's formula  CUBIC's\n",
    );
    for bandwidth in [1_000_000_000, 10_000_000_000] {
        for round_trip in [100, 10_000, 100_000].map(Duration::from_micros) {
            for loss in [0, 100, 1000, 10_000, 30_000] {
                let cell = |reordered| Cell {
                    bandwidth,
                    round_trip,
                    loss,
                    reordered,
                };
                let (plain, mixed) = (cell(false), cell(true));
                writeln!(
                    table,
                    "{:>2} Gb/s {:>5.1} ms {:>5.2} % | {:>8.0} {:>9.0} | {:>14.0} {:>8.0}",
                    bandwidth / 1_000_000_000,
                    round_trip.as_secs_f64() * 1e3,
                    loss as f64 / 1e4,
                    plain.goodput(),
                    mixed.goodput(),
                    plain.mathis(),
                    plain.cubic(),
                )
                .unwrap();
            }
        }
    }
    table
}

#[test]
#[ignore = "slow: ci/test runs it"]
fn goodput_is_what_it_was() {
    let table = table();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tcp/tests/network/goodput.txt");
    if std::env::var_os("RNIC_WRITE_GRID").is_some() {
        std::fs::write(&kept, &table).unwrap();
    }
    let expected = std::fs::read_to_string(&kept).unwrap();
    assert_eq!(
        table, expected,
        "RNIC_WRITE_GRID=1 keeps the new table:\n{table}"
    );
}
