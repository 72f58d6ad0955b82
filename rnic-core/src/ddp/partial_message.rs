//! The order of segments in a stream: a message that has begun is continued until its last segment.

use super::{Ddp, DdpError};
use crate::wire::ddp::{DdpHeader, TaggedHeader};

/// A message whose first segments were delivered, and whose last segment was not.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialMessage {
    /// The header of one of its segments: for a tagged message, of one with payload if there was any.
    header: DdpHeader,
    /// No segment had payload so far: then the STag of a tagged message is not known.
    empty: bool,
}

impl PartialMessage {
    /// Whether a segment surely belongs to this message: its header differs in the offset only.
    #[inline]
    fn is_continued_by(&self, header: &DdpHeader) -> bool {
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

    /// Whether a segment may belong to this message: STag, or queue and MSN, stay the same in a message. The STag of a
    /// segment without payload means nothing. The ULP checks what it needs of RsvdULP.
    // rfc: 5041-33 the STag is the same in all segments of a message
    // rfc: 5041-40, 5041-45 queue number and MSN are the same in all segments of a message
    fn may_contain(&self, header: &DdpHeader, empty: bool) -> bool {
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

impl Ddp {
    /// Whether a message has begun whose last segment was not delivered.
    #[inline]
    pub(super) fn is_amid_message(&self) -> bool {
        self.partial.is_some()
    }

    /// Returns the header of the partial message if this segment differs from it in more than the offset.
    #[inline]
    pub(super) fn interrupted_message(&self, header: &DdpHeader) -> Option<&DdpHeader> {
        let begun = self.partial.as_ref()?;
        (!begun.is_continued_by(header)).then_some(&begun.header)
    }

    /// Drops the partial message: the peer does not finish it.
    pub(super) fn abandon_message(&mut self) {
        self.partial = None;
    }

    /// Records that tagged segments with payload were placed in order, of the partial message or of whole ones. `last` is
    /// the header of the last of them.
    pub(super) fn pass_tagged(&mut self, last: &TaggedHeader) {
        self.partial = (!last.last).then_some(PartialMessage {
            header: DdpHeader::Tagged(*last),
            empty: false,
        });
    }

    /// Takes a segment in order: it must continue the partial message, or begin a message if there is none. An untagged
    /// segment must belong to the next message of its queue.
    // rfc: 5041-21, 5041-62, 5041-63 a message is delivered after all that were sent before it
    #[inline]
    pub(super) fn begin_or_continue(
        &mut self,
        header: &DdpHeader,
        len: usize,
    ) -> Result<(), DdpError> {
        self.check_next(header)?;
        match &self.partial {
            None if header.last() => return Ok(()),
            Some(begun) if begun.is_continued_by(header) => {}
            begun => return self.update_partial(*begun, header, len == 0),
        }
        if header.last() {
            self.partial = None;
        }
        Ok(())
    }

    /// Takes a segment that begins a message of several segments, or whose header differs from those before it.
    fn update_partial(
        &mut self,
        begun: Option<PartialMessage>,
        header: &DdpHeader,
        empty: bool,
    ) -> Result<(), DdpError> {
        let known = match begun {
            // rfc: 5041-62 messages are delivered in the order sent: none interrupts another
            Some(begun) if !begun.may_contain(header, empty) => {
                let tagged = matches!(header, DdpHeader::Tagged(_));
                return Err(DdpError::Interrupts { tagged });
            }
            // The STag that is known stays known.
            Some(begun) if empty => begun,
            _ => PartialMessage {
                header: *header,
                empty,
            },
        };
        // rfc: 5041-21 a message is delivered with its last segment
        self.partial = (!header.last()).then_some(known);
        Ok(())
    }

    /// Checks that an untagged segment belongs to the next message of its queue.
    // rfc: 5041-61 a message is delivered at most once
    #[inline]
    fn check_next(&self, header: &DdpHeader) -> Result<(), DdpError> {
        let DdpHeader::Untagged(header) = header else {
            return Ok(());
        };
        let queue = self.queues.get(header.queue);
        let queue = queue.ok_or(DdpError::InvalidQn(header.queue))?;
        queue.order.check_next(header)
    }
}
