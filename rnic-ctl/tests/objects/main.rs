//! The objects of rnicd, shown and ended by the command, with a real rnicd in a network namespace.

#[path = "../common/mod.rs"]
mod common;
mod ending;
mod events;
mod exposition;
mod lists;
mod metrics;
mod transcript;
mod world;
