//! How connections come to be, or do not: TCP's handshake, MPA's, and what either side may get wrong.

mod agreed;
#[path = "../common/mod.rs"]
mod common;
mod ready;
mod refused;
