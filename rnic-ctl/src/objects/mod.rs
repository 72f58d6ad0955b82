//! The objects of rnicd: devices, ports, leases, clients and users, their counters, and what happens to them; and what clients say of
//! their own objects and connections.

// From the ground up:
// words < line < access < dev, port, lease, client, user, stat, monitor, filter < said < conn, res
mod access;
pub(crate) mod client;
pub(crate) mod conn;
pub(crate) mod dev;
mod filter;
pub(crate) mod lease;
mod line;
pub(crate) mod monitor;
pub(crate) mod port;
pub(crate) mod res;
mod said;
pub(crate) mod stat;
pub(crate) mod user;
mod words;

pub(crate) use access::Style;
