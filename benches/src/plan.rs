//! What is measured, and what is compared with what.

use crate::Failure;
use crate::bed::{Bed, Cores};
use crate::effort::Effort;
use crate::engine;
use crate::kernel;
use crate::pace::Bandwidth;
use crate::pingpong::Latency;
use crate::raw::{self, Work};
use crate::rdma;
use crate::stats::Samples;

/// Octets of the messages of latency measurements.
const PING: usize = 64;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Gigabits of payload in a second, steady.
    Gbps,
    /// Microseconds: the median of the round trips of a run.
    Microseconds,
    /// Nanoseconds for a segment.
    Nanoseconds,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gbps => "Gb/s",
            Self::Microseconds => "us",
            Self::Nanoseconds => "ns/segment",
        }
    }

    /// What [`Row::beside`] is.
    pub(crate) fn beside(self) -> &'static str {
        match self {
            Self::Gbps => "mean",
            Self::Microseconds | Self::Nanoseconds => "p99",
        }
    }
}

/// One quantity, as repeated runs gave it.
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: Unit,
    pub(crate) cores: Cores,
    pub(crate) values: Samples,
    /// What else there is to say of each run: the mean of a bandwidth, the 99th percentile of round trips.
    pub(crate) beside: Samples,
}

impl Row {
    fn new(id: &'static str, title: &'static str, unit: Unit, cores: Cores) -> Self {
        Self {
            id,
            title,
            unit,
            cores,
            values: Samples::default(),
            beside: Samples::default(),
        }
    }
}

/// What one run gave for one row.
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

    /// Runs it once more.
    pub(crate) fn repeat(&mut self, bed: &Bed, effort: &Effort) -> Result<(), Failure> {
        let readings = (self.run)(bed, effort);
        let what = self.rows.first().map_or("", |row| row.title);
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

/// Everything, in the order of the table.
pub(crate) fn everything() -> Result<Vec<Measurement>, Failure> {
    let mut plan = Vec::new();
    for cores in [Cores::One, Cores::Two] {
        plan.extend(bandwidths(cores));
    }
    for cores in [Cores::One, Cores::Two] {
        plan.extend(latencies(cores));
    }
    plan.push(engine_alone()?);
    Ok(plan)
}

fn bandwidths(cores: Cores) -> Vec<Measurement> {
    let raw = |id, title, work| {
        let row = Row::new(id, title, Unit::Gbps, cores);
        Measurement::new(row, move |bed, effort| {
            raw::bandwidth(bed, cores, effort, work)
        })
    };
    let kernel = |id, title, offloads| {
        let row = Row::new(id, title, Unit::Gbps, cores);
        Measurement::new(row, move |bed, effort| {
            kernel::bandwidth(bed, cores, effort, offloads)
        })
    };
    let rnic = Row::new("write-bw", "rnic RDMA Write, 64 KiB", Unit::Gbps, cores);
    vec![
        raw("raw-bw", "raw AF_XDP, 1460-octet payloads", Work::None),
        raw(
            "raw-bw-copy-crc",
            "raw AF_XDP + copy, CRC and copy",
            Work::CopyAndCrc,
        ),
        raw(
            "raw-bw-all",
            "raw AF_XDP + copies, CRCs, checksums",
            Work::Everything,
        ),
        kernel("tcp-bw-on", "kernel TCP, offloads on", true),
        kernel("tcp-bw-off", "kernel TCP, offloads off", false),
        Measurement::new(rnic, move |bed, effort| rdma::bandwidth(bed, cores, effort)),
    ]
}

fn latencies(cores: Cores) -> Vec<Measurement> {
    let row = |id, title| Row::new(id, title, Unit::Microseconds, cores);
    vec![
        Measurement::new(
            row("raw-lat", "raw AF_XDP ping-pong, 64 octets"),
            move |bed, effort| raw::latency(bed, cores, effort, PING),
        ),
        Measurement::new(
            row("tcp-lat", "kernel TCP ping-pong, 64 octets"),
            move |bed, effort| kernel::latency(bed, cores, effort, PING),
        ),
        Measurement::new(
            row("write-lat", "rnic Write ping-pong, 64 octets"),
            move |bed, effort| rdma::write_latency(bed, cores, effort, PING),
        ),
        Measurement::new(
            row("send-lat", "rnic Send ping-pong, 64 octets"),
            move |bed, effort| rdma::send_latency(bed, cores, effort, PING),
        ),
    ]
}

/// The engine without I/O: six rows of one run.
fn engine_alone() -> Result<Measurement, Failure> {
    let row = |id, title| Row::new(id, title, Unit::Nanoseconds, Cores::One);
    let mut pair = engine::Pair::connect()?;
    Ok(Measurement {
        rows: vec![
            row("engine-rx", "engine alone, receive"),
            row("octets-rx", "CRC and copy of the same"),
            row("octets-rx-sum", "CRC, copy and checksum of the same"),
            row("engine-tx", "engine alone, transmit"),
            row("octets-tx", "copy and CRC of the same"),
            row("octets-tx-sum", "copy, CRC and checksum of the same"),
        ],
        run: Box::new(move |bed, effort| {
            let times = bed.on_one(|| Ok(pair.measure(effort.batches)))?;
            let [octets_rx, octets_rx_sum] = times.octets_received;
            let [octets_tx, octets_tx_sum] = times.octets_sent;
            let all = [
                times.receive,
                octets_rx,
                octets_rx_sum,
                times.transmit,
                octets_tx,
                octets_tx_sum,
            ];
            Ok(all.iter().map(|samples| samples.median().into()).collect())
        }),
    })
}

/// A ratio of two rows, on the same number of cores.
pub(crate) struct Comparison {
    pub(crate) title: &'static str,
    pub(crate) of: &'static str,
    pub(crate) to: &'static str,
}

/// What the numbers are for.
pub(crate) const COMPARISONS: &[Comparison] = &[
    Comparison {
        title: "Write ÷ raw AF_XDP",
        of: "write-bw",
        to: "raw-bw",
    },
    Comparison {
        title: "Write ÷ raw AF_XDP with copy, CRC and copy",
        of: "write-bw",
        to: "raw-bw-copy-crc",
    },
    Comparison {
        title: "Write ÷ raw AF_XDP with copies, CRCs, checksums",
        of: "write-bw",
        to: "raw-bw-all",
    },
    Comparison {
        title: "Write ÷ kernel TCP, offloads on",
        of: "write-bw",
        to: "tcp-bw-on",
    },
    Comparison {
        title: "Write ÷ kernel TCP, offloads off",
        of: "write-bw",
        to: "tcp-bw-off",
    },
    Comparison {
        title: "Write round trip ÷ raw AF_XDP",
        of: "write-lat",
        to: "raw-lat",
    },
    Comparison {
        title: "Write round trip ÷ kernel TCP",
        of: "write-lat",
        to: "tcp-lat",
    },
    Comparison {
        title: "Send round trip ÷ raw AF_XDP",
        of: "send-lat",
        to: "raw-lat",
    },
    Comparison {
        title: "Send round trip ÷ kernel TCP",
        of: "send-lat",
        to: "tcp-lat",
    },
    Comparison {
        title: "engine receive ÷ CRC and copy",
        of: "engine-rx",
        to: "octets-rx",
    },
    Comparison {
        title: "engine transmit ÷ copy and CRC",
        of: "engine-tx",
        to: "octets-tx",
    },
];
