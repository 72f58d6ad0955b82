//! The verbs that an application links: devices, protection domains, memory regions, completion
//! queues, queue pairs, and connections between them.
//!
//! A [`Device`] is [opened](Device::open) on a network interface. It stands for one engine or
//! several. Threads drive them, or the application does by [polling](Cq::poll), which is the
//! default, or either, as the application polls or does not ([`Driving::Standby`]); a
//! [`DeviceConfig`] says which. From it come a [`Pd`], which [registers](Pd::register) memory as an
//! [`Mr`] and makes [`Qp`]s, [windows](Mw) and [fast registrations](FastMr), and [`Cq`]s, which
//! receive the completions of requests. Several [`Qp`]s can take their receives from one [`Srq`]. A
//! [`Qp`] [connects](Qp::connect) to a peer, or [accepts](ConnectRequest::accept) one that
//! connected to a [`Listener`]; then [`SendRequest`]s can be posted. [`AsyncEvents`] report what no
//! completion does.
//!
//! All handles may move between threads. A [`Qp`], a [`Cq`] and an [`Srq`] belong to one thread at
//! a time. Dropping an object frees it: a [`Qp`] aborts its connection, an [`Mr`] is deregistered.
//!
//! A device belongs to the process that opened it. A process forked from that must not use the
//! device or its objects. It may drop them, which changes nothing for its parent, and it may open a
//! device of its own.
//!
//! What happens to devices, listeners and connections goes to the log (`tracing`, level debug), off
//! the way of a frame.
//!
//! # Examples
//!
//! `docs/programming.md` is an introduction. `rnic-verbs/examples` has three programs to read from
//! top to bottom: `kv`, a key-value store whose values are read by RDMA Read, `copy`, which copies
//! files by RDMA Write, and `rpc`, calls by Send with a shared receive queue.
//!
//! A client opens an interface and connects:
//!
//! ```no_run
//! use rnic_verbs::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::open("eth1")?;
//! let (pd, cq) = (device.pd(), device.cq(256)?);
//! let mut qp = pd.qp(&cq, &cq, QpCaps::default())?;
//! qp.connect_blocking("192.0.2.1:4420".parse()?, None, ConnectionOptions::default())?;
//! # Ok(())
//! # }
//! ```
//!
//! Where cores are free, threads of the device's own are better:
//!
//! ```no_run
//! use std::time::Duration;
//! use rnic_verbs::*;
//!
//! # fn main() -> Result<(), OpenError> {
//! let config = DeviceConfig {
//!     driving: Driving::Threads { most: None, idle: Duration::from_millis(10), pin: true },
//!     ..DeviceConfig::new("eth1")
//! };
//! let device = Device::open_with(&config)?;
//! # Ok(())
//! # }
//! ```
//!
//! A server accepts a connection, and states in its private data where a piece of its memory is.
//! The client writes to it. Two engines that are joined in memory take the place of two hosts here.
//!
//! ```
//! use std::{net::SocketAddr, sync::Arc, time::Duration};
//! use rnic_core::in_memory;
//! use rnic_verbs::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let soon = Duration::from_secs(5);
//! let (near, far) = in_memory::pair([[1; 32], [2; 32]]); // secrets; use random ones
//! let address = SocketAddr::new(far.address, 4420);
//! // A thread drives the far device. Polling drives the near one.
//! let driver = Driver::spawn(Box::new(far.worker), Duration::from_millis(1))?;
//! let far = Device::new(far.host, far.net, driver);
//! let near = Device::new(near.host, near.net, Driver::Inline(Box::new(near.worker)));
//!
//! let listener = far.listen(address)?;
//! let server = std::thread::spawn(move || -> Result<String, Error> {
//!     let (pd, cq) = (far.pd(), far.cq(16)?);
//!     let mut qp = pd.qp(&cq, &cq, QpCaps::default())?;
//!     let region = Arc::new(Region::allocate_unlocked(4096, HugePages::None)?);
//!     let mr = pd.register(&region, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//!     let private_data = mr.remote(0).to_octets().to_vec();
//!
//!     let request = listener.next_request(soon)?.expect("a client");
//!     let options = ConnectionOptions { private_data, ..ConnectionOptions::default() };
//!     request.accept(&mut qp, options)?;
//!     // The client closes when it has written.
//!     while !matches!(qp.next_event(soon)?, Some(ConnectionEvent::Disconnected(_)) | None) {}
//!     let mut text = [0; 13];
//!     region.read(0, &mut text)?;
//!     Ok(String::from_utf8_lossy(&text).into_owned())
//! });
//!
//! let (pd, mut cq) = (near.pd(), near.cq(16)?);
//! let mut qp = pd.qp(&cq, &cq, QpCaps::default())?;
//! let established = qp.connect_blocking(address, None, ConnectionOptions::default())?;
//! let there = RemoteAddress::from_octets(established.private_data[..].try_into()?);
//! qp.post_send(&SendRequest::write(there).inline(b"hello, memory").wr_id(7))?;
//! let done = cq.next_completion(soon)?.expect("a completion");
//! assert_eq!((done.wr_id(), done.status()), (7, WcStatus::Success));
//! qp.disconnect()?;
//! qp.next_event(soon)?;
//! assert_eq!(server.join().unwrap()?, "hello, memory");
//! # Ok(())
//! # }
//! ```

