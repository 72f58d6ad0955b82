//! The functions of `rdma/rsocket.h`, and what tests do with them.

use std::ffi::c_void;
use std::io;
use std::net::SocketAddr;

use nix::libc::{
    AF_INET, POLLIN, SOCK_STREAM, SOL_SOCKET, epoll_event, iovec, msghdr, nfds_t, off_t, pollfd,
    sockaddr_in, socklen_t, ssize_t,
};

// The library, whose symbols these are.
use rnic_ibverbs as _;

unsafe extern "C" {
    safe fn rnic_cm_rsocket(domain: i32, r#type: i32, protocol: i32) -> i32;
    fn rnic_cm_rbind(socket: i32, addr: *const sockaddr_in, addrlen: socklen_t) -> i32;
    safe fn rnic_cm_rlisten(socket: i32, backlog: i32) -> i32;
    fn rnic_cm_raccept(socket: i32, addr: *mut sockaddr_in, addrlen: *mut socklen_t) -> i32;
    fn rnic_cm_rconnect(socket: i32, addr: *const sockaddr_in, addrlen: socklen_t) -> i32;
    safe fn rnic_cm_rshutdown(socket: i32, how: i32) -> i32;
    safe fn rnic_cm_rclose(socket: i32) -> i32;
    safe fn rnic_cm_repoll_create(flags: i32) -> i32;
    fn rnic_cm_repoll_ctl(epfd: i32, op: i32, fd: i32, event: *mut epoll_event) -> i32;
    fn rnic_cm_repoll_wait(epfd: i32, events: *mut epoll_event, max: i32, timeout: i32) -> i32;
    fn rnic_cm_rrecv(socket: i32, buf: *mut c_void, len: usize, flags: i32) -> ssize_t;
    fn rnic_cm_rrecvmsg(socket: i32, msg: *mut msghdr, flags: i32) -> ssize_t;
    fn rnic_cm_rsend(socket: i32, buf: *const c_void, len: usize, flags: i32) -> ssize_t;
    fn rnic_cm_rwritev(socket: i32, iov: *const iovec, iovcnt: i32) -> ssize_t;
    fn rnic_cm_rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: i32) -> i32;
    fn rnic_cm_rgetpeername(socket: i32, addr: *mut sockaddr_in, addrlen: *mut socklen_t) -> i32;
    fn rnic_cm_rgetsockname(socket: i32, addr: *mut sockaddr_in, addrlen: *mut socklen_t) -> i32;
    fn rnic_cm_rsetsockopt(
        socket: i32,
        level: i32,
        name: i32,
        value: *const c_void,
        len: socklen_t,
    ) -> i32;
    fn rnic_cm_rgetsockopt(
        socket: i32,
        level: i32,
        name: i32,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> i32;
    fn rnic_cm_rfcntl(socket: i32, cmd: i32, ...) -> i32;
    fn rnic_cm_riomap(
        socket: i32,
        buf: *mut c_void,
        len: usize,
        prot: i32,
        flags: i32,
        offset: off_t,
    ) -> off_t;
    fn rnic_cm_riounmap(socket: i32, buf: *mut c_void, len: usize) -> i32;
    fn rnic_cm_riowrite(
        socket: i32,
        buf: *const c_void,
        count: usize,
        offset: off_t,
        flags: i32,
    ) -> usize;
}

pub(crate) const SOL_RDMA: i32 = 0x10000;
pub(crate) const RDMA_SQSIZE: i32 = 0;
pub(crate) const RDMA_IOMAPSIZE: i32 = 3;

/// A socket. It is closed when dropped.
#[derive(Debug)]
pub(crate) struct Socket(pub(crate) i32);

impl Drop for Socket {
    fn drop(&mut self) {
        rnic_cm_rclose(self.0);
    }
}

fn done(returned: i32) -> io::Result<i32> {
    if returned < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(returned)
    }
}

fn length(returned: ssize_t) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

/// Returns what a call failed with.
#[track_caller]
pub(crate) fn errno<T: std::fmt::Debug>(outcome: io::Result<T>) -> i32 {
    outcome.unwrap_err().raw_os_error().unwrap()
}

