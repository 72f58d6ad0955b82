//! What is measured, in which order, and the targets.

mod alone;
mod isolation;
mod protection;
mod rows;
mod sharing;
mod sockets;
mod targets;

use crate::bed::{Bed, Cores};
use crate::effort::{Effort, Shape};
use crate::failure::Failure;
use crate::pace::Bandwidth;
use crate::pingpong::Latency;
use crate::quiet::Quiet;
use crate::stats::Samples;

pub(crate) use self::isolation::{ISOLATION_GOALS, isolation};
pub(crate) use self::protection::{PROTECTION_GOALS, protection};
pub(crate) use self::rows::{Series, everything, plots};
pub(crate) use self::sharing::{SHARING_GOALS, sharing};
pub(crate) use self::sockets::{SOCKETS_GOALS, sockets};
pub(crate) use self::targets::{GOALS, Goals, Outcome, find, ratio};

/// A section that two modules fill.
const ROUND_TRIPS: &str = "round trips of 64 octets";

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Gigabits of payload in a second, steady.
    Gbps,
    /// Millions of operations in a second, steady.
    Mops,
    /// Microseconds: the median of the round trips of a run.
    Microseconds,
    /// Nanoseconds for a segment.
    Nanoseconds,
    /// Octets of memory.
    Octets,
    /// A pure number.
    One,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gbps => "Gb/s",
            Self::Mops => "M/s",
            Self::Microseconds => "us",
            Self::Nanoseconds => "ns/segment",
            Self::Octets => "octets",
            Self::One => "1",
        }
    }

    /// Returns what [`Row::beside`] is.
    pub(crate) fn beside(self) -> &'static str {
        match self {
            Self::Gbps | Self::Mops => "mean",
            Self::Microseconds | Self::Nanoseconds | Self::Octets | Self::One => "p99",
        }
    }
}

/// The key of a row. Rows that differ in size alone make a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) id: &'static str,
    pub(crate) mtu: u16,
    /// Octets of a message.
    pub(crate) size: usize,
}

/// One quantity, as repeated runs gave it.
pub(crate) struct Row {
    /// Rows of a section stand together in the table.
    pub(crate) section: &'static str,
    pub(crate) key: Key,
    pub(crate) cores: Cores,
    pub(crate) title: &'static str,
    pub(crate) unit: Unit,
    pub(crate) values: Samples,
    /// A second value of each run: the mean of a bandwidth, the 99th percentile of round trips.
    pub(crate) beside: Samples,
}

/// Returns a row without values yet.
fn row(
    section: &'static str,
    id: &'static str,
    title: &'static str,
    unit: Unit,
    shape: Shape,
) -> Row {
    Row {
        section,
        key: Key {
            id,
            mtu: shape.mtu,
            size: shape.size,
        },
        cores: shape.cores,
        title,
        unit,
        values: Samples::default(),
        beside: Samples::default(),
    }
}

/// The value of one run for one row.
struct Reading {
    value: f64,
    beside: Option<f64>,
}

impl From<f64> for Reading {
    fn from(value: f64) -> Self {
        Self {
            value,
            beside: None,
        }
    }
}

impl From<Bandwidth> for Reading {
    fn from(bandwidth: Bandwidth) -> Self {
        Self {
            value: bandwidth.steady,
            beside: Some(bandwidth.mean),
        }
    }
}

impl From<Latency> for Reading {
    fn from(latency: Latency) -> Self {
        Self {
            value: latency.median,
            beside: Some(latency.p99),
        }
    }
}

type Run = Box<dyn FnMut(&Bed, &Effort) -> Result<Vec<Reading>, Failure>>;

/// A measurement that gives one value, or several, each time.
pub(crate) struct Measurement {
    pub(crate) rows: Vec<Row>,
    run: Run,
}

impl Measurement {
    fn new<R: Into<Reading>>(
        row: Row,
        mut run: impl FnMut(&Bed, &Effort) -> Result<R, Failure> + 'static,
    ) -> Self {
        Self {
            rows: vec![row],
            run: Box::new(move |bed, effort| Ok(vec![run(bed, effort)?.into()])),
        }
    }

    /// Runs it once more, `quiet` if that matters.
    pub(crate) fn repeat(
        &mut self,
        bed: &Bed,
        effort: &Effort,
        quiet: Option<&mut Quiet>,
    ) -> Result<(), Failure> {
        let Some(first) = self.rows.first() else {
            return Ok(());
        };
        let what = format!("{}, {} octets", first.title, first.key.size);
        bed.set_mtu(first.key.mtu)?;
        let cores = self.rows.iter().map(|row| row.cores.count()).max();
        let mut run = || (self.run)(bed, effort);
        let readings = match quiet {
            Some(quiet) => quiet.measure(bed, cores.unwrap_or(1).into(), run),
            None => run(),
        };
        let readings = readings.map_err(|error| format!("{what}: {error}"))?;
        for (row, reading) in self.rows.iter_mut().zip(readings) {
            row.values.push(reading.value);
            if let Some(beside) = reading.beside {
                row.beside.push(beside);
            }
        }
        Ok(())
    }
}
