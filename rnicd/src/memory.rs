//! The memory of a port's frames. A process with the memfd or a mapping of it can keep it, also
//! when the port has ended: then its pages go, so that what somebody puts there later is charged to
//! that process, and not to rnicd.

use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::{FallocateFlags, fallocate};

use crate::kept::{Keeper, Kept};

/// The memory of a port.
#[derive(Debug)]
pub(crate) struct Memory(Kept);

impl Memory {
    /// Returns the key under which that of a port is kept.
    pub(crate) fn key(netdev: &str, port: u32) -> String {
        format!("memory {netdev} {port}")
    }

    /// Holds the memory of a port that was made.
    pub(crate) fn hold(keeper: &Keeper, netdev: &str, port: u32, file: OwnedFd) -> Self {
        Self(keeper.keep(Self::key(netdev, port), file))
    }

    /// Takes over what a former rnicd has held.
    pub(crate) fn adopt(keeper: &Keeper, key: String, file: OwnedFd) -> Self {
        Self(keeper.adopt(key, file))
    }

    /// Leaves it to the keeper alone.
    pub(crate) fn leave(self) {
        self.0.leave();
    }

    /// Returns what the keeper holds.
    pub(crate) fn kept(&self) -> &Kept {
        &self.0
    }
}

/// Frees some pages of a file. The length stays, because a program that still looks there must not
/// be ended by a signal.
pub(crate) fn punch(file: &impl AsFd, at: i64, octets: i64) -> nix::Result<()> {
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file.as_fd(), mode, at, octets)
}
