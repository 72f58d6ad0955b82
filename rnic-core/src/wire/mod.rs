//! Wire layouts: what the octets of a frame mean, and nothing about what to do with them.
//!
//! Parsing takes slices and returns values or checked views; it never panics, whatever the octets
//! are. Emitting writes at the start of a slice that the caller has made large enough, and returns
//! the length.

// A header has a length and is never empty.
#![allow(clippy::len_without_is_empty)]

pub mod checksum;
pub mod crc;
pub mod datagram;
pub mod ddp;
pub mod encapsulation;
pub mod error;
pub mod esp;
pub mod ethernet;
pub mod fpdu_template;
pub mod hello;
pub mod icmp;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod mpa;
pub mod packet;
pub mod port_mapper;
pub mod prediction;
pub mod prefix;
pub mod rdmap;
pub mod segment_template;
mod serial;
pub mod session;
pub mod tcp;
pub mod template;

#[cfg(test)]
mod tests;
