//! MPA startup frames (RFC 5044 section 7.1.1, RFC 6581 section 6) and FPDUs without markers (RFC
//! 5044 section 4.1).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Octets of a startup frame before its private data.
pub const STARTUP_LEN: usize = 20;
/// Octets of private data at most, the enhanced connection data included.
pub const MAX_PRIVATE_DATA: usize = 512;
/// Octets of the enhanced connection data, at the start of the private data.
pub const ENHANCED_LEN: usize = 4;
/// The largest read depth that the enhanced data can state; it means "not negotiated" (RFC 6581
/// section 9.1).
pub const MAX_DEPTH: u16 = 0x3fff;
/// Octets of the ULPDU length in front of an FPDU.
pub const LENGTH_LEN: usize = 2;
/// Octets of the CRC field at the end of an FPDU.
pub const CRC_LEN: usize = 4;

// rfc: 5044-51 key of a Request
const REQUEST_KEY: &[u8; 16] = b"MPA ID Req Frame";
// rfc: 5044-53 key of a Reply
const REPLY_KEY: &[u8; 16] = b"MPA ID Rep Frame";

const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;
const RESERVED: u8 = 0x0f;

/// Flag A beside IRD and C beside ORD, then B and D.
const FIRST_FLAG: u16 = 0x8000;
const SECOND_FLAG: u16 = 0x4000;

/// Why octets are no startup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MpaWireError {
    /// The peer does not speak MPA, or is at another point of its stream.
    #[error(
        "the stream does not start with an MPA key: the peer speaks another protocol on this port"
    )]
    Key,
    /// More than [`MAX_PRIVATE_DATA`] octets.
    #[error("the peer sends {0} octets of private data, the limit is 512")]
    PrivateDataLength(u16),
    /// The enhanced bit is set, and there is no room for the enhanced data.
    #[error(
        "the peer announces enhanced connection data in {0} octets of private data, it takes 4"
    )]
    EnhancedLength(u16),
}

/// Which side sends the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupKind {
    /// The initiator.
    Request,
    /// The responder.
    Reply,
}

/// The enhanced connection data (RFC 6581 section 9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enhanced {
    /// Inbound read depth, 14 bits.
    pub ird: u16,
    /// Outbound read depth, 14 bits.
    pub ord: u16,
    /// Flag A: peer-to-peer; the initiator has to send first, with nothing from its ULP.
    pub peer_to_peer: bool,
    /// Flag B: by a zero-length Send.
    pub rtr_send: bool,
    /// Flag C: by a zero-length Write.
    pub rtr_write: bool,
    /// Flag D: by a zero-length Read.
    pub rtr_read: bool,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEnhanced {
    ird: U16,
    ord: U16,
}

impl Enhanced {
    /// Splits the enhanced data from the front of private data, if they are there.
    pub fn split(private_data: &[u8]) -> Option<(Self, &[u8])> {
        let (raw, behind) = RawEnhanced::ref_from_prefix(private_data).ok()?;
        Some((Self::from_raw(raw), behind))
    }

    /// Returns the octets of the enhanced data.
    pub fn octets(self) -> [u8; ENHANCED_LEN] {
        let mut octets = [0; ENHANCED_LEN];
        octets.copy_from_slice(self.to_raw().as_bytes());
        octets
    }

    fn from_raw(raw: &RawEnhanced) -> Self {
        let (ird, ord) = (raw.ird.get(), raw.ord.get());
        Self {
            ird: ird & MAX_DEPTH,
            ord: ord & MAX_DEPTH,
            peer_to_peer: ird & FIRST_FLAG != 0,
            rtr_send: ird & SECOND_FLAG != 0,
            rtr_write: ord & FIRST_FLAG != 0,
            rtr_read: ord & SECOND_FLAG != 0,
        }
    }

