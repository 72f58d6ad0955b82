//! The iWARP protocol engine.
//!
//! Everything here runs on frames, time and randomness that the caller passes in: the engine makes
//! no system call, reads no clock and starts no thread. (Creating a [`memory`] region or ring is
//! the one place that asks the kernel for something, and it happens before any traffic.)

#[cfg(not(all(
    target_pointer_width = "64",
    target_endian = "little",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("rnic runs on x86-64 and on 64-bit Arm (aarch64), little-endian, and on no others");

pub mod adaptation;
pub mod connection;
pub mod counters;
pub mod ddp;
pub mod engine;
pub mod esp;
pub mod fast_paths;
pub mod ids;
pub mod in_memory;
pub mod memory;
pub mod mpa;
pub mod rdmap;
mod sync;
pub mod tcp;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;
pub mod verbs;
pub mod wire;

/// Where [`in_memory`] was in version 0.2.0.
#[cfg(not(feature = "testing"))]
#[doc(hidden)]
pub mod testing {
    pub use crate::in_memory;
}
