//! A device that rnicd shares, beside one that a client has alone.

use std::rc::Rc;

use super::targets::{Bound, Comparison, Goals, Target, comparison, key, ratio_target};
use super::{Key, Measurement, Reading, Unit, row};
use crate::bed::{Bed, Cores, Sharing};
use crate::effort::{MESSAGE, PING, Shape};
use crate::failure::Failure;
use crate::pingpong::Latency;
use crate::rdma;
use crate::shared::crowd::{self, Carried, Crowd};

/// Those who have the device at once.
const CLIENTS: usize = 8;
/// How much longer than other bandwidth measurements that with many clients takes: each is to have
/// many turns.
const LONGER: u32 = 4;

const ROUND_TRIPS: &str = "round trips of 64 octets";
const ONE_CLIENT: &str = "goodput of one client, messages of 64 KiB";
const CROWD: &str = "goodput of 8 at once, messages of 64 KiB";
const FAIRNESS: &str = "fairness of 8 at once (Jain's index)";

const fn latency(id: &'static str) -> Key {
    key(id, 1500, PING)
}

const fn goodput(id: &'static str) -> Key {
    key(id, 1500, MESSAGE)
}

/// The goals of a shared device.
pub(crate) const SHARING_GOALS: Goals = Goals {
    comparisons: COMPARISONS,
    targets: TARGETS,
    contests: &[],
    limit: "the same with redirects that check nothing, in the place of police and of steer's lookup",
};

const COMPARISONS: &[Comparison] = &[
    comparison(
        "round trip through a port ÷ alone",
        latency("port-lat"),
        latency("alone-lat"),
    ),
    comparison(
        "goodput through a port ÷ redirects that check nothing",
        goodput("port-bw"),
        goodput("plain-bw"),
    ),
    comparison(
        "goodput of 8 processes with a port each ÷ 8 ports of one",
        goodput("processes-bw"),
        goodput("ports-bw"),
    ),
];

const TARGETS: &[Target] = &[
    Target {
        title: "us more of a round trip, one side shared",
        of: latency("port-lat-more"),
        to: None,
        bound: Bound::AtMost(0.5),
        limit: Some((latency("plain-lat-more"), None)),
    },
    ratio_target(
        "goodput through a port ÷ alone",
        goodput("port-bw"),
        goodput("alone-bw"),
        Bound::AtLeast(0.8),
        goodput("plain-bw"),
    ),
    ratio_target(
        "goodput of 8 ports of one process ÷ alone",
        goodput("ports-bw"),
        goodput("connections-bw"),
        Bound::AtLeast(0.8),
        goodput("plain-ports-bw"),
    ),
    ratio_target(
        "goodput of 8 processes ÷ 8 connections, alone",
        goodput("processes-bw"),
        goodput("connections-bw"),
        Bound::AtLeast(0.8),
        goodput("plain-processes-bw"),
    ),
    Target {
        title: "fairness of 8 processes (Jain's index)",
        of: goodput("processes-fair"),
        to: None,
        bound: Bound::AtLeast(0.95),
        limit: Some((goodput("plain-processes-fair"), None)),
    },
];

/// The three ways of the same frames.
struct Ways {
    ports: Bed,
    plain: Bed,
}

/// Returns what is measured of a shared device. It starts the rnicd of each way.
pub(crate) fn sharing() -> Result<Vec<Measurement>, Failure> {
    let ways = Rc::new(Ways {
        ports: Bed::shared(Sharing::Ports)?,
        plain: Bed::shared(Sharing::Plain)?,
    });
    let both = [Cores::One, Cores::Two];
    let mut plan: Vec<_> = both.map(|cores| round_trips(&ways, cores)).into();
    plan.extend(both.map(|cores| one_client(&ways, cores)));
    plan.push(many_clients(&ways));
    Ok(plan)
}

fn shape(cores: Cores, size: usize) -> Shape {
    Shape {
        cores,
        mtu: 1500,
        size,
    }
}

