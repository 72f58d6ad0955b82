//! The program that says what clients may send, in the kernel, frame by frame.

mod answers;
mod cost;
mod destinations;
mod frames;
mod headers;
mod host;
mod oracle;
mod program;
mod protected;
mod rate;
mod refusals;
mod sources;
