//! The side of a client of rnicd: it asks for a port of a device, and for what a port needs of the
//! host.

mod connection;
mod net;
mod open;
mod protection;
mod session;
mod worker_news;

pub use net::ManagedNet;
pub use open::Manager;
