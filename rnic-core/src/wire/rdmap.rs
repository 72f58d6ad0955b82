//! RDMAP's control octet and headers (RFC 5040 section 4, RFC 7306 section 4).

use core::fmt;
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ddp::{Stag, TaggedOffset};

mod atomic;
mod terminate;
pub use atomic::{AtomicOperation, AtomicRequest, AtomicResponse};
pub use terminate::{BitOrder, Terminate, TerminateControl};

/// The version that RFC 5040 describes.
pub const VERSION: u8 = 1;

/// What a message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 6,
    /// Terminate.
    Terminate = 7,
    /// Immediate Data (RFC 7306).
    Immediate = 8,
    /// Immediate Data with Solicited Event (RFC 7306).
    ImmediateSolicited = 9,
    /// Atomic Request (RFC 7306).
    AtomicRequest = 10,
    /// Atomic Response (RFC 7306).
    AtomicResponse = 11,
}

/// Octets of Immediate Data (RFC 7306 figure 7).
pub const IMMEDIATE_LEN: usize = 8;

impl Opcode {
    /// Whether the message targets a tagged buffer (RFC 5040 figure 4).
    // rfc: 5040-7
    pub const fn is_tagged(self) -> bool {
        matches!(self, Self::Write | Self::ReadResponse)
    }
}

/// Why octets are no RDMAP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RdmapWireError {
    /// RFC 5040 defines the opcodes 0 to 7, RFC 7306 adds 8 to 11.
    #[error("RDMAP opcode {0} is not known")]
    Opcode(u8),
    /// RFC 7306 defines FetchAdd (0) and CmpSwap (2).
    #[error("atomic operation {0} is not known")]
    AtomicOperation(u8),
    /// The message has not the length of its header.
    #[error("{octets} octets are not the length of the {header}")]
    Length {
        /// Which header.
        header: &'static str,
        /// What came.
        octets: usize,
    },
}

impl TryFrom<u8> for Opcode {
    type Error = RdmapWireError;

    // rfc: 5040-8, 7306-57
    fn try_from(opcode: u8) -> Result<Self, RdmapWireError> {
        Ok(match opcode {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            3 => Self::Send,
            4 => Self::SendInvalidate,
            5 => Self::SendSolicited,
            6 => Self::SendSolicitedInvalidate,
            7 => Self::Terminate,
            8 => Self::Immediate,
            9 => Self::ImmediateSolicited,
            10 => Self::AtomicRequest,
            11 => Self::AtomicResponse,
            other => return Err(RdmapWireError::Opcode(other)),
        })
    }
}

/// The control octet: what DDP carries for RDMAP in every segment (RFC 5040 section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Two bits.
    pub version: u8,
    /// Four bits: see [`Opcode`].
    pub opcode: u8,
}

impl Control {
    /// The control octet of our messages.
    pub const fn new(opcode: Opcode) -> Self {
        Self {
            version: VERSION,
            opcode: opcode as u8,
        }
    }

    /// The octet.
    pub const fn octet(self) -> u8 {
        self.version << 6 | self.opcode & 0xf
    }
}

impl From<u8> for Control {
    /// The two reserved bits are not looked at.
    // rfc: 5040-4, 5040-11
    fn from(octet: u8) -> Self {
        Self {
            version: octet >> 6,
            opcode: octet & 0xf,
        }
    }
}

impl From<Control> for u8 {
    fn from(control: Control) -> Self {
        control.octet()
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Opcode::try_from(self.opcode) {
            Ok(opcode) => write!(f, "{opcode:?}"),
            Err(_) => write!(f, "opcode {}", self.opcode),
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawReadRequest {
    sink_stag: U32,
    sink_offset: U64,
    length: U32,
    source_stag: U32,
    source_offset: U64,
}

/// The header of a Read Request: the whole of its payload (RFC 5040 section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Where the requester wants the data: for the Read Response, and not ours to interpret.
    pub sink_stag: Stag,
    /// Where in that buffer.
    pub sink_offset: TaggedOffset,
    /// How many octets.
    pub length: u32,
    /// The buffer to read from.
    pub source_stag: Stag,
    /// Where in that buffer.
    pub source_offset: TaggedOffset,
}

impl ReadRequest {
    /// Octets of the header.
    pub const LEN: usize = 28;

    /// Reads a header that fills `octets`.
    pub fn parse(octets: &[u8]) -> Result<Self, RdmapWireError> {
        let wrong = RdmapWireError::Length {
            header: "Read Request",
            octets: octets.len(),
        };
        let raw = RawReadRequest::ref_from_bytes(octets).map_err(|_| wrong)?;
        Ok(Self {
            sink_stag: Stag(raw.sink_stag.get()),
            sink_offset: TaggedOffset(raw.sink_offset.get()),
            length: raw.length.get(),
            source_stag: Stag(raw.source_stag.get()),
            source_offset: TaggedOffset(raw.source_offset.get()),
        })
    }

    /// Writes the header. Panics if `buffer` is shorter than [`LEN`](Self::LEN).
    // rfc: 5040-14
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let raw = RawReadRequest {
            sink_stag: U32::new(self.sink_stag.0),
            sink_offset: U64::new(self.sink_offset.0),
            length: U32::new(self.length),
            source_stag: U32::new(self.source_stag.0),
            source_offset: U64::new(self.source_offset.0),
        };
        buffer[..Self::LEN].copy_from_slice(raw.as_bytes());
        Self::LEN
    }
}
