//! The responder: Read Requests of the peer, answered in the order in which they came.

use std::collections::VecDeque;

use super::RdmapError;
use super::message::{Outbound, Source, Token, tagged};
use crate::memory::epoch::Guard;
use crate::memory::place::TagError;
use crate::memory::table::{Access, Origin};
use crate::wire::ddp::{TaggedOffset, UntaggedHeader};
use crate::wire::rdmap::{Opcode, ReadRequest};

/// A Read Request that was not yet answered in full.
#[derive(Clone, Copy, Debug)]
struct Read {
    header: UntaggedHeader,
    request: ReadRequest,
}

#[derive(Debug)]
pub(super) struct Responder {
    ird: u16,
    /// The one being answered stays at the front until all of its response was sent.
    // rfc: 5040-38, 5040-49, 5040-78
    reads: VecDeque<Read>,
    answering: bool,
}

impl Responder {
    pub(super) fn new(ird: u16) -> Self {
        Self {
            ird,
            reads: VecDeque::with_capacity(ird.into()),
            answering: false,
        }
    }

    /// Takes a Read Request that was delivered.
    // rfc: 5040-33, 5040-71, 5040-81, 5040-84
    pub(super) fn receive(
        &mut self,
        header: UntaggedHeader,
        request: ReadRequest,
    ) -> Result<(), RdmapError> {
        // rfc: 5042-s6
        if self.reads.len() >= usize::from(self.ird) {
            return Err(RdmapError::TooManyReads { ird: self.ird });
        }
        self.reads.push_back(Read { header, request });
        Ok(())
    }

    /// The response to the oldest request, once its source was found readable.
    // rfc: 5040-29, 5040-41, 5040-45, 5040-46, 5040-50, 5040-76
    pub(super) fn next(
        &mut self,
        origin: Origin,
        guard: &Guard<'_>,
    ) -> Result<Option<Outbound>, RdmapError> {
        let Some(&Read { header, request }) = self.reads.front().filter(|_| !self.answering) else {
            return Ok(None);
        };
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
                    request,
                })?;
        }
        self.answering = true;
        Ok(Some(Outbound {
            // rfc: 5040-15
            header: tagged(Opcode::ReadResponse, request.sink_stag, request.sink_offset),
            length,
            source: Source::Region { stag, offset },
            token: Token::Response,
        }))
    }

    /// The response in progress was handed down in full: its place in the queue is free.
    pub(super) fn sent(&mut self) {
        if self.answering {
            self.answering = false;
            self.reads.pop_front();
        }
    }

    /// The source of the response in progress became unreadable after `sent` octets.
    pub(super) fn source_failed(&self, sent: u32, error: TagError) -> Option<RdmapError> {
        let &Read { header, request } = self.reads.front()?;
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
            request,
        })
    }

    /// Whether every request was answered.
    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.reads.clear();
        self.answering = false;
    }
}
