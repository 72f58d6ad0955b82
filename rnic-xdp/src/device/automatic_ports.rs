//! The TCP ports from which one is chosen for a client that does not care.
//!
//! They are none that the kernel chooses for its own connections: its range can be used up, and
//! what is translated (NAT) often keeps such a port. So rnicd has a range of its own.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::RangeInclusive;

/// Tries the ports of a range, each once, from a random one on, until `bind` has one or fails for
/// another reason than that the port is taken, which `is_taken` tells.
pub(crate) fn choose<T, E>(
    range: &RangeInclusive<u16>,
    mut bind: impl FnMut(u16) -> Result<T, E>,
    is_taken: impl Fn(&E) -> bool,
) -> Option<Result<T, E>> {
    let first = u64::from(*range.start());
    let count = u64::from(*range.end()).checked_sub(first)? + 1;
    // Each of these has its own keys.
    let begin = RandomState::new().build_hasher().finish() % count;
    let ports = (0..count).map(|step| first + (begin + step) % count);
    ports
        .filter_map(|port| u16::try_from(port).ok())
        .map(&mut bind)
        .find(|bound| !bound.as_ref().is_err_and(&is_taken))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_port_of_the_range_is_tried_once() {
        for range in [61000..=61009, 65535..=65535, 1..=1] {
            let mut tried = BTreeSet::new();
            let bind = |port| -> Result<(), bool> {
                assert!(tried.insert(port), "{port} again");
                Err(true)
            };
            assert!(choose(&range, bind, |taken| *taken).is_none());
            assert!(tried.into_iter().eq(range));
        }
    }

    #[test]
    fn the_first_that_is_free_is_taken_and_other_errors_end_the_search() {
        let bind = |port| if port == 7 { Ok(port) } else { Err(true) };
        assert_eq!(choose(&(1..=9), bind, |taken| *taken), Some(Ok(7)));
        let fails = |_| Err::<(), _>(false);
        assert_eq!(choose(&(1..=9), fails, |taken| *taken), Some(Err(false)));
        let begin = RangeInclusive::new(9, 1);
        assert_eq!(choose(&begin, fails, |taken| *taken), None);
    }
}
