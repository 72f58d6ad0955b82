//! The order of segments in a stream: a message that has begun is continued until its last segment.

use core::fmt;

use crate::wire::ddp::{DdpHeader, Msn};

/// A message whose first segments were delivered, and whose last segment was not.
#[derive(Clone, Copy)]
pub(super) struct PartialMessage {
    /// The header of one of its segments: for a tagged message, of one with payload if there was
    /// any.
    pub(super) header: DdpHeader,
    /// No segment had payload so far: then the STag of a tagged message is not known.
    pub(super) empty: bool,
}

/// The message that has begun and not ended in an order of segments of its own, if there is one.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessageInProgress(pub(super) Option<PartialMessage>);

impl MessageInProgress {
    /// Returns whether there is one.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }
}

/// Shows no offset: the header may be that of any segment of the message.
impl fmt::Debug for PartialMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: (u8, u32, Option<Msn>) = match &self.header {
            DdpHeader::Tagged(header) => (header.ulp, header.stag.0, None),
            DdpHeader::Untagged(header) => (header.ulp, header.queue.0, Some(header.msn)),
        };
        write!(f, "{names:?}, empty: {}", self.empty)
    }
}

impl PartialMessage {
    /// Returns whether a segment surely belongs to this message: its header differs in the offset
    /// only.
    #[inline]
    pub(super) fn is_continued_by(&self, header: &DdpHeader) -> bool {
        match (&self.header, header) {
            (DdpHeader::Tagged(own), DdpHeader::Tagged(header)) => {
                (own.ulp, own.stag) == (header.ulp, header.stag) && !self.empty
            }
            (DdpHeader::Untagged(own), DdpHeader::Untagged(header)) => {
                let rsvd = (own.ulp, own.ulp32) == (header.ulp, header.ulp32);
                rsvd && (own.queue, own.msn) == (header.queue, header.msn)
            }
            _ => false,
        }
    }

    /// Returns whether a segment may belong to this message: STag, or queue and MSN, stay the same
    /// in a message. The STag of a segment without payload means nothing. The ULP checks what it
    /// needs of RsvdULP.
    // rfc: 5041-33 the STag is the same in all segments of a message
    // rfc: 5041-40, 5041-45 queue number and MSN are the same in all segments of a message
    pub(super) fn may_contain(&self, header: &DdpHeader, empty: bool) -> bool {
        match (&self.header, header) {
            (DdpHeader::Tagged(own), DdpHeader::Tagged(header)) => {
                empty || self.empty || own.stag == header.stag
            }
            (DdpHeader::Untagged(own), DdpHeader::Untagged(header)) => {
                (own.queue, own.msn) == (header.queue, header.msn)
            }
            _ => false,
        }
    }
}
