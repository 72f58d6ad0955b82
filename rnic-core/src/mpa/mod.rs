//! MPA: ULPDUs framed on a TCP stream (RFC 5044), and the start-up exchange that precedes them (RFC 5044
//! section 7.1, RFC 6581).
//!
//! MPA judges what it can see: lengths, CRCs and start-up frames. It never looks into a ULPDU.

pub mod crc;
pub mod deframe;
pub mod frame;
pub mod marker;

pub use deframe::{Deframer, Ulpdu};

/// Why MPA cannot go on with a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MpaError {
    /// The CRC of a received FPDU is wrong (RFC 5044 section 8, code 2).
    #[error(
        "FPDU with a bad CRC: it carries {received:#010x}, its octets give {computed:#010x}; \
         something on the path altered the stream and TCP's checksum did not see it"
    )]
    Crc {
        /// The CRC field.
        received: u32,
        /// What the octets of the FPDU give.
        computed: u32,
    },
    /// Octets that were recognised as whole FPDUs ahead of order turn out to begin inside another FPDU
    /// (RFC 5044 section 8, code 3).
    #[error("an FPDU recognised out of order does not start where the stream before it ends")]
    Boundary,
}
