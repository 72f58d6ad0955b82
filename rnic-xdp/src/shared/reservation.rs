//! Makes a bound TCP socket harmless: it holds its port and does nothing else, in any process.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc::{self, c_int, sock_filter, sock_fprog, socklen_t};

/// The class of an instruction that returns, in the socket filter's language (classic BPF), and no
/// operand.
const RETURN_CONSTANT: u16 = 0x06;

/// Disarms a bound socket for good. rnicd and its keeper alone have it, and do nothing with it.
///
/// In repair mode the kernel connects without a packet, and does not listen for real. A filter,
/// which is locked, drops all that arrives. The socket is bound to no device, so that no other can
/// bind to the port by being bound to one.
pub(super) fn disarm(socket: &OwnedFd) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, &1)?;
    // Repair mode would let others bind to the port as well.
    set(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &0)?;
    let mut nothing = sock_filter {
        code: RETURN_CONSTANT,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let program = sock_fprog {
        len: 1,
        filter: &raw mut nothing,
    };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
    set(socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &1)
}

/// Sets an option to a value of C's, which the kernel reads within the call.
fn set<T>(socket: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads a value of that length, and the instruction that a filter points to;
    // both live through the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
