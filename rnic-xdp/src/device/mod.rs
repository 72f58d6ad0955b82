//! A network device as an interface of the engine: its XDP program, AF_XDP rings, routes and
//! neighbours, and the worker that drives an engine on it.

mod automatic_ports;
pub(crate) mod clock;
mod directory;
mod domains;
pub(crate) mod drivers;
pub(crate) mod error;
pub(crate) mod icmp;
pub(crate) mod interface;
pub(crate) mod lingering;
pub(crate) mod listening;
pub(crate) mod locals;
pub(crate) mod netlink;
mod policies;
pub(crate) mod port_mapper;
pub(crate) mod process;
mod protected;
pub(crate) mod protection;
pub(crate) mod queue_choice;
pub(crate) mod reserve;
pub(crate) mod routes;
pub mod steering;
pub(crate) mod tx_checksum;
pub(crate) mod vlans;
pub(crate) mod worker;

#[cfg(feature = "testing")]
pub use self::protection::give_association;
