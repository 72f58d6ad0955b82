//! The adaptation of DDP to SCTP (RFC 5043): sessions on pairs of streams, in the order of DDP-SSNs.
//!
//! It knows chunks by their kind and number, and neither TSNs nor STags. Chunks arrive in any order:
//! [`Arrivals`] says which one is next. [`Session`] says what may be sent, and whether what comes
//! fits a pattern of section 6. [`StreamIds`] says which stream a new session may have.

mod arrivals;
mod error;
mod kind;
mod session;
mod stream_ids;

pub use arrivals::{Arrivals, Turn};
pub use error::AdaptationError;
pub use kind::{ChunkKind, Role};
pub use session::{MAX_OUTSTANDING, Session};
pub use stream_ids::StreamIds;
