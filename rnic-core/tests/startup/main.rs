//! How connections are established or fail: TCP's handshake, MPA's start-up, and errors of either side.

mod agreed;
#[path = "../common/mod.rs"]
mod common;
mod ready;
mod refused;
