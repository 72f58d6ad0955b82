//! Leases of TCP ports, and next hops: what clients ask of the ports that they have.
//! Who may have a lease is decided here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rnic_core::connection::AddressPair;
use rnic_core::engine::{NetError, Peers};
use rnic_manager::protocol::{Answer, Reason, Refused};
use rnic_manager::states::Event;
use rnic_xdp::Mapping;

use crate::administration::{Answered, release};
use crate::client::now;
use crate::config::Limits;
use crate::protected::protection;
use crate::quota::{Charge, QuotaError, Resource};
use crate::server::Server;
use crate::shared::{ClientKey, Lease, Shared, lease_key};

/// The most destinations that the ports of a user follow. Each costs the kernel a lookup whenever
/// routes change.
const MAX_DESTINATIONS: usize = 4096;
/// The most of them that have no next hop. Each may take an entry in the kernel's table of
/// neighbours, which has some hundreds, and is asked for again and again.
const MAX_UNKNOWN: usize = 256;
/// The most prefixes of peers that a listener names: as many as the programs' map has room for,
/// shared by all listeners of all users.
const MAX_PREFIXES: usize = 64;

impl Server {
    pub(crate) fn limits(&self, key: ClientKey) -> Limits {
        self.clients[key].limits(&self.settings.policy)
    }

    /// Returns the device of a port, if the client has that port.
    pub(crate) fn port_of(&mut self, key: ClientKey, port: u32) -> Result<&mut Shared, Refused> {
        let mut devices = self.devices.iter_mut();
        let shared = devices.find(|shared| {
            let of_client = shared.ports.get(&port).map(|port| port.client);
            of_client == Some(Some(key))
        });
        shared.ok_or_else(|| not_yours(port))
    }

    /// Returns the user whose quotas a port counts for: the one who opened it. Another user may
    /// have taken it over.
    pub(crate) fn owner_of(&mut self, key: ClientKey, port: u32) -> u32 {
        let account = self.clients[key].account;
        let shared = self.port_of(key, port);
        let port = shared.ok().and_then(|shared| shared.ports.get(&port));
        port.map_or(account, |port| port.record.account())
    }

    pub(crate) fn listen(
        &mut self,
        key: ClientKey,
        number: u32,
        local: SocketAddr,
        peers: &Peers,
    ) -> Answered {
        let limits = self.limits(key);
        let (uid, account) = (self.clients[key].peer.uid, self.owner_of(key, number));
        if local.port() != 0 {
            check_listen(&limits, uid, local.port())?;
        }
        check_prefixes(peers)?;
        self.check_protects(key, number, local.port())?;
        if peers.limits().is_some() {
            self.check_listed_peers(number)?;
        }
        let quotas = self.quotas.clone();
        let shared = self.port_of(key, number)?;
        let held = quotas
            .try_take(account, Resource::Listeners, 1, &limits)
            .map_err(over)?;
        let reserved = shared.device.listen(number, local, peers);
        if local.port() == 0 {
            self.check_chosen(number, &reserved)?;
        }
        let mut mapping = None;
        if let Ok((local, _)) = &reserved {
            let shared = self.port_of(key, number)?;
            // A number has one listener, whether it has that TCP port or another.
            match shared.device.map(number, None, *local, local.port()) {
                Ok(known) => mapping = Some(known),
                Err(error) => {
                    let released = shared.device.release(number, *local);
                    released.map_err(|error| Refused::new(Reason::Other, error.to_string()))?;
                    return Err(self.refusal(error, number));
                }
            }
            shared.note_listener(number, *local);
        }
        self.lease(number, reserved, (held, mapping))
    }

    /// Makes a listener known by another number than that of its TCP port.
    pub(crate) fn map(
        &mut self,
        key: ClientKey,
        number: u32,
        local: SocketAddr,
        wanted: SocketAddr,
    ) -> Answered {
        let (limits, uid) = (self.limits(key), self.clients[key].peer.uid);
        check_listen(&limits, uid, wanted.port())?;
        let shared = self.port_of(key, number)?;
        let port = shared.ports.get(&number);
        let listens = port.is_some_and(|port| port.record.listeners.contains(&local));
        if !listens || local.ip() != wanted.ip() {
            let why = format!("port {number} does not listen at {local}");
            return Err(Refused::new(Reason::NotPermitted, why));
        }
        let checked = shared.device.check_number(wanted, uid);
        let mapping = checked.and_then(|()| {
            let mapped = local.port();
            shared.device.map(number, Some(uid), wanted, mapped)
        });
        let mapping = mapping.map_err(|error| self.refusal(error, number))?;
        let shared = self.port_of(key, number)?;
        shared.note_mapped(number, local, Some((wanted, mapping)));
        Ok((Answer::Done, Vec::new()))
    }

