//! Reads and atomics whose responses are outstanding: one queue, because they share the depth that was agreed on and are
//! answered in the order in which they were asked.

use std::collections::VecDeque;

use super::RdmapError;
use crate::verbs::Sge;
use crate::wire::ddp::{DdpHeader, Stag, TaggedHeader, TaggedOffset, UntaggedHeader};
use crate::wire::rdmap::{AtomicResponse, Control, Opcode};

/// A request whose response has not wholly come.
#[derive(Clone, Copy, Debug)]
struct OutstandingRequest {
    /// Which request. The Read that opens a peer-to-peer connection is none.
    number: Option<u64>,
    /// What answers it: a Read Response or an Atomic Response.
    answer: Opcode,
    /// Where the octets belong.
    stag: Stag,
    offset: TaggedOffset,
    length: u32,
    /// How many of them have come.
    delivered: u32,
}

#[derive(Debug)]
pub(super) struct Outstanding {
    ord: u16,
    /// How many there can be.
    most: usize,
    /// Takes memory with the first.
    queue: VecDeque<OutstandingRequest>,
}

impl Outstanding {
    /// At most `ord` at once, made by a send queue of `send_queue` entries.
    pub(super) fn new(ord: u16, send_queue: u32) -> Self {
        Self {
            ord,
            most: u32::from(ord).min(send_queue) as usize,
            queue: VecDeque::new(),
        }
    }

    pub(super) fn ord(&self) -> u16 {
        self.ord
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether another one has to wait. Where none are allowed it need not: it fails, rather than wait for ever.
    // rfc: 5040-82, 5040-83
    pub(super) fn is_full(&self) -> bool {
        self.ord > 0 && self.queue.len() >= usize::from(self.ord)
    }

    /// The response of `number` will bring octets for `sink`.
    pub(super) fn push(&mut self, number: Option<u64>, answer: Opcode, sink: &Sge) {
        if self.queue.capacity() == 0 {
            self.queue.reserve_exact(self.most);
        }
        self.queue.push_back(OutstandingRequest {
            number,
            answer,
            stag: sink.stag(),
            offset: sink.tagged_offset(),
            length: sink.length,
            delivered: 0,
        });
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Whether a response of this kind may come at all.
    fn awaits(&self, answer: Opcode) -> bool {
        self.queue
            .iter()
            .any(|outstanding| outstanding.answer == answer)
    }

    /// Whether a segment of an Atomic Response may come. It names no place.
    pub(super) fn admit_atomic(&self, header: &UntaggedHeader) -> Result<(), RdmapError> {
        self.awaits(Opcode::AtomicResponse)
            .then_some(())
            .ok_or(unexpected(&DdpHeader::Untagged(*header)))
    }

    /// Whether a segment of a Read Response goes to where an outstanding Read wants it.
    pub(super) fn admit_read(&self, header: &TaggedHeader, len: usize) -> Result<(), RdmapError> {
        if !self.awaits(Opcode::ReadResponse) {
            return Err(unexpected(&DdpHeader::Tagged(*header)));
        }
        if len == 0
            || self
                .queue
                .iter()
                .any(|outstanding| outstanding.takes(header, len))
        {
            return Ok(());
        }
        let is_sink = |outstanding: &OutstandingRequest| {
            outstanding.is_read() && outstanding.stag == header.stag
        };
        if self.queue.iter().any(is_sink) {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            return Err(RdmapError::SinkBounds {
                offset: header.offset,
                len,
            });
        }
        Err(RdmapError::SinkStag(header.stag))
    }

    /// Takes a segment of a Read Response in its turn: it must continue the oldest request, a Read, and end where that
    /// ends. The request that it completes.
    // rfc: 5040-70, 5040-77, 5040-79
    pub(super) fn read_response(
        &mut self,
        header: &TaggedHeader,
        len: u32,
    ) -> Result<Option<u64>, RdmapError> {
        let Some(read) = self.queue.front_mut().filter(|oldest| oldest.is_read()) else {
            return Err(unexpected(&DdpHeader::Tagged(*header)));
        };
        let bounds = RdmapError::SinkBounds {
            offset: header.offset,
            len,
        };
        // rfc: 5041-58 — nothing is checked of a segment that places nothing.
        if len > 0 {
            if header.stag != read.stag {
                return Err(RdmapError::SinkStag(header.stag));
            }
            let expected = read.offset.0.checked_add(read.delivered.into());
            if expected != Some(header.offset.0) || len > read.length - read.delivered {
                return Err(bounds);
            }
            read.delivered += len;
        }
        if !header.last {
            return Ok(None);
        }
        if read.delivered != read.length {
            return Err(bounds);
        }
        // rfc: 5040-79
        Ok(self.queue.pop_front().and_then(|read| read.number))
    }

    /// Takes an Atomic Response in its turn: it must answer the oldest request, an atomic. The request, and where the
    /// value belongs.
    pub(super) fn atomic_response(
        &mut self,
        header: &UntaggedHeader,
        response: &AtomicResponse,
    ) -> Result<(u64, Sge), RdmapError> {
        let oldest = self.queue.front().filter(|oldest| !oldest.is_read());
        let Some((outstanding, number)) = oldest.and_then(|atomic| Some((*atomic, atomic.number?)))
        else {
            return Err(unexpected(&DdpHeader::Untagged(*header)));
        };
        let expected = identifier(number);
        if response.identifier != expected {
            return Err(RdmapError::Identifier {
                came: response.identifier,
                expected,
            });
        }
        self.queue.pop_front();
        let sink = Sge {
            offset: outstanding.offset.0,
            length: outstanding.length,
            lkey: outstanding.stag.0,
        };
        Ok((number, sink))
    }
}

impl OutstandingRequest {
    fn is_read(&self) -> bool {
        self.answer == Opcode::ReadResponse
    }

    /// Whether `len` octets of a Read Response lie in the sink.
    fn takes(&self, header: &TaggedHeader, len: usize) -> bool {
        let end = |start: u64| start.checked_add(len as u64);
        self.is_read()
            && header.stag == self.stag
            && header
                .offset
                .0
                .checked_sub(self.offset.0)
                .and_then(end)
                .is_some_and(|end| end <= u64::from(self.length))
    }
}

/// The Request Identifier of an atomic: the low bits of its place among all requests.
pub(super) fn identifier(number: u64) -> u32 {
    number as u32
}

fn unexpected(header: &DdpHeader) -> RdmapError {
    RdmapError::UnexpectedOpcode(Control::from(header.ulp()))
}
