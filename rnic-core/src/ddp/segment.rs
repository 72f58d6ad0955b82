//! Cutting a DDP message into DDP segments (RFC 5041 section 5.2).

use crate::wire::ddp::{DdpHeader, MessageOffset, TAGGED_LEN, TaggedOffset, UNTAGGED_LEN};

/// One DDP segment to be sent: its header, and which octets of the message it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The finished header.
    pub header: DdpHeader,
    /// Where the payload starts, in octets from the start of the message.
    pub offset: u32,
    /// Octets of payload.
    pub len: usize,
    /// Whether this is the last segment of the message.
    pub last: bool,
}

/// Cuts one message into segments, front to back, as the MULPDU allows at each moment.
#[derive(Clone, Copy, Debug)]
pub struct Segmenter {
    header: DdpHeader,
    length: u32,
    cut: u32,
    finished: bool,
}

impl Segmenter {
    /// A message of `length` octets. `header` carries what every segment shares and, for a tagged message, the TO
    /// of the first octet; the L bit and the MO are set here.
    pub fn new(header: DdpHeader, length: u32) -> Self {
        Self {
            header,
            length,
            cut: 0,
            finished: false,
        }
    }

    /// The next segment, at most `mulpdu` octets with its header. `None` when the message was cut to its end, or
    /// while `mulpdu` has no room for a header and an octet of payload.
    // rfc: 5041-49, 5044-s1, 5044-s4
    pub fn next(&mut self, mulpdu: usize) -> Option<Cut> {
        if self.finished {
            return None;
        }
        let room = mulpdu.checked_sub(self.header_len())?;
        let remaining = self.length - self.cut;
        let len = remaining.min(u32::try_from(room).unwrap_or(u32::MAX));
        // rfc: 5041-56 — a message without payload is one segment.
        if len == 0 && remaining > 0 {
            return None;
        }
        let offset = self.cut;
        // rfc: 5041-17, 5041-18, 5041-19, 5041-20, 5041-51, 5041-s1
        let last = len == remaining;
        self.cut += len;
        self.finished = last;
        Some(Cut {
            header: self.header_at(offset, last),
            offset,
            len: len as usize,
            last,
        })
    }

    /// The header of the segment that carries the whole message.
    // rfc: 5041-17
    #[inline]
    pub(super) fn whole(&self) -> DdpHeader {
        self.header_at(0, true)
    }

    /// Octets of the segment that would carry all that is left.
    pub fn rest_len(&self) -> usize {
        self.header_len() + (self.length - self.cut) as usize
    }

    /// Whether the whole message was cut.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    fn header_len(&self) -> usize {
        match self.header {
            DdpHeader::Tagged(_) => TAGGED_LEN,
            DdpHeader::Untagged(_) => UNTAGGED_LEN,
        }
    }

    // rfc: 5041-28, 5041-29, 5041-33, 5041-34, 5041-38, 5041-40, 5041-41, 5041-45, 5041-46
    fn header_at(&self, offset: u32, last: bool) -> DdpHeader {
        match self.header {
            // rfc: 5041-55 — where the sum wraps, the peer's own check ends the stream.
            DdpHeader::Tagged(mut tagged) => {
                tagged.last = last;
                tagged.offset = TaggedOffset(tagged.offset.0.wrapping_add(u64::from(offset)));
                DdpHeader::Tagged(tagged)
            }
            // rfc: 5041-47, 5041-53
            DdpHeader::Untagged(mut untagged) => {
                untagged.last = last;
                untagged.offset = MessageOffset(offset);
                DdpHeader::Untagged(untagged)
            }
        }
    }
}