    /// Returns the data in the layout of the wire. Depths above [`MAX_DEPTH`] are written as that.
    // rfc: 6581-13 IRD and ORD are 14 bits, in network order
    fn to_raw(self) -> RawEnhanced {
        let word = |depth: u16, first: bool, second: bool| {
            let flags = if first { FIRST_FLAG } else { 0 } | if second { SECOND_FLAG } else { 0 };
            U16::new(depth.min(MAX_DEPTH) | flags)
        };
        RawEnhanced {
            ird: word(self.ird, self.peer_to_peer, self.rtr_send),
            ord: word(self.ord, self.rtr_write, self.rtr_read),
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawStartup {
    key: [u8; 16],
    flags: u8,
    revision: u8,
    private_data_length: U16,
}

/// An MPA Request or Reply frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartupFrame<'a> {
    /// Request or Reply.
    pub kind: StartupKind,
    /// M: the sender requires markers in what it receives.
    pub markers: bool,
    /// C: the sender wants CRCs.
    pub crc: bool,
    /// R: the connection is rejected; means nothing in a Request.
    pub reject: bool,
    /// S: the private data begin with the enhanced data. Reserved before revision 2.
    pub enhanced_bit: bool,
    /// The four bits behind, zero unless the sender is newer than we are.
    pub reserved: u8,
    /// The revision of MPA.
    pub revision: u8,
    /// The enhanced data: there with S from revision 2 on.
    pub enhanced: Option<Enhanced>,
    /// The ULP's private data, behind the enhanced data.
    pub private_data: &'a [u8],
}

impl<'a> StartupFrame<'a> {
    /// Reads a frame at the start of the stream, and says how many octets it takes; `None` if more
    /// must come. An error is reported as soon as the octets show it.
    // rfc: 5044-52, 5044-54 the key is checked, by responder and initiator
    // rfc: 5044-68, 5044-80, 5044-82 PD_Length is checked: the frame is malformed where it is wrong
    pub fn parse(octets: &'a [u8]) -> Result<Option<(Self, usize)>, MpaWireError> {
        let key = &octets[..octets.len().min(REQUEST_KEY.len())];
        if !REQUEST_KEY.starts_with(key) && !REPLY_KEY.starts_with(key) {
            return Err(MpaWireError::Key);
        }
        let Ok((raw, rest)) = RawStartup::ref_from_prefix(octets) else {
            return Ok(None);
        };
        let length = raw.private_data_length.get();
        if usize::from(length) > MAX_PRIVATE_DATA {
            return Err(MpaWireError::PrivateDataLength(length));
        }
        // Before revision 2 the bit is a reserved one: not to be checked.
        // rfc: 6581-3, 6581-6 S: private data begin with the enhanced data
        let enhanced_bit = raw.flags & ENHANCED != 0;
        let has_enhanced = enhanced_bit && raw.revision >= 2;
        if has_enhanced && usize::from(length) < ENHANCED_LEN {
            return Err(MpaWireError::EnhancedLength(length));
        }
        let Some(mut private_data) = rest.get(..usize::from(length)) else {
            return Ok(None);
        };
        let mut enhanced = None;
        if has_enhanced && let Some((split, behind)) = Enhanced::split(private_data) {
            (enhanced, private_data) = (Some(split), behind);
        }
        let frame = Self {
            kind: if raw.key == *REQUEST_KEY {
                StartupKind::Request
            } else {
                StartupKind::Reply
            },
            markers: raw.flags & MARKERS != 0,
            crc: raw.flags & CRC != 0,
            reject: raw.flags & REJECT != 0,
            enhanced_bit,
            reserved: raw.flags & RESERVED,
            revision: raw.revision,
            enhanced,
            private_data,
        };
        Ok(Some((frame, STARTUP_LEN + usize::from(length))))
    }

    /// Returns the number of octets that [`emit`](Self::emit) writes.
    pub const fn len(&self) -> usize {
        let enhanced = if self.enhanced.is_some() {
            ENHANCED_LEN
        } else {
            0
        };
        STARTUP_LEN + enhanced + self.private_data.len()
    }

    /// Writes the frame. The caller has checked that the private data keep to [`MAX_PRIVATE_DATA`],
    /// and that S is set if there is enhanced data. Panics if `buffer` is shorter than
    /// [`len`](Self::len).
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let private_data_len = self.len() - STARTUP_LEN;
        debug_assert!(private_data_len <= MAX_PRIVATE_DATA);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let raw = RawStartup {
            key: match self.kind {
                StartupKind::Request => *REQUEST_KEY,
                StartupKind::Reply => *REPLY_KEY,
            },
            flags: flag(self.markers, MARKERS)
                | flag(self.crc, CRC)
                | flag(self.reject, REJECT)
                | flag(self.enhanced_bit, ENHANCED)
                | self.reserved & RESERVED,
            revision: self.revision,
            // rfc: 5044-67 PD_Length is the length of the private data
            private_data_length: U16::new(private_data_len as u16),
        };
        buffer[..STARTUP_LEN].copy_from_slice(raw.as_bytes());
        let mut at = STARTUP_LEN;
        if let Some(enhanced) = self.enhanced {
            buffer[at..at + ENHANCED_LEN].copy_from_slice(&enhanced.octets());
            at += ENHANCED_LEN;
        }
        buffer[at..at + self.private_data.len()].copy_from_slice(self.private_data);
        self.len()
    }
}

/// Returns the number of octets of padding behind a ULPDU: they bring length, ULPDU and pad to a
/// multiple of four.
pub const fn pad_len(ulpdu_len: usize) -> usize {
    (LENGTH_LEN + ulpdu_len).wrapping_neg() % 4
}

/// Returns the number of octets of the FPDU that carries a ULPDU.
pub const fn fpdu_len(ulpdu_len: usize) -> usize {
    LENGTH_LEN + ulpdu_len + pad_len(ulpdu_len) + CRC_LEN
}

/// An FPDU, without markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fpdu<'a> {
    /// What it carries: a DDP segment.
    pub ulpdu: &'a [u8],
    /// The padding, as it came.
    pub pad: &'a [u8],
    /// The CRC field, as it came: meaningless unless CRCs are in use.
    pub crc: [u8; CRC_LEN],
    /// The octets that the CRC covers: length, ULPDU and padding.
    pub covered: &'a [u8],
}

impl<'a> Fpdu<'a> {
    /// Reads an FPDU at the start of `octets`, and says how many octets it takes; `None` if more
    /// must come.
    #[inline]
    pub fn parse(octets: &'a [u8]) -> Option<(Self, usize)> {
        let (length, _) = U16::ref_from_prefix(octets).ok()?;
        let ulpdu_len = usize::from(length.get());
        let len = fpdu_len(ulpdu_len);
        let (covered, crc) = octets.get(..len)?.split_last_chunk::<CRC_LEN>()?;
        let (ulpdu, pad) = covered[LENGTH_LEN..].split_at(ulpdu_len);
        Some((
            Self {
                ulpdu,
                pad,
                crc: *crc,
                covered,
            },
            len,
        ))
    }
}
