//! Writes that are carried out at once, without a message: see `connection/direct.rs`.

use zerocopy::FromZeros;

use super::{Progress, Requester};
use crate::memory::epoch::Guard;
use crate::rdmap::message::Outbound;
use crate::rdmap::prepare::prepare;
use crate::verbs::{QueuePair, SendWr, WrOpcode, cq::CqTable};
use crate::wire::ddp::{DdpHeader, TaggedHeader};

/// A Write that may begin, and whose source is checked.
pub struct DirectWrite {
    wr: SendWr,
    number: u64,
    /// The message that it would be.
    pub(in super::super) outbound: Outbound,
}

impl DirectWrite {
    /// Returns how many octets it writes, at least one.
    pub fn length(&self) -> u32 {
        self.outbound.length
    }

    /// Returns where it writes to.
    pub fn sink(&self) -> Option<&TaggedHeader> {
        match &self.outbound.header {
            DdpHeader::Tagged(header) => Some(header),
            DdpHeader::Untagged(_) => None,
        }
    }
}

impl Requester {
    /// Returns the next request, if it is a Write of at most so many octets that may begin.
    /// Executes the local requests before it.
    pub(in super::super) fn next_direct_write(
        &mut self,
        most: u32,
        qp: &mut QueuePair,
        cqs: &mut CqTable,
        guard: &Guard<'_>,
    ) -> Option<DirectWrite> {
        if self.failed || self.immediate_next.is_some() || !self.has_unbegun(qp) {
            return None;
        }
        let mut wr = SendWr::new_zeroed();
        // Where one cannot be executed, the ordinary way tells.
        if !self.execute_local(&mut wr, qp, cqs, guard).ok()? {
            return None;
        }
        let is_plain = wr.operation() == Ok(WrOpcode::Write) && !wr.is_inline();
        if !is_plain || !(1..=most).contains(&wr.length) {
            return None;
        }
        let number = self.first + self.requests.len() as u64;
        let ord = self.outstanding.ord();
        let outbound = prepare(&wr, number, ord, self.rc, qp.origin(), guard).ok()?;
        Some(DirectWrite {
            wr,
            number,
            outbound,
        })
    }

    /// Completes a Write that was carried out, behind the requests in front of it.
    pub(in super::super) fn complete_direct_write(
        &mut self,
        write: &DirectWrite,
        qp: &mut QueuePair,
        cqs: &mut CqTable,
    ) {
        self.begin(
            &write.wr,
            qp.signal_all,
            write.number,
            &write.outbound.header,
        );
        if let Some(request) = self.request(write.number) {
            request.progress = Progress::Done;
        }
        self.complete(qp, cqs);
    }
}
