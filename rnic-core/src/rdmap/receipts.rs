//! Receipts, on connections with the semantics of RC: a request completes once it is placed, also
//! where the peer's TCP acknowledges octets before its MPA has seen them, as the kernel's does
//! (docs/design/rc-receipts.md).

use super::message::Outbound;
use super::{News, Rdmap, Urgent, is_request};
use crate::wire::ddp::{DdpHeader, DdpSegment};

impl Rdmap {
    /// Begins with receipts, as both sides have agreed: this side `tells` the peer what is placed,
    /// and expects to be told. Without the latter a receipt is an unknown message.
    pub fn agree_on_receipts(&mut self, tells: bool, is_told: bool) {
        if let Some(flow) = &mut self.flow {
            flow.receipts.tells = tells;
            flow.receipts.told = is_told.then_some(0);
        }
    }

    /// Returns up to where the peer has placed our stream, if it tells so.
    pub fn told(&self) -> Option<u64> {
        self.flow.as_ref()?.receipts.told
    }

    /// Returns whether the peer is told what is placed.
    pub fn tells(&self) -> bool {
        self.flow.as_ref().is_some_and(|flow| flow.receipts.tells)
    }

    /// Notes that a segment has come. One that ends a request is told of: receipts, and what is
    /// found malformed, are not.
    pub fn note_request(&mut self, ulpdu: &[u8]) {
        if self.tells()
            && let Ok(segment) = DdpSegment::parse(ulpdu)
        {
            self.note_header(&segment.header);
        }
    }

    /// Notes that a segment with this header has come.
    pub fn note_header(&mut self, header: &DdpHeader) {
        if let Some(flow) = &mut self.flow {
            flow.receipts.owes |= flow.receipts.tells && header.last() && is_request(header);
        }
    }

    /// Tells the peer that its requests are placed up to this offset of its stream, if it has sent
    /// any since it was told last.
    pub fn send_receipt(&mut self, offset: u64) {
        if let Some(flow) = &mut self.flow
            && std::mem::take(&mut flow.receipts.owes)
        {
            flow.receipts.due = Some(offset);
            self.urgent.get_or_insert(Urgent::FlowControl);
        }
    }

    /// Returns the receipt that has not been sent yet, if there is one, and forgets it.
    pub fn last_receipt(&mut self) -> Option<Outbound> {
        self.flow.as_mut()?.next_receipt()
    }

    /// Notes up to where the peer's TCP has acknowledged our stream, for the peer that tells. Others
    /// may take fast paths, which do not.
    pub fn note_acked_by_tcp(&mut self, acked: u64) {
        if let Some(flow) = &mut self.flow
            && flow.receipts.told.is_some()
        {
            flow.receipts.acked = acked;
        }
    }

    /// Follows what the peer has told, if that is the news. Returns up to where our stream is done
    /// then: the peer cannot tell of more than its TCP has [acknowledged](Self::note_acked_by_tcp).
    pub fn follow_receipt(&mut self) -> Option<u64> {
        let taken = self
            .news
            .take_if(|news| matches!(**news, News::Receipt(_)))?;
        let receipts = &mut self.flow.as_mut()?.receipts;
        if let News::Receipt(offset) = *taken {
            receipts.told = receipts.told.max(Some(offset));
        }
        Some(receipts.told?.min(receipts.acked))
    }
}
