//! What tests run the engine on: virtual devices and links.

pub mod frames;

pub use frames::VecFrames;
