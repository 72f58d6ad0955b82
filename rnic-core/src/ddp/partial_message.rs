//! What comes next in a stream: the rest of the message that was begun, and nothing else before its last segment.

use super::{Ddp, DdpError};
use crate::wire::ddp::{DdpHeader, TaggedHeader};

/// A message whose first segments were delivered, and whose last was not.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialMessage {
    /// The header of a segment of it. Of a tagged message, of one with octets, if there was one.
    header: DdpHeader,
    /// Whether there were no octets: then the STag of a tagged message is not known.
    empty: bool,
}

impl PartialMessage {
    /// Whether a segment is plainly one of this message: nothing but its place is another.
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

    /// Whether a segment may be one of this message: RFC 5041 has a message keep its STag, or its queue and MSN. The STag
    /// of a segment without octets means nothing. What of RsvdULP must stay the same is for the layer above to say.
    // rfc: 5041-33, 5041-40, 5041-45
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
    /// Whether a message was begun and its last segment has not come.
    #[inline]
    pub(super) fn is_amid_message(&self) -> bool {
        self.partial.is_some()
    }

    /// The message that was begun, by the header of a segment of it, if this segment differs from it in more than its place.
    #[inline]
    pub(super) fn interrupted_message(&self, header: &DdpHeader) -> Option<&DdpHeader> {
        let begun = self.partial.as_ref()?;
        (!begun.is_continued_by(header)).then_some(&begun.header)
    }

    /// The peer does not finish the message that was begun.
    pub(super) fn abandon_message(&mut self) {
        self.partial = None;
    }

    /// Segments with octets of whole tagged messages, or of the one that was begun, came in their turn; the last of them was
    /// this one.
    pub(super) fn pass_tagged(&mut self, last: &TaggedHeader) {
        self.partial = (!last.last).then_some(PartialMessage {
            header: DdpHeader::Tagged(*last),
            empty: false,
        });
    }

    /// The turn of a segment has come: it must be of the message that was begun, or begin one behind its last segment. An
    /// untagged one must be of the next message of its queue. So each is delivered behind all that were sent before it.
    // rfc: 5041-21, 5041-62, 5041-63
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

    /// The same of a segment that begins a message and is not all of it, or differs from those before it.
    fn update_partial(
        &mut self,
        begun: Option<PartialMessage>,
        header: &DdpHeader,
        empty: bool,
    ) -> Result<(), DdpError> {
        let known = match begun {
            // rfc: 5041-62 messages are delivered in the order in which they were sent: one does not interrupt another
            Some(begun) if !begun.may_contain(header, empty) => {
                let tagged = matches!(header, DdpHeader::Tagged(_));
                return Err(DdpError::Interrupts { tagged });
            }
            // What is known of it stays known.
            Some(begun) if empty => begun,
            _ => PartialMessage {
                header: *header,
                empty,
            },
        };
        // rfc: 5041-21
        self.partial = (!header.last()).then_some(known);
        Ok(())
    }

    /// An untagged segment is for the message whose turn it is in its queue.
    // rfc: 5041-61
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
