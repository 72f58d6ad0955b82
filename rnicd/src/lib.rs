//! The parts of rnicd, the Privileged Resource Manager (RFC 5041 section 8.3.2): what its
//! configuration says, who may have how much, and what systemd and rnicd say to each other.

// From the ground up; each file imports only from those below it:
// claim, keeping, config/fault, config/value < keeper < kept < config/table < config/rule <
// config/mod < config/change < owners < policy, places, quota, notify, record, room, usage,
// kernel_settings < memory < freer < freeing < ending < settings < listeners < client < shared <
// users, made, open, questions < server < shares, connections, devices, administration, holder <
// changes, inspection < leasing, patience, locating < requests < serve < unshare
mod administration;
mod changes;
pub mod claim;
mod client;
pub mod config;
mod connections;
mod devices;
mod ending;
mod freeing;
pub mod freer;
mod holder;
mod inspection;
pub mod keeper;
mod keeping;
mod kept;
mod kernel_settings;
mod leasing;
mod listeners;
mod locating;
mod made;
mod memory;
mod notices;
pub mod notify;
mod open;
pub mod owners;
mod patience;
mod places;
pub mod policy;
mod protected;
mod protecting;
mod questions;
pub mod quota;
mod record;
mod requests;
mod room;
pub mod serve;
mod server;
pub mod settings;
mod shared;
mod shares;
pub mod unshare;
mod usage;
mod users;
