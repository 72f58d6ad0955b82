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

/// Sets an option of SCTP.
pub(crate) fn set_sctp(
    socket: BorrowedFd<'_>,
    option: libc::c_int,
    value: &[u8],
) -> Result<(), rustix::io::Errno> {
    // SAFETY: the kernel reads as many octets as `value` has.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_SCTP,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    outcome(result as isize).map(drop)
}

/// Reads an option of SCTP.
pub(crate) fn get_sctp(
    socket: BorrowedFd<'_>,
    option: libc::c_int,
    value: &mut [u8],
) -> Result<(), rustix::io::Errno> {
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: the kernel writes `len` octets at most, which `value` has.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_SCTP,
            option,
            value.as_mut_ptr().cast(),
            &mut len,
        )
    };
    outcome(result as isize).map(drop)
}

/// Returns how much memory the kernel has in use for what a socket has sent and the peer has not
/// acknowledged.
pub(crate) fn send_memory(socket: BorrowedFd<'_>) -> Result<u64, rustix::io::Errno> {
    /// `SK_MEMINFO_WMEM_QUEUED`, and how many fields older kernels have.
    const QUEUED: usize = 5;
    let mut fields = [0_u32; 16];
    let mut len = size_of_val(&fields) as libc::socklen_t;
    // SAFETY: the kernel writes `len` octets at most, which `fields` has; any value is valid there.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            fields.as_mut_ptr().cast(),
            &mut len,
        )
    };
    outcome(result as isize).map(|_| fields[QUEUED].into())
}

/// The control message of a chunk that is sent (`SCTP_SNDINFO`, RFC 6458 section 5.3.4).
#[derive(Default, zerocopy::FromBytes, zerocopy::IntoBytes)]
#[repr(C, align(8))]
struct SendInfo {
    len: usize,
    level: i32,
    kind: i32,
    stream: u16,
    flags: u16,
    protocol: u32,
    context: u32,
    association: i32,
}

/// Sends a chunk of SCTP. It is not cut, and not sent in part.
pub(crate) fn send_sctp(
    socket: BorrowedFd<'_>,
    stream: u16,
    protocol: u32,
    flags: u16,
    octets: &[u8],
) -> Result<(), rustix::io::Errno> {
    const SNDINFO: i32 = 2;
    let mut info = SendInfo {
        len: size_of::<SendInfo>(),
        level: libc::IPPROTO_SCTP,
        kind: SNDINFO,
        stream,
        flags,
        // The kernel takes it as it is to be on the wire.
        protocol: protocol.to_be(),
        ..SendInfo::default()
    };
    let mut data = libc::iovec {
        iov_base: octets.as_ptr().cast_mut().cast(),
        iov_len: octets.len(),
    };
    // SAFETY: `msghdr` is plain data, for which zeros are valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &mut data;
    message.msg_iovlen = 1;
    message.msg_control = info.as_mut_bytes().as_mut_ptr().cast();
    message.msg_controllen = size_of::<SendInfo>() as _;
    let wait = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message points to `data` and `info`, and `data` to `octets`, which outlive the
    // call; the kernel only reads them.
    let result = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, wait) };
    outcome(result).map(drop)
}

/// What was received from an association.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SctpReceived {
    pub(crate) len: usize,
    /// The kernel notifies of something: it is no data.
    pub(crate) is_notification: bool,
    /// The message ends with these octets.
    pub(crate) is_whole: bool,
    pub(crate) stream: u16,
    pub(crate) protocol: u32,
}

/// Receives a message of SCTP, or a notification.
pub(crate) fn receive_sctp(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
) -> Result<SctpReceived, rustix::io::Errno> {
    /// The control message `SCTP_RCVINFO` (RFC 6458 section 5.3.5), and where its stream and payload
    /// protocol identifier stand behind the header.
    const RCVINFO: i32 = 3;
    const PROTOCOL_AT: usize = 8;
    const MSG_NOTIFICATION: libc::c_int = 0x8000;
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let mut control = [0_u64; 16];
    let mut data = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    // SAFETY: `msghdr` is plain data, for which zeros are valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &mut data;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the message points to `data` and `control`, and `data` to `into`, which outlive the
    // call; the kernel writes no more than their lengths say.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    let len = outcome(result)?;
    let mut received = SctpReceived {
        len,
        is_notification: message.msg_flags & MSG_NOTIFICATION != 0,
        is_whole: message.msg_flags & libc::MSG_EOR != 0,
        stream: 0,
        protocol: 0,
    };
    // The kernel was asked for one control message alone.
    let octets = control.as_bytes();
    let is = |at: usize, value: i32| octets[at..at + 4] == value.to_ne_bytes();
    let (level, kind) = (size_of::<usize>(), size_of::<usize>() + 4);
    if message.msg_controllen as usize > HEADER + PROTOCOL_AT
        && is(level, libc::IPPROTO_SCTP)
        && is(kind, RCVINFO)
    {
        let info = &octets[HEADER..];
        received.stream = u16::from_ne_bytes([info[0], info[1]]);
        let protocol = &info[PROTOCOL_AT..PROTOCOL_AT + 4];
        received.protocol =
            u32::from_be_bytes([protocol[0], protocol[1], protocol[2], protocol[3]]);
    }
    Ok(received)
}

/// Returns the outcome of a call.
fn outcome(result: isize) -> Result<usize, rustix::io::Errno> {
    usize::try_from(result).map_err(|_| {
        let errno = Errno::last() as i32;
        rustix::io::Errno::from_raw_os_error(errno)
    })
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
