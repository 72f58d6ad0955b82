//! Everything that is measured.

use super::{Measurement, ROUND_TRIPS, Reading, Unit, alone, row};
use crate::bed::{Bed, Cores};
use crate::effort::{Effort, MESSAGE, PING, Shape};
use crate::failure::Failure;
use crate::framed::Calls;
use crate::pace::Bandwidth;
use crate::pingpong::Latency;
use crate::raw::Work;
use crate::short::ShortMessages;
use crate::{framed, kernel, many, memory, octets, raw, rdma};

/// Message sizes of the curves, beside those of the table.
const BANDWIDTH_SIZES: [usize; 8] = [
    64,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    MESSAGE,
    256 << 10,
    1 << 20,
];
const LATENCY_SIZES: [usize; 5] = [8, PING, 512, 4 << 10, 32 << 10];
const JUMBO: u16 = 9000;

/// A system that is compared: how it moves messages.
struct System<Outcome: 'static> {
    id: &'static str,
    title: &'static str,
    /// Measured over all message sizes too.
    curve: bool,
    run: fn(&Bed, Shape, &Effort) -> Result<Outcome, Failure>,
}

const BANDWIDTHS: [System<Bandwidth>; 9] = [
    System {
        id: "raw-bw",
        title: "raw AF_XDP",
        curve: false,
        run: |bed, shape, effort| raw::bandwidth(bed, shape, effort, Work::None),
    },
    System {
        id: "raw-bw-copy-crc",
        title: "raw AF_XDP + copy, CRC and copy",
        curve: true,
        run: |bed, shape, effort| raw::bandwidth(bed, shape, effort, Work::CopyAndCrc),
    },
    System {
        id: "raw-bw-all",
        title: "raw AF_XDP + copies, CRCs, checksums, headers",
        curve: false,
        run: |bed, shape, effort| raw::bandwidth(bed, shape, effort, Work::Everything),
    },
    System {
        id: "raw-bw-all-acked",
        title: "raw AF_XDP + all of these and ACKs",
        curve: false,
        run: |bed, shape, effort| raw::bandwidth(bed, shape, effort, Work::Acknowledged),
    },
    System {
        id: "tcp-bw-on",
        title: "kernel TCP, offloads on",
        curve: true,
        run: |bed, shape, effort| kernel::bandwidth(bed, shape, effort, true),
    },
    System {
        id: "tcp-bw-off",
        title: "kernel TCP, offloads off",
        curve: true,
        run: |bed, shape, effort| kernel::bandwidth(bed, shape, effort, false),
    },
    System {
        id: "mpa-bw-on",
        title: "kernel TCP + MPA and CRC, offloads on",
        curve: true,
        run: |bed, shape, effort| framed::bandwidth(bed, shape, effort, true, Calls::EachMessage),
    },
    System {
        id: "mpa-bw-off",
        title: "kernel TCP + MPA and CRC, offloads off",
        curve: true,
        run: |bed, shape, effort| framed::bandwidth(bed, shape, effort, false, Calls::EachMessage),
    },
    System {
        id: "write-bw",
        title: "rnic RDMA Write",
        curve: true,
        run: rdma::bandwidth,
    },
];

/// What one connection and many would do if the protocols cost nothing.
const WITHOUT_PROTOCOLS: [System<Bandwidth>; 2] = [
    System {
        id: "raw-bw-one",
        title: "raw AF_XDP + copies, CRCs, checksums",
        curve: false,
        run: |bed, shape, effort| raw::bandwidth(bed, shape, effort, Work::Everything),
    },
    System {
        id: "raw-bw-acked",
        title: "raw AF_XDP + all of these and ACKs",
        curve: false,
        run: |bed, shape, effort| raw::bandwidth(bed, shape, effort, Work::Acknowledged),
    },
];

const OCTETS: [System<Bandwidth>; 3] = [
    System {
        id: "memory-copy",
        title: "memcpy",
        curve: false,
        run: |bed, shape, effort| octets::bandwidth(bed, shape, effort, octets::OctetWork::Copy),
    },
    System {
        id: "memory-crc",
        title: "CRC",
        curve: false,
        run: |bed, shape, effort| octets::bandwidth(bed, shape, effort, octets::OctetWork::Crc),
    },
    System {
        id: "memory-copy-crc-copy",
        title: "memcpy, CRC and memcpy",
        curve: false,
        run: |bed, shape, effort| {
            octets::bandwidth(bed, shape, effort, octets::OctetWork::CopyCrcCopy)
        },
    },
];