fn sockaddr(address: &str) -> sockaddr_in {
    let Ok(SocketAddr::V4(v4)) = address.parse() else {
        panic!("{address}")
    };
    sockaddr_in {
        sin_family: AF_INET as u16,
        sin_port: v4.port().to_be(),
        sin_addr: nix::libc::in_addr {
            s_addr: u32::from(*v4.ip()).to_be(),
        },
        sin_zero: [0; 8],
    }
}

const SOCKADDR: socklen_t = size_of::<sockaddr_in>() as socklen_t;

impl Socket {
    pub(crate) fn of_type(domain: i32, r#type: i32) -> io::Result<Self> {
        done(rnic_cm_rsocket(domain, r#type, 0)).map(Self)
    }

    pub(crate) fn new() -> Self {
        Self::of_type(AF_INET, SOCK_STREAM).unwrap()
    }

    pub(crate) fn listening(address: &str) -> Self {
        let socket = Self::new();
        socket.bind(address).unwrap();
        socket.listen(16).unwrap();
        socket
    }

    pub(crate) fn listen(&self, backlog: i32) -> io::Result<i32> {
        done(rnic_cm_rlisten(self.0, backlog))
    }

    pub(crate) fn bind(&self, address: &str) -> io::Result<i32> {
        // SAFETY: the address is as long as stated.
        done(unsafe { rnic_cm_rbind(self.0, &sockaddr(address), SOCKADDR) })
    }

    pub(crate) fn connected(address: &str) -> Self {
        let socket = Self::new();
        socket.connect(address).unwrap();
        socket
    }

    pub(crate) fn connect(&self, address: &str) -> io::Result<i32> {
        // SAFETY: the address is as long as stated.
        done(unsafe { rnic_cm_rconnect(self.0, &sockaddr(address), SOCKADDR) })
    }

    pub(crate) fn accept(&self) -> io::Result<Self> {
        // SAFETY: NULL asks for no address.
        done(unsafe { rnic_cm_raccept(self.0, std::ptr::null_mut(), std::ptr::null_mut()) })
            .map(Self)
    }

    pub(crate) fn shutdown(&self, how: i32) -> io::Result<i32> {
        done(rnic_cm_rshutdown(self.0, how))
    }

    pub(crate) fn recv(&self, to: &mut [u8], flags: i32) -> io::Result<usize> {
        // SAFETY: the slice is as long as stated.
        length(unsafe { rnic_cm_rrecv(self.0, to.as_mut_ptr().cast(), to.len(), flags) })
    }

    pub(crate) fn send(&self, from: &[u8], flags: i32) -> io::Result<usize> {
        // SAFETY: the slice is as long as stated.
        length(unsafe { rnic_cm_rsend(self.0, from.as_ptr().cast(), from.len(), flags) })
    }

    pub(crate) fn recv_into(&self, pieces: &mut [&mut [u8]]) -> io::Result<usize> {
        let mut pieces: Vec<iovec> = pieces
            .iter_mut()
            .map(|piece| iovec {
                iov_base: piece.as_mut_ptr().cast(),
                iov_len: piece.len(),
            })
            .collect();
        // SAFETY: 0 is a value of each member.
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), pieces.len());
        // SAFETY: the pieces are slices that this call may write to.
        length(unsafe { rnic_cm_rrecvmsg(self.0, &mut message, 0) })
    }

    pub(crate) fn send_from(&self, pieces: &[&[u8]]) -> io::Result<usize> {
        let pieces: Vec<iovec> = pieces
            .iter()
            .map(|piece| iovec {
                iov_base: piece.as_ptr().cast_mut().cast(),
                iov_len: piece.len(),
            })
            .collect();
        // SAFETY: the pieces are slices.
        length(unsafe { rnic_cm_rwritev(self.0, pieces.as_ptr(), pieces.len() as i32) })
    }

    pub(crate) fn peer(&self) -> io::Result<(u32, u16)> {
        // SAFETY: `name` gives an address of the length that it states.
        name(|addr, len| unsafe { rnic_cm_rgetpeername(self.0, addr, len) })
    }

    pub(crate) fn local(&self) -> io::Result<(u32, u16)> {
        // SAFETY: `name` gives an address of the length that it states.
        name(|addr, len| unsafe { rnic_cm_rgetsockname(self.0, addr, len) })
    }

