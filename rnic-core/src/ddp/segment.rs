//! Segmentation: cuts a DDP message into DDP segments (RFC 5041 section 5.2).

use crate::wire::ddp::{
    DdpHeader, MessageOffset, Msn, TAGGED_LEN, TaggedHeader, TaggedOffset, UNTAGGED_LEN,
};

/// Where a segment of a tagged message may end whose lines are kept whole: at multiples of this
/// Tagged Offset. It is a cache line, and so no word is torn that an application waits for.
pub const LINE: u32 = 64;

/// A DDP segment to be sent: its header, and which octets of the message it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingSegment {
    /// The complete header.
    pub header: DdpHeader,
    /// Offset of the payload in the message.
    pub offset: u32,
    /// Octets of payload.
    pub len: usize,
    /// Whether this is the last segment of the message.
    pub last: bool,
}

/// Cuts one message into segments, front to back. Each may have another MULPDU.
#[derive(Clone, Copy, Debug)]
pub struct Segmenter {
    header: DdpHeader,
    length: u32,
    segmented: u32,
    finished: bool,
    /// Segments of a tagged message end at multiples of a [line](LINE).
    whole_lines: bool,
}

/// The next full segments of a message: all as long as the MULPDU allows, but for a line, and none
/// the last. They differ only in the offset of their payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullSegments {
    header: DdpHeader,
    offset: u32,
    payload_len: u32,
    count: u32,
}

impl FullSegments {
    /// Returns the offset of the next one's payload in the message.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Returns the octets of the header of each.
    pub fn header_len(&self) -> usize {
        self.header.len()
    }

    /// Returns the octets of payload in each.
    pub fn payload_len(&self) -> usize {
        self.payload_len as usize
    }

    /// Returns the octets of payload in all of them.
    pub fn octets(&self) -> usize {
        self.count as usize * self.payload_len()
    }
}

impl Segmenter {
    /// Begins a message of `length` octets. `header` has what all segments share and, for a tagged
    /// message, the TO of the first octet. The segmenter sets L and MO.
    pub fn new(header: DdpHeader, length: u32) -> Self {
        Self {
            header,
            length,
            segmented: 0,
            finished: false,
            whole_lines: false,
        }
    }

    /// Decides whether segments of a tagged message end at multiples of a [line](LINE) of its Tagged
    /// Offset, where a segment has room for one.
    #[inline]
    pub fn keep_lines(&mut self, whole: bool) {
        self.whole_lines = whole;
    }

    /// Returns how many of `room` octets a segment has that is not the last.
    #[cold]
    fn cut(&self, room: u32) -> u32 {
        let begun = self.begun_line().unwrap_or(0);
        let beyond = (u64::from(begun) + u64::from(room)) % u64::from(LINE);
        match self.header {
            DdpHeader::Tagged(_) if beyond < room.into() => room - beyond as u32,
            _ => room,
        }
    }

    /// Returns how far into a line the next segment of a tagged message begins.
    fn begun_line(&self) -> Option<u32> {
        match self.header {
            DdpHeader::Tagged(TaggedHeader { offset, .. }) => {
                let at = offset.0.wrapping_add(self.segmented.into());
                Some((at % u64::from(LINE)) as u32)
            }
            DdpHeader::Untagged(_) => None,
        }
    }

    /// Begins the first message of a stream to its queue.
    pub fn first(mut header: DdpHeader, length: u32) -> Self {
        if let DdpHeader::Untagged(untagged) = &mut header {
            // rfc: 5041-43 the first MSN is 1
            untagged.msn = Msn::FIRST;
        }
        Self::new(header, length)
    }

