//! How full a ring is, for observers that are neither of its ends.

use super::{Consumer, Entry, Producer, Shared};
use crate::sync::atomic::Ordering;

/// Reads how full a ring is. It changes nothing, and keeps the ring's memory.
pub struct Level<T>(Shared<T>);

impl<T: Entry> From<&Producer<T>> for Level<T> {
    fn from(end: &Producer<T>) -> Self {
        Self(end.shared.clone())
    }
}

impl<T: Entry> From<&Consumer<T>> for Level<T> {
    fn from(end: &Consumer<T>) -> Self {
        Self(end.shared.clone())
    }
}

impl<T: Entry> Level<T> {
    /// Returns how many entries were pushed and not yet popped, at about this time: both ends may
    /// go on meanwhile.
    pub fn len(&self) -> u32 {
        // The head first: it never passes the tail.
        let head = self.0.head().load(Ordering::Acquire);
        let tail = self.0.tail().load(Ordering::Acquire);
        tail.wrapping_sub(head).min(self.0.capacity)
    }

    /// Returns whether everything pushed was popped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many entries fit.
    pub fn capacity(&self) -> u32 {
        self.0.capacity
    }
}

impl<T> std::fmt::Debug for Level<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Level of {}", self.0.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring;
    use super::Level;

    #[test]
    fn a_level_follows_both_ends() {
        let (mut producer, mut consumer) = ring::<u64>(4).unwrap();
        let levels = [Level::from(&producer), Level::from(&consumer)];
        let read = || {
            levels
                .each_ref()
                .map(|level| (level.len(), level.capacity()))
        };
        assert_eq!(read(), [(0, 4); 2]);
        for entry in 0..3 {
            producer.push(entry).unwrap();
        }
        assert_eq!(read(), [(3, 4); 2]);
        consumer.release(2);
        assert_eq!(read(), [(1, 4); 2]);
    }
}
