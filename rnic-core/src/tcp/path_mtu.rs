//! The path MTU: from ICMP (RFC 1191, RFC 8201), or by trying smaller segments where routers are
//! silent (RFC 4821).
//!
//! The segment size only ever falls: it does not probe for a path that has become wider. A new
//! connection does.

use core::time::Duration;

use crate::memory::frames::TxFrames;
use crate::time::Instant;
use crate::wire::checksum;
use crate::wire::tcp::MAX_OPTIONS_LEN;

use super::{Seq, Tcp};

/// Timeouts in a row after which the path, and not its load, is under suspicion (Linux's
/// `tcp_retries1`).
const SUSPICIOUS: u8 = 3;
/// The segment sizes to try then: paths that carry less are not known to exist.
const ESCAPES: [u16; 2] = [1024, 512];
/// A path that has carried a larger segment this lately loses them by chance.
const PROOF_LASTS: Duration = Duration::from_secs(10);

impl Tcp {
    /// Handles an ICMP "packet too big" for the segment that begins at `seq`: the path takes
    /// segments of at most `mss` octets, less options. Returns whether it is believed: the segment
    /// must be in flight, which an off-path attacker does not know (RFC 5927 section 7.2).
    ///
    /// What was too large is sent again in smaller pieces, at once. No congestion dropped it, and
    /// none is assumed.
    pub fn handle_too_big(&mut self, seq: Seq, mss: u16) -> bool {
        let offset = self.send.offset_of(seq);
        let in_flight = u64::try_from(offset)
            .is_ok_and(|offset| (self.send.una()..self.send.nxt()).contains(&offset));
        in_flight && self.narrow(mss)
    }

    /// Sends segments of at most `mss` octets, less options, from now on, and what was larger again
    /// in smaller pieces. Returns whether they were larger.
    pub fn narrow(&mut self, mss: u16) -> bool {
        if !self.state.may_send() || mss >= self.options.mss {
            return false;
        }
        self.limit_mss(mss);
        self.counters.mtu_reductions += 1;
        self.send.mark_larger_lost(self.options.max_payload());
        self.recovery.on_too_big(&self.send);
        true
    }

    /// Returns the size to try next if full segments do not get through.
    fn escape(&self) -> Option<u16> {
        ESCAPES.into_iter().find(|mss| *mss < self.options.mss)
    }

    fn options_len(&self) -> u16 {
        self.options.mss - self.options.max_payload()
    }

    /// Records that a segment of so many octets was delivered.
    #[inline]
    pub(super) fn note_size(&mut self, now: Instant, octets: u16) {
        let [.., least] = ESCAPES;
        if octets.saturating_add(MAX_OPTIONS_LEN as u16) > least {
            self.note_large(now, octets);
        }
    }

    fn note_large(&mut self, now: Instant, octets: u16) {
        if self
            .escape()
            .is_some_and(|mss| octets + self.options_len() > mss)
        {
            self.large_arrived_at = Some(now);
        }
    }

    /// Handles another retransmission timeout. If full segments are what gets lost, smaller ones
    /// may pass: routers that should have said so may be silent.
    pub(super) fn suspect_path(&mut self, now: Instant) {
        let proved = self
            .large_arrived_at
            .is_some_and(|at| now.since(at) < PROOF_LASTS);
        if self.retries < SUSPICIOUS || proved {
            return;
        }
        if let (Some(mss), Some(head)) = (self.escape(), self.send.first())
            && head.len + self.options_len() > mss
        {
            self.limit_mss(mss);
            self.counters.mtu_reductions += 1;
        }
    }

    /// Cuts a held segment so that what it begins with fits the path. The rest stays where it is,
    /// so that no frame is needed, however small the pieces.
    #[cold]
    #[inline(never)]
    pub(super) fn cut<F: TxFrames>(&mut self, index: usize, frames: &F) {
        let most = self.options.max_payload();
        let Some(segment) = self.send.get(index) else {
            return;
        };
        let octets = self.send.octets(segment, frames);
        if let Some((head, tail)) = octets.split_at_checked(usize::from(most)) {
            let sums = [checksum::sum(head), checksum::sum(tail)];
            self.send.split(index, most, sums);
        }
    }
}