/// Round trips of all three ways, and what the two longer ones take more.
fn round_trips(ways: &Rc<Ways>, cores: Cores) -> Measurement {
    let (ways, shape) = (ways.clone(), shape(cores, PING));
    let row = |id, title| row(ROUND_TRIPS, id, title, Unit::Microseconds, shape);
    Measurement {
        rows: vec![
            row("alone-lat", "alone"),
            row("port-lat", "through a port"),
            row("plain-lat", "through redirects that check nothing"),
            row("port-lat-more", "through a port, more than alone"),
            row("plain-lat-more", "through these redirects, more than alone"),
        ],
        run: Box::new(move |alone, effort| {
            let beds = [alone, &ways.ports, &ways.plain];
            let times = in_turn(beds, |bed| rdma::write_latency(bed, shape, effort))?;
            let medians = times.each_ref().map(|one: &Latency| one.median);
            let more = [medians[1] - medians[0], medians[2] - medians[0]];
            let times = times.map(Reading::from).into_iter();
            Ok(times.chain(more.map(Reading::from)).collect())
        }),
    }
}

/// Goodput of one client, in this process.
fn one_client(ways: &Rc<Ways>, cores: Cores) -> Measurement {
    let (ways, shape) = (ways.clone(), shape(cores, MESSAGE));
    let row = |id, title| row(ONE_CLIENT, id, title, Unit::Gbps, shape);
    Measurement {
        rows: vec![
            row("alone-bw", "alone"),
            row("port-bw", "through a port"),
            row("plain-bw", "through redirects that check nothing"),
        ],
        run: Box::new(move |alone, effort| {
            let beds = [alone, &ways.ports, &ways.plain];
            let rates = in_turn(beds, |bed| rdma::bandwidth(bed, shape, effort))?;
            Ok(rates.map(Reading::from).into())
        }),
    }
}

/// Goodput of many, which share a processor; the peer has the other. Alone one process can have a
/// device, with many connections. On a shared one each connection has a port: all ports are of one
/// process, or each is of its own. The latter shows what so many processes on one processor cost.
fn many_clients(ways: &Rc<Ways>) -> Measurement {
    let (ways, shape) = (ways.clone(), shape(Cores::Two, MESSAGE));
    let goodput = |id, title| row(CROWD, id, title, Unit::Gbps, shape);
    let fairness = |id, title| row(FAIRNESS, id, title, Unit::One, shape);
    Measurement {
        rows: vec![
            goodput("connections-bw", "8 connections of one process, alone"),
            goodput("ports-bw", "8 ports of one process"),
            goodput("plain-ports-bw", "the same, redirects that check nothing"),
            goodput("processes-bw", "8 processes with a port each"),
            goodput("plain-processes-bw", "these, redirects that check nothing"),
            fairness("connections-fair", "8 connections of one process, alone"),
            fairness("ports-fair", "8 ports of one process"),
            fairness("plain-ports-fair", "the same, redirects that check nothing"),
            fairness("processes-fair", "8 processes with a port each"),
            fairness(
                "plain-processes-fair",
                "these, redirects that check nothing",
            ),
        ],
        run: Box::new(move |alone, effort| {
            let measure = |bed, processes, ports, connections| {
                let crowd = Crowd {
                    processes,
                    ports,
                    connections,
                };
                crowd::measure(bed, crowd, LONGER * effort.duration)
            };
            let carried: [Carried; 5] = [
                measure(alone, 1, 1, CLIENTS)?,
                measure(&ways.ports, 1, CLIENTS, 1)?,
                measure(&ways.plain, 1, CLIENTS, 1)?,
                measure(&ways.ports, CLIENTS, 1, 1)?,
                measure(&ways.plain, CLIENTS, 1, 1)?,
            ];
            let rates = carried.iter().map(|one| one.goodput.into());
            let shares = carried.iter().map(|one| one.fairness.into());
            Ok(rates.chain(shares).collect())
        }),
    }
}

fn in_turn<T>(
    beds: [&Bed; 3],
    mut measure: impl FnMut(&Bed) -> Result<T, Failure>,
) -> Result<[T; 3], Failure> {
    let [alone, ports, plain] = beds;
    Ok([measure(alone)?, measure(ports)?, measure(plain)?])
}