    /// Returns the next segment, of at most `mulpdu` octets with its header. `None` behind the last
    /// segment, or while `mulpdu` has no room for the header and an octet of payload.
    // rfc: 5041-49, 5044-s1 no segment is longer than the MULPDU
    // rfc: 5044-s4 segments are as long as the MULPDU allows
    pub fn next(&mut self, mulpdu: usize) -> Option<OutgoingSegment> {
        if self.finished {
            return None;
        }
        let room = mulpdu.checked_sub(self.header_len())?;
        let remaining = self.length - self.segmented;
        let mut len = remaining.min(u32::try_from(room).unwrap_or(u32::MAX));
        // rfc: 5041-56 a message without payload is one segment
        if len == 0 && remaining > 0 {
            return None;
        }
        if len < remaining && self.whole_lines {
            len = self.cut(len);
        }
        let offset = self.segmented;
        // rfc: 5041-17, 5041-18 L is set on the last segment of a message, and clear on all others
        // rfc: 5041-19, 5041-20, 5041-s1 segments are sent in the order of offsets, L last
        // rfc: 5041-51 the whole message is sent
        let last = len == remaining;
        // rfc: 5041-4 what was handed down is not segmented again for a new MULPDU
        self.segmented += len;
        self.finished = last;
        Some(OutgoingSegment {
            header: self.header_at(offset, last),
            offset,
            len: len as usize,
            last,
        })
    }

    /// Returns the next segments that have just `mulpdu` octets, or as many as the next multiple of
    /// a [line](LINE) lets them have, if there are any.
    pub fn full_segments(&self, mulpdu: usize) -> Option<FullSegments> {
        let room = u32::try_from(mulpdu.checked_sub(self.header_len())?).ok()?;
        let remaining = self.length - self.segmented;
        // The last one of a message is none of them, full or not: it has the L bit.
        let (payload_len, count) = match self.whole_lines {
            false => (room, remaining.checked_sub(1)?.checked_div(room)?),
            true => self.lines(room, remaining)?,
        };
        (count > 0).then_some(FullSegments {
            header: self.header_at(self.segmented, false),
            offset: self.segmented,
            payload_len,
            count,
        })
    }

    /// Returns how many octets the next segments have that are cut between lines, and how many of
    /// them are equal, the last of the message excepted.
    #[cold]
    fn lines(&self, room: u32, remaining: u32) -> Option<(u32, u32)> {
        match self.begun_line() {
            // An untagged message has no lines.
            None => Some((room, remaining.checked_sub(1)?.checked_div(room)?)),
            // Only from a line on all of them are equal.
            Some(0) if room >= LINE => {
                let len = self.cut(room);
                Some((len, remaining.saturating_sub(room).div_ceil(len)))
            }
            Some(_) => None,
        }
    }

    /// Returns the header of the next segment, which is the next of `full`.
    #[inline]
    pub fn next_full(&mut self, full: &mut FullSegments) -> DdpHeader {
        let header = full.header;
        self.segmented += full.payload_len;
        match &mut full.header {
            DdpHeader::Tagged(next) => {
                next.offset.0 = next.offset.0.wrapping_add(full.payload_len.into());
            }
            DdpHeader::Untagged(next) => next.offset = MessageOffset(self.segmented),
        }
        header
    }

    /// Returns the header of a segment that carries the whole message.
    // rfc: 5041-17 L is set on the last segment of a message
    #[inline]
    pub(super) fn whole(&self) -> DdpHeader {
        self.header_at(0, true)
    }

    /// Returns the length of a segment that would carry all that remains, header included.
    pub fn remaining_len(&self) -> usize {
        self.header_len() + (self.length - self.segmented) as usize
    }

    /// Returns whether the last segment was returned.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    fn header_len(&self) -> usize {
        match self.header {
            DdpHeader::Tagged(_) => TAGGED_LEN,
            DdpHeader::Untagged(_) => UNTAGGED_LEN,
        }
    }

    // rfc: 5041-28, 5041-29, 5041-38 RsvdULP is the same in all segments of a message
    // rfc: 5041-33, 5041-34 and so is the STag
    // rfc: 5041-40, 5041-41, 5041-45, 5041-46 and so are queue number and MSN
    fn header_at(&self, offset: u32, last: bool) -> DdpHeader {
        match self.header {
            // rfc: 5041-55 TO is the first TO and the offset; the peer checks that it does not wrap
            DdpHeader::Tagged(mut tagged) => {
                tagged.last = last;
                tagged.offset = TaggedOffset(tagged.offset.0.wrapping_add(u64::from(offset)));
                DdpHeader::Tagged(tagged)
            }
            // rfc: 5041-47, 5041-53 MO is the offset in the message, 0 at first
            DdpHeader::Untagged(mut untagged) => {
                untagged.last = last;
                untagged.offset = MessageOffset(offset);
                DdpHeader::Untagged(untagged)
            }
        }
    }
}
