//! DDP segments (RFC 5041 section 4).

use core::fmt;
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::serial::serial_number;

/// Octets of a tagged header, control octet included.
pub const TAGGED_LEN: usize = 14;
/// Octets of an untagged header, control octet included.
pub const UNTAGGED_LEN: usize = 18;
/// Octets at the end of either header that say where the payload belongs: its
/// [position](DdpHeader::position).
pub const POSITION_LEN: usize = size_of::<u64>();
/// The version that RFC 5041 describes.
pub const VERSION: u8 = 1;

const TAGGED: u8 = 0x80;
/// In the control octet: the segment is the last of its message.
pub(super) const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;

/// A Steering Tag: names a tagged buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stag(pub u32);

impl fmt::Display for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// A place in a tagged buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaggedOffset(pub u64);

impl fmt::Display for TaggedOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A place in an untagged message: octets from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageOffset(pub u32);

/// A message sequence number: counts the messages of one queue, and wraps.
// rfc: 5041-44 MSNs wrap to 0
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Msn(pub u32);

serial_number!(Msn);

impl Msn {
    /// The first message of a queue.
    // rfc: 5041-43 the first MSN is 1
    pub const FIRST: Self = Self(1);

    /// Returns the number of the message after this one.
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names an untagged queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueNumber(pub u32);

impl QueueNumber {
    /// Sends (RFC 5040 section 4.1).
    pub const SEND: Self = Self(0);
    /// Read Requests and Atomic Requests.
    // rfc: 7306-15, 7306-26 Atomic Requests share queue 1 with Read Requests
    pub const READ_REQUEST: Self = Self(1);
    /// Terminate.
    pub const TERMINATE: Self = Self(2);
    /// Atomic Responses (RFC 7306).
    // rfc: 7306-16, 7306-33 Atomic Responses go to queue 3
    pub const ATOMIC_RESPONSE: Self = Self(3);
    /// Control, on connections with the semantics of RC.
    pub const FLOW_CONTROL: Self = Self(4);
}

impl fmt::Display for QueueNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a ULPDU is no DDP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DdpWireError {
    /// The ULPDU ends inside its DDP header.
    #[error("a ULPDU of {0} octets is shorter than its DDP header")]
    TooShort(usize),
    /// Another version than [`VERSION`]. `tagged` tells which of the two error types reports it.
    #[error("DDP version {version} is not supported, only 1 is")]
    Version {
        /// The version in the segment.
        version: u8,
        /// Whether the segment is tagged.
        tagged: bool,
    },
}

/// The header of a segment for a tagged buffer (RFC 5041 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedHeader {
    /// The last segment of its message.
    pub last: bool,
    /// The octet that belongs to the ULP: RDMAP's control octet.
    pub ulp: u8,
    /// Names the buffer.
    pub stag: Stag,
    /// Where the payload goes.
    pub offset: TaggedOffset,
}

