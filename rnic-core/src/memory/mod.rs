//! Frames kept for transmission, memory regions, the STag table, placement proofs and shared rings.
//!
//! Registered memory is written by peers and by the application at any time. Nothing here forms a
//! reference over it: bytes go in and out through raw pointers, and only a [`place::Placement`] or
//! [`place::Source`], which the STag table's validation alone can make, leads there from the
//! network.

pub mod access;
pub mod binding;
pub mod doorbell;
pub mod epoch;
pub mod error;
mod foreign;
pub mod frames;
mod guarded;
mod mapping;
pub(crate) mod parcel;
pub mod place;
pub mod prefetch;
pub mod process;
#[doc(hidden)]
pub mod program;
mod random;
pub mod region;
pub mod ring;
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
pub mod stores;
pub mod table;
mod target;
mod words;
mod workers;
