//! rnic with its frames protected by ESP, beside itself without, and beside raw AF_XDP that seals and
//! opens what it carries: the limit.

use super::targets::{Bound, Comparison, Goals, Target, comparison, key};
use super::{Measurement, Reading, Unit, row};
use crate::bed::{Bed, Cores};
use crate::effort::{Effort, MESSAGE, PING, Shape};
use crate::failure::Failure;
use crate::pingpong::Latency;
use crate::raw::{self, Work};
use crate::rdma::{self, Setup};

const GOODPUT: &str = "goodput of Writes of 64 KiB";
const GOODPUT_JUMBO: &str = "goodput of Writes of 64 KiB, MTU 9000";
const ROUND_TRIPS: &str = "round trips of 64 octets";

const USUAL: u16 = 1500;
const JUMBO: u16 = 9000;

/// The goals of protected frames.
pub(crate) const PROTECTION_GOALS: Goals = Goals {
    comparisons: COMPARISONS,
    targets: TARGETS,
    contests: &[],
    limit: "none",
};

const COMPARISONS: &[Comparison] = &[
    comparison(
        "protected ÷ plain",
        key("esp-write-bw", USUAL, MESSAGE),
        key("plain-write-bw", USUAL, MESSAGE),
    ),
    comparison(
        "protected ÷ plain, MTU 9000",
        key("esp-write-bw", JUMBO, MESSAGE),
        key("plain-write-bw", JUMBO, MESSAGE),
    ),
];

const fn goodput(title: &'static str, mtu: u16) -> Target {
    Target {
        title,
        of: key("esp-write-bw", mtu, MESSAGE),
        to: Some(key("raw-esp-bw", mtu, MESSAGE)),
        bound: Bound::AtLeast(0.95),
        limit: None,
    }
}

const TARGETS: &[Target] = &[
    goodput("Write, protected ÷ limit", USUAL),
    goodput("Write, protected ÷ limit, MTU 9000", JUMBO),
    Target {
        title: "half a round trip, us more than plain",
        of: key("esp-lat-more", USUAL, PING),
        to: None,
        bound: Bound::AtMost(0.6),
        limit: Some((key("raw-esp-lat-more", USUAL, PING), None)),
    },
];

/// Returns what is measured of protected frames, on a bed that [protects](Bed::protect) them.
pub(crate) fn protection() -> Vec<Measurement> {
    let both = [Cores::One, Cores::Two];
    let mut plan = Vec::new();
    for cores in both {
        for mtu in [USUAL, JUMBO] {
            let shape = Shape {
                cores,
                mtu,
                size: MESSAGE,
            };
            plan.push(limit(shape));
            plan.push(goodput_of(shape, true));
            plan.push(goodput_of(shape, false));
        }
    }
    plan.extend(both.map(round_trips));
    plan
}

/// Returns the section of a goodput.
fn section(shape: Shape) -> &'static str {
    match shape.mtu {
        JUMBO => GOODPUT_JUMBO,
        _ => GOODPUT,
    }
}

fn limit(shape: Shape) -> Measurement {
    let title = "raw AF_XDP + all that is demanded, sealed and opened: the limit";
    let row = row(section(shape), "raw-esp-bw", title, Unit::Gbps, shape);
    Measurement::new(row, move |bed, effort| {
        raw::bandwidth(bed, shape, effort, Work::Sealed)
    })
}

fn goodput_of(shape: Shape, protected: bool) -> Measurement {
    let (id, title) = match protected {
        true => ("esp-write-bw", "rnic Write, ESP with AES-GCM-128"),
        false => ("plain-write-bw", "rnic Write, plain"),
    };
    let row = row(section(shape), id, title, Unit::Gbps, shape);
    Measurement::new(row, move |bed, effort| {
        let (mut client, mut server) = rdma::connect_for(bed, &setup(protected))?;
        rdma::bandwidth_between(bed, (&mut client, &mut server), shape, effort)
    })
}

fn setup(protected: bool) -> Setup {
    Setup {
        protected,
        ..Setup::default()
    }
}

/// Round trips, protected and plain, of rnic and of raw AF_XDP, and half of what protection takes.
fn round_trips(cores: Cores) -> Measurement {
    let shape = Shape {
        cores,
        mtu: USUAL,
        size: PING,
    };
    let row = |id, title| row(ROUND_TRIPS, id, title, Unit::Microseconds, shape);
    Measurement {
        rows: vec![
            row("raw-lat", "raw AF_XDP + all that is demanded"),
            row("raw-esp-lat", "raw AF_XDP + all of it, sealed and opened"),
            row("raw-esp-lat-more", "half of what that takes more"),
            row("plain-lat", "rnic Write, plain"),
            row("esp-lat", "rnic Write, ESP with AES-GCM-128"),
            row("esp-lat-more", "half of what ESP takes more"),
        ],
        run: Box::new(move |bed, effort| {
            let raw = raw::latency(bed, shape, effort, Work::Everything)?;
            let sealed = raw::latency(bed, shape, effort, Work::Sealed)?;
            let plain = round_trip(bed, shape, effort, false)?;
            let protected = round_trip(bed, shape, effort, true)?;
            let more = |of: &Latency, to: &Latency| Reading::from((of.median - to.median) / 2.0);
            let raw_more = more(&sealed, &raw);
            let more = more(&protected, &plain);
            Ok(vec![
                raw.into(),
                sealed.into(),
                raw_more,
                plain.into(),
                protected.into(),
                more,
            ])
        }),
    }
}

fn round_trip(
    bed: &Bed,
    shape: Shape,
    effort: &Effort,
    protected: bool,
) -> Result<Latency, Failure> {
    let (mut client, mut server) = rdma::connect_for(bed, &setup(protected))?;
    rdma::write_latency_between(bed, (&mut client, &mut server), shape, effort)
}
