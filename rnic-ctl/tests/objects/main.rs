//! The objects of rnicd, shown and ended by the command, with a real rnicd in a network namespace.

mod captures;
#[path = "../common/mod.rs"]
mod common;
mod doctor;
mod ending;
mod events;
mod exposition;
mod faults;
mod inspection;
mod lists;
mod live;
mod metrics;
mod terminal;
mod top;
mod transcript;
mod world;
