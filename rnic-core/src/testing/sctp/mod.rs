//! A miniature kernel with SCTP on virtual time, as far as an adaptation layer sees of SCTP: chunks
//! on streams, unordered, each delivered once, whatever the network does to frames.
//!
//! Its frames are its own: not SCTP's packets. A chunk is sent again until it is acknowledged, and
//! room for chunks is small, so that senders meet its end.

mod association;
mod frame;
mod kernel;

pub use self::association::{VirtualAssociation, VirtualAssociations};
pub(super) use self::kernel::{SctpKernel, SharedSctp, lock, reserve};
