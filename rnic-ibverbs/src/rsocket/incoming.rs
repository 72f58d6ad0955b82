//! The accounts of the receiving side: what the peer has written and the application has not read,
//! and what the peer may still write.
//!
//! The receive buffer has two halves. The peer fills one after the other, each to its end, and is
//! offered a half again when the application has read that much. Besides, each message of data
//! costs the peer a credit, which comes back when the data were read.

use std::collections::VecDeque;

use super::outgoing::CONTROLS;

/// What the peer did that no rsocket does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Violation;

/// A run of octets of the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) offset: u32,
    pub(super) length: u32,
}

/// What a credit message is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// The half that is offered, if one is: its offset.
    pub(super) half: Option<u32>,
    /// Messages up to this number may be sent.
    pub(super) limit: u16,
}

/// The accounts.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Octets of half the buffer.
    half: u32,
    /// Credits that the peer has at most.
    credits: u16,
    /// The octets that are left of each message that was not read.
    messages: VecDeque<u32>,
    unread: u32,
    /// Where reading goes on.
    read_at: u32,
    /// Octets that the peer was offered and has not written.
    offered: u32,
    /// Octets that were read, and not offered since.
    freed: u32,
    /// The half that is offered next.
    offer_at: u32,
    /// Messages that were read.
    seq: u16,
    /// When this many messages were read, the peer is told.
    report_at: u16,
}

impl Incoming {
    /// Returns the accounts of a connection whose private data offer the first half of a buffer of
    /// `size` octets, and `credits`.
    pub(super) fn new(size: u32, credits: u16) -> Self {
        let half = size / 2;
        Self {
            half,
            credits,
            messages: VecDeque::with_capacity(usize::from(credits)),
            unread: 0,
            read_at: 0,
            offered: half,
            freed: half,
            offer_at: half,
            seq: 0,
            report_at: credits / 2,
        }
    }

    /// Returns how many receives must be posted so that none is missing: iWARP has no RNR NAK, and
    /// the peer sends messages without credits too, though few at a time.
    pub(super) fn receives(credits: u16) -> u16 {
        credits.saturating_add(CONTROLS)
    }

    /// Records a message of data that has arrived. Fails if the peer was not allowed to send it.
    pub(super) fn arrive(&mut self, octets: u32) -> Result<(), Violation> {
        if octets > self.offered || self.messages.len() >= self.credits.into() {
            return Err(Violation);
        }
        self.offered -= octets;
        self.unread += octets;
        self.messages.push_back(octets);
        Ok(())
    }

    /// Records a message that costs a credit and carries no data.
    pub(super) fn arrive_without_data(&mut self) {
        self.seq = self.seq.wrapping_add(1);
    }

    /// Returns whether something can be read.
    pub(super) fn readable(&self) -> bool {
        self.unread > 0
    }

    /// Returns where the next octets are, `most` of them at most. The second run can be empty.
    pub(super) fn next(&self, most: usize) -> [Run; 2] {
        let length = u32::try_from(most).unwrap_or(u32::MAX).min(self.unread);
        let first = length.min(2 * self.half - self.read_at);
        [
            Run {
                offset: self.read_at,
                length: first,
            },
            Run {
                offset: 0,
                length: length - first,
            },
        ]
    }

    /// Removes octets that were read.
    pub(super) fn consume(&mut self, octets: u32) {
        let octets = octets.min(self.unread);
        self.unread -= octets;
        self.freed += octets;
        self.read_at = (self.read_at + octets) % (2 * self.half).max(1);
        let mut left = octets;
        while let Some(first) = self.messages.front_mut() {
            if *first > left {
                *first -= left;
                break;
            }
            left -= *first;
            self.messages.pop_front();
            self.seq = self.seq.wrapping_add(1);
        }
    }

    fn offers(&self) -> bool {
        self.freed >= self.half
    }

    /// Returns how many requests it takes to tell the peer what it may send, or `None` if there is
    /// nothing to tell.
    pub(super) fn grant_due(&self) -> Option<u16> {
        match (
            self.offers(),
            self.seq.wrapping_sub(self.report_at) < 0x8000,
        ) {
            (true, _) => Some(2),
            (false, true) => Some(1),
            (false, false) => None,
        }
    }

