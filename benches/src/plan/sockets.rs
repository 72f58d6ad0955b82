//! rnic over TCP sockets of the kernel, beside itself over AF_XDP, and beside the kernel's TCP with
//! the CRC and the copies that MPA and placement cost: the limit.

use rnic_verbs::Via;

use super::targets::{Bound, Comparison, Contest, Goals, Target, comparison, key};
use super::{Key, Measurement, Reading, Unit, row};
use crate::bed::{Bed, Cores};
use crate::effort::{Effort, MESSAGE, PING, Shape};
use crate::failure::Failure;
use crate::framed::{self, Calls};
use crate::many;
use crate::pingpong::Latency;
use crate::rdma::{self, Setup};
use crate::streams::{self, Kind};

const GOODPUT: &str = "goodput, offloads on";
const ROUND_TRIPS: &str = "round trips of 64 octets";
const MANY: &str = "one and 1,000 connections, messages of 8 KiB";

const SMALL: usize = 4 << 10;
const LARGE: usize = 1 << 20;
const SIZES: [usize; 3] = [SMALL, MESSAGE, LARGE];

/// The most connections of the rows with many.
const CONNECTIONS: usize = 1000;

/// A way of rnic, and a kind of message.
struct Way {
    id: &'static str,
    title: &'static str,
    via: Via,
    kind: Kind,
}

const fn way(id: &'static str, title: &'static str, via: Via, kind: Kind) -> Way {
    Way {
        id,
        title,
        via,
        kind,
    }
}

const WAYS: [Way; 6] = [
    way("sockets-write", "Write, sockets", Via::Kernel, Kind::Write),
    way("sockets-read", "Read, sockets", Via::Kernel, Kind::Read),
    way("sockets-send", "Send, sockets", Via::Kernel, Kind::Send),
    way("xdp-write", "Write, AF_XDP", Via::Xdp, Kind::Write),
    way("xdp-read", "Read, AF_XDP", Via::Xdp, Kind::Read),
    way("xdp-send", "Send, AF_XDP", Via::Xdp, Kind::Send),
];

const LIMIT: &str = "kernel TCP with MPA's CRC and copies: the limit";

/// The goals of sockets.
pub(crate) const SOCKETS_GOALS: Goals = Goals {
    comparisons: COMPARISONS,
    targets: TARGETS,
    contests: CONTESTS,
    limit: "of many connections: that of the kernel's TCP with MPA's CRC and copies",
};

const COMPARISONS: &[Comparison] = &[
    comparison(
        "1,000 connections, sockets ÷ 1,000 of the limit",
        of_many("sockets-many"),
        of_many("limit-many"),
    ),
    comparison(
        "1,000 connections ÷ 1, AF_XDP",
        of_many("xdp-many"),
        of_many("xdp-one"),
    ),
];

const fn goodput(title: &'static str, id: &'static str, size: usize) -> Target {
    Target {
        title,
        of: key(id, 1500, size),
        to: Some(key("limit-bw", 1500, size)),
        bound: Bound::AtLeast(0.95),
        limit: None,
    }
}

const fn round_trip(title: &'static str, id: &'static str) -> Target {
    Target {
        title,
        of: key(id, 1500, PING),
        to: None,
        bound: Bound::AtMost(1.0),
        limit: None,
    }
}

const fn of_many(id: &'static str) -> Key {
    key(id, 1500, many::SIZE)
}

