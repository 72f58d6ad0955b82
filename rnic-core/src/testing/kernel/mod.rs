//! A miniature kernel on virtual time: TCP sockets that speak frames to the virtual network.
//!
//! Its TCP is this crate's. What it adds is what a kernel has between TCP and an application:
//! buffers of both directions, queues of connections to be accepted, and readiness, of which it
//! tells once. It tells little at a time on purpose, from a seed: octets that have come may show
//! only in part, and what is sent may be taken only in part.

mod connection;
mod sockets;
mod stack;

pub use self::sockets::{VirtualSocket, VirtualSockets};
pub(super) use self::stack::{Kernel, SharedKernel, lock, reserve};
