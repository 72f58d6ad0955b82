//! The memory of a test, and the patterns that are checked.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rnic_verbs::{Access, Device, HugePages, Mr, Pd, Region};

use crate::failure::{Doing, Failure, Kind, Outcome};

/// The most octets for the messages of one connection while their content is checked.
const MOST: usize = 64 << 20;
/// Messages begin at multiples of this.
const ALIGN: usize = 64;

/// The layout of messages of one size in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Octets from one message to the next.
    pub stride: usize,
    /// Messages with memory of their own.
    pub slots: u64,
    /// The most messages in flight.
    pub depth: u64,
}

impl Layout {
    /// Makes a layout. The largest message determines how much memory there is. If the content is
    /// to be checked, no two messages in flight share memory; otherwise all do, which is best for
    /// caches.
    pub(super) fn new(largest: u64, size: u64, depth: u32, verify: bool) -> Self {
        let depth = u64::from(depth);
        let (stride, largest_stride) = (stride(size), stride(largest));
        let slots = if verify {
            let area = area(largest_stride, depth);
            ((area / stride) as u64).clamp(1, depth)
        } else {
            1
        };
        debug_assert!(stride <= largest_stride);
        Self {
            stride,
            slots,
            depth: if verify { depth.min(slots) } else { depth },
        }
    }

    /// Returns the number of octets of all slots.
    pub(super) fn len(&self) -> usize {
        self.stride * self.slots as usize
    }

    /// Returns where message number `sequence` begins.
    pub(super) fn offset(&self, sequence: u64) -> usize {
        (sequence % self.slots) as usize * self.stride
    }
}

fn stride(size: u64) -> usize {
    (size as usize).max(1).next_multiple_of(ALIGN)
}

fn area(stride: usize, depth: u64) -> usize {
    stride * ((MOST / stride) as u64).clamp(1, depth) as usize
}

/// The memory of all connections of a side for one direction.
#[derive(Debug)]
pub(super) struct Memory {
    region: Arc<Region>,
    each: usize,
}

impl Memory {
    /// Allocates memory for `connections` connections with messages of up to `largest` octets.
    pub(super) fn allocate(
        device: &Device,
        connections: u16,
        largest: u64,
        depth: u32,
        verify: bool,
    ) -> Outcome<Self> {
        let each = Self::of_one(largest, depth, verify);
        let region = device.allocate(each * usize::from(connections), HugePages::Prefer);
        let region = region.map_err(|why| Failure {
            kind: Kind::Environment,
            ..Failure::operation("allocate memory", why)
        })?;
        Ok(Self {
            region: Arc::new(region),
            each,
        })
    }

    /// Returns the number of octets that one connection takes.
    pub(super) fn of_one(largest: u64, depth: u32, verify: bool) -> usize {
        let stride = stride(largest);
        if verify {
            area(stride, depth.into())
        } else {
            stride
        }
    }

    /// Registers the part of one connection.
    pub(super) fn register(&self, pd: &Pd, connection: u16, access: Access) -> Outcome<Mr> {
        let start = usize::from(connection) * self.each;
        let range: Range<usize> = start..start + self.each;
        pd.registration(&self.region)
            .range(range)
            .access(access)
            .register()
            .doing("register memory")
    }

    /// Describes it: pages and size.
    pub(super) fn report(&self) -> String {
        self.region.report()
    }
}

/// Makes and checks the content of messages.
#[derive(Debug, Default)]
pub(super) struct Pattern {
    expected: Vec<u8>,
    found: Vec<u8>,
}

impl Pattern {
    /// Fills itself with octets that are unique to this message of this connection.
    fn make(&mut self, connection: u16, sequence: u64, len: usize) {
        let seed = (sequence ^ u64::from(connection) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.expected.resize(len.next_multiple_of(8), 0);
        for (i, word) in self.expected.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let value = seed
                .wrapping_add(i as u64)
                .wrapping_mul(0xd6e8_feb8_6659_fd93);
            *word = (value ^ value >> 32).to_le_bytes();
        }
        self.expected.truncate(len);
    }

