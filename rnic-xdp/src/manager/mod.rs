//! What an application and the Privileged Resource Manager, `rnicd`, say to each other (RFC 5041 section 8.3.2).
//!
//! rnicd gives clients without any right a share of a network device: a *port*. They ask for it over a Unix socket, and get
//! descriptors: the port's AF_XDP socket and UMEM. The sockets that reserve TCP ports stay with rnicd. Frames never pass rnicd.
//!
//! A message is a JSON object in a datagram of a `SOCK_SEQPACKET` socket, at most 64 KiB long. [`protocol`] has the messages,
//! [`channel`] the transport.

mod administrator;
pub mod channel;
mod checks;
mod closer;
mod convert;
mod device;
mod device_host;
mod device_leases;
mod device_news;
mod device_queues;
mod dialogue;
mod holders;
mod host_end;
mod host_ends;
mod inspected;
mod inspection;
mod net;
mod open;
mod peer;
mod peers;
pub mod protocol;
mod queue_ports;
mod refused;
mod reservation;
mod session;
mod sockets;
pub mod states;
mod surroundings;
mod token;
mod unshare;

pub use administrator::{Administrator, AskError, TimedEvent};
pub use checks::is_device_name;
pub use closer::Closer;
pub use device::{DeviceEvent, SharedDevice};
pub use device_leases::MAX_LISTED_PEERS;
pub use host_end::HostEnd;
pub use host_ends::HostEnds;
pub use inspected::{Inspected, InspectionEnd, MOST_SAID};
pub use inspection::Inspection;
pub use net::ManagedNet;
pub use open::Manager;
pub use queue_ports::QueuePort;
pub use token::Token;
pub use unshare::unshare;
