//! Receipts, in a stream with the semantics of RC (docs/design/rc-receipts.md).

use crate::connection::upper::{LocalUlp, message};
use crate::connection::{Context, terminate};
use crate::ddp::Placed;
use crate::wire::hello::Receipts;

use super::Stream;

impl Stream {
    /// Begins with receipts as both sides have said of themselves: `acknowledges_early` says that
    /// this side's TCP acknowledges what is not yet placed.
    pub(in crate::connection) fn agree_on_receipts(
        &mut self,
        (own, peer): (Receipts, Receipts),
        acknowledges_early: bool,
    ) {
        if let LocalUlp::Rdmap(user) = &mut self.user {
            let does = |side, other| side == Receipts::Sent && other != Receipts::Unknown;
            let tells = acknowledges_early && does(own, peer);
            user.rdmap.agree_on_receipts(tells, does(peer, own));
            self.choose_paths();
        }
    }

    /// Returns up to where the peer has placed our stream, if it tells so.
    pub(in crate::connection) fn told(&self) -> Option<u64> {
        match &self.user {
            LocalUlp::Rdmap(user) if self.rc => user.rdmap.told(),
            _ => None,
        }
    }

    /// Returns whether the peer is told what is placed.
    pub(in crate::connection) fn tells(&self) -> bool {
        matches!(&self.user, LocalUlp::Rdmap(user) if user.rdmap.tells())
    }

    /// Returns up to where what was sent is done, of what the peer's TCP has `acked`.
    pub(in crate::connection) fn done(&self, acked: u64) -> u64 {
        self.told().map_or(acked, |told| told.min(acked))
    }

    /// Receives octets in order from a TCP that has acknowledged them, and notes which requests they
    /// end.
    pub(in crate::connection) fn receive_acknowledged(
        &mut self,
        bytes: &[u8],
        context: &mut Context<'_, '_>,
    ) {
        self.receive_with::<true>(bytes, None, note_request, context);
    }

    /// Tells the peer that its requests are placed up to this offset of its stream, if it has sent
    /// any since it was told last.
    pub(in crate::connection) fn send_receipt(&mut self, received: u64) {
        if let LocalUlp::Rdmap(user) = &mut self.user {
            let placed = received - self.deframer.buffered() as u64;
            user.rdmap.send_receipt(placed);
        }
    }

    /// Returns the FPDU of the receipt that has not left yet, if there is one, and if it need not
    /// wait for the end of a message.
    pub(in crate::connection) fn last_receipt(&mut self) -> Vec<u8> {
        let receipt = match &mut self.user {
            LocalUlp::Rdmap(user) if !self.ddp.is_sending() => user.rdmap.last_receipt(),
            _ => None,
        };
        receipt.map_or_else(Vec::new, |receipt| {
            let segmenter = self.ddp.start_message(&message(&receipt));
            match self.is_bare {
                true => terminate::segment(&receipt, segmenter),
                false => terminate::fpdu(&receipt, segmenter, self.crc, self.markers),
            }
        })
    }

    /// Notes that the turn of a segment has come which was placed before.
    pub(super) fn note_placed(&mut self, placed: &Placed) {
        if let LocalUlp::Rdmap(user) = &mut self.user {
            user.rdmap.note_header(placed.header());
        }
    }
}

/// Notes that a segment has come.
pub(super) fn note_request(user: &mut LocalUlp, segment: &[u8]) {
    if let LocalUlp::Rdmap(user) = user {
        user.rdmap.note_request(segment);
    }
}