const LATENCIES: [System<Latency>; 6] = [
    System {
        id: "raw-lat",
        title: "raw AF_XDP ping-pong",
        curve: true,
        run: |bed, shape, effort| raw::latency(bed, shape, effort, Work::None),
    },
    System {
        id: "raw-lat-all",
        title: "the same + copies, CRCs, checksums, headers",
        curve: false,
        run: |bed, shape, effort| raw::latency(bed, shape, effort, Work::Everything),
    },
    System {
        id: "tcp-lat",
        title: "kernel TCP ping-pong",
        curve: true,
        run: kernel::latency,
    },
    System {
        id: "mpa-lat",
        title: "kernel TCP + MPA and CRC ping-pong",
        curve: true,
        run: framed::latency,
    },
    System {
        id: "write-lat",
        title: "rnic Write ping-pong",
        curve: true,
        run: rdma::write_latency,
    },
    System {
        id: "send-lat",
        title: "rnic Send ping-pong",
        curve: true,
        run: rdma::send_latency,
    },
];

/// A curve of a plot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Series {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
}

/// Plots over message size: their names, their titles, their units, their curves.
pub(crate) fn plots() -> [(&'static str, &'static str, Unit, Vec<Series>); 2] {
    fn curves<Outcome>(systems: &'static [System<Outcome>]) -> Vec<Series> {
        let curves = systems.iter().filter(|system| system.curve);
        curves
            .map(|System { id, title, .. }| Series { id, title })
            .collect()
    }
    let goodput = curves(&BANDWIDTHS);
    let round_trips = curves(&LATENCIES);
    [
        (
            "goodput",
            "Goodput, one connection, MTU 1500",
            Unit::Gbps,
            goodput,
        ),
        (
            "round-trip",
            "Round trip, both ends polling, MTU 1500",
            Unit::Microseconds,
            round_trips,
        ),
    ]
}

/// Makes all measurements, in the order of the table. `connections` is the number for those with
/// many.
pub(crate) fn everything(connections: usize) -> Result<Vec<Measurement>, Failure> {
    let mut plan = Vec::new();
    let both = [Cores::One, Cores::Two];
    let shape = |mtu, size| move |cores| Shape { cores, mtu, size };
    for shape in both.map(shape(1500, MESSAGE)) {
        plan.extend(systems(
            "goodput, messages of 64 KiB, MTU 1500",
            Unit::Gbps,
            &BANDWIDTHS,
            shape,
        ));
    }
    plan.extend(systems(
        "in memory alone, by pieces of 1460 octets",
        Unit::Gbps,
        &OCTETS,
        shape(1500, MESSAGE)(Cores::One),
    ));
    for shape in both.map(shape(JUMBO, MESSAGE)) {
        plan.extend(systems(
            "goodput, messages of 64 KiB, MTU 9000",
            Unit::Gbps,
            &BANDWIDTHS,
            shape,
        ));
    }
    for shape in both.map(shape(1500, PING)) {
        plan.extend(systems(ROUND_TRIPS, Unit::Microseconds, &LATENCIES, shape));
    }
    plan.push(alone::in_memory(
        "write-lat-memory",
        "rnic Write ping-pong in memory, without device",
        ShortMessages::write_both_ways,
    ));
    plan.push(alone::in_memory(
        "send-lat-memory",
        "rnic Send ping-pong in memory, without device",
        ShortMessages::send_both_ways,
    ));
    plan.push(alone::amid_kernel_calls());
    plan.extend(both.map(shape(1500, 8)).map(short_writes));
    plan.push(alone::engine_alone()?);
    plan.push(alone::single_stages()?);
    plan.push(alone::engine_with_many(connections)?);
    plan.push(many_connections(1));
    plan.push(many_connections(connections));
    for shape in both.map(shape(1500, many::SIZE)) {
        plan.extend(systems(
            MESSAGES_OF_MANY,
            Unit::Gbps,
            &WITHOUT_PROTOCOLS,
            shape,
        ));
    }
    plan.push(memory());
    for cores in both {
        for size in BANDWIDTH_SIZES.into_iter().filter(|size| *size != MESSAGE) {
            let shape = shape(1500, size)(cores);
            plan.extend(curves(
                "goodput over message size",
                Unit::Gbps,
                &BANDWIDTHS,
                shape,
            ));
        }
    }
    for cores in both {
        for size in LATENCY_SIZES.into_iter().filter(|size| *size != PING) {
            let shape = shape(1500, size)(cores);
            plan.extend(curves(
                "round trips over message size",
                Unit::Microseconds,
                &LATENCIES,
                shape,
            ));
        }
    }
    Ok(plan)
}

