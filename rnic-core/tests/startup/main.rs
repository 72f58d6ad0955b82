//! How connections are established or fail: TCP's handshake, MPA's start-up, and errors of either
//! side.

mod again;
mod agreed;
#[path = "../common/mod.rs"]
mod common;
mod given_up;
mod ready;
mod refused;
mod replies;
