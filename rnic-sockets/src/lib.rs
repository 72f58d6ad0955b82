//! Connections over TCP or SCTP sockets of the host's kernel, for programs without any right, and for
//! interfaces and paths that only the kernel can use.
//!
//! [`KernelInterface`] says which addresses an interface has. [`KernelNet`] reserves ports on them,
//! by sockets that are bound, and listen at once if a listener is wanted. [`KernelSockets`] is one
//! engine's part: it connects and accepts, and tells what is ready. [`KernelSocket`] is one
//! connection, and [`KernelAssociation`] an SCTP association. Ports and sockets belong to the network namespace of the thread that calls
//! [`KernelNet`].

mod association;
mod costs;
mod info;
mod interface;
mod net;
mod port;
mod sctp;
mod socket;
mod sockets;
mod sys;
#[cfg(test)]
mod tests;
mod vrf;
mod worker;

pub use association::KernelAssociation;
pub use interface::{InterfaceError, KernelInterface};
pub use net::KernelNet;
pub use port::Protocol;
pub use sctp::has_sctp;
pub use socket::KernelSocket;
pub use sockets::KernelSockets;
pub use worker::{AssociationWorker, SocketWorker};
