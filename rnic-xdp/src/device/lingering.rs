//! What there is, and what there was until a moment ago: addresses go away for a moment when a
//! lease of DHCP is renewed or a network is set up anew, and connections must survive that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rnic_core::time::Instant;

/// How long what is gone still counts.
const LINGER: Duration = Duration::from_secs(30);

/// A set whose members stay for a while when they are gone.
#[derive(Debug)]
pub(crate) struct Lingering<T>(BTreeMap<T, Option<Instant>>);

impl<T> Default for Lingering<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Clone> Lingering<T> {
    /// Sets what there is now.
    pub(crate) fn set(&mut self, now: Instant, present: BTreeSet<T>) {
        for (member, end) in &mut self.0 {
            if !present.contains(member) {
                end.get_or_insert(now + LINGER);
            }
        }
        self.0
            .extend(present.into_iter().map(|member| (member, None)));
    }

    /// Adds what there is now.
    pub(crate) fn add(&mut self, member: T) {
        self.0.insert(member, None);
    }

    /// Removes what has been gone for long enough. Returns whether there was anything.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let before = self.0.len();
        self.0.retain(|_, end| end.is_none_or(|end| now < end));
        self.0.len() < before
    }

    /// Returns when to [`expire`](Self::expire), if anything is gone.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.0.values().flatten().min().copied()
    }

    /// Returns its members in order.
    pub(crate) fn members(&self) -> impl Iterator<Item = &T> {
        self.0.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_stays_for_a_while_and_may_come_back() {
        let mut set = Lingering::default();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let members = |set: &Lingering<u8>| set.members().copied().collect::<Vec<_>>();
        set.set(at(0), BTreeSet::from([1, 2]));
        assert_eq!(set.next_timeout(), None);
        set.set(at(1), BTreeSet::from([2]));
        assert_eq!(
            (members(&set), set.next_timeout()),
            (vec![1, 2], Some(at(31)))
        );
        // Still gone: that takes no longer.
        set.set(at(9), BTreeSet::from([2, 3]));
        assert!(!set.expire(at(30)));
        assert!(set.expire(at(31)));
        assert_eq!((members(&set), set.next_timeout()), (vec![2, 3], None));
        set.set(at(40), BTreeSet::from([3]));
        set.add(2);
        assert!(!set.expire(at(99)));
        assert_eq!(members(&set), [2, 3]);
    }
}
