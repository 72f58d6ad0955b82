//! Addresses as C has them.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "addresses of programs")]

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::libc::{self, AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, getsockname, setsockopt,
    socket, sockopt,
};

use rnic_verbs::PortReservation;

use crate::abi::rdma_sockaddr;
use crate::adapter::{self, Adapter, adapters};
use crate::cm::mapping::{self, Use};
use crate::errno::Errno;
use rnic_verbs::rdma::socket_address;

/// How long a TCP port is waited for that belongs to a process which has ended, one that this
/// process may just have released, and how often to look.
const PATIENCE: Duration = Duration::from_secs(2);
const RELEASED_WITHIN: Duration = Duration::from_millis(30);
const TRY_EVERY: Duration = Duration::from_millis(5);

/// Reads an address of the program. Returns `None` if its family is none that rdma_cm knows over
/// iWARP.
///
/// # Safety
/// It is NULL, or an address as long as its family says. It may lie at any octet.
pub(super) unsafe fn read(address: *const sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    match i32::from((&raw const (*address).sa_family).read_unaligned()) {
        AF_INET => {
            let v4 = address.cast::<sockaddr_in>().read_unaligned();
            let ip = u32::from_be(v4.sin_addr.s_addr).into();
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        AF_INET6 => {
            let v6 = address.cast::<sockaddr_in6>().read_unaligned();
            let port = u16::from_be(v6.sin6_port);
            let ip = v6.sin6_addr.s6_addr.into();
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Writes an address where the program looks for it.
///
/// # Safety
/// The program's id, of which it is a member, exists.
pub(super) unsafe fn write(address: SocketAddr, to: *mut rdma_sockaddr) {
    match address {
        SocketAddr::V4(v4) => to.cast::<sockaddr_in>().write(sockaddr_in {
            sin_family: AF_INET as u16,
            sin_port: v4.port().to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from(*v4.ip()).to_be(),
            },
            sin_zero: [0; 8],
        }),
        SocketAddr::V6(v6) => to.cast::<sockaddr_in6>().write(sockaddr_in6 {
            sin6_family: AF_INET6 as u16,
            sin6_port: v6.port().to_be(),
            sin6_flowinfo: v6.flowinfo(),
            sin6_addr: libc::in6_addr {
                s6_addr: v6.ip().octets(),
            },
            sin6_scope_id: v6.scope_id(),
        }),
    }
}

/// Returns any address and port of the same family.
pub(super) fn any_like(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)),
    }
}

/// Returns the address as the engine knows it: without what headers do not carry, and IPv4 in IPv6
/// as IPv4.
pub(super) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns the address as a device is told it. That of all interfaces cannot know the link of a
/// link-local one.
pub(super) fn told(address: SocketAddr, adapter: Option<&Adapter>) -> SocketAddr {
    let plain = plain(address);
    match link_of(address) {
        Some(link) if adapter.is_some_and(|adapter| adapter.netdev.is_empty()) => {
            socket_address(plain.ip(), plain.port(), link)
        }
        _ => plain,
    }
}

/// Returns the link of a link-local address, if the address names it.
pub(super) fn link_of(address: SocketAddr) -> Option<u32> {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
            (v6.scope_id() != 0).then_some(v6.scope_id())
        }
        _ => None,
    }
}

/// Returns the local address from which the kernel would send to this one, with the link of a
/// link-local one.
pub(super) fn source_for(remote: SocketAddr) -> Result<SocketAddr, Errno> {
    let probe = open(remote, SockType::Datagram)?;
    let mut remote = remote;
    // Any port does: nothing is sent.
    remote.set_port(9);
    connect(probe.as_raw_fd(), &SockaddrStorage::from(remote))?;
    name_of(&probe)
}

/// What keeps a port until the engine has it.
pub(super) enum Reserved {
    /// A socket of the kernel.
    Socket { _bound: OwnedFd },
    /// What earlier connections of this process keep reserved.
    Shared(PortReservation),
    /// Nothing: a TCP socket has it, or is to have it.
    Mapped,
}

impl Reserved {
    /// Frees the port for the engine, which reserves it for itself. What it shares stays reserved
    /// as long as this is held.
    pub(super) fn free(self) -> Option<PortReservation> {
        match self {
            Self::Socket { .. } | Self::Mapped => None,
            Self::Shared(lease) => Some(lease),
        }
    }
}

