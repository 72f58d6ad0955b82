//! The limits of associations: what one has reached, and what its key managers were told of that.

use crate::device::netlink::Spent;

/// How many numbers are left when the next association is asked for: at a million packets each
/// second that is in four minutes. Extended numbers do not end.
const NEAR: u64 = 1 << 28;

/// What an association has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reached {
    /// Nothing yet.
    #[default]
    Nothing,
    /// Another one is to be negotiated.
    Soft,
    /// It is used no more.
    Hard,
}

impl Reached {
    /// Returns which of its limits, the soft and the hard one, an association has reached by what it
    /// has done. If it is not known that this was genuine, anybody could have done it, and it must
    /// not end the association.
    pub(super) fn by(spent: Spent, limits: [Spent; 2], is_genuine: bool) -> Self {
        match limits.map(|limit| spent.reaches(limit)).into() {
            (_, true) if is_genuine => Self::Hard,
            (false, false) => Self::Nothing,
            _ => Self::Soft,
        }
    }

    /// Returns what an association has reached whose numbers were taken up to one, or of which there
    /// are none left.
    pub(super) fn by_numbers(end: Option<u64>, extended: bool) -> Self {
        let all = if extended { u64::MAX } else { u32::MAX.into() };
        match end {
            None => Self::Hard,
            Some(end) if all - end.min(all) < NEAR => Self::Soft,
            Some(_) => Self::Nothing,
        }
    }
}

/// What an association has reached, and what was told of that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    reached: Reached,
    told: Reached,
}

impl Limits {
    /// Takes note of what was reached. Returns whether that is new.
    pub(super) fn reach(&mut self, reached: Reached) -> bool {
        let is_new = reached > self.reached;
        self.reached = self.reached.max(reached);
        is_new
    }

    /// Returns what the key managers are to be told, until they were.
    pub(super) fn untold(&self) -> Option<Reached> {
        (self.told < self.reached).then_some(self.reached)
    }

    /// Notes that they were told all.
    pub(super) fn note_told(&mut self) {
        self.told = self.reached;
    }

    /// Returns whether the association is used no more.
    pub(super) fn have_ended(&self) -> bool {
        self.reached == Reached::Hard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_not_told_is_told_again() {
        let mut limits = Limits::default();
        assert_eq!(limits.untold(), None);
        assert!(limits.reach(Reached::Soft) && !limits.reach(Reached::Soft));
        assert_eq!(limits.untold(), Some(Reached::Soft));
        limits.note_told();
        assert_eq!(limits.untold(), None);
        assert!(limits.reach(Reached::Hard) && limits.have_ended());
        // They could not be told, which makes it no better.
        assert!(!limits.reach(Reached::Soft) && limits.have_ended());
        assert_eq!(limits.untold(), Some(Reached::Hard));
        limits.note_told();
        assert_eq!(limits.untold(), None);
        assert!(limits.have_ended());
    }

    #[test]
    fn what_may_be_forged_ends_no_association() {
        let octets = |octets| Spent { octets, packets: 7 };
        let packets = u64::MAX;
        let limits = [1000, 2000].map(|octets| Spent { octets, packets });
        let by =
            |spent| [true, false].map(|is_genuine| Reached::by(octets(spent), limits, is_genuine));
        assert_eq!(by(999), [Reached::Nothing; 2]);
        assert_eq!(by(1000), [Reached::Soft; 2]);
        assert_eq!(by(2000), [Reached::Hard, Reached::Soft]);
        // The kernel is told less, which has the same limits.
        assert_eq!(octets(5000).below(limits[1]), octets(1999));
        assert_eq!(octets(5).below(limits[1]), octets(5));
        // Where there is a hard one alone.
        let [_, hard] = limits;
        let soft = Spent {
            octets: packets,
            packets,
        };
        assert_eq!(
            Reached::by(octets(2000), [soft, hard], false),
            Reached::Soft
        );
    }

    #[test]
    fn numbers_end_where_they_are_not_extended() {
        let all = u64::from(u32::MAX);
        let by = Reached::by_numbers;
        assert_eq!(by(Some(all - NEAR), false), Reached::Nothing);
        assert_eq!(by(Some(all - NEAR + 1), false), Reached::Soft);
        assert_eq!(by(Some(all), false), Reached::Soft);
        assert_eq!(by(Some(all), true), Reached::Nothing);
        assert_eq!(by(Some(u64::MAX - 1), true), Reached::Soft);
        assert_eq!(by(None, false), Reached::Hard);
    }
}
