//! The parts of rnicd, the Privileged Resource Manager (RFC 5041 section 8.3.2): what its configuration says, who may have
//! how much, and what systemd and rnicd say to each other.

// From the ground up; each file imports only from those below it:
// config/fault, config/value < config/table < config/rule < config/mod < policy, quota, notify, record, usage, client < shared < server
// < administration < requests < serve < unshare
mod administration;
mod client;
pub mod config;
pub mod notify;
pub mod policy;
pub mod quota;
mod record;
mod requests;
pub mod serve;
mod server;
mod shared;
pub mod unshare;
mod usage;
