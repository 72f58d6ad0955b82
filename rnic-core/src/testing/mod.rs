//! What tests run the engine on: virtual devices and links.

pub mod frames;
pub mod host;
pub mod in_memory;
pub mod link;
pub mod raw_peer;
pub mod simulation;

pub use frames::VecFrames;
