//! Virtual devices and links, on which tests run the engine.

pub mod frames;
pub mod host;
pub mod in_memory;
pub mod link;
pub mod raw_peer;
pub mod simulation;

pub use frames::VecFrames;
