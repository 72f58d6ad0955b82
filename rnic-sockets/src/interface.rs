//! The interface on which a program wants its connections, if it names one: which addresses it has.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use nix::errno::Errno;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockaddrStorage;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::sys;
use crate::vrf::Vrf;

/// An interface as it is now, or all of this host's where none is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInterface {
    /// Its name, if one is named.
    pub name: Option<String>,
    /// Its index; 0 without a name.
    pub index: u32,
    /// Its MTU. Without a name the least one of those that are up; that of the loopback interface
    /// counts only if there is no other.
    pub mtu: u32,
    /// Its addresses, and of a VRF those of its members.
    pub addresses: Vec<IpAddr>,
    /// Its MAC address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// Whether it is up.
    pub up: bool,
    /// Whether it is the loopback interface.
    pub is_loopback: bool,
    /// The VRF that it belongs to, or that it is.
    pub vrf: Option<String>,
}

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// There is none of that name.
    #[error("there is no network interface {0}; `ip link` lists them")]
    NoSuchInterface(String),
    /// It is down.
    #[error("the network interface {0} is down; `ip link set {0} up`")]
    Down(String),
    /// It has no address.
    #[error("the network interface {0} has no address; `ip addr add ADDRESS/LENGTH dev {0}`")]
    NoAddress(String),
    /// This host has no address.
    #[error(
        "no network interface of this host is up and has an address; `ip link set INTERFACE up`, \
         and `ip addr add ADDRESS/LENGTH dev INTERFACE`"
    )]
    NoAddressAtAll,
    /// The kernel does not tell.
    #[error("cannot read the addresses of this host's network interfaces: {0}")]
    Unreadable(#[from] io::Error),
}

impl KernelInterface {
    /// Reads an interface, in the network namespace of this thread, and checks that it can be used.
    pub fn open(name: Option<&str>) -> Result<Self, InterfaceError> {
        let interface = Self::read(name)?;
        interface.check()?;
        Ok(interface)
    }

    /// Reads an interface. It may be down and have no address.
    pub fn read(name: Option<&str>) -> Result<Self, InterfaceError> {
        let all: Vec<_> = getifaddrs().map_err(io::Error::from)?.collect();
        let Some(name) = name else {
            return Self::read_all(&all);
        };
        let index = match if_nametoindex(name) {
            Ok(index) => index,
            Err(Errno::ENODEV | Errno::EINVAL | Errno::ENXIO) => {
                return Err(InterfaceError::NoSuchInterface(name.into()));
            }
            Err(errno) => return Err(io::Error::from(errno).into()),
        };
        let vrf = Vrf::of(index)?;
        let mut names = vec![name.to_owned()];
        names.extend(vrf.iter().flat_map(|vrf| vrf.members.clone()));
        let own = || all.iter().filter(|at| device(at) == name);
        let flags = own().fold(InterfaceFlags::empty(), |flags, at| flags | at.flags);
        let is_there = |at: &&InterfaceAddress| names.iter().any(|name| device(at) == name);
        Ok(Self {
            index,
            mtu: mtu_of(name)?,
            addresses: all.iter().filter(is_there).filter_map(address).collect(),
            mac: own().find_map(mac),
            up: flags.contains(InterfaceFlags::IFF_UP),
            is_loopback: flags.contains(InterfaceFlags::IFF_LOOPBACK),
            vrf: vrf.map(|vrf| vrf.name),
            name: Some(name.into()),
        })
    }

    /// Reads all interfaces that are up, as one.
    fn read_all(all: &[InterfaceAddress]) -> Result<Self, InterfaceError> {
        let up = || {
            all.iter()
                .filter(|at| at.flags.contains(InterfaceFlags::IFF_UP))
        };
        let least_mtu = |of_loopback| {
            let of_kind = move |at: &&InterfaceAddress| {
                at.flags.contains(InterfaceFlags::IFF_LOOPBACK) == of_loopback
            };
            up().filter(of_kind)
                .filter_map(|at| mtu_of(device(at)).ok())
                .min()
        };
        Ok(Self {
            name: None,
            index: 0,
            mtu: least_mtu(false).or_else(|| least_mtu(true)).unwrap_or(0),
            addresses: up().filter_map(address).collect(),
            mac: None,
            up: up().next().is_some(),
            is_loopback: false,
            vrf: None,
        })
    }

    /// Fails if it is down or has no address.
    pub fn check(&self) -> Result<(), InterfaceError> {
        match &self.name {
            Some(name) if !self.up => Err(InterfaceError::Down(name.clone())),
            Some(name) if self.addresses.is_empty() => Err(InterfaceError::NoAddress(name.clone())),
            None if self.addresses.is_empty() => Err(InterfaceError::NoAddressAtAll),
            _ => Ok(()),
        }
    }

