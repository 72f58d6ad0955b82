//! The Terminate header (RFC 5040 section 4.8), and what peers with another bit order mean by it.

use core::fmt;

use super::{RdmapWireError, ReadRequest};
use crate::wire::ddp;

/// Every error that the RFCs number: layer, type, code and name.
/// RFC 5040 figure 9, RFC 5041 section 7.2, RFC 5044 section 8, RFC 6581 section 8.
const MEANINGS: &[(u8, u8, u8, &str)] = &[
    (0, 1, 0x00, "Read: invalid STag"),
    (0, 1, 0x01, "Read: base or bounds violation"),
    (0, 1, 0x02, "Read: access rights violation"),
    (0, 1, 0x03, "Read: STag not associated with the stream"),
    (0, 1, 0x04, "Read: tagged offset wraps"),
    (0, 1, 0x09, "STag cannot be invalidated"),
    (0, 1, 0xff, "RDMAP: unspecified protection error"),
    (0, 2, 0x05, "RDMAP: invalid version"),
    (0, 2, 0x06, "RDMAP: unexpected opcode"),
    (0, 2, 0x07, "RDMAP: catastrophic error of the stream"),
    (0, 2, 0x08, "RDMAP: catastrophic error of the device"),
    (0, 2, 0x09, "STag cannot be invalidated"),
    (0, 2, 0xff, "RDMAP: unspecified operation error"),
    (1, 0, 0x00, "DDP: local catastrophic error"),
    (1, 1, 0x00, "tagged: invalid STag"),
    (1, 1, 0x01, "tagged: base or bounds violation"),
    (1, 1, 0x02, "tagged: STag not associated with the stream"),
    (1, 1, 0x03, "tagged: tagged offset wraps"),
    (1, 1, 0x04, "tagged: invalid DDP version"),
    (1, 2, 0x01, "untagged: invalid queue number"),
    (1, 2, 0x02, "untagged: no receive buffer"),
    (1, 2, 0x03, "untagged: message sequence number out of range"),
    (1, 2, 0x04, "untagged: invalid message offset"),
    (1, 2, 0x05, "untagged: message too long for its buffer"),
    (1, 2, 0x06, "untagged: invalid DDP version"),
    (2, 0, 0x01, "MPA: TCP connection closed, terminated or lost"),
    (2, 0, 0x02, "MPA: CRC error"),
    (2, 0, 0x03, "MPA: marker and ULPDU length mismatch"),
    (2, 0, 0x04, "MPA: invalid startup frame"),
    (2, 0, 0x05, "MPA: local catastrophic error"),
    (2, 0, 0x06, "MPA: insufficient read depth"),
    (2, 0, 0x07, "MPA: no matching RTR option"),
];

/// Which error a Terminate reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminateControl {
    /// 0 RDMAP, 1 DDP, 2 LLP; four bits.
    pub layer: u8,
    /// Four bits.
    pub error_type: u8,
    /// The code in the type.
    pub code: u8,
}

impl TerminateControl {
    /// Returns what the RFCs call it; `None` if they do not.
    pub fn meaning(self) -> Option<&'static str> {
        // This type has no codes: any value will do.
        if (self.layer, self.error_type) == (0, 0) {
            return Some("RDMAP: local catastrophic error");
        }
        let numbers = (self.layer, self.error_type, self.code);
        MEANINGS
            .iter()
            .find(|(l, t, c, _)| (*l, *t, *c) == numbers)
            .map(|(.., name)| *name)
    }
}

impl fmt::Display for TerminateControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            layer,
            error_type,
            code,
        } = self;
        write!(
            f,
            "{}/{}/{:02x} ({})",
            layer,
            error_type,
            code,
            self.meaning().unwrap_or("unknown")
        )
    }
}

/// The order of the bit fields in the control word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitOrder {
    /// As RFC 5040 figure 8 has it: what we send.
    Rfc,
    /// Linux siw's: the fields of each octet in reverse order.
    Swapped,
}

/// The control word, taken apart.
#[derive(Clone, Copy)]
struct Word {
    control: TerminateControl,
    /// M: the DDP segment length is valid.
    length_valid: bool,
    /// D: the DDP header is included.
    has_ddp_header: bool,
    /// R: the RDMAP header is included.
    has_rdma_header: bool,
    /// Whether the reserved bits are zero.
    clean: bool,
}

impl Word {
    fn read([first, code, flags, last]: [u8; 4], order: BitOrder) -> Self {
        let (layer, error_type, bits, reserved) = match order {
            BitOrder::Rfc => (first >> 4, first & 0xf, [0x80, 0x40, 0x20], 0x1f),
            BitOrder::Swapped => (first & 0xf, first >> 4, [0x01, 0x02, 0x04], 0xf8),
        };
        let [length_valid, has_ddp_header, has_rdma_header] = bits.map(|bit| flags & bit != 0);
        let control = TerminateControl {
            layer,
            error_type,
            code,
        };
        Self {
            control,
            length_valid,
            has_ddp_header,
            has_rdma_header,
            clean: flags & reserved == 0 && last == 0,
        }
    }

