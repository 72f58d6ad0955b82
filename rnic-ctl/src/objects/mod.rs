//! The objects of rnicd: devices, ports, leases, clients and users, their counters, and what happens to them.

// From the ground up:
// words < line < access < dev, port, lease, client, user, stat, monitor, metrics
mod access;
pub(crate) mod client;
pub(crate) mod dev;
pub(crate) mod lease;
mod line;
pub(crate) mod metrics;
pub(crate) mod monitor;
pub(crate) mod port;
pub(crate) mod stat;
pub(crate) mod user;
mod words;

pub(crate) use access::Style;
