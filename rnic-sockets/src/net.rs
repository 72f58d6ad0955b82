//! Local ports, reserved in the kernel by sockets.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rnic_core::connection::PortReservation;
use rnic_core::engine::{Found, Known, Net, NetError, Peers};
use rnic_core::tcp::CongestionAlgorithm;
use rnic_manager::{Asker, Ways};
use rustix::io::Errno;
use rustix::net::{SocketType, bind};
use tracing::debug;

use crate::interface::{self, KernelInterface};
use crate::port::{Port, Protocol, Settings, lacks_room, source};

/// What errors call the interface where none is named.
const ANY_INTERFACE: &str = "this host";

/// The address services of an interface, or of all.
///
/// A listener is open to all peers: who may connect is for the engine to decide, which knows them.
#[derive(Debug)]
pub struct KernelNet {
    addresses: Addresses,
    /// Who asks port mappers, once somebody is asked.
    asker: Mutex<Option<Asker>>,
}

/// The addresses of an interface, or of all.
#[derive(Clone, Debug)]
struct Addresses {
    /// The interface to use, if one is named.
    name: Option<String>,
    protocol: Protocol,
    congestion: CongestionAlgorithm,
}

impl KernelNet {
    /// Makes the services of an interface. Its addresses are read anew for each port. `congestion`
    /// steers the congestion windows of TCP connections, if the kernel permits it.
    pub fn new(
        interface: &KernelInterface,
        protocol: Protocol,
        congestion: CongestionAlgorithm,
    ) -> Self {
        Self {
            addresses: Addresses {
                name: interface.name.clone(),
                protocol,
                congestion,
            },
            asker: Mutex::default(),
        }
    }

    /// Asks the port mapper of a peer's host where a listener really is.
    fn ask(&self, remote: SocketAddr, local: Option<SocketAddr>, found: Found) {
        let mut asker = self.asker.lock().unwrap_or_else(PoisonError::into_inner);
        if asker.is_none() {
            let started = Asker::start(self.addresses.clone());
            *asker = started
                .inspect_err(|error| debug!("nobody asks port mappers: {error}"))
                .ok();
        }
        match &*asker {
            Some(asker) => asker.ask(remote, local, found),
            None => {
                // Not within the lock.
                drop(asker);
                found(remote);
            }
        }
    }
}

impl Addresses {
    /// Reads the interface, if one is named.
    fn interface(&self, address: SocketAddr) -> Result<Option<KernelInterface>, NetError> {
        let Some(name) = &self.name else {
            return Ok(None);
        };
        let interface = KernelInterface::open(Some(name));
        interface.map(Some).map_err(|why| other(address, why))
    }

    fn settings(&self, interface: Option<&KernelInterface>) -> Settings {
        Settings {
            protocol: self.protocol,
            vrf: interface.and_then(|interface| interface.vrf.clone()),
            congestion: self.congestion,
            scope: interface.map_or(0, |interface| interface.index),
        }
    }

    fn shown_name(&self) -> String {
        self.name.as_deref().unwrap_or(ANY_INTERFACE).into()
    }

    /// Returns where to listen: at the address, or at each of the interface's if it is unspecified.
    fn places(
        &self,
        interface: Option<&KernelInterface>,
        local: SocketAddr,
    ) -> Result<Vec<SocketAddr>, NetError> {
        let Some(interface) = interface else {
            return Ok(vec![local]);
        };
        if !local.ip().is_unspecified() {
            return Ok(vec![self.own(interface, local)?]);
        }
        let places: Vec<_> = of_family(interface, local)
            .map(|address| interface.scoped(SocketAddr::new(address, local.port())))
            .collect();
        match places.is_empty() {
            true => Err(other(
                local,
                format!(
                    "{name} has no address of this family; `ip addr add ADDRESS/LENGTH dev {name}`",
                    name = self.shown_name()
                ),
            )),
            false => Ok(places),
        }
    }

