//! System calls for which nix and rustix have no safe function.

#![allow(unsafe_code)]

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;
use zerocopy::IntoBytes;

use crate::info::TcpInfo;

/// Returns what the kernel knows of a TCP connection. Fields that an old kernel does not know are
/// zero.
pub(crate) fn tcp_info(socket: BorrowedFd<'_>) -> Result<TcpInfo, Errno> {
    let mut info = TcpInfo::default();
    let octets = info.as_mut_bytes();
    let mut len = octets.len() as libc::socklen_t;
    // SAFETY: the kernel writes `len` octets at most, which `octets` has; any value is valid there.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            octets.as_mut_ptr().cast(),
            &mut len,
        )
    };
    Errno::result(result).map(|_| info)
}

/// Returns how many octets a TCP socket has that the peer has not acknowledged. A FIN counts as
/// one.
pub(crate) fn unacknowledged(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut octets: libc::c_int = 0;
    // SIOCOUTQ has the number of TIOCOUTQ.
    // SAFETY: the kernel writes one int, to a variable that outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &mut octets) };
    Errno::result(result)?;
    Ok(u64::try_from(octets).unwrap_or(0))
}

/// Returns the MTU of an interface, in the network namespace of a socket. It needs no sysfs, which
/// may be that of another namespace.
pub(crate) fn mtu(socket: BorrowedFd<'_>, name: &str) -> Result<u32, Errno> {
    // SAFETY: `ifreq` is plain data, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(Errno::ENODEV);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the kernel reads and writes one `ifreq`, which outlives the call. Its name ends with
    // a zero.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &mut request) };
    Errno::result(result)?;
    // SAFETY: SIOCGIFMTU fills in this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u32::try_from(mtu).unwrap_or(0))
}
