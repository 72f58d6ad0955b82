//! The header of a Read Request (RFC 5040 section 4.4).

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::RdmapWireError;
use crate::wire::ddp::{Stag, TaggedOffset};

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
    // rfc: 5040-14 layout of figure 6
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