    /// Returns an address with its scope, if it is the interface's.
    fn own(&self, interface: &KernelInterface, local: SocketAddr) -> Result<SocketAddr, NetError> {
        match interface.has(local.ip()) {
            true => Ok(interface.scoped(local)),
            false => Err(NetError::NotLocal(local, self.shown_name())),
        }
    }

    /// Returns the address to connect from, with the port that is wanted.
    fn source_for(
        &self,
        interface: Option<&KernelInterface>,
        settings: &Settings,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<SocketAddr, NetError> {
        let port = local.map_or(0, |local| local.port());
        let with_port = |mut address: SocketAddr| {
            address.set_port(port);
            address
        };
        let ask = |from| source(settings, from, remote).map(with_port);
        if let Some(local) = local.filter(|local| !local.ip().is_unspecified()) {
            let local = interface.map_or(Ok(local), |interface| self.own(interface, local))?;
            let any_port = SocketAddr::new(local.ip(), 0);
            let from = interface::scoped(any_port, scope_of(local));
            ask(Some(from)).map_err(|errno| self.no_way(remote, Some(local), errno))?;
            return Ok(local);
        }
        let chosen = ask(None).map_err(|errno| self.no_way(remote, None, errno));
        let Some(interface) = interface else {
            return chosen;
        };
        if let Ok(chosen) = chosen
            && interface.has(chosen.ip())
        {
            return Ok(chosen);
        }
        // Addresses of the peer's scope first.
        let mut own: Vec<_> = of_family(interface, remote).collect();
        own.sort_by_key(|own| is_link_local(*own) != is_link_local(remote.ip()));
        let tried = own.into_iter().find_map(|own| {
            let from = interface.scoped(SocketAddr::new(own, 0));
            ask(Some(from)).ok()
        });
        tried.ok_or_else(|| NetError::NoRoute(remote, self.shown_name()))
    }

    /// Returns what a socket is made with that connects, and the address and port that it has.
    fn way(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<(Settings, SocketAddr), NetError> {
        let interface = self.interface(remote)?;
        let mut settings = self.settings(interface.as_ref());
        if interface.is_none() {
            settings.scope = local.map_or(0, scope_of).max(scope_of(remote));
        }
        // The one may tell the link of both.
        let remote = interface::scoped(remote, settings.scope);
        let local = local.map(|local| interface::scoped(local, settings.scope));
        let wanted = self.source_for(interface.as_ref(), &settings, remote, local)?;
        Ok((settings, wanted))
    }

    /// Returns why the kernel would not send to a peer.
    fn no_way(&self, remote: SocketAddr, from: Option<SocketAddr>, errno: Errno) -> NetError {
        match (errno, from) {
            (Errno::ADDRNOTAVAIL, Some(local)) => NetError::NotLocal(local, self.shown_name()),
            (Errno::INVAL, _) if lacks_scope(remote) => other(remote, NO_SCOPE),
            (errno, _) if lacks_room(errno) => other(remote, no_room(errno)),
            // EINVAL and EACCES: a route forbids it (blackhole, prohibit).
            _ => NetError::NoRoute(remote, self.shown_name()),
        }
    }

    /// Returns why a socket cannot have a port.
    fn not_bound(&self, local: SocketAddr, errno: Errno) -> NetError {
        let port = local.port();
        match errno {
            Errno::ADDRINUSE if port == 0 => NetError::NoPort(local.ip()),
            Errno::ADDRINUSE => NetError::InUse(local.into()),
            Errno::ADDRNOTAVAIL => NetError::NotLocal(local, self.shown_name()),
            Errno::ACCESS if port != 0 => other(
                local,
                format!(
                    "the kernel keeps low ports for root; choose a higher one, or let all have it \
                     (`sysctl net.ipv4.ip_unprivileged_port_start={port}`)"
                ),
            ),
            Errno::INVAL if lacks_scope(local) => other(local, NO_SCOPE),
            Errno::PROTONOSUPPORT | Errno::SOCKTNOSUPPORT => other(local, NO_SCTP),
            errno if lacks_room(errno) => other(local, no_room(errno)),
            errno => other(local, errno),
        }
    }
}

impl Ways for Addresses {
    fn source(&self, remote: SocketAddr, local: Option<SocketAddr>) -> Option<SocketAddr> {
        Some(self.way(remote, local).ok()?.1)
    }

    fn datagram(&self, at: SocketAddr) -> Result<OwnedFd, String> {
        let interface = self.interface(at).map_err(|why| why.to_string())?;
        let settings = self.settings(interface.as_ref());
        let at = interface::scoped(at, settings.scope);
        let bound = || {
            let socket = settings.socket(at, SocketType::DGRAM, None)?;
            bind(&socket, &at)?;
            Ok(socket)
        };
        bound().map_err(|errno: Errno| errno.to_string())
    }
}

impl Net for KernelNet {
    /// `peers` is not looked at: the kernel lets all connect.
    fn listen_to(
        &self,
        local: SocketAddr,
        _peers: &Peers,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        let addresses = &self.addresses;
        let interface = addresses.interface(local)?;
        let places = addresses.places(interface.as_ref(), local)?;
        let settings = addresses.settings(interface.as_ref());
        let port = Port::to_listen(settings, places);
        let port = port.map_err(|errno| addresses.not_bound(local, errno))?;
        let at = match local.ip().is_unspecified() {
            true => SocketAddr::new(local.ip(), port.local().port()),
            false => port.local(),
        };
        Ok((at, Arc::new(port)))
    }

    /// Refuses. RDMA listens by such a socket too: nothing tells the one from the other, and many
    /// processes would have to share the mappers' UDP port at the same addresses.
    fn make_known(&self, wanted: SocketAddr, _local: SocketAddr) -> Result<Known, NetError> {
        Err(other(wanted, NO_MAPPER))
    }

    fn find_listener(&self, remote: SocketAddr, local: Option<SocketAddr>, found: Found) {
        // Port mappers are for TCP.
        match self.addresses.protocol {
            Protocol::Tcp => self.ask(remote, local, found),
            _ => found(remote),
        }
    }

    fn active(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        _engine: u16,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        let (settings, wanted) = self.addresses.way(remote, local)?;
        let port = Port::to_connect(settings, wanted);
        let port = port.map_err(|errno| self.addresses.not_bound(wanted, errno))?;
        Ok((port.local(), Arc::new(port)))
    }
}

/// Returns the interface's addresses of the same family as another.
fn of_family(interface: &KernelInterface, like: SocketAddr) -> impl Iterator<Item = IpAddr> {
    let addresses = interface.addresses.iter().copied();
    addresses.filter(move |address| address.is_ipv4() == like.is_ipv4())
}

const NO_SCOPE: &str =
    "a link-local address does not tell its interface; name that, as in fe80::1%eth0";

/// What sockets of the kernel have not.
const NO_MAPPER: &str = "over sockets of the kernel TCP and RDMA cannot share a number, because \
                         there is no port mapper; choose another for RDMA, have what listens \
                         there end, or use AF_XDP (`RNIC_VIA=xdp`), and do not set \
                         RNIC_PORT_MAPPER=always";

/// What a kernel without SCTP lacks.
pub(crate) const NO_SCTP: &str = "this kernel has no SCTP: `modprobe sctp`, or use TCP";

fn no_room(errno: Errno) -> String {
    format!("{errno}; close connections, or let the process have more descriptors (`ulimit -n`)")
}

fn other(address: SocketAddr, reason: impl ToString) -> NetError {
    let reason = reason.to_string();
    NetError::Other { address, reason }
}

fn lacks_scope(address: SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(v6) if interface::needs_scope(v6))
}

fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if interface::is_link_local(v6))
}