    /// Returns what to tell the peer, and counts it as told.
    pub(super) fn grant(&mut self) -> Grant {
        self.report_at = self.seq.wrapping_add(self.credits / 2);
        let half = self.offers().then(|| {
            self.freed -= self.half;
            self.offered += self.half;
            let offer = self.offer_at;
            self.offer_at = self.half - offer;
            offer
        });
        Grant {
            half,
            limit: self.seq.wrapping_add(self.credits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(offset: u32, length: u32) -> Run {
        Run { offset, length }
    }

    #[test]
    fn the_second_half_is_offered_at_once() {
        let mut incoming = Incoming::new(1000, 16);
        assert_eq!(incoming.grant_due(), Some(2));
        assert_eq!(
            incoming.grant(),
            Grant {
                half: Some(500),
                limit: 16
            }
        );
        assert_eq!(incoming.grant_due(), None);
    }

    #[test]
    fn a_half_is_offered_again_when_so_much_was_read() {
        let mut incoming = Incoming::new(1000, 16);
        incoming.grant();
        incoming.arrive(500).unwrap();
        incoming.arrive(20).unwrap();
        incoming.consume(499);
        assert_eq!(incoming.grant_due(), None);
        incoming.consume(21);
        assert_eq!(
            incoming.grant(),
            Grant {
                half: Some(0),
                limit: 18
            }
        );
        assert_eq!(incoming.grant_due(), None);
        incoming.arrive(480).unwrap();
        incoming.consume(480);
        assert_eq!(
            incoming.grant(),
            Grant {
                half: Some(500),
                limit: 19
            }
        );
    }

    #[test]
    fn credits_come_back_when_half_of_them_were_used() {
        let mut incoming = Incoming::new(1000, 16);
        incoming.grant();
        for _ in 0..7 {
            incoming.arrive(1).unwrap();
        }
        incoming.consume(7);
        assert_eq!(incoming.grant_due(), None);
        incoming.arrive_without_data();
        assert_eq!(incoming.grant_due(), Some(1));
        assert_eq!(
            incoming.grant(),
            Grant {
                half: None,
                limit: 24
            }
        );
        assert_eq!(incoming.grant_due(), None);
    }

    #[test]
    fn sequence_numbers_wrap() {
        let mut incoming = Incoming::new(1000, 16);
        for _ in 0..u16::MAX {
            incoming.arrive_without_data();
        }
        incoming.grant();
        assert_eq!(
            incoming.grant(),
            Grant {
                half: None,
                limit: 15
            }
        );
        assert_eq!(incoming.grant_due(), None);
        for _ in 0..8 {
            incoming.arrive_without_data();
        }
        assert_eq!(incoming.grant_due(), Some(1));
    }

    #[test]
    fn reading_goes_round_the_buffer() {
        let mut incoming = Incoming::new(1000, 16);
        incoming.grant();
        for _ in 0..3 {
            incoming.arrive(300).unwrap();
        }
        assert_eq!(incoming.next(50), [run(0, 50), run(0, 0)]);
        assert_eq!(incoming.next(5000), [run(0, 900), run(0, 0)]);
        incoming.consume(900);
        incoming.grant();
        incoming.arrive(100).unwrap();
        incoming.arrive(30).unwrap();
        assert_eq!(incoming.next(5000), [run(900, 100), run(0, 30)]);
        assert_eq!(incoming.next(110), [run(900, 100), run(0, 10)]);
        incoming.consume(130);
        assert!(!incoming.readable());
        assert_eq!(incoming.next(5000), [run(30, 0), run(0, 0)]);
    }

    #[test]
    fn what_was_not_offered_is_a_violation() {
        let mut incoming = Incoming::new(1000, 2);
        assert_eq!(incoming.arrive(501), Err(Violation));
        incoming.arrive(500).unwrap();
        assert_eq!(incoming.arrive(1), Err(Violation));
        incoming.grant();
        incoming.arrive(1).unwrap();
        // The buffer has room, the peer has no credit.
        assert_eq!(incoming.arrive(1), Err(Violation));
        incoming.consume(501);
        incoming.arrive(1).unwrap();
    }
}
