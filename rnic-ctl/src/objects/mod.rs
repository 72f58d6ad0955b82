//! The objects of rnicd: devices, ports, leases, clients and users, their counters, and what
//! happens to them; and what clients say of their own objects and connections.

// From the ground up:
// words < line < settings, access < dev, client, user, monitor, filter < port, lease, sa, steer, rates,
// said < asked < stat, top, conn, res, metrics
mod access;
mod asked;
pub(crate) mod client;
pub(crate) mod conn;
pub(crate) mod dev;
mod filter;
pub(crate) mod lease;
mod line;
pub(crate) mod metrics;
pub(crate) mod monitor;
pub(crate) mod port;
mod rates;
pub(crate) mod res;
pub(crate) mod sa;
mod said;
mod settings;
pub(crate) mod stat;
pub(crate) mod steer;
pub(crate) mod top;
pub(crate) mod user;
mod words;

pub(crate) use access::{ObjectArgs, Style};
pub(crate) use asked::Asking;
