//! The steering program in the kernel, frame by frame, against an oracle in Rust.

mod destination;
mod frames;
mod headers;
mod host;
mod oracle;
mod program;
mod protected;
mod shared;
mod tapped;
