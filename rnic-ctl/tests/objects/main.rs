//! The objects of rnicd, shown and ended by the command, with a real rnicd in a network namespace.

mod captures;
#[path = "../common/mod.rs"]
mod common;
mod ending;
mod events;
mod lists;
mod transcript;
mod world;
