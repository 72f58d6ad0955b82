//! Outgoing messages: their headers, and where their payload comes from.

use crate::memory::{
    epoch::Guard,
    error::TagError,
    place::{self},
    table::{Access, Origin},
};
use crate::verbs::{
    Sge, gather,
    wr::{MAX_INLINE, MAX_SGE},
};
use crate::wire::ddp::{
    DdpHeader, MessageOffset, Msn, QueueNumber, Stag, TaggedHeader, TaggedOffset, UntaggedHeader,
};
use crate::wire::rdmap::{Control, Opcode};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadSource {
    /// A gather list of local memory.
    Sges {
        /// The list.
        sges: [Sge; MAX_SGE],
        /// The number of elements in use.
        count: usize,
    },
    /// The octets themselves.
    Octets([u8; MAX_INLINE]),
    /// Memory that the peer may read.
    Region {
        /// The STag.
        stag: Stag,
        /// Where the message starts in it.
        offset: TaggedOffset,
    },
}

impl PayloadSource {
    /// Returns octets `offset..offset + len` of the message, if they are contiguous memory that may be read. They may be
    /// read as long as `guard` lives.
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
            Self::Sges { .. } | Self::Octets(_) => return None,
        };
        let at = TaggedOffset(start.checked_add(offset.into())?);
        guard.for_reading(stag, at, len, origin, need).ok()
    }

    /// Copies octets `offset..offset + to.len()` of the message to `to`. Memory is checked each time, because it may have been
    /// revoked since the message began.
    #[inline]
    pub fn read(
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
                &sges[..(*count).min(MAX_SGE)],
                offset.into(),
                to,
            ),
            Self::Octets(octets) => {
                let start = offset as usize;
                let from = octets
                    .get(start..start + to.len())
                    .ok_or(TagError::BaseOrBounds {
                        stag: Stag(0),
                        offset: TaggedOffset(offset.into()),
                        len: to.len(),
                    })?;
                to.copy_from_slice(from);
                Ok(())
            }
            Self::Region {
                stag,
                offset: start,
            } => {
                // The whole message was checked before: this does not wrap.
                let at = TaggedOffset(start.0.wrapping_add(offset.into()));
                guard
                    .for_reading(*stag, at, to.len(), origin, Access::REMOTE_READ)?
                    .read(to);
                Ok(())
            }
        }
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

/// Makes the header of a message to a queue of the peer. `invalidate` is 0 where no STag is invalidated.
// rfc: 5040-3, 5040-10a RsvdULP begins with the control octet, which has version 1
// rfc: 5040-5, 5040-12 the STag to be invalidated follows it, or zero
// rfc: 5040-6, 5040-7, 5040-9 RDMAP decides by the opcode that the message is untagged, and its queue
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
