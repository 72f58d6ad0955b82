//! Makes a bound TCP socket harmless, so that it can be given to somebody without rights: it holds its port, and does nothing else.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc::{self, c_int, sock_filter, sock_fprog, socklen_t};

/// The class of an instruction that returns, in the socket filter's language (classic BPF), and no operand.
const RETURN_CONSTANT: u16 = 0x06;

/// Disarms a bound socket for good: whoever has it cannot make it send or accept a connection in this network namespace.
///
/// In repair mode the kernel connects without a packet, and does not listen for real; only CAP_NET_ADMIN in this namespace ends
/// that mode. It still retransmits and sends keepalive probes. So the socket is bound to `dead_end`, the index of a device where that
/// gives the client nothing that it does not have: the host end of its own port, where nothing gets further than the client, or the
/// shared device, if the client has a queue of it and so sends there what it likes; only CAP_NET_RAW ends that. Other sockets still cannot bind
/// to the port, unless they are bound to a device. A filter, which is locked, drops all that arrives.
pub(super) fn disarm(socket: &OwnedFd, dead_end: u32) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &dead_end)?;
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
    // SAFETY: the kernel reads a value of that length, and the instruction that a filter points to; both live through the call.
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
