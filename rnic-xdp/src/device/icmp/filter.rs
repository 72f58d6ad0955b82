//! The filters of raw sockets: socket options that nix does not have.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;

/// The level and the name of the option that says which types a raw socket of ICMP receives.
pub(super) const ICMP_FILTER: (i32, i32) = (255, 1);
/// The level and the name of that option for ICMPv6.
pub(super) const ICMPV6_FILTER: (i32, i32) = (libc::IPPROTO_ICMPV6, 1);

/// Sets the types that a raw socket does not receive, one bit each.
pub(super) fn block<const WORDS: usize>(
    fd: &OwnedFd,
    (level, option): (i32, i32),
    blocked: &[u32; WORDS],
) -> Result<(), Errno> {
    // SAFETY: the kernel reads as many octets as the array has, and keeps no pointer to it.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            blocked.as_ptr().cast(),
            size_of_val(blocked) as libc::socklen_t,
        )
    };
    Errno::result(result).map(drop)
}