fn systems<Outcome: Into<Reading>>(
    section: &'static str,
    unit: Unit,
    systems: &'static [System<Outcome>],
    shape: Shape,
) -> impl Iterator<Item = Measurement> {
    systems.iter().map(move |system| {
        let row = row(section, system.id, system.title, unit, shape);
        Measurement::new(row, move |bed, effort| (system.run)(bed, shape, effort))
    })
}

/// Makes a measurement for each point of a curve. There are many of them, so each is short.
fn curves<Outcome: Into<Reading>>(
    section: &'static str,
    unit: Unit,
    systems: &'static [System<Outcome>],
    shape: Shape,
) -> impl Iterator<Item = Measurement> {
    let curves = systems.iter().filter(|system| system.curve);
    curves.map(move |system| {
        let row = row(section, system.id, system.title, unit, shape);
        Measurement::new(row, move |bed, effort| {
            (system.run)(bed, shape, &effort.shorter())
        })
    })
}

/// Measures the rate of short Writes.
fn short_writes(shape: Shape) -> Measurement {
    let row = row(
        "short messages",
        "write-rate",
        "rnic RDMA Writes of 8 octets",
        Unit::Mops,
        shape,
    );
    Measurement::new(row, move |bed, effort| {
        let bandwidth = rdma::bandwidth(bed, shape, effort)?;
        let rate = |gigabits: f64| gigabits * 1000.0 / (8 * shape.size) as f64;
        Ok(Bandwidth {
            steady: rate(bandwidth.steady),
            mean: rate(bandwidth.mean),
        })
    })
}

/// Measures the goodput of connections that are all busy, and the memory of an idle one.
fn many_connections(connections: usize) -> Measurement {
    let shape = |cores| Shape {
        cores,
        mtu: 1500,
        size: many::SIZE,
    };
    let (id, title) = match connections {
        1 => ("one-bw", "rnic RDMA Write, one connection"),
        _ => ("many-bw", "rnic RDMA Write, many connections"),
    };
    let goodput = |cores| row(MESSAGES_OF_MANY, id, title, Unit::Gbps, shape(cores));
    let mut rows = vec![goodput(Cores::One), goodput(Cores::Two)];
    if connections > 1 {
        let idle = "idle connection with its QP, beyond its rings";
        rows.push(row(
            MEMORY,
            "idle-connection",
            idle,
            Unit::Octets,
            WITHOUT_MESSAGES,
        ));
    }
    Measurement {
        rows,
        run: Box::new(move |bed, effort| {
            let figures = many::measure(bed, None, connections, effort.duration)?;
            Ok(vec![
                figures.one_core.into(),
                figures
                    .two_cores
                    .map_or_else(|| f64::NAN.into(), Reading::from),
                figures.idle.into(),
            ])
        }),
    }
}

const MESSAGES_OF_MANY: &str = "one and many connections, messages of 8 KiB";

const MEMORY: &str = "memory of one of many, on one side";

const WITHOUT_MESSAGES: Shape = Shape {
    cores: Cores::One,
    mtu: 1500,
    size: 0,
};

/// Returns what registrations and queue pairs without connections cost.
fn memory() -> Measurement {
    let row = |id, title| row(MEMORY, id, title, Unit::Octets, WITHOUT_MESSAGES);
    Measurement {
        rows: vec![
            row("registration", "registration (MR), of 1,000,000"),
            row("queue-pair", "unconnected QP, of 100,000, beyond its rings"),
        ],
        run: Box::new(|_, _| {
            let figures = [memory::registration()?, memory::queue_pair()?];
            Ok(figures.map(Reading::from).into())
        }),
    }
}
