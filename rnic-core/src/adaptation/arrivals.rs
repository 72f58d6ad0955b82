//! The order of a session's chunks, which SCTP delivers as they come (RFC 5043 sections 5.2.1, 10).

use std::collections::BTreeMap;

use super::error::AdaptationError;

/// How far ahead of the next chunk a number may be: half of all numbers, less one. What is farther
/// cannot be told from a chunk that came before.
const MOST_AHEAD: u16 = 0x7fff;

/// When a chunk's turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Now: it is the next one.
    Now,
    /// When all before this place have come. Places count from 0 and do not wrap.
    Later(u64),
}

/// What has arrived of a session: all up to the next chunk, and of what is ahead, what is known of
/// each.
#[derive(Debug)]
pub struct Arrivals<T> {
    next: u64,
    ahead: BTreeMap<u64, T>,
}

impl<T> Default for Arrivals<T> {
    fn default() -> Self {
        Self {
            next: 0,
            ahead: BTreeMap::new(),
        }
    }
}

impl<T> Arrivals<T> {
    /// Returns how many chunks have come in order.
    pub fn in_order(&self) -> u64 {
        self.next
    }

    /// Returns whether chunks ahead of order wait.
    pub fn has_gap(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Returns when the turn of a chunk is. SCTP delivers each chunk once, so a number that was
    /// there before is an error of the peer.
    // rfc: 5043-26 the order is that of DDP-SSNs, whatever the TSNs are
    // rfc: 5043-s8 a number is checked before anything is kept for it
    pub fn turn(&self, ssn: u16) -> Result<Turn, AdaptationError> {
        let ahead = ssn.wrapping_sub(self.next as u16);
        let at = self.next + u64::from(ahead);
        match ahead {
            0 => Ok(Turn::Now),
            1..=MOST_AHEAD if !self.ahead.contains_key(&at) => Ok(Turn::Later(at)),
            _ => Err(AdaptationError::Repeated(ssn)),
        }
    }

    /// Notes that the next chunk has had its turn.
    pub fn pass(&mut self) {
        self.next += 1;
    }

    /// Keeps what is known of a chunk whose turn is [later](Turn::Later).
    pub fn keep(&mut self, at: u64, chunk: T) {
        self.ahead.insert(at, chunk);
    }

    /// Removes and returns the chunk whose turn is now, if it has come before. It has
    /// [passed](Self::pass) with that.
    pub fn take_next(&mut self) -> Option<T> {
        let chunk = self.ahead.remove(&self.next)?;
        self.pass();
        Some(chunk)
    }

    /// Drops what is ahead.
    pub fn clear(&mut self) {
        self.ahead.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// So many chunks have had their turns.
    fn behind<T>(next: u64) -> Arrivals<T> {
        let ahead = BTreeMap::new();
        Arrivals { next, ahead }
    }

    #[test]
    fn a_number_has_its_turn_once() {
        // rfc: 5043-26
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.turn(0), Ok(Turn::Now));
        assert_eq!(arrivals.turn(2), Ok(Turn::Later(2)));
        arrivals.keep(2, "two");
        assert_eq!(arrivals.turn(2), Err(AdaptationError::Repeated(2)));
        arrivals.pass();
        assert_eq!(arrivals.turn(0), Err(AdaptationError::Repeated(0)));
        assert_eq!(arrivals.take_next(), None);
        arrivals.pass();
        assert_eq!(arrivals.take_next(), Some("two"));
        assert!(!arrivals.has_gap());
        assert_eq!((arrivals.in_order(), arrivals.turn(3)), (3, Ok(Turn::Now)));
    }

    #[test]
    fn numbers_reach_half_way_round() {
        // rfc: 5043-s8
        for passed in [0, 1, 0x7fff, 0x8000, 0xffff, 0x1_0000, 0x1_8000_u64] {
            let arrivals = behind::<()>(passed);
            let number = |ahead: u64| (passed + ahead) as u16;
            assert_eq!(arrivals.turn(number(0)), Ok(Turn::Now));
            let farthest = passed + 0x7fff;
            assert_eq!(arrivals.turn(number(0x7fff)), Ok(Turn::Later(farthest)));
            for behind in [0x8000, 0xffff] {
                let repeated = Err(AdaptationError::Repeated(number(behind)));
                assert_eq!(arrivals.turn(number(behind)), repeated);
            }
        }
    }

    proptest! {
        /// However the chunks of a session are shuffled within the window, they have their turns in
        /// the order in which they were numbered, each once.
        #[test]
        fn any_order_becomes_the_order_of_numbers(
            count in 1..500_u64,
            picks in prop::collection::vec(0..64_usize, 500),
            start in prop::sample::select(vec![0, 0x7ff0, 0xff80_u64]),
        ) {
            let mut arrivals = behind(start);
            let mut under_way: Vec<u64> = (start..start + count).collect();
            let mut had = Vec::new();
            for pick in picks {
                if under_way.is_empty() {
                    break;
                }
                let at = under_way.remove(pick % under_way.len());
                match arrivals.turn(at as u16).unwrap() {
                    Turn::Now => {
                        had.push(at);
                        arrivals.pass();
                    }
                    Turn::Later(turn) => {
                        prop_assert_eq!(turn, at);
                        arrivals.keep(turn, at);
                    }
                }
                had.extend(std::iter::from_fn(|| arrivals.take_next()));
                prop_assert_eq!(arrivals.turn(at as u16).is_ok(), false);
            }
            prop_assert_eq!(had, (start..start + count).collect::<Vec<_>>());
        }
    }
}