/// Reserves a TCP port as [`reserve`] does. One that earlier connections of this process have,
/// until their TIME-WAIT ends, is shared with them. That no id has it any more, the caller knows. One
/// at which a TCP socket listens is not reserved: who listens gets another one.
pub(super) fn reserve_again(
    wanted: SocketAddr,
    reuse: bool,
) -> Result<(Reserved, SocketAddr), Errno> {
    if mapping::choice() == Use::Always && wanted.port() != 0 {
        return Ok((Reserved::Mapped, wanted));
    }
    let began = Instant::now();
    let (soon, until) = (began + RELEASED_WITHIN, began + PATIENCE);
    let mut is_last = false;
    loop {
        match reserve(wanted, reuse) {
            Ok((bound, local)) => return Ok((Reserved::Socket { _bound: bound }, local)),
            Err(Errno::EADDRINUSE) => {}
            Err(errno) => return Err(errno),
        }
        if let Some(lease) = in_use(plain(wanted)) {
            return Ok((Reserved::Shared(lease), wanted));
        }
        if mapping::choice() == Use::Needed && mapping::tcp_listens(plain(wanted)) {
            return Ok((Reserved::Mapped, wanted));
        }
        // TIME-WAIT is the kernel's there. Who listens is told if another does.
        if takes_sockets()
            && let Ok((bound, local)) = reserve(wanted, true)
        {
            return Ok((Reserved::Socket { _bound: bound }, local));
        }
        // With the kernel alone a port is free once its id is destroyed or its process has ended.
        // rnicd frees it a moment later.
        if is_last {
            return Err(Errno::EADDRINUSE);
        }
        let now = Instant::now();
        let may_be_near = now < soon && adapter::has_rnicd();
        // It may become free while rnicd is asked.
        is_last = now >= until || !(may_be_near || adapter::are_ports_ending());
        thread::sleep(TRY_EVERY);
    }
}

/// Returns whether connections take TCP sockets of the kernel.
fn takes_sockets() -> bool {
    let by_sockets = |adapter: &'static Adapter| {
        let device = adapter.device();
        device.is_ok_and(|device| device.kernel().is_some())
    };
    adapters().iter().any(by_sockets)
}

/// Returns the lease of a port that a device of this process has at an address. Any address stands
/// for those of each device: it listens there, or has connected from one of them.
fn in_use(local: SocketAddr) -> Option<PortReservation> {
    adapters().iter().find_map(|adapter| {
        let device = adapter.opened()?;
        let own = match local.ip().is_unspecified() {
            true => adapter.addresses(),
            false => Vec::new(),
        };
        let own = own.into_iter().filter(|ip| ip.is_ipv4() == local.is_ipv4());
        let mut places = [local.ip()].into_iter().chain(own);
        places.find_map(|ip| device.port_in_use(SocketAddr::new(ip, local.port())))
    })
}

/// Reserves a TCP port in the kernel, for as long as the socket lives. Returns it with the address.
pub(super) fn reserve(wanted: SocketAddr, reuse: bool) -> Result<(OwnedFd, SocketAddr), Errno> {
    let socket = open(wanted, SockType::Stream)?;
    if wanted.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    setsockopt(&socket, sockopt::ReuseAddr, &reuse)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(wanted))?;
    let mut bound = wanted;
    bound.set_port(name_of(&socket)?.port());
    Ok((socket, bound))
}

fn open(address: SocketAddr, kind: SockType) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    socket(family, kind, SockFlag::SOCK_CLOEXEC, None)
}

fn name_of(socket: &OwnedFd) -> Result<SocketAddr, Errno> {
    let name: SockaddrStorage = getsockname(socket.as_raw_fd())?;
    match (name.as_sockaddr_in(), name.as_sockaddr_in6()) {
        (Some(v4), _) => Ok(SocketAddrV4::from(*v4).into()),
        (_, Some(v6)) => Ok(SocketAddrV6::from(*v6).into()),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Zeros;

    #[test]
    fn addresses_are_read_as_they_were_written() {
        for text in ["192.0.2.1:4420", "[2001:db8::1]:7", "[fe80::1%3]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut there = rdma_sockaddr::zeros();
            // SAFETY: the address is on this stack, and as large as any.
            unsafe {
                assert_eq!(read(&raw const there.addr), None);
                write(address, &raw mut there);
                assert_eq!(read(&raw const there.addr), Some(address));
            }
        }
    }

    #[test]
    fn a_port_is_reserved_as_long_as_its_socket_lives() {
        let (socket, bound) = reserve("127.0.0.1:0".parse().unwrap(), false).unwrap();
        assert_ne!(bound.port(), 0);
        assert_eq!(reserve(bound, false).unwrap_err(), Errno::EADDRINUSE);
        drop(socket);
        assert_eq!(reserve(bound, false).unwrap().1, bound);
    }
}
