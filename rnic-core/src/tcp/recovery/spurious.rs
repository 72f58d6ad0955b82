//! Finding out that nothing was lost: by the timestamps (Eifel, RFC 3522), by the peer's reports of duplicates (RFC
//! 2883, RFC 3708), or after a timeout by what is acknowledged without having been sent again (F-RTO, RFC 5682).

use super::Ack;
use crate::time::Instant;

/// The retransmissions since congestion control last reduced its window.
#[derive(Debug)]
pub(super) struct Retransmissions {
    /// What was not acknowledged, when that began and as it was last sent.
    from: u64,
    until: u64,
    first_at: Option<Instant>,
    /// Octets sent again that the peer has not reported as duplicates.
    needed: u64,
}

impl Retransmissions {
    pub(super) fn since(una: u64) -> Self {
        Self {
            from: una,
            until: una,
            first_at: None,
            needed: 0,
        }
    }

    /// `octets` are sent again, while `nxt` is the end of what was sent.
    pub(super) fn add(&mut self, now: Instant, octets: u64, nxt: u64) {
        self.first_at.get_or_insert(now);
        self.needed += octets;
        self.until = nxt;
    }

    /// Whether an acknowledgment shows that they were all in vain. `recovering`: what had been sent before the first
    /// of them is not all acknowledged yet.
    pub(super) fn in_vain(&mut self, ack: &Ack<'_>, recovering: bool) -> bool {
        let Some(first_at) = self.first_at else {
            return false;
        };
        let news = ack.news;
        if recovering && news.acked > 0 && news.retransmission.is_some() {
            // Acknowledged, but by an ACK from before it can have arrived again.
            if ack.echoes_before(first_at) {
                return true;
            }
        }
        let Some(duplicated) = &news.duplicated else {
            return false;
        };
        if duplicated.start < self.from || duplicated.end > self.until {
            return false;
        }
        self.needed = self
            .needed
            .saturating_sub(duplicated.end - duplicated.start);
        self.needed == 0
    }
}

/// F-RTO's steps after a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frto {
    /// Not done, or done with.
    Off,
    /// The first segment has been sent again; its answer is awaited.
    First,
    /// It has moved the peer on. Instead of what is thought lost, up to this many new segments are sent; the answer
    /// to what is still on its way decides.
    Second(u8),
}
