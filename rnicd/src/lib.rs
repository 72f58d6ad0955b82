//! The parts of rnicd, the Privileged Resource Manager (RFC 5041 section 8.3.2): what its configuration says, who may have
//! how much, and what systemd and rnicd say to each other.

// From the ground up; each file imports only from those below it:
// claim, config/fault, config/value < config/table < config/rule < config/mod < config/change < policy, places, quota, notify, record, usage, client
// < settings, shared < made, open, server < devices, administration, holder < changes, inspection < patience < requests < serve < unshare
mod administration;
mod changes;
pub mod claim;
mod client;
pub mod config;
mod devices;
mod holder;
mod inspection;
mod made;
pub mod notify;
mod open;
mod patience;
mod places;
pub mod policy;
pub mod quota;
mod record;
mod requests;
pub mod serve;
mod server;
pub mod settings;
mod shared;
pub mod unshare;
mod usage;
