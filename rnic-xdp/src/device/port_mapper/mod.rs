//! The port mapper of a device: answers the mappers of peers, and asks them.
//!
//! Over iWARP, TCP and RDMA share the numbers of ports, and a program may want one number for both.
//! Then its RDMA listener has another TCP port, and the mapper tells it to peers that ask. Every
//! listener is told, so that peers which ask of one that has its own number do not wait in vain.
//! Beside a running `iwpmd`, which has the UDP port, listeners are made known to that.

mod mapper;
mod mappings;
mod responder;
mod state;
#[cfg(test)]
mod tests;
mod thread;

pub use self::mapper::Mapping;
pub(crate) use self::mapper::PortMapper;
pub(crate) use self::mappings::Listening;
