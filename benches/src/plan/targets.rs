//! Comparisons, and the targets.

use super::{Key, Row, Unit};
use crate::bed::Cores;
use crate::effort::{MESSAGE, PING};
use crate::many;
use crate::stats::Samples;

pub(super) const fn key(id: &'static str, mtu: u16, size: usize) -> Key {
    Key { id, mtu, size }
}

const fn bandwidth(id: &'static str) -> Key {
    key(id, 1500, MESSAGE)
}

const fn jumbo(id: &'static str) -> Key {
    key(id, 9000, MESSAGE)
}

const fn latency(id: &'static str) -> Key {
    key(id, 1500, PING)
}

/// A ratio of two rows, on the same number of cores.
pub(crate) struct Comparison {
    pub(crate) title: &'static str,
    pub(crate) of: Key,
    pub(crate) to: Key,
}

/// Two rows of which one wins: more goodput, or a shorter round trip.
pub(crate) struct Contest {
    pub(crate) title: &'static str,
    /// The rivals, with their names.
    pub(crate) one: (&'static str, Key),
    pub(crate) other: (&'static str, Key),
}

/// Who won.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) winner: &'static str,
    /// How many times as good as the other: 1 at least.
    pub(crate) times: f64,
}

impl Contest {
    /// Returns who won, if both were measured.
    pub(crate) fn outcome(&self, rows: &[&Row], cores: Cores) -> Option<Outcome> {
        let [one, other] = [self.one, self.other];
        let less_is_better = find(rows, one.1, cores)?.unit == Unit::Microseconds;
        let (ratio, _) = ratio(rows, one.1, Some(other.1), cores)?;
        let times = if less_is_better { 1.0 / ratio } else { ratio };
        Some(match times >= 1.0 {
            true => Outcome {
                winner: one.0,
                times,
            },
            false => Outcome {
                winner: other.0,
                times: 1.0 / times,
            },
        })
    }
}

pub(super) const fn comparison(title: &'static str, of: Key, to: Key) -> Comparison {
    Comparison { title, of, to }
}

/// What a plan is measured for.
#[derive(Clone, Copy)]
pub(crate) struct Goals {
    /// Ratios without a target.
    pub(crate) comparisons: &'static [Comparison],
    pub(crate) targets: &'static [Target],
    pub(crate) contests: &'static [Contest],
    /// What the limits of the targets are.
    pub(crate) limit: &'static str,
}

/// The goals of rnic beside other systems.
pub(crate) const GOALS: Goals = Goals {
    comparisons: COMPARISONS,
    targets: TARGETS,
    contests: &[],
    limit: "that ratio of raw AF_XDP, or of bare octets, with the headers, the work on octets and an ACK a message that the protocols demand",
};

const COMPARISONS: &[Comparison] = &[
    comparison(
        "Write ÷ raw AF_XDP",
        bandwidth("write-bw"),
        bandwidth("raw-bw"),
    ),
    comparison(
        "Write ÷ raw AF_XDP with all that the protocols ask",
        bandwidth("write-bw"),
        bandwidth("raw-bw-all"),
    ),
    comparison(
        "Write ÷ kernel TCP, offloads on",
        bandwidth("write-bw"),
        bandwidth("tcp-bw-on"),
    ),
    comparison(
        "Write ÷ kernel TCP, offloads off",
        bandwidth("write-bw"),
        bandwidth("tcp-bw-off"),
    ),
    comparison(
        "Write ÷ kernel TCP + MPA and CRC, offloads on",
        bandwidth("write-bw"),
        bandwidth("mpa-bw-on"),
    ),
    comparison(
        "Write ÷ kernel TCP + MPA and CRC, offloads off, MTU 9000",
        jumbo("write-bw"),
        jumbo("mpa-bw-off"),
    ),
    comparison(
        "engine receive, many connections ÷ 1",
        bandwidth("many-engine-rx"),
        bandwidth("engine-rx"),
    ),
    comparison(
        "engine transmit, many connections ÷ 1",
        bandwidth("many-engine-tx"),
        bandwidth("engine-tx"),
    ),
    comparison(
        "engine transmit ÷ copy and CRC",
        bandwidth("engine-tx"),
        bandwidth("octets-tx"),
    ),
];

/// Where a value has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// Whether a target is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Holds,
    Missed,
}

