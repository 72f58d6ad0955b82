//! The numbers by which programs know queue pairs.
//!
//! A program that connects its queue pairs itself tells the other side its number and nothing else
//! of where it is. So the number says where: its upper 16 bits are a TCP port of this process on
//! the device, and the lower 8 bits one of the queue pairs behind that port. The kernel gives each
//! TCP port to one process, which makes the numbers unique on a host.
//!
//! Queue pairs of rdma_cm need no port. Their numbers are small.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rnic_verbs::QpNumber;

use crate::errno::{Errno, lock};

/// Numbers without a port are counted from here: InfiniBand reserves 0 and 1, and programs take 0
/// for none.
const FIRST: u32 = 2;

/// Queue pairs behind a port.
const BEHIND_A_PORT: usize = 256;

/// How long a number is not given out again, so that a peer of the former queue pair does not find
/// the new one.
const REST: Duration = Duration::from_secs(5);

/// The numbers of an adapter's queue pairs.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// The number of each queue pair of the device; 0 where it has no port.
    shown: Box<[AtomicU32]>,
    blocks: Mutex<Vec<Block>>,
}

/// The numbers with the same port. Those of a port that was closed are kept while they rest: it may
/// be this process's again.
#[derive(Debug)]
struct Block {
    port: u16,
    queue_pairs: [Option<QpNumber>; BEHIND_A_PORT],
    /// The lower bits of free numbers, and when they were given back. The longest unused is first.
    free: VecDeque<(u8, Option<Instant>)>,
    /// This process listens at the port.
    is_open: bool,
}

impl Block {
    fn new(port: u16) -> Self {
        Self {
            port,
            queue_pairs: [None; BEHIND_A_PORT],
            free: (0..=u8::MAX).map(|index| (index, None)).collect(),
            is_open: true,
        }
    }

    /// Returns whether it has a number that has rested.
    fn is_ready(&self, now: Instant) -> bool {
        self.is_open && self.free.front().is_some_and(|next| has_rested(next, now))
    }

    /// Returns whether queue pairs have numbers of it.
    fn is_used(&self) -> bool {
        self.free.len() < BEHIND_A_PORT
    }

    /// Returns whether it may be forgotten: it is closed, and all its numbers have rested.
    fn is_over(&self, now: Instant) -> bool {
        let last = self.free.back();
        !self.is_open && !self.is_used() && last.is_some_and(|last| has_rested(last, now))
    }

    /// Gives the next number to a queue pair.
    fn give(&mut self, queue_pair: QpNumber) -> Option<u32> {
        let (index, _) = self.free.pop_front()?;
        self.queue_pairs[usize::from(index)] = Some(queue_pair);
        Some(u32::from(self.port) << 8 | u32::from(index))
    }
}

fn has_rested((_, since): &(u8, Option<Instant>), now: Instant) -> bool {
    since.is_none_or(|since| now >= since + REST)
}

impl Numbers {
    /// Makes the numbers of an adapter with so many queue pairs.
    pub(crate) fn new(queue_pairs: u32) -> Self {
        Self {
            shown: (0..queue_pairs).map(|_| AtomicU32::new(0)).collect(),
            blocks: Mutex::default(),
        }
    }

    /// Returns the number by which the program knows a queue pair.
    #[inline]
    pub(crate) fn shown(&self, queue_pair: QpNumber) -> u32 {
        let shown = self.shown.get(queue_pair.0 as usize);
        match shown.map_or(0, |shown| shown.load(Ordering::Relaxed)) {
            0 => queue_pair.0 + FIRST,
            shown => shown,
        }
    }

    /// Gives a number with a port to a new queue pair. Where all have been in use a moment ago,
    /// `new_port` finds another port. Without one, a number that has not rested is better than none.
    pub(crate) fn give(
        &self,
        queue_pair: QpNumber,
        new_port: impl FnOnce() -> Result<u16, Errno>,
    ) -> Result<u32, Errno> {
        let now = Instant::now();
        let mut blocks = lock(&self.blocks);
        let ready = blocks.iter().position(|block| block.is_ready(now));
        let at = match ready.map_or_else(|| new_port().map(Err), |at| Ok(Ok(at))) {
            Ok(Ok(at)) => at,
            Ok(Err(port)) => open(&mut blocks, port, now),
            Err(errno) => blocks
                .iter()
                .position(|block| block.is_open && !block.free.is_empty())
                .ok_or(errno)?,
        };
        let number = blocks[at].give(queue_pair).ok_or(Errno::ENOMEM)?;
        self.show(queue_pair, number);
        Ok(number)
    }

