//! The headers of Atomic Requests and Responses (RFC 7306 section 5.2).

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::RdmapWireError;
use crate::wire::ddp::{Stag, TaggedOffset};

/// All bits: the mask of an operation on whole values, and what stands in a mask that has no
/// meaning.
const WHOLE: u64 = u64::MAX;

/// What an Atomic Request does to the value: 8 octets in the byte order of the memory that holds
/// them.
// rfc: 7306-4, 7306-17 all operations of figure 5
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Adds (section 5.1.1).
    FetchAdd {
        /// What to add.
        add: u64,
        /// The most significant bit of each field of the value: no carry leaves it. 0 for one field
        /// of 64 bits.
        mask: u64,
    },
    /// Replaces the bits of `swap_mask` by those of `swap` if the bits of `compare_mask` are those
    /// of `compare` (section 5.1.2).
    CmpSwap {
        /// The new bits.
        swap: u64,
        /// Which bits are replaced.
        swap_mask: u64,
        /// The bits to be found.
        compare: u64,
        /// Which bits are compared.
        compare_mask: u64,
    },
}

impl AtomicOperation {
    // rfc: 7306-4, 7306-17 all operations of figure 5
    const FETCH_ADD: u8 = 0;
    const CMP_SWAP: u8 = 2;

    /// Returns what the memory holds afterwards if it held `original`.
    // rfc: 7306-9 memory changes only where the comparison holds, as the swap mask says
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            Self::FetchAdd { add, mask } => {
                // The top bit of each field is added without a carry out of it.
                let top = mask | 1 << 63;
                ((original & !top) + (add & !top)) ^ ((original ^ add) & top)
            }
            Self::CmpSwap {
                swap,
                swap_mask,
                compare,
                compare_mask,
            } => {
                if (compare ^ original) & compare_mask == 0 {
                    original & !swap_mask | swap & swap_mask
                } else {
                    original
                }
            }
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRequest {
    /// 28 reserved bits, and the operation code.
    operation: U32,
    identifier: U32,
    stag: U32,
    offset: U64,
    add_or_swap: U64,
    add_or_swap_mask: U64,
    compare: U64,
    compare_mask: U64,
}

/// The header of an Atomic Request: the whole of its payload (figure 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// The requester's name for it, which the response repeats.
    pub identifier: u32,
    /// The buffer that holds the value.
    pub stag: Stag,
    /// Where in that buffer.
    pub offset: TaggedOffset,
    /// What to do to it.
    pub operation: AtomicOperation,
}

impl AtomicRequest {
    /// Octets of the header.
    pub const LEN: usize = 52;

    /// Reads a header that fills `octets`. Reserved bits are not looked at.
    // rfc: 7306-24 an unknown operation is an error
    pub fn parse(octets: &[u8]) -> Result<Self, RdmapWireError> {
        let wrong = RdmapWireError::Length {
            header: "Atomic Request",
            octets: octets.len(),
        };
        let raw = RawRequest::ref_from_bytes(octets).map_err(|_| wrong)?;
        let (data, mask) = (raw.add_or_swap.get(), raw.add_or_swap_mask.get());
        let operation = match raw.operation.get() as u8 & 0xf {
            AtomicOperation::FETCH_ADD => AtomicOperation::FetchAdd { add: data, mask },
            AtomicOperation::CMP_SWAP => AtomicOperation::CmpSwap {
                swap: data,
                swap_mask: mask,
                compare: raw.compare.get(),
                compare_mask: raw.compare_mask.get(),
            },
            unknown => return Err(RdmapWireError::AtomicOperation(unknown)),
        };
        Ok(Self {
            identifier: raw.identifier.get(),
            stag: Stag(raw.stag.get()),
            offset: TaggedOffset(raw.offset.get()),
            operation,
        })
    }

    /// Writes the header. Panics if `buffer` is shorter than [`LEN`](Self::LEN).
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let (code, data, mask, compare, compare_mask) = match self.operation {
            AtomicOperation::FetchAdd { add, mask } => {
                (AtomicOperation::FETCH_ADD, add, mask, 0, WHOLE)
            }
            AtomicOperation::CmpSwap {
                swap,
                swap_mask,
                compare,
                compare_mask,
            } => (
                AtomicOperation::CMP_SWAP,
                swap,
                swap_mask,
                compare,
                compare_mask,
            ),
        };
        let raw = RawRequest {
            operation: U32::new(code.into()),
            identifier: U32::new(self.identifier),
            stag: U32::new(self.stag.0),
            offset: U64::new(self.offset.0),
            add_or_swap: U64::new(data),
            add_or_swap_mask: U64::new(mask),
            compare: U64::new(compare),
            compare_mask: U64::new(compare_mask),
        };
        buffer[..Self::LEN].copy_from_slice(raw.as_bytes());
        Self::LEN
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawResponse {
    identifier: U32,
    original: U64,
}

/// The header of an Atomic Response: the whole of its payload. Section 4 says that it has 32
/// octets, which is what a whole FPDU would come to without its CRC; figure 6 and appendix A.2 show
/// these 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// What the request named itself.
    pub identifier: u32,
    /// The value before the operation, as a number.
    pub original: u64,
}

impl AtomicResponse {
    /// Octets of the header.
    pub const LEN: usize = 12;

    /// Reads a header that fills `octets`.
    pub fn parse(octets: &[u8]) -> Result<Self, RdmapWireError> {
        let wrong = RdmapWireError::Length {
            header: "Atomic Response",
            octets: octets.len(),
        };
        let raw = RawResponse::ref_from_bytes(octets).map_err(|_| wrong)?;
        Ok(Self {
            identifier: raw.identifier.get(),
            original: raw.original.get(),
        })
    }

    /// Writes the header. Panics if `buffer` is shorter than [`LEN`](Self::LEN).
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let raw = RawResponse {
            identifier: U32::new(self.identifier),
            original: U64::new(self.original),
        };
        buffer[..Self::LEN].copy_from_slice(raw.as_bytes());
        Self::LEN
    }
}
