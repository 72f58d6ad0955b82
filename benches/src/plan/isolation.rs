//! A client of a shared device beside neighbours.

use std::rc::Rc;

use super::targets::{Comparison, Goals, comparison, key};
use super::{Measurement, Reading, Unit, row};
use crate::bed::{Bed, Cores, Sharing};
use crate::effort::{MESSAGE, PING, Shape};
use crate::failure::Failure;
use crate::shared::neighbour::Conduct;
use crate::shared::{quota, victim};

/// One core: the client, its peer and the neighbour on the same one. Two cores: the neighbour has
/// one for itself.
const ROUND_TRIPS: &str = "round trips of 64 octets beside a neighbour";
const GOODPUT: &str = "goodput beside a neighbour, messages of 64 KiB";
const PRESSURE: &str = "what the neighbour sends";

/// A neighbour, and the rows beside it: round trips, goodput, and what it sends.
struct Neighbour {
    conduct: Conduct,
    title: &'static str,
    ids: [&'static str; 3],
}

const NEIGHBOURS: [Neighbour; 8] = [
    Neighbour {
        conduct: Conduct::Absent,
        title: "none",
        ids: ["none-lat", "none-bw", "none"],
    },
    Neighbour {
        conduct: Conduct::Honest,
        title: "an honest client, Writes to the same peer",
        ids: ["honest-lat", "honest-bw", "honest"],
    },
    Neighbour {
        conduct: Conduct::Forged,
        title: "a flood of forged frames",
        ids: ["forged-lat", "forged-bw", "forged"],
    },
    Neighbour {
        conduct: Conduct::Valid,
        title: "a flood of valid frames",
        ids: ["valid-lat", "valid-bw", "valid"],
    },
    Neighbour {
        conduct: Conduct::Limited,
        title: "a flood of valid frames, rate = 50Mbit",
        ids: ["limited-lat", "limited-bw", "limited"],
    },
    Neighbour {
        conduct: Conduct::Rationed,
        title: "a flood of valid frames, CPU quota of 20 %",
        ids: ["rationed-lat", "rationed-bw", "rationed"],
    },
    Neighbour {
        conduct: Conduct::Leases,
        title: "leases in a loop",
        ids: ["leases-lat", "leases-bw", "leases"],
    },
    Neighbour {
        conduct: Conduct::Garbage,
        title: "garbage and parts of messages to rnicd",
        ids: ["garbage-lat", "garbage-bw", "garbage"],
    },
];

const fn beside(title: &'static str, id: &'static str) -> Comparison {
    comparison(title, key(id, 1500, MESSAGE), key("none-bw", 1500, MESSAGE))
}

/// There is no bound: a neighbour takes what it may.
pub(crate) const ISOLATION_GOALS: Goals = Goals {
    comparisons: &[
        beside("goodput beside an honest client ÷ without", "honest-bw"),
        beside(
            "goodput beside a flood of forged frames ÷ without",
            "forged-bw",
        ),
        beside(
            "goodput beside a flood of valid frames ÷ without",
            "valid-bw",
        ),
        beside(
            "goodput beside such a flood with rate = 50Mbit ÷ without",
            "limited-bw",
        ),
        beside(
            "goodput beside such a flood with a CPU quota ÷ without",
            "rationed-bw",
        ),
        beside("goodput beside leases in a loop ÷ without", "leases-bw"),
        beside("goodput beside garbage for rnicd ÷ without", "garbage-bw"),
    ],
    targets: &[],
    contests: &[],
    limit: "",
};

/// Returns what is measured of a client beside each neighbour. It starts an rnicd.
pub(crate) fn isolation() -> Result<Vec<Measurement>, Failure> {
    let bed = Rc::new(Bed::shared(Sharing::Ports)?);
    let cores = [Cores::One, Cores::Two].into_iter();
    let plan = cores.flat_map(|cores| {
        let bed = bed.clone();
        let with = move |neighbour| with(&bed, neighbour, cores);
        NEIGHBOURS.iter().filter(|one| can_be(one)).map(with)
    });
    Ok(plan.collect())
}

/// Returns whether this host can have such a neighbour.
fn can_be(neighbour: &Neighbour) -> bool {
    neighbour.conduct != Conduct::Rationed || quota::are_there()
}

fn with(bed: &Rc<Bed>, neighbour: &'static Neighbour, cores: Cores) -> Measurement {
    let bed = bed.clone();
    let [lat, bw, sends] = neighbour.ids;
    let shape = |size| Shape {
        cores,
        mtu: 1500,
        size,
    };
    let row = |section, id, unit, size| row(section, id, neighbour.title, unit, shape(size));
    let mut rows = vec![
        row(ROUND_TRIPS, lat, Unit::Microseconds, PING),
        row(GOODPUT, bw, Unit::Gbps, MESSAGE),
    ];
    if neighbour.conduct.counts() {
        rows.push(row(PRESSURE, sends, Unit::Mops, 0));
    }
    Measurement {
        rows,
        run: Box::new(move |_, effort| {
            let figures = victim::measure(&bed, neighbour.conduct, cores, effort)?;
            let mut readings = vec![figures.latency.into(), figures.goodput.into()];
            readings.extend(figures.pressure.map(Reading::from));
            Ok(readings)
        }),
    }
}