    /// Tells port mappers no more of a listener.
    pub(crate) fn unmap(&mut self, key: ClientKey, number: u32, local: SocketAddr) -> Answered {
        self.port_of(key, number)?.note_mapped(number, local, None);
        nothing()
    }

    /// Puts into words why the client of a port does not get an address.
    fn refusal(&self, error: NetError, number: u32) -> Refused {
        self.name_holder(error, number).into()
    }

    pub(crate) fn connect(
        &mut self,
        key: ClientKey,
        number: u32,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Answered {
        let limits = self.limits(key);
        let (uid, account) = (self.clients[key].peer.uid, self.owner_of(key, number));
        let wanted = local.map_or(0, |local| local.port());
        let may_choose =
            |port| limits.listen.value.contains(port) || limits.protected.value.contains(port);
        if wanted != 0 && !may_choose(wanted) {
            let setting = &limits.listen;
            let why = format!(
                "uid {uid} may choose from the TCP ports {}, not {wanted}; {} says so",
                setting.value, setting.origin
            );
            return Err(Refused::new(Reason::NotPermitted, why));
        }
        self.check_protects(key, number, wanted)?;
        self.check_peer(key, number, remote)?;
        let quotas = self.quotas.clone();
        let shared = self.port_of(key, number)?;
        let held = quotas
            .try_take(account, Resource::Connections, 1, &limits)
            .map_err(over)?;
        let reserved = shared.device.connect(number, remote, local);
        let is_protected =
            |(local, _): &(SocketAddr, OwnedFd)| limits.protected.value.contains(local.port());
        if wanted == 0 && !reserved.as_ref().is_ok_and(is_protected) {
            self.check_chosen(number, &reserved)?;
        }
        self.lease(number, reserved, (held, None))
    }

    /// Fails if a TCP port is for what is protected, and what the client of a port leases there
    /// would not be.
    fn check_protects(&mut self, key: ClientKey, number: u32, local: u16) -> Result<(), Refused> {
        let limits = self.limits(key);
        let is_anybodys = self.settings.policy.protects(local);
        let shared = self.port_of(key, number)?;
        if !is_anybodys {
            return Ok(());
        }
        let is_theirs = limits.protected.value.contains(local);
        let has_associations = shared.device.has_associations();
        let why = match shared.ports.get(&number) {
            // Who could lease it in the clear could keep others from what is protected.
            _ if !is_theirs && has_associations => "for other users; choose another",
            _ if !is_theirs => return Ok(()),
            _ if !has_associations => "and this interface has no `ipsec_if_id`; choose another",
            Some(port) if port.record.queue.is_some() => {
                "and a port that is a hardware queue has no associations; use another port, or another TCP port"
            }
            Some(port) if !port.protects => {
                "and the rnic of this program knows nothing of associations; upgrade it"
            }
            _ => return Ok(()),
        };
        let why = format!("TCP port {local} is `protected` (rnicd.toml), {why}");
        Err(Refused::new(Reason::NotPermitted, why))
    }

    /// Fails if the client of a port may not connect to a peer.
    pub(crate) fn check_peer(
        &mut self,
        key: ClientKey,
        number: u32,
        remote: SocketAddr,
    ) -> Result<(), Refused> {
        let (limits, uid) = (self.limits(key), self.clients[key].peer.uid);
        let is_on_link = self.port_of(key, number)?.device.is_on_link(remote.ip());
        let peers = &limits.peers.value;
        if peers.0.contain(remote.ip(), is_on_link) {
            return Ok(());
        }
        let why = format!(
            "uid {uid} may not connect to {}: peers = {peers}; {} says so",
            remote.ip(),
            limits.peers.origin
        );
        Err(Refused::new(Reason::NotPermitted, why))
    }

    /// Keeps a lease, and answers with it.
    fn lease(
        &mut self,
        number: u32,
        reserved: Result<(SocketAddr, OwnedFd), NetError>,
        (held, mapping): (Charge, Option<Mapping>),
    ) -> Answered {
        let (local, socket) = reserved.map_err(|error| self.refusal(error, number))?;
        let mut protected = false;
        let mut devices = self.devices.iter_mut();
        if let Some(shared) = devices.find(|shared| shared.ports.contains_key(&number)) {
            let netdev = shared.device.netdev();
            let reservation = self.keeper.keep(lease_key(netdev, number, local), socket);
            let lease = Lease {
                _mapping: mapping,
                reservation,
                _held: held,
                since: Some(now()),
            };
            let mut client = None;
            if let Some(port) = shared.ports.get_mut(&number) {
                port.leases.insert(local, lease);
                client = port.client;
            }
            protected = shared.device.is_protected(number, local);
            if protected {
                // It has what it needs before it knows of the lease.
                shared.device.update_protection();
                let client = client.and_then(|client| self.clients.get_mut(client));
                if let Some(client) = client {
                    protection(shared, number).for_each(|notice| client.tell(notice));
                }
            }
        }
        self.announce(Event::LeaseAdded {
            port: number,
            local,
        });
        Ok((Answer::Lease { local, protected }, Vec::new()))
    }

    pub(crate) fn release(&mut self, key: ClientKey, number: u32, local: SocketAddr) -> Answered {
        let shared = self.port_of(key, number)?;
        if release(shared, number, local)? {
            self.lease_ended(number, local, false);
        }
        Ok((Answer::Released, Vec::new()))
    }

    /// Checks whether the host's policies, as they are now, let a peer connect to what a client has
    /// leased.
    pub(crate) fn admit_peer(
        &mut self,
        key: ClientKey,
        number: u32,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Answered {
        let shared = self.port_of(key, number)?;
        if shared.lessee(local) != Some(number) {
            let why = format!("port {number} has not leased {local}");
            return Err(Refused::new(Reason::NotPermitted, why));
        }
        shared.device.check_connection(number, local, remote)?;
        Ok((Answer::Done, Vec::new()))
    }

    pub(crate) fn follow(&mut self, key: ClientKey, number: u32, path: AddressPair) -> Answered {
        let destination = path.remote;
        let limits = self.limits(key);
        let (uid, account) = (self.clients[key].peer.uid, self.owner_of(key, number));
        let is_on_link = self.port_of(key, number)?.device.is_on_link(destination);
        if !limits.peers.value.0.contain(destination, is_on_link) {
            let why = format!(
                "uid {uid} may not speak with {destination}; {} says so",
                limits.peers.origin
            );
            return Err(Refused::new(Reason::NotPermitted, why));
        }
        let (followed, unknown) = self.followed(account);
        let why = match (followed, unknown) {
            (MAX_DESTINATIONS.., _) => format!("{MAX_DESTINATIONS} destinations"),
            (_, MAX_UNKNOWN..) => format!("{MAX_UNKNOWN} destinations that do not answer"),
            _ => String::new(),
        };
        if !why.is_empty() {
            let why = format!("a user follows at most {why}; close connections");
            return Err(Refused::new(Reason::Other, why));
        }
        let rest = self.users.look_up(account);
        let is_known = self.port_of(key, number)?.follow(number, path);
        let client = &mut self.clients[key];
        client.rest(rest);
        if is_known {
            client.changed.insert((number, path));
        }
        nothing()
    }

    /// Returns how many destinations the ports of a user follow, and of how many the next hop is
    /// not known.
    fn followed(&self, account: u32) -> (usize, usize) {
        let (mut followed, mut unknown) = (0, 0);
        for shared in &self.devices {
            let ports = shared.ports.values();
            for port in ports.filter(|port| port.record.account() == account) {
                followed += port.follows.len();
                let hops = port.follows.iter().filter(|path| {
                    let followed = shared.paths.get(*path);
                    !followed.is_some_and(|followed| matches!(followed.hop, Some(Some(_))))
                });
                unknown += hops.count();
            }
        }
        (followed, unknown)
    }
}

/// Returns a path; without a source, with an unspecified one.
pub(crate) fn path(source: Option<IpAddr>, destination: IpAddr) -> AddressPair {
    let unspecified = match destination {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    AddressPair {
        local: source.unwrap_or(unspecified),
        remote: destination,
    }
}

/// Fails if a user may not listen at a TCP port.
fn check_listen(limits: &Limits, uid: u32, port: u16) -> Result<(), Refused> {
    let setting = &limits.listen;
    if setting.value.contains(port) || limits.protected.value.contains(port) {
        return Ok(());
    }
    let why = format!(
        "uid {uid} may listen on {}, not on {port}; {} says so",
        setting.value, setting.origin
    );
    Err(Refused::new(Reason::NotPermitted, why))
}

/// Fails if a listener names too many prefixes.
fn check_prefixes(peers: &Peers) -> Result<(), Refused> {
    let named = peers.limits().map_or(0, <[_]>::len);
    if named <= MAX_PREFIXES {
        return Ok(());
    }
    let why = format!(
        "a listener is limited to at most {MAX_PREFIXES} prefixes of peers, not {named}; name fewer and shorter ones, or use several \
         listeners"
    );
    Err(Refused::new(Reason::Quota, why))
}

/// Returns the answer that is not sent.
pub(crate) fn nothing() -> Answered {
    Ok((Answer::Released, Vec::new()))
}

pub(crate) fn over(error: QuotaError) -> Refused {
    Refused::new(Reason::Quota, error.to_string())
}

pub(crate) fn not_yours(port: u32) -> Refused {
    let why = format!("port {port} is not one of this connection");
    Refused::new(Reason::NotPermitted, why)
}
