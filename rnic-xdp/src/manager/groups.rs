//! The groups of the process at the other end of a Unix socket.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::libc::{self, gid_t, socklen_t};

/// The most groups of a process (`NGROUPS_MAX` of Linux).
const MOST: usize = 65536;

/// Returns the supplementary groups that the process at the other end had when it connected.
pub(super) fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups: Vec<gid_t> = vec![0; 32];
    loop {
        let mut octets = size_of_val(&groups[..]) as socklen_t;
        // SAFETY: the kernel writes at most `octets` octets to `groups`, which has that many, and any are valid numbers.
        let code = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut octets,
            )
        };
        let count = octets as usize / size_of::<gid_t>();
        match Errno::result(code) {
            Ok(_) => {
                groups.truncate(count);
                return Ok(groups);
            }
            // There are more: the kernel says how many.
            Err(Errno::ERANGE) if groups.len() < count && count <= MOST => groups.resize(count, 0),
            Err(error) => return Err(error.into()),
        }
    }
}