    /// Gives the number of a queue pair to another one, which takes its place.
    pub(crate) fn move_to(&self, number: u32, queue_pair: QpNumber) {
        if let Some(block) = block_of(&mut lock(&self.blocks), number) {
            block.queue_pairs[index_of(number)] = Some(queue_pair);
        }
        self.show(queue_pair, number);
    }

    /// Takes back the number of a queue pair that is gone. Returns its port if that is to be closed:
    /// no other queue pair has a number with it, and it does not stay open for others. No more numbers
    /// with it are given out then.
    #[must_use]
    pub(crate) fn take_back(&self, queue_pair: QpNumber, stays_open: bool) -> Option<u16> {
        let number = self.shown(queue_pair);
        self.show(queue_pair, 0);
        let mut blocks = lock(&self.blocks);
        let block = block_of(&mut blocks, number)?;
        let place = &mut block.queue_pairs[index_of(number)];
        // Another queue pair may have taken its place.
        place.take_if(|there| *there == queue_pair)?;
        block.free.push_back((number as u8, Some(Instant::now())));
        block.is_open &= stays_open || block.is_used();
        (!block.is_open && !block.is_used()).then_some(block.port)
    }

    /// Gives out no more numbers with this port: nobody listens there any more.
    pub(crate) fn retire(&self, port: u16) {
        let mut blocks = lock(&self.blocks);
        let block = blocks.iter_mut().find(|block| block.port == port);
        if let Some(block) = block {
            block.is_open = false;
        }
    }

