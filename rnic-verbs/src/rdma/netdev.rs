//! What the kernel says about a network interface.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockaddrStorage;

/// A network interface as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Netdev {
    /// Its index, 0 if there is no such interface.
    pub index: u32,
    /// The MAC address, zero if it has none.
    pub mac: [u8; 6],
    /// The link is up.
    pub is_active: bool,
    /// IPv4 addresses first.
    pub addresses: Vec<IpAddr>,
    /// Its link-local addresses, each with the index of its link. All of the host together have
    /// several links.
    pub on_links: Vec<(Ipv6Addr, u32)>,
}

impl Netdev {
    /// So many entries of the table of GIDs are there in any case.
    pub const FIRST_GIDS: usize = 4;

    /// Reads an interface. Without a name it is all of the host together.
    pub fn read(netdev: &str) -> Self {
        let mut read = Self::default();
        // The kernel would take what stands before a colon. A slash is of no name.
        if !netdev.contains([':', '/']) {
            read.index = if_nametoindex(netdev).unwrap_or(0);
        }
        let Ok(all) = getifaddrs() else { return read };
        let running = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
        let is_part = |name: &str| netdev.is_empty() || name == netdev;
        for entry in all.filter(|entry| is_part(unlabelled(&entry.interface_name))) {
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
                if v6.ip().is_unicast_link_local() {
                    read.on_links.push((v6.ip(), v6.scope_id()));
                }
            }
        }
        // Peers on other hosts cannot reach the loopback address.
        let order = |address: &IpAddr| (address.is_loopback(), address.is_ipv6());
        read.addresses.sort_by_key(order);
        read
    }

    /// Returns whether it has an address, on this link if one is named.
    pub fn has(&self, ip: IpAddr, link: Option<u32>) -> bool {
        self.addresses.contains(&ip)
            && link.is_none_or(|link| {
                let mut on_links = self.on_links.iter();
                on_links.any(|(own, at)| *own == ip && *at == link)
            })
    }

    /// Returns the link of an own address, which is that of its peers, if that is link-local. It is
    /// 0 if several links have the address.
    pub fn link_of(&self, ip: IpAddr) -> u32 {
        let mut links = self.on_links.iter().filter(|(own, _)| *own == ip);
        match (links.next(), links.next()) {
            (Some((_, link)), None) => *link,
            _ => self.index,
        }
    }

    /// Returns the address that is the GID at an index of the table. The first entries are there in
    /// any case: guides tell people to choose 1 or 3, where adapters have the GID of RoCE v2 and an
    /// IPv4 address.
    pub fn at_gid_index(&self, index: usize) -> Option<IpAddr> {
        let first = self.addresses.first();
        let first = first.filter(|_| index < Self::FIRST_GIDS);
        self.addresses.get(index).or(first).copied()
    }

    /// Returns the MTU in octets, if the interface is there. That of all together is that of the kernel within
    /// the host.
    pub fn mtu(netdev: &str) -> Option<u32> {
        if netdev.is_empty() {
            return Some(u32::from(u16::MAX));
        }
        rnic_xdp::link_mtu(netdev)
    }

    /// Returns the speed in megabits per second, if the driver tells it.
    pub fn speed(netdev: &str) -> Option<u32> {
        rnic_xdp::link_speed(netdev)
    }

    /// Returns the GUID: an EUI-64 of the MAC address.
    pub fn guid(&self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.mac;
        [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
    }
}

/// Returns the name of the interface that has an address.
pub fn holder(ip: IpAddr) -> Option<String> {
    let mut all = getifaddrs().ok()?;
    let has = |address: &SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| Some(IpAddr::V6(address.as_sockaddr_in6()?.ip()))) == Some(ip)
    };
    let found = all.find(|entry| entry.address.as_ref().is_some_and(has));
    found.map(|entry| unlabelled(&entry.interface_name).to_owned())
}

/// Returns the name of an interface without the label that an IPv4 address of it may have.
fn unlabelled(name: &str) -> &str {
    name.split_once(':').map_or(name, |(name, _)| name)
}

/// Returns the GID of an address.
pub fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns a socket address, on this interface where the address alone does not say which.
pub fn socket_address(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(ip, port, 0, interface))
        }
        ip => SocketAddr::new(ip, port),
    }
}

/// Returns the address that a GID is.
pub fn address_of(gid: [u8; 16]) -> IpAddr {
    IpAddr::V6(gid.into()).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_one_interface() {
        assert_ne!(Netdev::read("lo").index, 0);
        for name in ["lo:", "lo:1", "lo:/../x", "../lo", ""] {
            assert_eq!(Netdev::read(name).index, 0, "{name}");
        }
    }

    #[test]
    fn a_label_is_no_part_of_the_name() {
        assert_eq!(["eth0", "eth0:1"].map(unlabelled), ["eth0"; 2]);
    }

    #[test]
    fn an_address_has_a_holder() {
        let holder = |ip: [u8; 4]| holder(IpAddr::from(ip));
        assert_eq!(holder([127, 0, 0, 1]).as_deref(), Some("lo"));
        assert_eq!(holder([192, 0, 2, 250]), None);
    }

    #[test]
    fn a_link_local_address_is_of_its_links() {
        let [a, b]: [Ipv6Addr; 2] = ["fe80::a", "fe80::b"].map(|ip| ip.parse().unwrap());
        let all = Netdev {
            addresses: vec![IpAddr::from([127, 0, 0, 1]), a.into(), b.into(), b.into()],
            on_links: vec![(a, 2), (b, 2), (b, 3)],
            ..Netdev::default()
        };
        for (ip, link, has) in [
            (a, None, true),
            (a, Some(2), true),
            (a, Some(3), false),
            (b, Some(3), true),
            (b, Some(4), false),
            (Ipv6Addr::LOCALHOST, None, false),
        ] {
            assert_eq!(all.has(ip.into(), link), has, "{ip} {link:?}");
        }
        assert!(all.has(IpAddr::from([127, 0, 0, 1]), None));
        assert_eq!([a, b].map(|ip| all.link_of(ip.into())), [2, 0]);
    }
}