// From the ground up; each file imports only from those below it:
// address, async_event, ipsec, objects, offers, port, ports, resource, state, via < binding, error < events,
// open_error, private_data, request, ring, standby < config, driver, inspector < device <
// async_events, connection_events, cq, open, pd < copier, srq < qp < listener, memory < window
mod address;
mod async_event;
mod async_events;
mod binding;
mod config;
mod connection_events;
mod copier;
mod cq;
mod device;
mod driver;
mod error;
mod events;
mod inspector;
mod interface;
mod ipsec;
mod listener;
mod memory;
mod objects;
mod offers;
mod open;
mod open_error;
mod pd;
mod ports;
mod private_data;
mod qp;
pub mod rdma;
mod request;
pub mod resource;
mod ring;
mod srq;
mod standby;
mod state;
mod via;
mod window;

pub use address::{RemoteAddress, Sge};
pub use async_event::AsyncEvent;
pub use async_events::AsyncEvents;
pub use binding::Binding;
pub use config::{DeviceConfig, Driving};
pub use connection_events::ConnectionEvents;
pub use copier::Copier;
pub use cq::{Completion, Cq, CqWriter, Datagram, Source};
pub use device::Device;
pub use driver::Driver;
pub use error::{ConnectError, Error, PostError, PostSendsError, RequestError};
pub use events::{ConnectionEvent, Ends, Established};
pub use interface::Interface;
pub use ipsec::{Ipsec, if_id};
pub use listener::{ConnectRequest, Listener};
pub use memory::{Mr, Registration};
pub use offers::{are_ports_ending, offered};
pub use open_error::OpenError;
pub use pd::Pd;
pub use qp::{DEFAULT_INLINE, DEFAULT_SGE, Qp, QpCaps};
pub use request::SendRequest;
pub use srq::{Srq, SrqCaps};
pub use standby::Standby;
pub use state::QpState;
pub use via::{KernelWay, NoVia, Via};
pub use window::{FastMr, Mw};

pub use rnic_core::connection::{
    ConnectionOptions, EndReason, PortReservation, ReadDepths, Refusal, Refusals,
};
pub use rnic_core::engine::{EngineConfig, NetError, Peers, Prefix};
pub use rnic_core::ids::SrqId;
pub use rnic_core::ids::{CqId, QpNumber};
pub use rnic_core::memory::process::Process;
pub use rnic_core::memory::region::{HugePages, Region, RegionError};
pub use rnic_core::memory::table::Access;
pub use rnic_core::rdmap::QuotedSegment;
pub use rnic_core::tcp::{CongestionAlgorithm, Keepalive, TcpConfig, TcpFacts};
pub use rnic_core::verbs::srq::SrqLimit;
pub use rnic_core::verbs::status::WcStatus;
pub use rnic_core::verbs::wr::{MAX_INLINE, MAX_SGE, WcOpcode};
pub use rnic_core::wire::ddp::{DdpHeader, Stag};
pub use rnic_core::wire::rdmap::{ReadRequest, TerminateControl};
pub use rnic_xdp::steering::{Mode, ModeChoice};
pub use rnic_xdp::{
    BusyPoll, InterfaceConfig, InterfaceReport, InterfaceStatistics, Private, QueueStatistics,
    TxChecksum, TxOffload, ZeroCopy, ZeroCopyChoice, take_private, users_listening,
};