impl Verdict {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Missed => "MISSED",
        }
    }
}

impl Bound {
    /// Returns whether a value meets the bound. One that is not a number does not.
    pub(crate) fn verdict(self, value: f64) -> Verdict {
        let holds = match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        };
        if holds {
            Verdict::Holds
        } else {
            Verdict::Missed
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
            Self::AtMost(bound) => write!(f, "<= {bound}"),
        }
    }
}

/// A value that was promised: a row, or its ratio to another.
pub(crate) struct Target {
    pub(crate) title: &'static str,
    pub(crate) of: Key,
    pub(crate) to: Option<Key>,
    pub(crate) bound: Bound,
    /// The rows that give the value that this machine could reach if the protocols cost nothing, in
    /// the places of `of` and `to`: raw AF_XDP, or memory alone, with only the headers, the work on
    /// octets and the ACKs that the protocols demand. There is one ACK for each message (TCP asks
    /// for more), and none where a reply carries it. For a shared device: redirects that check
    /// nothing.
    pub(crate) limit: Option<(Key, Option<Key>)>,
}

impl Target {
    /// Returns the value that it would have if the protocols cost nothing.
    pub(crate) fn limit(&self, rows: &[&Row], cores: Cores) -> Option<f64> {
        let (of, to) = self.limit?;
        let (limit, _) = ratio(rows, of, to, cores)?;
        Some(limit)
    }
}

pub(super) const fn ratio_target(
    title: &'static str,
    of: Key,
    to: Key,
    bound: Bound,
    limit: Key,
) -> Target {
    Target {
        title,
        of,
        to: Some(to),
        bound,
        limit: Some((limit, Some(to))),
    }
}

const TARGETS: &[Target] = &[
    ratio_target(
        "engine receive ÷ CRC and copy",
        bandwidth("engine-rx"),
        bandwidth("octets-rx"),
        Bound::AtMost(1.3),
        bandwidth("octets-rx-sum"),
    ),
    ratio_target(
        "Write ÷ raw AF_XDP with copy, CRC and copy",
        bandwidth("write-bw"),
        bandwidth("raw-bw-copy-crc"),
        Bound::AtLeast(0.9),
        bandwidth("raw-bw-all-acked"),
    ),
    ratio_target(
        "Write ÷ raw AF_XDP as above, MTU 9000",
        jumbo("write-bw"),
        jumbo("raw-bw-copy-crc"),
        Bound::AtLeast(0.95),
        jumbo("raw-bw-all-acked"),
    ),
    ratio_target(
        "Write ÷ kernel TCP + MPA and CRC, offloads off",
        bandwidth("write-bw"),
        bandwidth("mpa-bw-off"),
        Bound::AtLeast(1.5),
        bandwidth("raw-bw-all-acked"),
    ),
    ratio_target(
        "Write round trip ÷ kernel TCP",
        latency("write-lat"),
        latency("tcp-lat"),
        Bound::AtMost(0.5),
        latency("raw-lat-all"),
    ),
    ratio_target(
        "Send round trip ÷ kernel TCP",
        latency("send-lat"),
        latency("tcp-lat"),
        Bound::AtMost(0.5),
        latency("raw-lat-all"),
    ),
    ratio_target(
        "Write round trip ÷ raw AF_XDP",
        latency("write-lat"),
        latency("raw-lat"),
        Bound::AtMost(1.25),
        latency("raw-lat-all"),
    ),
    ratio_target(
        "Send round trip ÷ raw AF_XDP",
        latency("send-lat"),
        latency("raw-lat"),
        Bound::AtMost(1.25),
        latency("raw-lat-all"),
    ),
    Target {
        title: "million Writes of 8 octets a second and core",
        of: key("write-rate", 1500, 8),
        to: None,
        bound: Bound::AtLeast(5.0),
        limit: None,
    },
    Target {
        title: "goodput of 10,000 connections ÷ 1",
        of: key("many-bw", 1500, many::SIZE),
        to: Some(key("one-bw", 1500, many::SIZE)),
        bound: Bound::AtLeast(0.9),
        limit: Some((
            key("raw-bw-acked", 1500, many::SIZE),
            Some(key("raw-bw-one", 1500, many::SIZE)),
        )),
    },
    Target {
        title: "octets of an idle connection with its QP",
        of: key("idle-connection", 1500, 0),
        to: None,
        bound: Bound::AtMost(4096.0),
        limit: None,
    },
];

