//! The responder: Read and Atomic Requests of the peer, answered in the order in which they came.

use std::collections::VecDeque;

use super::RdmapError;
use super::message::{Outbound, Source, Token, tagged, untagged};
use crate::memory::epoch::Guard;
use crate::memory::place::TagError;
use crate::memory::table::{Access, Origin};
use crate::verbs::wr::MAX_INLINE;
use crate::wire::ddp::{Came, QueueNumber, TaggedOffset, UntaggedHeader};
use crate::wire::rdmap::{AtomicRequest, AtomicResponse, Opcode, ReadRequest};

/// What the peer asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum PeerRequest {
    Read(ReadRequest),
    Atomic(AtomicRequest),
}

/// A request that was not yet answered in full.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    header: UntaggedHeader,
    came: Came,
    request: PeerRequest,
}

#[derive(Debug)]
pub(super) struct Responder {
    ird: u16,
    /// The one being answered stays at the front until all of its response was sent.
    // rfc: 5040-49
    pending: VecDeque<PendingRequest>,
    responding: bool,
}

impl Responder {
    pub(super) fn new(ird: u16) -> Self {
        Self {
            ird,
            pending: VecDeque::new(),
            responding: false,
        }
    }

    /// Takes a request that was delivered.
    // rfc: 5040-33, 5040-71, 5040-81, 5040-84, 7306-21, 7306-41, 7306-42
    pub(super) fn receive(
        &mut self,
        header: UntaggedHeader,
        came: Came,
        request: PeerRequest,
    ) -> Result<(), RdmapError> {
        // rfc: 5042-s6
        if self.pending.len() >= usize::from(self.ird) {
            return Err(RdmapError::TooManyReads { ird: self.ird });
        }
        if self.pending.capacity() == 0 {
            self.pending.reserve_exact(self.ird.into());
        }
        // rfc: 5040-38, 5040-49, 5040-78, 7306-28, 7306-37, 7306-44, 7306-45
        self.pending.push_back(PendingRequest {
            header,
            came,
            request,
        });
        Ok(())
    }

    /// Whether a response waits to be sent.
    pub(super) fn is_due(&self) -> bool {
        !self.responding && !self.pending.is_empty()
    }

    /// The response to the oldest request, once that was found to be allowed. An atomic is carried out now: what was
    /// sent before it, Reads and atomics included, is done, and nothing behind it of these is begun.
    pub(super) fn next(
        &mut self,
        origin: Origin,
        guard: &Guard<'_>,
    ) -> Result<Option<Outbound>, RdmapError> {
        let Some(pending) = self.pending.front().filter(|_| self.is_due()) else {
            return Ok(None);
        };
        let response = match pending.request {
            PeerRequest::Read(request) => read_response(pending, request, origin, guard)?,
            PeerRequest::Atomic(request) => atomic_response(pending, request, origin, guard)?,
        };
        self.responding = true;
        Ok(Some(response))
    }

    /// The response in progress was handed down in full: its place in the queue is free.
    pub(super) fn sent(&mut self) {
        if self.responding {
            self.responding = false;
            self.pending.pop_front();
        }
    }

    /// The source of the response in progress became unreadable after `sent` octets.
    pub(super) fn source_failed(&self, sent: u32, error: TagError) -> Option<RdmapError> {
        let &PendingRequest {
            header,
            came,
            request: PeerRequest::Read(request),
        } = self.pending.front()?
        else {
            return None;
        };
        let advance = |offset: TaggedOffset| TaggedOffset(offset.0.wrapping_add(sent.into()));
        let request = ReadRequest {
            sink_offset: advance(request.sink_offset),
            source_offset: advance(request.source_offset),
            length: request.length.saturating_sub(sent),
            ..request
        };
        Some(RdmapError::ReadSource {
            error,
            header,
            came,
            request,
        })
    }

    /// Whether every request was answered.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
        self.responding = false;
    }
}

/// A Read Response, whose octets are read while it is sent.
// rfc: 5040-76
fn read_response(
    &PendingRequest { header, came, .. }: &PendingRequest,
    request: ReadRequest,
    origin: Origin,
    guard: &Guard<'_>,
) -> Result<Outbound, RdmapError> {
    let ReadRequest {
        source_stag: stag,
        source_offset: offset,
        length,
        ..
    } = request;
    // rfc: 5040-43, 5040-44
    if length > 0 {
        // rfc: 5040-42, 5040-98, 5040-99, 5040-100, 5040-101, 5040-102
        guard
            .for_reading(stag, offset, length as usize, origin, Access::REMOTE_READ)
            .map_err(|error| RdmapError::ReadSource {
                error,
                header,
                came,
                request,
            })?;
    }
    // rfc: 5040-15, 5040-29, 5040-41, 5040-45, 5040-46, 5040-50
    Ok(Outbound {
        header: tagged(Opcode::ReadResponse, request.sink_stag, request.sink_offset),
        length,
        source: Source::Region { stag, offset },
        token: Token::Response,
    })
}

/// Carries an atomic out. Its response tells what the memory held.
fn atomic_response(
    &PendingRequest { header, came, .. }: &PendingRequest,
    request: AtomicRequest,
    origin: Origin,
    guard: &Guard<'_>,
) -> Result<Outbound, RdmapError> {
    let AtomicRequest {
        identifier,
        stag,
        offset,
        operation,
    } = request;
    let place =
        guard
            .for_atomic(stag, offset, origin)
            .map_err(|error| RdmapError::AtomicTarget {
                error,
                header,
                came,
            })?;
    let response = AtomicResponse {
        identifier,
        original: place.update(|original| operation.apply(original)),
    };
    let mut octets = [0; MAX_INLINE];
    let length = response.emit(&mut octets) as u32;
    // rfc: 7306-5, 7306-29, 7306-31, 7306-32
    Ok(Outbound {
        header: untagged(Opcode::AtomicResponse, QueueNumber::ATOMIC_RESPONSE, 0),
        length,
        source: Source::Octets(octets),
        token: Token::Response,
    })
}