    /// Writes the content of a message.
    pub(super) fn fill(
        &mut self,
        mr: &Mr,
        at: usize,
        connection: u16,
        sequence: u64,
        len: usize,
    ) -> Outcome {
        self.make(connection, sequence, len);
        mr.write(at, &self.expected).doing("write the pattern")
    }

    /// Returns whether the content of a message is correct.
    pub(super) fn check(
        &mut self,
        mr: &Mr,
        at: usize,
        connection: u16,
        sequence: u64,
        len: usize,
    ) -> Outcome<bool> {
        self.make(connection, sequence, len);
        self.found.resize(len, 0);
        mr.read(at, &mut self.found).doing("check the pattern")?;
        Ok(self.expected == self.found)
    }
}

/// Returns whether the value that a FetchAdd of 1 brought is the number of earlier ones on the same
/// memory.
pub(super) fn check_count(mr: &Mr, at: usize, before: u64) -> Outcome<bool> {
    let value = mr.atomic(at).doing("check a number")?;
    Ok(value.load(Ordering::Relaxed) == before)
}

/// Continues a checksum over the first `len` octets of registered memory.
pub(super) fn checksum(mr: &Mr, len: usize, mut sum: u32) -> Outcome<u32> {
    let mut piece = vec![0; len.min(1 << 16)];
    let mut at = 0;
    while at < len {
        let octets = (len - at).min(piece.len());
        mr.read(at, &mut piece[..octets])
            .doing("compute a checksum")?;
        sum = crc32c::crc32c_append(sum, &piece[..octets]);
        at += octets;
    }
    Ok(sum)
}

/// Clears the first `len` octets of registered memory.
pub(super) fn clear(mr: &Mr, len: usize) -> Outcome {
    clear_at(mr, 0, len)
}

/// Clears octets of registered memory.
pub(super) fn clear_at(mr: &Mr, start: usize, len: usize) -> Outcome {
    let zeroes = vec![0; len.min(1 << 16)];
    let mut done = 0;
    while done < len {
        let octets = (len - done).min(zeroes.len());
        mr.write(start + done, &zeroes[..octets])
            .doing("clear memory")?;
        done += octets;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_share_a_place_unless_they_are_checked() {
        let plain = Layout::new(1 << 16, 1 << 16, 128, false);
        assert_eq!((plain.slots, plain.depth, plain.offset(77)), (1, 128, 0));
        let checked = Layout::new(1 << 16, 1 << 16, 128, true);
        assert_eq!(
            (checked.slots, checked.depth, checked.offset(129)),
            (128, 128, 1 << 16)
        );
        let large = Layout::new(8 << 20, 8 << 20, 128, true);
        assert_eq!((large.slots, large.depth), (8, 8));
        let small = Layout::new(8 << 20, 2, 128, true);
        assert_eq!((small.slots, small.stride), (128, 64));
        let huge = Layout::new(1 << 30, 1 << 30, 128, true);
        assert_eq!((huge.slots, huge.depth), (1, 1));
        let nothing = Layout::new(0, 0, 4, true);
        assert_eq!((nothing.slots, nothing.len()), (4, 256));
    }

    #[test]
    fn patterns_differ_by_message_and_connection() {
        let mut pattern = Pattern::default();
        let mut make = |connection, sequence, len| {
            pattern.make(connection, sequence, len);
            pattern.expected.clone()
        };
        let first = make(0, 0, 100);
        assert_eq!(first.len(), 100);
        assert_ne!(first, make(0, 1, 100));
        assert_ne!(first, make(1, 0, 100));
        assert_eq!(first[..33], make(0, 0, 33));
        assert!(make(0, 0, 0).is_empty());
    }
}