/// Returns the row of a key, if it was measured.
pub(crate) fn find<'a>(rows: &[&'a Row], key: Key, cores: Cores) -> Option<&'a Row> {
    let is_it =
        |row: &&&Row| row.key == key && row.cores == cores && !row.values.values().is_empty();
    rows.iter().find(is_it).copied()
}

/// Returns a ratio of medians, and the ratios within each repetition, which show its spread.
pub(crate) fn ratio(
    rows: &[&Row],
    of: Key,
    to: Option<Key>,
    cores: Cores,
) -> Option<(f64, Samples)> {
    let of = &find(rows, of, cores)?.values;
    let Some(to) = to else {
        return Some((of.median(), of.clone()));
    };
    let to = &find(rows, to, cores)?.values;
    let each = of.values().iter().zip(to.values());
    let each: Vec<f64> = each.map(|(of, to)| of / to).collect();
    Some((of.median() / to.median(), each.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &'static str, cores: Cores, values: &[f64]) -> Row {
        Row {
            section: "",
            key: bandwidth(id),
            cores,
            title: "",
            unit: Unit::Gbps,
            values: values.to_vec().into(),
            beside: Samples::default(),
        }
    }

    #[test]
    fn a_bound_itself_is_reached_and_nothing_beyond_it() {
        assert_eq!(Bound::AtLeast(0.9).verdict(0.9), Verdict::Holds);
        assert_eq!(Bound::AtLeast(0.9).verdict(0.899), Verdict::Missed);
        assert_eq!(Bound::AtMost(1.3).verdict(1.3), Verdict::Holds);
        assert_eq!(Bound::AtMost(1.3).verdict(1.301), Verdict::Missed);
    }

    #[test]
    fn what_is_no_number_is_missed() {
        for bound in [Bound::AtLeast(0.0), Bound::AtMost(9.0)] {
            assert_eq!(bound.verdict(f64::NAN), Verdict::Missed);
        }
    }

    #[test]
    fn ratios_are_of_medians_on_the_same_cores_with_the_spread_of_repetitions() {
        let (of, to) = (
            row("a", Cores::Two, &[2.0, 9.0, 4.0]),
            row("b", Cores::Two, &[4.0, 3.0, 2.0]),
        );
        let other = row("b", Cores::One, &[1.0, 1.0, 1.0]);
        let rows = [&other, &of, &to];
        let (a, b) = (bandwidth("a"), bandwidth("b"));
        let (ratio, spread) = super::ratio(&rows, a, Some(b), Cores::Two).unwrap();
        assert_eq!(ratio, 4.0 / 3.0);
        assert_eq!((spread.min(), spread.max()), (0.5, 3.0));
        assert!(super::ratio(&rows, a, Some(b), Cores::One).is_none());
        assert_eq!(super::ratio(&rows, a, None, Cores::Two).unwrap().0, 4.0);
    }

    #[test]
    fn more_goodput_wins_and_a_shorter_round_trip() {
        let (a, b) = (row("a", Cores::One, &[2.0]), row("b", Cores::One, &[5.0]));
        let contest = Contest {
            title: "",
            one: ("the first", a.key),
            other: ("the second", b.key),
        };
        let outcome = |rows: &[&Row]| contest.outcome(rows, Cores::One).unwrap();
        let second = Outcome {
            winner: "the second",
            times: 2.5,
        };
        assert_eq!(outcome(&[&a, &b]), second);
        let in_time = |row: Row| Row {
            unit: Unit::Microseconds,
            ..row
        };
        let first = Outcome {
            winner: "the first",
            ..second
        };
        assert_eq!(outcome(&[&in_time(a), &in_time(b)]), first);
    }

    #[test]
    fn what_was_not_measured_has_no_ratio() {
        let (of, to) = (row("a", Cores::One, &[1.0]), row("b", Cores::One, &[]));
        let (a, b) = (bandwidth("a"), bandwidth("b"));
        assert!(super::ratio(&[&of, &to], a, Some(b), Cores::One).is_none());
    }
}