const TARGETS: &[Target] = &[
    goodput("Write, 4 KiB, sockets ÷ limit", "sockets-write", SMALL),
    goodput("Read, 4 KiB, sockets ÷ limit", "sockets-read", SMALL),
    goodput("Send, 4 KiB, sockets ÷ limit", "sockets-send", SMALL),
    goodput("Write, 64 KiB, sockets ÷ limit", "sockets-write", MESSAGE),
    goodput("Read, 64 KiB, sockets ÷ limit", "sockets-read", MESSAGE),
    goodput("Send, 64 KiB, sockets ÷ limit", "sockets-send", MESSAGE),
    goodput("Write, 1 MiB, sockets ÷ limit", "sockets-write", LARGE),
    goodput("Read, 1 MiB, sockets ÷ limit", "sockets-read", LARGE),
    goodput("Send, 1 MiB, sockets ÷ limit", "sockets-send", LARGE),
    round_trip("Write round trip, us more than the limit", "write-lat-more"),
    round_trip("Send round trip, us more than the limit", "send-lat-more"),
    Target {
        title: "1,000 connections ÷ 1, sockets",
        of: of_many("sockets-many"),
        to: Some(of_many("sockets-one")),
        bound: Bound::AtLeast(0.9),
        limit: Some((of_many("limit-many"), Some(of_many("limit-one")))),
    },
];

const fn contest(title: &'static str, sockets: Key, frames: Key) -> Contest {
    Contest {
        title,
        one: ("sockets", sockets),
        other: ("AF_XDP", frames),
    }
}

const fn of_writes(title: &'static str, size: usize) -> Contest {
    let [sockets, frames] = ["sockets-write", "xdp-write"];
    contest(title, key(sockets, 1500, size), key(frames, 1500, size))
}

const fn of_reads(title: &'static str, size: usize) -> Contest {
    let [sockets, frames] = ["sockets-read", "xdp-read"];
    contest(title, key(sockets, 1500, size), key(frames, 1500, size))
}

const fn of_sends(title: &'static str, size: usize) -> Contest {
    let [sockets, frames] = ["sockets-send", "xdp-send"];
    contest(title, key(sockets, 1500, size), key(frames, 1500, size))
}

const CONTESTS: &[Contest] = &[
    of_writes("Write goodput, 4 KiB", SMALL),
    of_reads("Read goodput, 4 KiB", SMALL),
    of_sends("Send goodput, 4 KiB", SMALL),
    of_writes("Write goodput, 64 KiB", MESSAGE),
    of_reads("Read goodput, 64 KiB", MESSAGE),
    of_sends("Send goodput, 64 KiB", MESSAGE),
    of_writes("Write goodput, 1 MiB", LARGE),
    of_reads("Read goodput, 1 MiB", LARGE),
    of_sends("Send goodput, 1 MiB", LARGE),
    contest(
        "Write round trip, 64 octets",
        key("sockets-write-lat", 1500, PING),
        key("xdp-write-lat", 1500, PING),
    ),
    contest(
        "Send round trip, 64 octets",
        key("sockets-send-lat", 1500, PING),
        key("xdp-send-lat", 1500, PING),
    ),
    contest(
        "goodput of 1,000 connections",
        of_many("sockets-many"),
        of_many("xdp-many"),
    ),
];

/// Returns what is measured of sockets.
pub(crate) fn sockets(connections: usize) -> Vec<Measurement> {
    let both = [Cores::One, Cores::Two];
    let mut plan = Vec::new();
    for cores in both {
        for size in SIZES {
            let shape = shape(cores, size);
            plan.push(limit(shape));
            plan.extend(WAYS.iter().map(|way| stream(way, shape)));
        }
    }
    plan.extend(both.map(round_trips));
    let connections = connections.min(CONNECTIONS);
    for (via, ids) in [
        (Via::Kernel, ["sockets-one", "sockets-many"]),
        (Via::Xdp, ["xdp-one", "xdp-many"]),
    ] {
        let counts = [1, connections].into_iter();
        plan.extend(counts.zip(ids).map(|(count, id)| crowd(via, id, count)));
    }
    plan.push(limit_of_many("limit-one", 1));
    plan.push(limit_of_many("limit-many", connections));
    plan
}

fn shape(cores: Cores, size: usize) -> Shape {
    Shape {
        cores,
        mtu: 1500,
        size,
    }
}

/// Goodput of the limit. It has as many messages in a call as there is room for, as sockets have.
fn limit(shape: Shape) -> Measurement {
    let row = row(GOODPUT, "limit-bw", LIMIT, Unit::Gbps, shape);
    Measurement::new(row, move |bed, effort| {
        framed::bandwidth(bed, shape, effort, true, Calls::Full)
    })
}

