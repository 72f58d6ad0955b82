//! What ends a session.

use super::kind::ChunkKind;
use crate::wire::session::SessionWireError;

/// Why a chunk of the peer ends its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdaptationError {
    /// It is no chunk of DDP.
    #[error("the peer sent {0}")]
    Chunk(#[from] SessionWireError),
    /// Its number was there before.
    #[error("the peer sent the DDP-SSN {0} twice")]
    Repeated(u16),
    /// It fits no pattern of RFC 5043 section 6.
    #[error("the peer sent {0} where no pattern of RFC 5043 has one")]
    Pattern(ChunkKind),
    /// Too much waits for a chunk that does not come.
    #[error("the peer sent more ahead of a missing chunk than is kept")]
    TooFarAhead,
}
