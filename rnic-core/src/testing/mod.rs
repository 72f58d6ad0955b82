//! Virtual devices and links, on which tests run the engine.

pub mod host;
pub mod kernel;
pub mod link;
pub mod raw_peer;
pub mod sctp;
pub mod simulation;

pub use crate::in_memory::{self, VecFrames};
