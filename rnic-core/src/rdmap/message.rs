//! Outgoing messages: their headers, and where their payload comes from. Untagged ones that were
//! delivered.

use core::fmt;

use crate::memory::{
    epoch::Guard,
    error::TagError,
    place::{self},
    table::{Access, Origin},
};
use crate::verbs::{
    Sge, gather,
    wr::{SHORT_INLINE, SHORT_SGE},
};
use crate::wire::ddp::{
    DdpHeader, MessageOffset, Msn, QueueNumber, SegmentInfo, Stag, TaggedHeader, TaggedOffset,
    UntaggedHeader,
};
use crate::wire::rdmap::{Control, Opcode};

/// A delivered untagged message.
#[derive(Clone, Copy, Debug)]
pub struct UntaggedMessage<'a> {
    /// The header of its last segment.
    pub header: UntaggedHeader,
    /// What the header does not say about that segment.
    pub info: SegmentInfo,
    /// Octets of the message.
    pub length: u32,
    /// Octets of the Write that came before it, if no other message took up a receive since.
    pub written_before: u32,
    /// The message, but for a Send: that is in the first posted receive.
    pub octets: &'a [u8],
    /// Up to where the peer has acknowledged our stream with it. A Send is told behind the requests
    /// that this completes: it may be the answer to them.
    pub acked: u64,
}

/// Identifies a message until it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// The ready-to-receive message.
    Rtr,
    /// A work request, counted from the first of the send queue.
    Request(u64),
    /// A Read or Atomic Response.
    Response,
    /// The Terminate.
    Terminate,
    /// A Control message.
    FlowControl,
}

/// A message to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outbound {
    /// The DDP header of its first segment, as far as RDMAP decides it. DDP sets L, MSN and MO.
    pub header: DdpHeader,
    /// Octets of the message.
    pub length: u32,
    /// Where its payload comes from.
    pub source: PayloadSource,
    /// Identifies the message.
    pub token: Token,
}

/// Where the payload of a message comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PayloadSource {
    /// A gather list of local memory.
    Sges {
        /// The list.
        sges: [Sge; SHORT_SGE],
        /// The number of elements in use.
        count: usize,
    },
    /// The octets themselves.
    Octets([u8; SHORT_INLINE]),
    /// The entry of this request in the send queue: it has too many elements or octets to be kept
    /// elsewhere too.
    Queued(u64),
    /// Memory that the peer may read.
    Region {
        /// The STag.
        stag: Stag,
        /// Where the message starts in it.
        offset: TaggedOffset,
    },
}

/// Shows of a gather list the elements in use: the others hold anything.
impl fmt::Debug for PayloadSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sges { sges, count } => f.debug_list().entries(&sges[..*count]).finish(),
            Self::Octets(octets) => f.debug_tuple("Octets").field(octets).finish(),
            Self::Queued(number) => f.debug_tuple("Queued").field(number).finish(),
            Self::Region { stag, offset } => {
                f.debug_tuple("Region").field(stag).field(offset).finish()
            }
        }
    }
}

impl PayloadSource {
    /// Returns octets `offset..offset + len` of the message, if they are contiguous memory that may
    /// be read. They may be read as long as `guard` lives.
    pub fn in_one_piece<'g>(
        &self,
        guard: &'g Guard<'_>,
        origin: Origin,
        offset: u32,
        len: usize,
    ) -> Option<place::Source<'g>> {
        let (stag, start, need) = match self {
            Self::Sges { sges, count: 1 } => {
                let [sge, ..] = sges;
                let end = u64::from(offset) + len as u64;
                if end > sge.length.into() {
                    return None;
                }
                (sge.stag(), sge.offset, Access::LOCAL_READ)
            }
            Self::Region { stag, offset } => (*stag, offset.0, Access::REMOTE_READ),
            Self::Sges { .. } | Self::Octets(_) | Self::Queued(_) => return None,
        };
        let at = TaggedOffset(start.checked_add(offset.into())?);
        guard.for_reading(stag, at, len, origin, need).ok()
    }

    /// Copies octets `offset..offset + to.len()` of the message to `to`, which is not a
    /// [queued](Self::Queued) one. Memory is checked each time, because it may have been revoked
    /// since the message began.
    #[inline]
    pub(super) fn read(
        &self,
        guard: &Guard<'_>,
        origin: Origin,
        offset: u32,
        to: &mut [u8],
    ) -> Result<(), TagError> {
        if to.is_empty() {
            return Ok(());
        }
        match self {
            Self::Sges { sges, count } => gather(
                guard,
                origin,
                &sges[..(*count).min(SHORT_SGE)],
                offset.into(),
                to,
            ),
            Self::Octets(octets) => copy_octets(octets, offset, to),
            Self::Queued(_) => Err(no_octets(offset, to.len())),
            Self::Region {
                stag,
                offset: start,
            } => {
                // The whole message was checked before: this does not wrap.
                let at = TaggedOffset(start.0.wrapping_add(offset.into()));
                guard
                    .for_reading(*stag, at, to.len(), origin, Access::REMOTE_READ)?
                    .read(to)
                    .map_err(|fault| fault.by(*stag, Access::REMOTE_READ))
            }
        }
    }
}

/// Copies octets from `offset` on of those that stand in a request.
pub(super) fn copy_octets(octets: &[u8], offset: u32, to: &mut [u8]) -> Result<(), TagError> {
    let start = offset as usize;
    let from = octets.get(start..start + to.len());
    to.copy_from_slice(from.ok_or(no_octets(offset, to.len()))?);
    Ok(())
}

/// Returns the error of a request that has not the octets that it says.
pub(super) fn no_octets(offset: u32, len: usize) -> TagError {
    TagError::BaseOrBounds {
        stag: Stag(0),
        offset: TaggedOffset(offset.into()),
        len,
    }
}

/// Makes the header of a message to a tagged buffer of the peer.
// rfc: 5040-3, 5040-10a RsvdULP begins with the control octet, which has version 1
// rfc: 5040-6, 5040-7 RDMAP decides by the opcode that the message is tagged
// rfc: 5040-9, 5041-54 RDMAP gives STag and first TO
#[inline]
pub(super) fn tagged(opcode: Opcode, stag: Stag, offset: TaggedOffset) -> DdpHeader {
    let ulp = Control::new(opcode).into();
    DdpHeader::Tagged(TaggedHeader {
        last: false,
        ulp,
        stag,
        offset,
    })
}

/// Makes the header of a message to a queue of the peer. `invalidate` is 0 where no STag is
/// invalidated.
// rfc: 5040-3, 5040-10a RsvdULP begins with the control octet, which has version 1
// rfc: 5040-5, 5040-12 the STag to be invalidated follows it, or zero
// rfc: 5040-6, 5040-7, 5040-9 the opcode decides that the message is untagged, and its queue
#[inline]
pub(super) fn untagged(opcode: Opcode, queue: QueueNumber, invalidate: u32) -> DdpHeader {
    DdpHeader::Untagged(UntaggedHeader {
        last: false,
        ulp: Control::new(opcode).into(),
        ulp32: invalidate,
        queue,
        msn: Msn::FIRST,
        offset: MessageOffset(0),
    })
}
