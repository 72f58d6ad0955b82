//! A device that rnicd shares among clients: what rnicd needs of it (RFC 5041 section 8.3.2).

mod device;
mod device_host;
mod device_leases;
mod device_news;
mod device_protection;
mod device_queues;
mod holders;
mod host_end;
mod host_ends;
mod programs;
mod protection;
mod queue_ports;
mod reservation;
mod surroundings;
mod unshare;

pub use device::{DeviceEvent, SharedDevice};
pub use device_leases::MAX_LISTED_PEERS;
pub use host_end::HostEnd;
pub use host_ends::HostEnds;
pub use programs::{
    ClientPeers, ClientPolicy, Count, LAYOUT, PoliceCounters, SharedClient, SharedSteering,
    SharingError, police_skeleton, port_skeleton,
};
pub use protection::{MayProtect, PortAssociation, PortProtection};
pub use queue_ports::QueuePort;
pub use unshare::unshare;
