//! Markers (RFC 5044 section 4.3): sent to peers that require them, and required of peers.

mod ahead;
#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod receiving;
mod sending;
mod stream;
