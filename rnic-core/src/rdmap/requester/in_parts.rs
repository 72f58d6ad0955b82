//! Requests that are carried out in parts: Reads into several pieces, and those with more elements
//! or octets than the engine keeps.

use zerocopy::FromZeros;

use super::super::RdmapError;
use super::super::message::{Outbound, copy_octets, no_octets};
use super::super::prepare::{read_request, read_requests, read_sink};
use super::{Reading, Requester, advance};
use crate::memory::{epoch::Guard, error::TagError};
use crate::verbs::{QueuePair, SendWr, gather};
use crate::wire::rdmap::Opcode;

impl Requester {
    /// Returns the next Read Request of a Read, if another may be outstanding.
    // rfc: 5040-82, 5040-83 as many outbound Reads are outstanding as were agreed on, and no more
    pub(super) fn read_on(
        &mut self,
        Reading { number, next }: Reading,
        qp: &QueuePair,
        guard: &Guard<'_>,
    ) -> Result<Option<Outbound>, RdmapError> {
        if self.outstanding.is_full() {
            return Ok(None);
        }
        let mut wr = SendWr::new_zeroed();
        let there = wr.peek(&qp.sq, (number - self.first) as u32);
        let request = read_request(&wr, number, next.into(), qp.origin(), guard);
        match (request, read_sink(&wr, next.into())) {
            (Ok(outbound), Some((sink, _))) if there => {
                advance(&mut self.next_request);
                let last = next + 1 >= read_requests(&wr);
                let response = Opcode::ReadResponse;
                self.outstanding.push(Some(number), response, &sink, last);
                let next = next + 1;
                self.reading = (!last).then_some(Reading { number, next });
                Ok(Some(outbound))
            }
            // Its memory was revoked since it began.
            _ => Err(self.memory_revoked(number).unwrap_or(RdmapError::Queues)),
        }
    }

    /// Copies octets `offset..offset + to.len()` of the message of a request that is not kept
    /// elsewhere than in the send queue.
    pub(in super::super) fn read_queued(
        &self,
        number: u64,
        qp: &QueuePair,
        guard: &Guard<'_>,
        offset: u32,
        to: &mut [u8],
    ) -> Result<(), TagError> {
        let mut wr = SendWr::new_zeroed();
        if to.is_empty() {
            return Ok(());
        }
        if !wr.peek(&qp.sq, number.saturating_sub(self.first) as u32) {
            return Err(no_octets(offset, to.len()));
        }
        if wr.is_inline() {
            return copy_octets(wr.inline_data(), offset, to);
        }
        gather(guard, qp.origin(), wr.sges(), offset.into(), to)
    }
}
