//! The functions of `rdma/rsocket.h`.
#![allow(unsafe_code, reason = "C ABI: entry points")]

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::libc::{
    AF_INET, AF_INET6, FD_CLOEXEC, IPPROTO_TCP, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, fd_set,
    iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, ssize_t, timeval,
};

use super::identifier::Identifier;
use super::pieces::Pieces;
use super::poll::Set;
use super::socket::{Phase, Socket};
use super::{address, children, close, connect, index, inside, options, poll, repoll, service};
use crate::errno::{Errno, lock};

/// The octets of an option at most: those of `struct linger`.
const LONGEST_OPTION: usize = size_of::<nix::libc::linger>();

/// The most pieces of memory of a call: IOV_MAX.
const MAX_PIECES: usize = 1024;

/// Runs a call on a socket. A function returns what it yields, or -1 with errno.
fn on<T: From<i8>>(socket: i32, call: impl FnOnce(&Arc<Socket>) -> Result<T, Errno>) -> T {
    run(|| call(&index::get(socket)?))
}

pub(super) fn run<T: From<i8>>(call: impl FnOnce() -> Result<T, Errno>) -> T {
    let _inside = inside::enter();
    call().unwrap_or_else(|why| {
        why.set();
        T::from(-1)
    })
}

#[unsafe(export_name = "rnic_cm_rsocket")]
pub(super) extern "C-unwind" fn rsocket(domain: i32, r#type: i32, protocol: i32) -> i32 {
    let within = inside::is_inside();
    run(|| {
        let flags = r#type & (SOCK_CLOEXEC | SOCK_NONBLOCK);
        let is_known = (domain == AF_INET || domain == AF_INET6)
            && r#type & !flags == SOCK_STREAM
            && (protocol == 0 || protocol == IPPROTO_TCP);
        if !is_known || within {
            return Err(Errno::EOPNOTSUPP);
        }
        children::register();
        let reactor = service::start()?;
        let socket = Arc::new(Socket::new(Identifier::new()?, domain));
        socket
            .nonblocking
            .store(flags & SOCK_NONBLOCK != 0, Ordering::Relaxed);
        lock(&socket.options).descriptor_flags = if flags & SOCK_CLOEXEC != 0 {
            FD_CLOEXEC
        } else {
            0
        };
        reactor.watch(lock(&socket.identifier).as_fd())?;
        index::insert(&socket);
        Ok(socket.fd)
    })
}

