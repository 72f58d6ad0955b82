//! MPA: ULPDUs framed on a TCP stream (RFC 5044), and the start-up exchange that precedes them (RFC 5044
//! section 7.1, RFC 6581).
//!
//! MPA judges what it can see: lengths, CRCs and start-up frames. It never looks into a ULPDU.

pub mod deframe;
pub mod error;
pub mod frame;
mod marked;
pub mod marker;
pub mod startup;

pub use deframe::{Deframer, Ulpdu};
pub use error::{Action, MpaError};
pub use startup::{MpaInitiator, MpaOptions, MpaReply, MpaRequest, MpaResponder, Negotiated, Rtr};
