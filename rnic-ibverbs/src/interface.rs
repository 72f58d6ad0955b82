//! What the kernel says about a network interface.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};

/// A network interface as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Its index, 0 if there is no such interface.
    pub(crate) index: u32,
    pub(crate) mac: [u8; 6],
    /// The link is up.
    pub(crate) is_active: bool,
    /// IPv4 addresses first.
    pub(crate) addresses: Vec<IpAddr>,
}

impl Interface {
    /// Reads an interface. Without a name it is all of the host together.
    pub(crate) fn read(netdev: &str) -> Self {
        let mut read = Self {
            index: if_nametoindex(netdev).unwrap_or(0),
            ..Self::default()
        };
        let Ok(all) = getifaddrs() else { return read };
        let running = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
        let is_part = |name: &str| netdev.is_empty() || name == netdev;
        for entry in all.filter(|entry| is_part(&entry.interface_name)) {
            read.is_active |= entry.flags.contains(running);
            let Some(address) = entry.address else {
                continue;
            };
            if let Some(link) = address.as_link_addr() {
                let mac = link.addr().unwrap_or_default();
                if read.mac == [0; 6] {
                    read.mac = mac;
                }
            } else if let Some(v4) = address.as_sockaddr_in() {
                read.addresses.push(IpAddr::V4(v4.ip()));
            } else if let Some(v6) = address.as_sockaddr_in6() {
                read.addresses.push(IpAddr::V6(v6.ip()));
            }
        }
        // Peers on other hosts cannot reach the loopback address.
        let order = |address: &IpAddr| (address.is_loopback(), address.is_ipv6());
        read.addresses.sort_by_key(order);
        read
    }

    /// Returns the address that is the GID at an index of the table. The first entries are there in
    /// any case: guides tell people to choose 1 or 3, where adapters have the GID of RoCE v2 and an
    /// IPv4 address.
    pub(crate) fn at_gid_index(&self, index: usize) -> Option<IpAddr> {
        const FIRST: usize = 4;
        let first = self.addresses.first().filter(|_| index < FIRST);
        self.addresses.get(index).or(first).copied()
    }

    /// Returns the MTU, if the interface is there. That of all together is that of the kernel within
    /// the host.
    pub(crate) fn mtu(netdev: &str) -> Option<u32> {
        if netdev.is_empty() {
            return Some(u32::from(u16::MAX));
        }
        let text = std::fs::read_to_string(format!("/sys/class/net/{netdev}/mtu")).ok()?;
        text.trim().parse().ok()
    }
}

/// Returns the GID of an address.
pub(crate) fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns a socket address, on this interface where the address alone does not say which.
pub(crate) fn socket_address(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(ip, port, 0, interface))
        }
        ip => SocketAddr::new(ip, port),
    }
}

/// Returns the address that a GID is.
pub(crate) fn address_of(gid: [u8; 16]) -> IpAddr {
    IpAddr::V6(gid.into()).to_canonical()
}