#[unsafe(export_name = "rnic_cm_rbind")]
pub(super) unsafe extern "C-unwind" fn rbind(
    socket: i32,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> i32 {
    on(socket, |socket| {
        // SAFETY: the program says how long its address is.
        let address = unsafe { address::read(addr, addrlen) }?;
        if lock(&socket.flow).phase != Phase::Opened {
            return Err(Errno::EINVAL);
        }
        lock(&socket.identifier).bind(&address)?;
        Ok(0)
    })
}

#[unsafe(export_name = "rnic_cm_rlisten")]
pub(super) extern "C-unwind" fn rlisten(socket: i32, backlog: i32) -> i32 {
    on(socket, |socket| {
        socket.backlog.set(backlog);
        let mut flow = lock(&socket.flow);
        match flow.phase {
            Phase::Listening => return Ok(0),
            // Connections that come before the call returns are kept.
            Phase::Opened => flow.phase = Phase::Listening,
            _ => return Err(Errno::EINVAL),
        }
        drop(flow);
        let listening = lock(&socket.identifier).listen(backlog);
        listening.inspect_err(|_| socket.enter(Phase::Opened))?;
        Ok(0)
    })
}

#[unsafe(export_name = "rnic_cm_raccept")]
pub(super) unsafe extern "C-unwind" fn raccept(
    socket: i32,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> i32 {
    on(socket, |socket| {
        let accepted = socket.wait_for(socket.is_nonblocking(), |flow| match flow.phase {
            Phase::Listening => flow.accepted.pop_front().map(Ok),
            _ => Some(Err(Errno::EINVAL)),
        })?;
        let number = accepted.number_accepted().inspect_err(|_| {
            // Somebody can accept it later, when there are descriptors again.
            lock(&socket.flow).accepted.push_front(accepted.clone());
        })?;
        drop(lock(&accepted.place).take());
        index::insert(&accepted);
        if !addr.is_null() && !addrlen.is_null() {
            let peer = lock(&accepted.identifier).peer();
            // SAFETY: the program says how much room it has for the address.
            unsafe { address::write(&peer, addr, addrlen) }?;
        }
        Ok(number)
    })
}

#[unsafe(export_name = "rnic_cm_rconnect")]
pub(super) unsafe extern "C-unwind" fn rconnect(
    socket: i32,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> i32 {
    on(socket, |socket| {
        // SAFETY: the program says how long its address is.
        let peer = unsafe { address::read(addr, addrlen) }?;
        connect::connect(socket, &peer)?;
        Ok(0)
    })
}

#[unsafe(export_name = "rnic_cm_rshutdown")]
pub(super) extern "C-unwind" fn rshutdown(socket: i32, how: i32) -> i32 {
    on(socket, |socket| close::shutdown(socket, how).map(|()| 0))
}

#[unsafe(export_name = "rnic_cm_rclose")]
pub(super) extern "C-unwind" fn rclose(socket: i32) -> i32 {
    run(|| {
        match index::find_any(socket) {
            Some(socket) if socket.process.is_forked() => {
                index::remove(&socket);
                // It is the parent's: nothing of it is destroyed here.
                std::mem::forget(socket);
            }
            Some(socket) => close::close(&socket),
            None => repoll::close(socket)?,
        }
        Ok(0)
    })
}

fn receive(socket: i32, pieces: Result<&[iovec], Errno>, flags: i32) -> ssize_t {
    on(socket, |socket| {
        // SAFETY: the program has room there: entry points alone call this, with what they got.
        let pieces = unsafe { Pieces::new(pieces?) };
        Ok(socket.receive(pieces, flags)? as ssize_t)
    })
}

fn send(socket: i32, pieces: Result<&[iovec], Errno>, flags: i32) -> ssize_t {
    on(socket, |socket| {
        // SAFETY: the program has octets there: entry points alone call this, with what they got.
        let pieces = unsafe { Pieces::new(pieces?) };
        Ok(socket.send(pieces, may_not_wait(socket, flags))? as ssize_t)
    })
}

fn may_not_wait(socket: &Socket, flags: i32) -> bool {
    socket.is_nonblocking() || flags & nix::libc::MSG_DONTWAIT != 0
}

fn piece(buf: *const c_void, len: usize) -> [iovec; 1] {
    // No call returns more.
    [iovec {
        iov_base: buf.cast_mut(),
        iov_len: len.min(isize::MAX as usize),
    }]
}

/// Returns the pieces of memory that the program names.
///
/// # Safety
///
/// `iov` is NULL, or has so many pieces, which stay as they are during the call.
unsafe fn pieces<'iov>(iov: *const iovec, count: usize) -> Result<&'iov [iovec], Errno> {
    match count {
        0 => Ok(&[]),
        1..=MAX_PIECES if iov.is_null() => Err(Errno::EFAULT),
        // SAFETY: says the caller.
        1..=MAX_PIECES => Ok(unsafe { slice::from_raw_parts(iov, count) }),
        _ => Err(Errno::EINVAL),
    }
}

#[unsafe(export_name = "rnic_cm_rrecv")]
pub(super) unsafe extern "C-unwind" fn rrecv(
    socket: i32,
    buf: *mut c_void,
    len: usize,
    flags: i32,
) -> ssize_t {
    receive(socket, Ok(&piece(buf, len)), flags)
}

#[unsafe(export_name = "rnic_cm_rrecvfrom")]
pub(super) unsafe extern "C-unwind" fn rrecvfrom(
    socket: i32,
    buf: *mut c_void,
    len: usize,
    flags: i32,
    src_addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    let received = receive(socket, Ok(&piece(buf, len)), flags);
    if received > 0 && !src_addr.is_null() {
        // SAFETY: the program passes what that takes, too. There is a peer, so what can fail is a
        // length that is missing.
        unsafe { rgetpeername(socket, src_addr, addrlen) };
    }
    received
}

#[unsafe(export_name = "rnic_cm_rrecvmsg")]
pub(super) unsafe extern "C-unwind" fn rrecvmsg(
    socket: i32,
    msg: *mut msghdr,
    flags: i32,
) -> ssize_t {
    // SAFETY: it is NULL, or the program's, which no other thread uses during the call.
    let Some(msg) = (unsafe { msg.as_mut() }) else {
        return receive(socket, Err(Errno::EFAULT), flags);
    };
    // SAFETY: the program says how many pieces there are.
    let received = receive(
        socket,
        unsafe { pieces(msg.msg_iov, msg.msg_iovlen) },
        flags,
    );
    if received >= 0 {
        (msg.msg_namelen, msg.msg_controllen, msg.msg_flags) = (0, 0, 0);
    }
    received
}

#[unsafe(export_name = "rnic_cm_rread")]
pub(super) unsafe extern "C-unwind" fn rread(
    socket: i32,
    buf: *mut c_void,
    count: usize,
) -> ssize_t {
    receive(socket, Ok(&piece(buf, count)), 0)
}

#[unsafe(export_name = "rnic_cm_rreadv")]
pub(super) unsafe extern "C-unwind" fn rreadv(
    socket: i32,
    iov: *const iovec,
    iovcnt: i32,
) -> ssize_t {
    // SAFETY: the program says how many pieces there are; a negative number becomes too large.
    receive(socket, unsafe { pieces(iov, iovcnt as usize) }, 0)
}

#[unsafe(export_name = "rnic_cm_rsend")]
pub(super) unsafe extern "C-unwind" fn rsend(
    socket: i32,
    buf: *const c_void,
    len: usize,
    flags: i32,
) -> ssize_t {
    send(socket, Ok(&piece(buf, len)), flags)
}

#[unsafe(export_name = "rnic_cm_rsendto")]
pub(super) unsafe extern "C-unwind" fn rsendto(
    socket: i32,
    buf: *const c_void,
    len: usize,
    flags: i32,
    dest_addr: *const sockaddr,
    addrlen: socklen_t,
) -> ssize_t {
    if !dest_addr.is_null() || addrlen != 0 {
        return on(socket, |_| Err(Errno::EISCONN));
    }
    send(socket, Ok(&piece(buf, len)), flags)
}

#[unsafe(export_name = "rnic_cm_rsendmsg")]
pub(super) unsafe extern "C-unwind" fn rsendmsg(
    socket: i32,
    msg: *const msghdr,
    flags: i32,
) -> ssize_t {
    // SAFETY: it is NULL, or the program's, which no other thread changes during the call.
    let Some(msg) = (unsafe { msg.as_ref() }) else {
        return send(socket, Err(Errno::EFAULT), flags);
    };
    if !msg.msg_control.is_null() && msg.msg_controllen != 0 {
        return send(socket, Err(Errno::EOPNOTSUPP), flags);
    }
    // SAFETY: the program says how many pieces there are.
    send(
        socket,
        unsafe { pieces(msg.msg_iov, msg.msg_iovlen) },
        flags,
    )
}

#[unsafe(export_name = "rnic_cm_rwrite")]
pub(super) unsafe extern "C-unwind" fn rwrite(
    socket: i32,
    buf: *const c_void,
    count: usize,
) -> ssize_t {
    send(socket, Ok(&piece(buf, count)), 0)
}

#[unsafe(export_name = "rnic_cm_rwritev")]
pub(super) unsafe extern "C-unwind" fn rwritev(
    socket: i32,
    iov: *const iovec,
    iovcnt: i32,
) -> ssize_t {
    // SAFETY: the program says how many pieces there are; a negative number becomes too large.
    send(socket, unsafe { pieces(iov, iovcnt as usize) }, 0)
}

#[unsafe(export_name = "rnic_cm_rpoll")]
pub(super) unsafe extern "C-unwind" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: i32) -> i32 {
    run(|| {
        let fds = match i32::try_from(nfds) {
            Ok(0) => &mut [],
            Ok(_) if fds.is_null() => return Err(Errno::EFAULT),
            // SAFETY: the program has so many entries there, which no other thread uses during the
            // call.
            Ok(_) => unsafe { slice::from_raw_parts_mut(fds, nfds as usize) },
            Err(_) => return Err(Errno::EINVAL),
        };
        let most = u64::try_from(timeout).ok().map(Duration::from_millis);
        Ok(poll::poll(fds, most)? as i32)
    })
}

#[unsafe(export_name = "rnic_cm_rselect")]
pub(super) unsafe extern "C-unwind" fn rselect(
    nfds: i32,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *mut timeval,
) -> i32 {
    run(|| {
        let nfds = usize::try_from(nfds).map_err(|_| Errno::EINVAL)?;
        let words = nfds.div_ceil(64);
        let sets = [readfds, writefds, exceptfds].map(|set| {
            // SAFETY: the program has as many words there as that takes, which may be more than an
            // fd_set has. select(2) wants three sets that do not overlap.
            Set((!set.is_null())
                .then(|| unsafe { slice::from_raw_parts_mut(set.cast::<u64>(), words) }))
        });
        // SAFETY: it is NULL, or can be read.
        let most = match unsafe { timeout.as_ref() } {
            None => None,
            Some(time) => {
                let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::EINVAL)?;
                let micros = u64::try_from(time.tv_usec).map_err(|_| Errno::EINVAL)?;
                Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
            }
        };
        Ok(poll::select(nfds, sets, most)? as i32)
    })
}

#[unsafe(export_name = "rnic_cm_rgetpeername")]
pub(super) unsafe extern "C-unwind" fn rgetpeername(
    socket: i32,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> i32 {
    on(socket, |socket| {
        let peer = lock(&socket.identifier).peer();
        if !address::is_known(&peer) {
            return Err(Errno::ENOTCONN);
        }
        // SAFETY: the program says how much room it has for the address.
        unsafe { address::write(&peer, addr, addrlen) }?;
        Ok(0)
    })
}

#[unsafe(export_name = "rnic_cm_rgetsockname")]
pub(super) unsafe extern "C-unwind" fn rgetsockname(
    socket: i32,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> i32 {
    on(socket, |socket| {
        let local = lock(&socket.identifier).local();
        let local = address::or_unspecified(local, socket.domain);
        // SAFETY: the program says how much room it has for the address.
        unsafe { address::write(&local, addr, addrlen) }?;
        Ok(0)
    })
}

#[unsafe(export_name = "rnic_cm_rsetsockopt")]
pub(super) unsafe extern "C-unwind" fn rsetsockopt(
    socket: i32,
    level: i32,
    optname: i32,
    optval: *const c_void,
    optlen: socklen_t,
) -> i32 {
    on(socket, |socket| {
        if optval.is_null() {
            return Err(Errno::EFAULT);
        }
        let octets = (optlen as usize).min(LONGEST_OPTION);
        // SAFETY: the program has at least so many octets there.
        let value = unsafe { slice::from_raw_parts(optval.cast::<u8>(), octets) };
        options::set(socket, level, optname, value)?;
        Ok(0)
    })
}

#[unsafe(export_name = "rnic_cm_rgetsockopt")]
pub(super) unsafe extern "C-unwind" fn rgetsockopt(
    socket: i32,
    level: i32,
    optname: i32,
    optval: *mut c_void,
    optlen: *mut socklen_t,
) -> i32 {
    on(socket, |socket| {
        if optval.is_null() || optlen.is_null() {
            return Err(Errno::EFAULT);
        }
        let value = options::get(socket, level, optname)?;
        // SAFETY: neither is NULL, and the program has room for so many octets as it says in the
        // length, which is its own to change.
        unsafe {
            let octets = value.len().min(*optlen as usize);
            value.as_ptr().copy_to_nonoverlapping(optval.cast(), octets);
            *optlen = octets as socklen_t;
        }
        Ok(0)
    })
}

/// The argument is there for some commands only. Where it is not, the register of the calling
/// convention has something else.
#[unsafe(export_name = "rnic_cm_rfcntl")]
pub(super) unsafe extern "C-unwind" fn rfcntl(socket: i32, cmd: i32, arg: i64) -> i32 {
    on(socket, |socket| options::fcntl(socket, cmd, arg))
}

#[unsafe(export_name = "rnic_cm_riomap")]
pub(super) unsafe extern "C-unwind" fn riomap(
    socket: i32,
    buf: *mut c_void,
    len: usize,
    prot: i32,
    _flags: i32,
    offset: off_t,
) -> off_t {
    on(socket, |socket| {
        let endpoint = socket.endpoint.get().ok_or(Errno::EINVAL)?;
        if prot & !nix::libc::PROT_WRITE != 0 {
            return Err(Errno::EINVAL);
        }
        let entries = (prot != 0).then(|| lock(&socket.flow).peer.mappable);
        let offset = if offset == -1 { buf as off_t } else { offset };
        // SAFETY: the program has memory there until it calls `riounmap` or closes the socket.
        let register = |access| unsafe { endpoint.register(buf, len, access) };
        lock(&socket.mappings).add(register, buf, len, entries, offset as u64)?;
        Ok(offset)
    })
}

#[unsafe(export_name = "rnic_cm_riounmap")]
pub(super) unsafe extern "C-unwind" fn riounmap(socket: i32, buf: *mut c_void, len: usize) -> i32 {
    on(socket, |socket| {
        lock(&socket.mappings).remove(buf, len)?;
        Ok(0)
    })
}

#[unsafe(export_name = "rnic_cm_riowrite")]
pub(super) unsafe extern "C-unwind" fn riowrite(
    socket: i32,
    buf: *const c_void,
    count: usize,
    offset: off_t,
    flags: i32,
) -> usize {
    let written: ssize_t = on(socket, |socket| {
        let nonblocking = may_not_wait(socket, flags);
        let source = piece(buf, count);
        // SAFETY: the program has so many octets there.
        let pieces = unsafe { Pieces::new(&source) };
        Ok(socket.send_to_mapped(pieces, offset as u64, nonblocking)? as ssize_t)
    });
    written as usize
}