    fn write(self, order: BitOrder) -> [u8; 4] {
        let TerminateControl {
            layer,
            error_type,
            code,
        } = self.control;
        let (first, bits) = match order {
            BitOrder::Rfc => (layer << 4 | error_type & 0xf, [0x80, 0x40, 0x20]),
            BitOrder::Swapped => (error_type << 4 | layer & 0xf, [0x01, 0x02, 0x04]),
        };
        let set = [self.length_valid, self.has_ddp_header, self.has_rdma_header];
        let flags = set
            .iter()
            .zip(bits)
            .filter(|(set, _)| **set)
            .fold(0, |flags, (_, bit)| flags | bit);
        [first, code, flags, 0]
    }

    /// Returns whether a peer can have meant this.
    fn makes_sense(self) -> bool {
        self.clean && self.control.meaning().is_some()
    }
}

/// The payload of a Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate<'a> {
    /// The error.
    pub control: TerminateControl,
    /// The length of the offending DDP segment.
    pub ddp_segment_length: Option<u16>,
    /// The DDP header of that segment: 14 or 18 octets.
    pub ddp_header: Option<&'a [u8]>,
    /// The Read Request header of that segment: 28 octets.
    pub rdma_header: Option<&'a [u8]>,
}

impl<'a> Terminate<'a> {
    /// Octets at most.
    pub const MAX_LEN: usize = 4 + 2 + ddp::UNTAGGED_LEN + ReadRequest::LEN;

    /// Reads the payload of a Terminate message as RFC 5040 defines it.
    pub fn parse(octets: &'a [u8]) -> Result<Self, RdmapWireError> {
        Self::parse_as(octets, BitOrder::Rfc)
    }

    /// Reads the payload in the order that its sender used: that of the RFC, unless only the other
    /// one makes sense. For reports: nothing should depend on it.
    pub fn parse_as_meant(octets: &'a [u8]) -> Result<(Self, BitOrder), RdmapWireError> {
        let word = control_word(octets)?;
        let sense = |order| Word::read(word, order).makes_sense();
        let swapped = !sense(BitOrder::Rfc) && sense(BitOrder::Swapped);
        let order = if swapped {
            BitOrder::Swapped
        } else {
            BitOrder::Rfc
        };
        Ok((Self::parse_as(octets, order)?, order))
    }

    /// Returns what is announced but cut off is left out: the error itself matters more.
    fn parse_as(octets: &'a [u8], order: BitOrder) -> Result<Self, RdmapWireError> {
        let word = Word::read(control_word(octets)?, order);
        let mut rest = &octets[4..];
        let control = word.control;
        let mut terminate = Self {
            control,
            ddp_segment_length: None,
            ddp_header: None,
            rdma_header: None,
        };
        // rfc: 5040-21 D says that the segment length is there
        if word.length_valid || word.has_ddp_header {
            let Some((length, behind)) = rest.split_first_chunk() else {
                return Ok(terminate);
            };
            terminate.ddp_segment_length = word.length_valid.then_some(u16::from_be_bytes(*length));
            rest = behind;
        }
        if word.has_ddp_header {
            let Some(header) = ddp::header_octets(rest) else {
                return Ok(terminate);
            };
            terminate.ddp_header = Some(header);
            rest = &rest[header.len()..];
        }
        if word.has_rdma_header {
            terminate.rdma_header = rest.get(..ReadRequest::LEN);
        }
        Ok(terminate)
    }

    /// Returns the number of octets that [`emit`](Self::emit) writes.
    pub fn len(&self) -> usize {
        let length = if self.ddp_segment_length.is_some() || self.ddp_header.is_some() {
            2
        } else {
            0
        };
        4 + length
            + self.ddp_header.map_or(0, <[u8]>::len)
            + self.rdma_header.map_or(0, <[u8]>::len)
    }

    /// Writes the payload as RFC 5040 defines it. Panics if `buffer` is shorter than
    /// [`len`](Self::len).
    // rfc: 5040-16, 5040-17 layout of figures 7 and 8
    // rfc: 5040-19a reserved bits are sent as zero
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        self.emit_as(BitOrder::Rfc, buffer)
    }

    /// Writes the payload in one of the two orders: tests play the peer with it.
    pub fn emit_as(&self, order: BitOrder, buffer: &mut [u8]) -> usize {
        let word = Word {
            control: self.control,
            length_valid: self.ddp_segment_length.is_some(),
            has_ddp_header: self.ddp_header.is_some(),
            has_rdma_header: self.rdma_header.is_some(),
            clean: true,
        };
        let mut at = 0;
        let mut put = |octets: &[u8]| {
            buffer[at..at + octets.len()].copy_from_slice(octets);
            at += octets.len();
        };
        put(&word.write(order));
        // rfc: 5040-20, 5040-21 M: the length is valid; D: it is there
        if self.ddp_segment_length.is_some() || self.ddp_header.is_some() {
            put(&self.ddp_segment_length.unwrap_or(0).to_be_bytes());
        }
        put(self.ddp_header.unwrap_or_default());
        put(self.rdma_header.unwrap_or_default());
        at
    }
}

/// Returns the first four octets.
fn control_word(octets: &[u8]) -> Result<[u8; 4], RdmapWireError> {
    let wrong = RdmapWireError::Length {
        header: "Terminate",
        octets: octets.len(),
    };
    octets.first_chunk::<4>().copied().ok_or(wrong)
}