    /// Returns whether an address is one of this interface. The whole prefix 127.0.0.0/8 belongs to
    /// the loopback interface.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address) || self.is_loopback && address.is_loopback()
    }

    /// Returns the address and port, and the interface where the address alone does not tell it.
    pub(crate) fn scoped(&self, address: SocketAddr) -> SocketAddr {
        scoped(address, self.index)
    }
}

/// Returns a link-local address with the index of its interface, unless it has one or `index` is 0.
pub(crate) fn scoped(address: SocketAddr, index: u32) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if needs_scope(v6) => {
            SocketAddrV6::new(*v6.ip(), v6.port(), v6.flowinfo(), index).into()
        }
        address => address,
    }
}

/// Returns whether an address says too little without the index of its interface.
pub(crate) fn needs_scope(address: SocketAddrV6) -> bool {
    address.scope_id() == 0 && is_link_local(*address.ip())
}

pub(crate) fn is_link_local(address: Ipv6Addr) -> bool {
    address.is_unicast_link_local()
}

/// Returns the interface that has an address, without the label that IPv4 addresses may have.
fn device(at: &InterfaceAddress) -> &str {
    let name = at.interface_name.as_str();
    name.split_once(':').map_or(name, |(name, _)| name)
}

fn address(at: &InterfaceAddress) -> Option<IpAddr> {
    let address: &SockaddrStorage = at.address.as_ref()?;
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(v4.ip().into()),
        (_, Some(v6)) => Some(v6.ip().into()),
        _ => None,
    }
}

fn mac(at: &InterfaceAddress) -> Option<[u8; 6]> {
    let link = at.address.as_ref()?.as_link_addr()?;
    let has_one = link.halen() == 6;
    link.addr().filter(|mac| has_one && *mac != [0; 6])
}

fn mtu_of(name: &str) -> Result<u32, InterfaceError> {
    // Any socket will do.
    let flags = SocketFlags::CLOEXEC;
    let of_family = |family| socket_with(family, SocketType::DGRAM, flags, None);
    let socket = of_family(AddressFamily::INET).or_else(|_| of_family(AddressFamily::INET6));
    let socket = socket.map_err(io::Error::from)?;
    match sys::mtu(std::os::fd::AsFd::as_fd(&socket), name) {
        Ok(mtu) => Ok(mtu),
        Err(Errno::ENODEV) => Err(InterfaceError::NoSuchInterface(name.into())),
        Err(errno) => Err(io::Error::from(errno).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_read() {
        let lo = KernelInterface::open(Some("lo")).unwrap();
        assert_eq!(lo.name.as_deref(), Some("lo"));
        assert_eq!((lo.index, lo.mac, lo.up), (1, None, true));
        assert!(lo.is_loopback && lo.mtu >= 1280, "{lo:?}");
        for (address, has) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("192.0.2.1", false),
        ] {
            assert_eq!(lo.has(address.parse().unwrap()), has, "{address}");
        }
    }

    #[test]
    fn without_a_name_all_addresses_are_there() {
        let all = KernelInterface::open(None).unwrap();
        assert!(all.has("127.0.0.1".parse().unwrap()), "{all:?}");
        assert!(all.mtu >= 68 && all.name.is_none(), "{all:?}");
    }

    #[test]
    fn what_cannot_be_used_is_named_with_the_remedy() {
        for name in ["no-such-if", "a-name-that-is-much-too-long", ""] {
            let error = KernelInterface::open(Some(name)).unwrap_err();
            assert!(
                matches!(&error, InterfaceError::NoSuchInterface(no) if no == name),
                "{error}"
            );
        }
        let lo = KernelInterface::open(Some("lo")).unwrap();
        let down = KernelInterface {
            up: false,
            ..lo.clone()
        };
        let error = down.check().unwrap_err().to_string();
        assert!(error.contains("ip link set lo up"), "{error}");
        let addresses = Vec::new();
        let error = KernelInterface { addresses, ..lo }
            .check()
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("ip addr add") && error.contains("dev lo"),
            "{error}"
        );
    }

    #[test]
    fn link_local_addresses_get_the_scope_that_they_lack() {
        for (address, with_scope) in [
            ("[fe80::1]:7", "[fe80::1%4]:7"),
            ("[fe80::1%2]:7", "[fe80::1%2]:7"),
            ("[fd00::1]:7", "[fd00::1]:7"),
            ("192.0.2.1:7", "192.0.2.1:7"),
        ] {
            assert_eq!(
                scoped(address.parse().unwrap(), 4),
                with_scope.parse().unwrap()
            );
        }
    }
}
