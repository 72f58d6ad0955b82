//! The filters of raw sockets: options that nix does not know and has no way to add.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;

/// The level and the name of the option that says which types a raw socket of ICMP receives.
pub(super) const ICMP_FILTER: (i32, i32) = (255, 1);
/// The same of ICMPv6.
pub(super) const ICMPV6_FILTER: (i32, i32) = (libc::IPPROTO_ICMPV6, 1);

/// Tells a raw socket the types that it is not to receive, one bit each.
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
