//! A network device as an interface of the engine, for this process alone or shared among many.
//!
//! `device` drives a device. On it stand, without knowledge of each other: [`shared`], rnicd's side
//! of a device with many clients; [`client`], the side of such a client; [`capture`]; and
//! [`facts`], which `rnic-ctl doctor` shows.

pub mod capture;
pub mod client;
mod device;
pub mod facts;
pub mod shared;
#[cfg(feature = "testing")]
pub mod testing;

pub use device::error::OpenError;
pub use device::interface::numa::cpus_near;
pub use device::interface::{
    BusyPoll, Frame, GrantedPort, InterfaceConfig, InterfaceReport, InterfaceStatistics, MadePort,
    MadeQueue, PortShape, QueueStatistics, RxRing, RxSide, TxSide, XdpInterface, ZeroCopy,
    ZeroCopyChoice,
};
pub use device::listening::users_listening;
pub use device::netlink::{NetlinkError, device_name, link_mtu, link_speed};
pub use device::port_mapper::Mapping;
pub use device::reserve::XdpNet;
pub use device::routes::LinkState;
pub use device::steering;
pub use device::tx_checksum::{TxChecksum, TxOffload};
pub use device::vlans::Untagged;
pub use device::worker::Worker;
pub use rnic_manager::{Bell, Private, bell, take_private};
