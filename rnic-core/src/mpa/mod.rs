//! MPA: frames ULPDUs on a TCP stream as FPDUs (RFC 5044), after a start-up exchange (RFC 5044
//! section 7.1, RFC 6581).
//!
//! MPA checks lengths, CRCs, markers and start-up frames. It does not look into a ULPDU.

pub mod deframe;
pub mod error;
pub mod frame;
mod marked;
pub mod marker;
pub mod startup;
mod ulpdu;

pub use deframe::Deframer;
pub use error::{Action, MpaError};
pub use startup::{
    MpaInitiator, MpaNegotiated, MpaOptions, MpaReply, MpaRequest, MpaResponder, Rtr,
};
pub use ulpdu::Ulpdu;
