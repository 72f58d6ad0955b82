//! Outstanding requests: Reads and atomics whose responses have not arrived. They share one queue,
//! because they share the ORD, and their responses arrive in the order of the requests.

use std::collections::VecDeque;

use super::RdmapError;
use crate::verbs::{Sge, wr::MAX_SGE};
use crate::wire::ddp::{DdpHeader, Stag, TaggedHeader, TaggedOffset, UntaggedHeader};
use crate::wire::rdmap::{AtomicResponse, Control, Opcode};

/// A request whose response has not arrived in full.
#[derive(Clone, Copy, Debug)]
struct OutstandingRequest {
    /// The number of the work request. `None` for the Read that is a ready-to-receive message (RFC
    /// 6581).
    number: Option<u64>,
    /// Whether its response completes the work request: it is the last, or the only one, that was
    /// sent for it.
    last: bool,
    /// The opcode of its response: Read Response or Atomic Response.
    response: Opcode,
    /// The sink of the response.
    stag: Stag,
    offset: TaggedOffset,
    length: u32,
    /// Octets of the response that were delivered.
    delivered: u32,
}

#[derive(Debug)]
pub(super) struct Outstanding {
    ord: u16,
    /// The most that can be outstanding.
    most: usize,
    /// Allocated with the first request.
    queue: VecDeque<OutstandingRequest>,
}

impl Outstanding {
    /// Allows `ord` outstanding requests, for a send queue of `send_queue` entries.
    pub(super) fn new(ord: u16, send_queue: u32) -> Self {
        Self {
            ord,
            most: u32::from(ord).min(send_queue.saturating_mul(MAX_SGE as u32)) as usize,
            queue: VecDeque::new(),
        }
    }

    pub(super) fn ord(&self) -> u16 {
        self.ord
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns whether another request has to wait. With an ORD of 0 it fails instead (in
    /// `prepare`).
    // rfc: 5040-82, 5040-83 as many outbound Reads are outstanding as were agreed on, and no more
    pub(super) fn is_full(&self) -> bool {
        self.ord > 0 && self.queue.len() >= usize::from(self.ord)
    }

    /// Adds a request whose response goes to `sink`, the `last` of its work request.
    pub(super) fn push(&mut self, number: Option<u64>, response: Opcode, sink: &Sge, last: bool) {
        if self.queue.capacity() == 0 {
            self.queue.reserve_exact(self.most);
        }
        self.queue.push_back(OutstandingRequest {
            number,
            last,
            response,
            stag: sink.stag(),
            offset: sink.tagged_offset(),
            length: sink.length,
            delivered: 0,
        });
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Returns whether a response of this kind is outstanding.
    fn awaits(&self, response: Opcode) -> bool {
        self.queue
            .iter()
            .any(|outstanding| outstanding.response == response)
    }

    /// Checks a segment of an Atomic Response. It names no buffer.
    pub(super) fn admit_atomic(&self, header: &UntaggedHeader) -> Result<(), RdmapError> {
        self.awaits(Opcode::AtomicResponse)
            .then_some(())
            .ok_or(unexpected(&DdpHeader::Untagged(*header)))
    }

    /// Checks that a segment of a Read Response lies in the sink of an outstanding Read.
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

    /// Returns the oldest Read whose response goes to `sink`.
    pub(super) fn read_into(&self, sink: Stag) -> Option<u64> {
        let reads = &mut self.queue.iter();
        reads
            .find(|outstanding| outstanding.is_read() && outstanding.stag == sink)?
            .number
    }

    /// Handles a delivered segment of a Read Response. It must continue the oldest request, which
    /// must be a Read, and end with it. Returns the work request that it completes.
    // rfc: 5040-70, 5040-77 a Read completes only when DDP has delivered its response
    // rfc: 5040-79 the delivered response is enough to complete it
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
        // rfc: 5041-58 without payload STag and TO are not checked
        if len > 0 {
            if header.stag != read.stag {
                return Err(RdmapError::SinkStag(header.stag));
            }
            if read.next_offset() != Some(header.offset.0) || len > read.length - read.delivered {
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
        // rfc: 5040-79 the delivered response is enough to complete a Read
        let read = self.queue.pop_front().filter(|read| read.last);
        Ok(read.and_then(|read| read.number))
    }

    /// Returns how many octets the oldest request still lacks, if it is a Read whose response goes
    /// on with this segment.
    // rfc: 5041-73c the payload lies inside the sink
    pub(super) fn rest_of_read(&self, next: &TaggedHeader) -> Option<u32> {
        let read = self.queue.front().filter(|oldest| oldest.is_read())?;
        let continues = next.stag == read.stag && read.next_offset() == Some(next.offset.0);
        continues.then_some(read.length - read.delivered)
    }

    /// Adds octets of the oldest Read that were delivered, no more than it
    /// [lacks](Self::rest_of_read).
    pub(super) fn pass_read(&mut self, octets: u32) {
        if let Some(read) = self.queue.front_mut() {
            read.delivered += octets;
        }
    }

    /// Handles a delivered Atomic Response. The oldest request must be an atomic, and the response
    /// must be for it. Returns the request, and where its value goes.
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
                received: response.identifier,
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
        self.response == Opcode::ReadResponse
    }

    /// Returns where the next octets of its response go. `None` if tagged offsets would wrap.
    fn next_offset(&self) -> Option<u64> {
        self.offset.0.checked_add(self.delivered.into())
    }

    /// Returns whether `len` octets of a Read Response lie inside the sink.
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

/// Returns the Request Identifier of an atomic: the low bits of its number.
pub(super) fn identifier(number: u64) -> u32 {
    number as u32
}

fn unexpected(header: &DdpHeader) -> RdmapError {
    RdmapError::UnexpectedOpcode(Control::from(header.ulp()))
}
