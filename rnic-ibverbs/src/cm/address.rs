//! Addresses as C has them.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;

use nix::libc::{self, AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, getsockname, setsockopt,
    socket, sockopt,
};

use crate::abi::rdma_sockaddr;
use crate::errno::{Errno, lock};

/// Reads an address of the program. Returns `None` if its family is none that rdma_cm knows over iWARP.
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

/// Returns the address as the engine knows it: without what headers do not carry, and IPv4 in IPv6 as IPv4.
pub(super) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns the local address from which the kernel would send to this one.
pub(super) fn source_for(remote: SocketAddr) -> Result<IpAddr, Errno> {
    let probe = open(remote, SockType::Datagram)?;
    let mut remote = remote;
    // Any port does: nothing is sent.
    remote.set_port(9);
    connect(probe.as_raw_fd(), &SockaddrStorage::from(remote))?;
    Ok(name_of(&probe)?.ip())
}

/// The addresses on which this process has listened and does no more. Connections that were accepted there may hold the port still.
static FORMER: Mutex<BTreeSet<SocketAddr>> = Mutex::new(BTreeSet::new());

/// Notes that nothing listens at an address any more.
pub(super) fn is_former(address: SocketAddr) {
    lock(&FORMER).insert(address);
}

/// Reserves a TCP port in the kernel as [`reserve`] does. A port that connections of former listeners hold needs no socket: the engine
/// shares it with them.
pub(super) fn reserve_again(
    wanted: SocketAddr,
    reuse: bool,
) -> Result<(Option<OwnedFd>, SocketAddr), Errno> {
    match reserve(wanted, reuse) {
        Err(Errno::EADDRINUSE) if lock(&FORMER).contains(&plain(wanted)) => Ok((None, wanted)),
        reserved => reserved.map(|(socket, bound)| (Some(socket), bound)),
    }
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

    #[test]
    fn addresses_are_read_as_they_were_written() {
        for text in ["192.0.2.1:4420", "[2001:db8::1]:7", "[fe80::1%3]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut there = rdma_sockaddr {
                // SAFETY: zeros are an address of no family.
                storage: unsafe { std::mem::zeroed() },
            };
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