    /// Forgets all numbers: a child has none of its parent's queue pairs.
    pub(crate) fn forget_all(&self) {
        for shown in &self.shown {
            shown.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the queue pair that has a number.
    pub(crate) fn find(&self, number: u32) -> Option<QpNumber> {
        let found = match block_of(&mut lock(&self.blocks), number) {
            Some(block) => block.queue_pairs[index_of(number)],
            None => number.checked_sub(FIRST).map(QpNumber),
        };
        found.filter(|queue_pair| self.shown(*queue_pair) == number)
    }

    /// Returns the lock of what was given out, which a child makes new.
    pub(crate) fn renewed(&self) -> &Mutex<impl Default> {
        &self.blocks
    }

    fn show(&self, queue_pair: QpNumber, number: u32) {
        if let Some(shown) = self.shown.get(queue_pair.0 as usize) {
            shown.store(number, Ordering::Relaxed);
        }
    }
}

/// The least TCP port in a number. Numbers without a port are below those with this one: a device
/// has at most so many queue pairs.
const LEAST_PORT: u32 = 1024;

/// Returns whether others can find a queue pair by a number.
pub(crate) fn has_port(number: u32) -> bool {
    (LEAST_PORT..=u16::MAX.into()).contains(&(number >> 8))
}

/// Returns the TCP port in a number.
pub(crate) fn port_of(number: u32) -> u16 {
    (number >> 8) as u16
}

fn index_of(number: u32) -> usize {
    usize::from(number as u8)
}

/// Opens the numbers of a port at which this process listens now, and returns where they are.
fn open(blocks: &mut Vec<Block>, port: u16, now: Instant) -> usize {
    blocks.retain(|block| !block.is_over(now));
    if let Some(known) = blocks.iter().position(|block| block.port == port) {
        blocks[known].is_open = true;
        return known;
    }
    blocks.push(Block::new(port));
    blocks.len() - 1
}

fn block_of(blocks: &mut [Block], number: u32) -> Option<&mut Block> {
    let port = u16::try_from(number >> 8).ok()?;
    blocks.iter_mut().find(|block| block.port == port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Result<u16, Errno> {
        Err(Errno::EADDRINUSE)
    }

    #[test]
    fn a_number_has_its_port_and_leads_to_its_queue_pair() {
        let numbers = Numbers::new(1000);
        assert_eq!(numbers.shown(QpNumber(7)), 7 + FIRST);
        assert_eq!(numbers.find(7 + FIRST), Some(QpNumber(7)));
        let number = numbers.give(QpNumber(7), || Ok(40_000)).unwrap();
        assert_eq!(port_of(number), 40_000);
        assert_eq!(numbers.shown(QpNumber(7)), number);
        assert_eq!(numbers.find(number), Some(QpNumber(7)));
        numbers.move_to(number, QpNumber(9));
        assert_eq!(numbers.find(number), Some(QpNumber(9)));
        assert_eq!(numbers.shown(QpNumber(9)), number);
        // The former one is dropped behind that.
        assert_eq!(numbers.take_back(QpNumber(7), false), None);
        assert_eq!(numbers.find(number), Some(QpNumber(9)));
        assert_eq!(numbers.take_back(QpNumber(9), false), Some(40_000));
        assert_eq!(numbers.find(number), None);
    }

    #[test]
    fn numbers_rest_before_they_are_given_out_again() {
        let numbers = Numbers::new(1000);
        let mut ports = 40_000..;
        let mut given = Vec::new();
        for queue_pair in 0..300 {
            let port = || ports.next().ok_or(Errno::EADDRINUSE);
            given.push(numbers.give(QpNumber(queue_pair), port).unwrap());
        }
        let mut unique = given.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), 300);
        let ports = given.iter().map(|number| port_of(*number));
        assert_eq!(ports.filter(|port| *port == 40_001).count(), 44);
        // Those that were never used come first, then the longest unused.
        assert_eq!(numbers.take_back(QpNumber(0), false), None);
        assert_eq!(numbers.take_back(QpNumber(1), false), None);
        for queue_pair in 300..512 {
            let fresh = numbers.give(QpNumber(queue_pair), none).unwrap();
            assert_eq!(port_of(fresh), 40_001);
        }
        assert_eq!(numbers.give(QpNumber(600), none), Ok(given[0]));
        assert_eq!(numbers.give(QpNumber(601), none), Ok(given[1]));
        assert_eq!(numbers.give(QpNumber(602), none), Err(Errno::EADDRINUSE));
    }

    #[test]
    fn a_port_with_rested_numbers_goes_before_a_new_port() {
        let numbers = Numbers::new(1000);
        let first = numbers.give(QpNumber(0), || Ok(40_000)).unwrap();
        let second = numbers.give(QpNumber(1), none).unwrap();
        assert_eq!(numbers.take_back(QpNumber(0), false), None);
        let third = numbers.give(QpNumber(2), none).unwrap();
        assert_eq!([second, third], [first + 1, first + 2]);
    }

    #[test]
    fn a_port_is_closed_with_its_last_queue_pair() {
        let numbers = Numbers::new(1000);
        let first = numbers.give(QpNumber(0), || Ok(40_000)).unwrap();
        numbers.give(QpNumber(1), none).unwrap();
        assert_eq!(numbers.take_back(QpNumber(0), false), None);
        assert_eq!(numbers.take_back(QpNumber(1), false), Some(40_000));
        // A queue pair that has no number with a port leaves none behind.
        assert_eq!(numbers.take_back(QpNumber(1), false), None);
        assert_eq!(numbers.give(QpNumber(2), none), Err(Errno::EADDRINUSE));
        // The port comes back at once, and its numbers rest all the same.
        let other = numbers.give(QpNumber(2), || Ok(40_000)).unwrap();
        assert_eq!(other, first + 2);
        assert_eq!(numbers.take_back(QpNumber(2), false), Some(40_000));
        // What has rested is forgotten.
        let later = Instant::now() + REST;
        let mut blocks = lock(&numbers.blocks);
        let at = open(&mut blocks, 40_001, later);
        assert_eq!((at, blocks.len(), blocks[at].port), (0, 1, 40_001));
    }

    #[test]
    fn a_port_may_stay_open_for_others() {
        let numbers = Numbers::new(1000);
        let first = numbers.give(QpNumber(0), || Ok(40_000)).unwrap();
        assert_eq!(numbers.take_back(QpNumber(0), true), None);
        assert_eq!(numbers.give(QpNumber(1), none), Ok(first + 1));
        // One at which nobody listens any more does not.
        numbers.retire(40_000);
        assert_eq!(numbers.take_back(QpNumber(1), true), Some(40_000));
    }

    #[test]
    fn a_port_where_nobody_listens_any_more_is_closed_too() {
        let numbers = Numbers::new(1000);
        let first = numbers.give(QpNumber(0), || Ok(40_000)).unwrap();
        numbers.retire(40_000);
        let other = numbers.give(QpNumber(1), || Ok(40_001)).unwrap();
        assert_eq!(port_of(other), 40_001);
        assert_eq!(numbers.find(first), Some(QpNumber(0)));
        assert_eq!(numbers.take_back(QpNumber(0), false), Some(40_000));
    }
}