/// Goodput of a way.
fn stream(way: &'static Way, shape: Shape) -> Measurement {
    let row = row(GOODPUT, way.id, way.title, Unit::Gbps, shape);
    Measurement::new(row, move |bed, effort| {
        bed.set_offloads(way.via == Via::Kernel)?;
        streams::bandwidth(bed, way.via, way.kind, shape, effort)
    })
}

/// Round trips of the limit, and of both ways, and what sockets take more than the limit. The
/// kernel's offloads are off: a message is one segment.
fn round_trips(cores: Cores) -> Measurement {
    let shape = shape(cores, PING);
    let row = |id, title| row(ROUND_TRIPS, id, title, Unit::Microseconds, shape);
    Measurement {
        rows: vec![
            row("limit-lat", LIMIT),
            row("sockets-write-lat", "Write, sockets"),
            row("sockets-send-lat", "Send, sockets"),
            row("xdp-write-lat", "Write, AF_XDP"),
            row("xdp-send-lat", "Send, AF_XDP"),
            row("write-lat-more", "Write, sockets, more than the limit"),
            row("send-lat-more", "Send, sockets, more than the limit"),
        ],
        run: Box::new(move |bed, effort| {
            let times = [
                framed::latency(bed, shape, effort)?,
                round_trip_of(bed, Via::Kernel, Kind::Write, shape, effort)?,
                round_trip_of(bed, Via::Kernel, Kind::Send, shape, effort)?,
                round_trip_of(bed, Via::Xdp, Kind::Write, shape, effort)?,
                round_trip_of(bed, Via::Xdp, Kind::Send, shape, effort)?,
            ];
            let more = |at: usize| times[at].median - times[0].median;
            let more = [more(1), more(2)].map(Reading::from);
            Ok(times.into_iter().map(Reading::from).chain(more).collect())
        }),
    }
}

fn round_trip_of(
    bed: &Bed,
    via: Via,
    kind: Kind,
    shape: Shape,
    effort: &Effort,
) -> Result<Latency, Failure> {
    let setup = Setup {
        via: Some(via),
        ..Setup::default()
    };
    let (mut client, mut server) = rdma::connect_for(bed, &setup)?;
    let ends = (&mut client, &mut server);
    match kind {
        Kind::Send => rdma::send_latency_between(bed, ends, shape, effort),
        _ => rdma::write_latency_between(bed, ends, shape, effort),
    }
}

/// Goodput of Writes of one connection or many, in one process.
fn crowd(via: Via, id: &'static str, connections: usize) -> Measurement {
    let title = match (via, connections) {
        (Via::Kernel, 1) => "Write, sockets, one connection",
        (Via::Kernel, _) => "Write, sockets, many connections",
        (_, 1) => "Write, AF_XDP, one connection",
        _ => "Write, AF_XDP, many connections",
    };
    let row = |cores| row(MANY, id, title, Unit::Gbps, shape(cores, many::SIZE));
    Measurement {
        rows: vec![row(Cores::One), row(Cores::Two)],
        run: Box::new(move |bed, effort| {
            bed.set_offloads(via == Via::Kernel)?;
            let figures = many::measure(bed, Some(via), connections, effort.duration)?;
            Ok(vec![
                figures.one_core.into(),
                figures
                    .two_cores
                    .map_or_else(|| f64::NAN.into(), Reading::from),
            ])
        }),
    }
}

/// Goodput of the kernel's TCP with MPA's work, of one connection or many.
fn limit_of_many(id: &'static str, connections: usize) -> Measurement {
    let title = match connections {
        1 => "the limit, one connection",
        _ => "the limit, many connections",
    };
    let shape = shape(Cores::One, many::SIZE);
    let row = row(MANY, id, title, Unit::Gbps, shape);
    Measurement::new(row, move |bed, effort| {
        framed::bandwidth_of_many(bed, connections, shape, effort.duration)
    })
}
