//! Writes that are carried out at once, without a message: see `connection/direct.rs`.

use super::{DirectWrite, Rdmap};
use crate::memory::{epoch::Guard, error::TagError};
use crate::verbs::{QueuePair, cq::CqTable};

impl Rdmap {
    /// Returns the next work request, if it is a Write of at most so many octets that may begin.
    pub fn next_direct_write(
        &mut self,
        most: u32,
        qp: &mut QueuePair,
        cqs: &mut CqTable,
        guard: &Guard<'_>,
    ) -> Option<DirectWrite> {
        let is_first = self.urgent.is_none() && !self.is_ending();
        let write = || self.requester.next_direct_write(most, qp, cqs, guard);
        is_first.then(write).flatten()
    }

    /// Completes a Write whose octets are at the peer.
    pub fn complete_direct_write(
        &mut self,
        write: &DirectWrite,
        qp: &mut QueuePair,
        cqs: &mut CqTable,
    ) {
        self.requester.complete_direct_write(write, qp, cqs);
    }

    /// Copies octets of a Write, from `offset` on.
    pub fn read_direct(
        &self,
        write: &DirectWrite,
        qp: &QueuePair,
        guard: &Guard<'_>,
        offset: u32,
        to: &mut [u8],
    ) -> Result<(), TagError> {
        self.read(&write.outbound, qp, guard, offset, to)
    }
}
