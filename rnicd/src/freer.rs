//! The process that frees the memory of a port that has ended. It is no thread of rnicd: a program
//! that has such memory can hold up who frees it for as long as it likes, by a write into it from a
//! page that never comes (FUSE, userfaultfd), and a process that is held up so cannot even be
//! killed.

use std::os::fd::OwnedFd;

use nix::sys::stat::fstat;

use crate::memory::punch;

/// Octets that one call frees, unless a page is longer. Others can lock the file between two calls.
const PIECE: i64 = 64 << 10;

/// Frees all pages of a file. It takes the longer the more often somebody has mapped it.
pub fn free(file: &OwnedFd) -> nix::Result<()> {
    let status = fstat(file)?;
    #[allow(clippy::useless_conversion, reason = "its type is the processor's")]
    let piece = PIECE.max(i64::from(status.st_blksize));
    let mut at = 0;
    while at < status.st_size {
        punch(file, at, piece)?;
        at += piece;
    }
    Ok(())
}
