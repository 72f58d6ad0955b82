//! The responder: carries out the peer's Read and Atomic Requests, in the order in which they were
//! delivered.

use std::collections::VecDeque;

use crate::memory::{
    epoch::Guard,
    error::TagError,
    table::{Access, Origin},
};
use crate::verbs::wr::SHORT_INLINE;
use crate::wire::ddp::{QueueNumber, SegmentInfo, TaggedOffset, UntaggedHeader};
use crate::wire::rdmap::{AtomicRequest, AtomicResponse, Opcode, ReadRequest};

use super::RdmapError;
use super::message::{Outbound, PayloadSource, Token, tagged, untagged};

/// A request of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) enum PeerRequest {
    Read(ReadRequest),
    Atomic(AtomicRequest),
}

/// A request whose response was not sent in full.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    header: UntaggedHeader,
    info: SegmentInfo,
    request: PeerRequest,
}

#[derive(Debug)]
pub(super) struct Responder {
    ird: u16,
    /// The request in progress stays first until its response was sent in full.
    // rfc: 5040-49 Read Responses go down in the order of their requests
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

    /// Accepts a delivered request.
    // rfc: 5040-33, 7306-21 RDMAP carries it out
    // rfc: 5040-71, 7306-41, 7306-42 it is not begun before DDP delivers it
    // rfc: 5040-81, 5040-84 as many inbound Reads are taken as were agreed on, and no more
    // The requests of each stream have a queue of their own.
    pub(super) fn receive(
        &mut self,
        header: UntaggedHeader,
        info: SegmentInfo,
        request: PeerRequest,
    ) -> Result<(), RdmapError> {
        // rfc: 5042-s6 the number of outstanding Reads is limited
        if self.pending.len() >= usize::from(self.ird) {
            return Err(RdmapError::TooManyReads {
                ird: self.ird,
                request: match request {
                    PeerRequest::Read(request) => Some(request),
                    PeerRequest::Atomic(_) => None,
                },
            });
        }
        if self.pending.capacity() == 0 {
            self.pending.reserve_exact(self.ird.into());
        }
        // rfc: 5040-38, 7306-28, 7306-44 requests are carried out in the order of sending
        // rfc: 5040-49, 5040-78, 7306-37, 7306-45 their responses keep that order
        self.pending.push_back(PendingRequest {
            header,
            info,
            request,
        });
        Ok(())
    }

    /// Returns whether a response waits to be sent.
    pub(super) fn is_due(&self) -> bool {
        !self.responding && !self.pending.is_empty()
    }

    /// Returns the response to the oldest request, whose access is checked now. An atomic is
    /// carried out now: all requests before it are done, and none behind it has begun.
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

    /// Notes that the response in progress was handed down in full.
    pub(super) fn sent(&mut self) {
        if self.responding {
            self.responding = false;
            self.pending.pop_front();
        }
    }

    /// Returns the error for a source that was revoked after `sent` octets of the response.
    pub(super) fn source_failed(&self, sent: u32, error: TagError) -> Option<RdmapError> {
        let &PendingRequest {
            header,
            info,
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
            info,
            request,
        })
    }

    /// Returns whether all responses were sent.
    pub(super) fn is_drained(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
        self.responding = false;
    }
}

/// Makes a Read Response. Its payload is read while it is sent.
// rfc: 5040-76 the source is read only after DDP has delivered the request
fn read_response(
    &PendingRequest { header, info, .. }: &PendingRequest,
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
    // rfc: 5040-43, 5040-44 a Read of 0 octets has an empty response, without any checks
    if length > 0 {
        // rfc: 5040-42, 5040-98, 5040-99 the source STag is valid, and belongs to the stream
        // rfc: 5040-100, 5040-101, 5040-102 TO and length lie in its range, without wrapping
        guard
            .for_reading(stag, offset, length as usize, origin, Access::REMOTE_READ)
            .map_err(|error| RdmapError::ReadSource {
                error,
                header,
                info,
                request,
            })?;
    }
    // rfc: 5040-15 the sink's STag and TO are copied from the request
    // rfc: 5040-29, 5040-41 a Read Request has one response
    // rfc: 5040-45, 5040-46, 5040-50 which is a tagged message to one buffer
    Ok(Outbound {
        header: tagged(Opcode::ReadResponse, request.sink_stag, request.sink_offset),
        length,
        source: PayloadSource::Region { stag, offset },
        token: Token::Response,
    })
}

/// Executes an atomic, and makes its response with the value that was in memory before.
fn atomic_response(
    &PendingRequest { header, info, .. }: &PendingRequest,
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
                info,
            })?;
    let updated = place.update(|original| operation.apply(original));
    let original = updated.map_err(|fault| RdmapError::AtomicTarget {
        error: fault.by(stag, Access::REMOTE_ATOMIC).into(),
        header,
        info,
    })?;
    let response = AtomicResponse {
        identifier,
        original,
    };
    let mut octets = [0; SHORT_INLINE];
    let length = response.emit(&mut octets) as u32;
    // rfc: 7306-5, 7306-32 an Atomic Response goes to queue 3
    // rfc: 7306-29, 7306-31 an Atomic Request is answered by an untagged message
    Ok(Outbound {
        header: untagged(Opcode::AtomicResponse, QueueNumber::ATOMIC_RESPONSE, 0),
        length,
        source: PayloadSource::Octets(octets),
        token: Token::Response,
    })
}
