//! The verbs that an application links: devices, protection domains, memory regions, completion queues, queue
//! pairs, and connections between them.
//!
//! A [`Device`] stands for one engine. Either a thread drives it, or the application does by
//! [polling](Cq::poll). From it come a [`Pd`], which [registers](Pd::register) memory as an [`Mr`] and makes
//! [`Qp`]s, and [`Cq`]s, which tell how requests ended. A [`Qp`] [connects](Qp::connect) to a peer, or
//! [accepts](ConnectRequest::accept) one that asked a [`Listener`]; then [`SendRequest`]s flow.
//!
//! All handles may move between threads. A [`Qp`] and a [`Cq`] belong to one thread at a time. Dropping an object
//! gives it back: a [`Qp`] aborts its connection, an [`Mr`] can no longer be reached.

mod cq;
mod device;
mod error;
mod events;
mod listener;
mod memory;
mod qp;
mod request;

pub use cq::{Completion, Cq};
pub use device::{Device, Driver};
pub use error::{ConnectError, Error, PostError};
pub use events::{ConnectionEvent, Established, QpState};
pub use listener::{ConnectRequest, Listener};
pub use memory::{Mr, Pd, Registration};
pub use qp::{Qp, QpCaps};
pub use request::{RemoteAddress, SendRequest, Sge};

pub use rnic_core::engine::{ConnectionOptions, EndReason};
pub use rnic_core::memory::region::{HugePages, Region};
pub use rnic_core::memory::table::Access;
pub use rnic_core::verbs::qp::QpNumber;
pub use rnic_core::verbs::wr::{MAX_INLINE, MAX_SGE, WcOpcode, WcStatus};
pub use rnic_core::wire::ddp::Stag;
pub use rnic_core::wire::rdmap::TerminateControl;