    pub(crate) fn set<T>(&self, level: i32, name: i32, value: T) -> io::Result<i32> {
        let value: *const T = &value;
        // SAFETY: the value is as long as stated.
        done(unsafe {
            rnic_cm_rsetsockopt(
                self.0,
                level,
                name,
                value.cast(),
                size_of::<T>() as socklen_t,
            )
        })
    }

    pub(crate) fn get(&self, level: i32, name: i32) -> io::Result<i32> {
        let (mut value, mut len) = (0i32, 4);
        // SAFETY: the value has the length that is stated.
        done(unsafe {
            rnic_cm_rgetsockopt(self.0, level, name, (&raw mut value).cast(), &mut len)
        })?;
        assert_eq!(len, 4);
        Ok(value)
    }

    pub(crate) fn error(&self) -> i32 {
        self.get(SOL_SOCKET, nix::libc::SO_ERROR).unwrap()
    }

    pub(crate) fn fcntl(&self, command: i32, value: i32) -> io::Result<i32> {
        // SAFETY: the commands of the tests take a number.
        done(unsafe { rnic_cm_rfcntl(self.0, command, value) })
    }

    /// Waits for one of these events, and returns those that there are.
    pub(crate) fn poll(&self, events: i16, timeout: i32) -> i16 {
        let mut fds = [pollfd {
            fd: self.0,
            events,
            revents: 0,
        }];
        poll(&mut fds, timeout).unwrap();
        fds[0].revents
    }

    pub(crate) fn wait_readable(&self) {
        assert_eq!(self.poll(POLLIN, -1) & POLLIN, POLLIN);
    }

    pub(crate) fn map(&self, buffer: &mut [u8], offset: i64) -> i64 {
        let prot = nix::libc::PROT_WRITE;
        // SAFETY: the tests unmap a buffer before they drop it, and read what the peer has written
        // there after it said so.
        unsafe {
            rnic_cm_riomap(
                self.0,
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                prot,
                0,
                offset,
            )
        }
    }

    pub(crate) fn unmap(&self, buffer: &mut [u8]) -> io::Result<i32> {
        // SAFETY: only the address is looked at.
        done(unsafe { rnic_cm_riounmap(self.0, buffer.as_mut_ptr().cast(), buffer.len()) })
    }

    pub(crate) fn write_mapped(&self, from: &[u8], offset: i64) -> usize {
        // SAFETY: the slice is as long as stated.
        unsafe { rnic_cm_riowrite(self.0, from.as_ptr().cast(), from.len(), offset, 0) }
    }
}

pub(crate) fn poll(fds: &mut [pollfd], timeout: i32) -> io::Result<i32> {
    // SAFETY: the slice is as long as stated.
    done(unsafe { rnic_cm_rpoll(fds.as_mut_ptr(), fds.len() as nfds_t, timeout) })
}

fn name(call: impl FnOnce(*mut sockaddr_in, *mut socklen_t) -> i32) -> io::Result<(u32, u16)> {
    let (mut address, mut len) = (sockaddr("0.0.0.0:0"), SOCKADDR);
    done(call(&mut address, &mut len))?;
    assert_eq!((len, i32::from(address.sin_family)), (SOCKADDR, AF_INET));
    Ok((
        u32::from_be(address.sin_addr.s_addr),
        u16::from_be(address.sin_port),
    ))
}

/// A set of descriptors that are waited for. It is closed when dropped.
pub(crate) struct Repoll(Socket);

impl Repoll {
    pub(crate) fn new() -> Self {
        Self(Socket(done(rnic_cm_repoll_create(0)).unwrap()))
    }

    /// Returns 0 or an errno.
    pub(crate) fn control(&self, op: i32, fd: i32, events: i32, data: u64) -> i32 {
        let mut event = epoll_event {
            events: events as u32,
            u64: data,
        };
        // SAFETY: the event is there during the call.
        unsafe { rnic_cm_repoll_ctl(self.0.0, op, fd, &mut event) }
    }

    /// Waits for an event, and returns it with its data.
    pub(crate) fn wait(&self, timeout: i32) -> Option<(i32, u64)> {
        let mut event = epoll_event { events: 0, u64: 0 };
        // SAFETY: there is room for one event.
        let told = unsafe { rnic_cm_repoll_wait(self.0.0, &mut event, 1, timeout) };
        (done(told).unwrap() == 1).then_some((event.events as i32, event.u64))
    }
}