/// The header of a segment for an untagged buffer (RFC 5041 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntaggedHeader {
    /// The last segment of its message.
    pub last: bool,
    /// The first octet that belongs to the ULP: RDMAP's control octet.
    pub ulp: u8,
    /// The other four: RDMAP's Invalidate STag.
    pub ulp32: u32,
    /// The queue.
    pub queue: QueueNumber,
    /// The message in the queue.
    pub msn: Msn,
    /// Where in the message the payload belongs.
    pub offset: MessageOffset,
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DdpHeader {
    /// For a tagged buffer.
    Tagged(TaggedHeader),
    /// For an untagged buffer.
    Untagged(UntaggedHeader),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTagged {
    control: u8,
    ulp: u8,
    stag: U32,
    offset: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawUntagged {
    control: u8,
    ulp: u8,
    ulp32: U32,
    queue: U32,
    msn: U32,
    offset: U32,
}

/// Returns the octets of the DDP header that a ULPDU starts with, whatever its version: what a
/// Terminate quotes. `None` if the ULPDU is shorter than that.
pub fn header_octets(ulpdu: &[u8]) -> Option<&[u8]> {
    let tagged = ulpdu.first()? & TAGGED != 0;
    ulpdu.get(..if tagged { TAGGED_LEN } else { UNTAGGED_LEN })
}

impl DdpHeader {
    /// Returns whether this is the last segment of its message.
    pub const fn last(&self) -> bool {
        match self {
            Self::Tagged(header) => header.last,
            Self::Untagged(header) => header.last,
        }
    }

    /// Returns the octet that carries RDMAP's control field.
    pub const fn ulp(&self) -> u8 {
        match self {
            Self::Tagged(header) => header.ulp,
            Self::Untagged(header) => header.ulp,
        }
    }

    /// Returns the number of octets that [`emit`](Self::emit) writes.
    pub const fn len(&self) -> usize {
        match self {
            Self::Tagged(_) => TAGGED_LEN,
            Self::Untagged(_) => UNTAGGED_LEN,
        }
    }

    /// Returns the [last octets](POSITION_LEN) of the header as a number, which grows by the octets
    /// of payload from segment to segment of a message: the tagged offset, or MSN and message
    /// offset.
    #[inline]
    pub fn position(&self) -> u64 {
        match self {
            Self::Tagged(header) => header.offset.0,
            Self::Untagged(header) => u64::from(header.msn.0) << 32 | u64::from(header.offset.0),
        }
    }

    /// Returns the header with another [position](Self::position) in the same message.
    #[must_use]
    pub fn at(mut self, position: u64) -> Self {
        match &mut self {
            Self::Tagged(header) => header.offset = TaggedOffset(position),
            // The low half. It never passes 2^32: a message is shorter.
            Self::Untagged(header) => header.offset = MessageOffset(position as u32),
        }
        self
    }

    /// Writes the header; reserved bits are zero. Panics if `buffer` is shorter than
    /// [`len`](Self::len).
    // rfc: 5041-22 reserved bits are sent as zero
    // rfc: 5041-23 the version is 1
    // rfc: 5041-25, 5041-35 layout of figures 4 and 5
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let last = if self.last() { LAST } else { 0 };
        match self {
            Self::Tagged(header) => {
                let raw = RawTagged {
                    control: TAGGED | last | VERSION,
                    ulp: header.ulp,
                    stag: U32::new(header.stag.0),
                    offset: U64::new(header.offset.0),
                };
                buffer[..TAGGED_LEN].copy_from_slice(raw.as_bytes());
            }
            Self::Untagged(header) => {
                let raw = RawUntagged {
                    control: last | VERSION,
                    ulp: header.ulp,
                    ulp32: U32::new(header.ulp32),
                    queue: U32::new(header.queue.0),
                    msn: U32::new(header.msn.0),
                    offset: U32::new(header.offset.0),
                };
                buffer[..UNTAGGED_LEN].copy_from_slice(raw.as_bytes());
            }
        }
        self.len()
    }
}

/// What a parsed header does not say about its segment, and a Terminate quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The first octet of the header, with the reserved bits that are not looked at.
    pub control: u8,
    /// Octets of the segment, header included.
    pub len: u16,
}

/// A segment: a whole ULPDU of MPA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DdpSegment<'a> {
    /// The header.
    pub header: DdpHeader,
    /// The header as it was received: what a Terminate quotes.
    pub header_octets: &'a [u8],
    /// The ULP payload.
    pub payload: &'a [u8],
}

impl<'a> DdpSegment<'a> {
    /// Returns what the header does not say about the segment.
    #[inline]
    pub fn info(&self) -> SegmentInfo {
        let len = self.header_octets.len() + self.payload.len();
        SegmentInfo {
            control: self.header_octets.first().copied().unwrap_or_default(),
            // A ULPDU has no more than MPA's length field can say.
            len: u16::try_from(len).unwrap_or(u16::MAX),
        }
    }

    /// Reads a segment that fills `ulpdu`. Reserved bits are not looked at.
    // rfc: 5041-22 reserved bits are ignored
    #[inline(always)]
    pub fn parse(ulpdu: &'a [u8]) -> Result<Self, DdpWireError> {
        let too_short = DdpWireError::TooShort(ulpdu.len());
        let control = *ulpdu.first().ok_or(too_short)?;
        let (tagged, last, version) = (
            control & TAGGED != 0,
            control & LAST != 0,
            control & VERSION_MASK,
        );
        // rfc: 5041-24 each segment has the version of the stream
        if version != VERSION {
            return Err(DdpWireError::Version { version, tagged });
        }
        // rfc: 5041-48 every segment has a DDP header
        let header_octets = header_octets(ulpdu).ok_or(too_short)?;
        let payload = &ulpdu[header_octets.len()..];
        let header = if tagged {
            let raw = RawTagged::ref_from_bytes(header_octets).map_err(|_| too_short)?;
            DdpHeader::Tagged(TaggedHeader {
                last,
                ulp: raw.ulp,
                stag: Stag(raw.stag.get()),
                offset: TaggedOffset(raw.offset.get()),
            })
        } else {
            let raw = RawUntagged::ref_from_bytes(header_octets).map_err(|_| too_short)?;
            DdpHeader::Untagged(UntaggedHeader {
                last,
                ulp: raw.ulp,
                ulp32: raw.ulp32.get(),
                queue: QueueNumber(raw.queue.get()),
                msn: Msn(raw.msn.get()),
                offset: MessageOffset(raw.offset.get()),
            })
        };
        Ok(Self {
            header,
            header_octets,
            payload,
        })
    }
}
