//! The sides of a client and of rnicd, which need a device (RFC 5041 section 8.3.2). What they say to each other is in
//! `rnic-manager`.

mod device;
mod device_host;
mod device_leases;
mod device_news;
mod device_queues;
mod holders;
mod host_end;
mod host_ends;
mod inspection;
mod net;
mod open;
mod queue_ports;
mod reservation;
mod session;
mod surroundings;
mod unshare;

pub use device::{DeviceEvent, SharedDevice};
pub use device_leases::MAX_LISTED_PEERS;
pub use host_end::HostEnd;
pub use host_ends::HostEnds;
pub use inspection::Inspection;
pub use net::ManagedNet;
pub use open::Manager;
pub use queue_ports::QueuePort;
pub use unshare::unshare;
