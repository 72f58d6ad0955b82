//! The host's Security Associations for clients of a shared device. A client gets the keys of those
//! that are for what it has leased alone, and keeps them for good: when its port ends, its
//! associations end, and the key managers make others for the next one.
//!
//! What it does with them is counted by the programs, and their sequence numbers are taken here,
//! from the kernel's counter.

mod clients;
mod ending;
mod port;
mod scope;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rnic_core::esp::{Action, Demand, Request, SaId};
use rnic_core::time::Instant;
use rnic_core::wire::icmp::EspTooBig;
use tracing::{info, warn};

use self::clients::Clients;
use self::ending::end_all;
pub(super) use self::ending::end_given;
use self::port::association;
pub use self::port::{PortAssociation, PortProtection};
pub use self::scope::MayProtect;
use self::scope::{Leased, Scope};
use super::programs::SharedSteering;
use crate::device::error::OpenError;
use crate::device::netlink::RouteSocket;
use crate::device::protection::HostProtection;
use crate::device::steering::SteeredAssociations;

/// Why nobody gets an association for which no user may have the TCP ports.
const NOBODYS: &str =
    "its policies select TCP ports that are not all `protected` for one user (rnicd.toml)";

/// Why nobody gets one that another client has had.
const ENDED: &str =
    "a client had its key, so that it ends; where it stays, delete it (`ip xfrm state delete`)";

/// The port of those that have ended. No client has it, and the programs drop their packets.
const NOBODY: u32 = u32::MAX;

/// How often it is read what clients have done.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// The most associations and policies of which a client is told, and the most addresses of this
/// host: what it is told must fit a message. What it is not told of, it neither sends nor receives.
const MOST_ASSOCIATIONS: usize = 48;
const MOST_DEMANDS: usize = 48;
const MOST_ADDRESSES: usize = 256;

/// An association that a port has, or has had: who had the keys has them until the kernel has the
/// association no more.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    /// [`NOBODY`] if it has ended.
    port: u32,
    first: Option<(u64, u64)>,
    /// What a former process had counted and told: packets and octets.
    before: (u64, u64),
}

/// Why a port does not get a lease.
pub(super) type Why = String;

/// The associations of a shared device, and who has them.
pub(super) struct SharedProtection {
    netdev: String,
    host: HostProtection<Clients>,
    received: SteeredAssociations,
    sent: SteeredAssociations,
    /// What ports may have protected, once it was said of all that there are.
    may: Option<BTreeMap<u32, MayProtect>>,
    given: BTreeMap<SaId, Given>,
    /// Why nobody gets some, as it was said last.
    complaints: BTreeMap<SaId, String>,
    /// What ports were told last.
    told: BTreeMap<u32, PortProtection>,
    /// Leases or ports have changed since the last update.
    changed: bool,
    count_at: Instant,
}

impl SharedProtection {
    /// Reads the associations and policies in the network namespace of this thread, and who has
    /// which since a former process gave them.
    pub(super) fn open(
        netdev: &str,
        if_id: NonZeroU32,
        steering: &SharedSteering,
    ) -> Result<Self, OpenError> {
        let host = HostProtection::open(netdev, if_id, Clients::default())?;
        let opened = || -> io::Result<_> {
            let [received, sent] = steering.associations()?;
            let mut given = BTreeMap::new();
            for map in [&received, &sent] {
                for (id, port) in map.list()? {
                    let before = map.used(id)?;
                    given.insert(
                        id,
                        Given {
                            port,
                            first: None,
                            before,
                        },
                    );
                }
            }
            Ok((received, sent, given))
        };
        let (received, sent, given) = opened().map_err(|source| OpenError::System {
            doing: "open the maps of clients' associations",
            source,
        })?;
        // Those of another `ipsec_if_id` are followed no more.
        let ids = given.keys().copied();
        let ids = ids.filter(|id| !host.may_have(*id)).collect();
        end_all(&ids)?;
        Ok(Self {
            netdev: netdev.to_owned(),
            host,
            received,
            sent,
            may: None,
            given,
            complaints: BTreeMap::new(),
            told: BTreeMap::new(),
            changed: true,
            count_at: Instant::ZERO,
        })
    }

    /// Sets what ports may have protected: all that there are.
    pub(super) fn set_all(&mut self, may: BTreeMap<u32, MayProtect>) {
        self.may = Some(may);
        self.changed = true;
    }

    /// Sets what a port may have protected that was made now.
    pub(super) fn set(&mut self, port: u32, may: MayProtect) {
        self.may.get_or_insert_default().insert(port, may);
    }

    /// Returns whether a TCP port of this host is for what is protected, where a port leases it.
    pub(super) fn protects(&self, port: u32, local: u16) -> bool {
        self.may_of(port).is_some_and(|may| may.contains(local))
    }

    fn may_of(&self, port: u32) -> Option<&MayProtect> {
        self.may.as_ref()?.get(&port)
    }

    /// Notes that leases or ports are others now.
    pub(super) fn note_change(&mut self) {
        self.changed = true;
    }

    /// Returns whether something is to be done at once.
    pub(super) fn is_due(&self) -> bool {
        self.may.is_some() && (self.changed || self.host.uses().changed)
    }

    /// Returns when to follow the host again.
    pub(super) fn next_timeout(&self) -> Instant {
        self.count_at
    }

    /// Follows what has changed of the host, and reports what clients have done.
    pub(super) fn follow(&mut self, routes: &mut RouteSocket, now: Instant) {
        if now >= self.count_at {
            self.count_at = now + COUNT_EVERY;
            self.count();
        }
        self.host.follow(routes, now);
    }

    /// Reads what clients have done.
    fn count(&self) {
        let given = self.given.iter();
        for (id, given) in given.filter(|(_, given)| given.port != NOBODY) {
            let Some(known) = self.host.known().get(id) else {
                continue;
            };
            let map = match known.is_outbound {
                true => &self.sent,
                false => &self.received,
            };
            if let Ok((packets, octets)) = map.used(*id) {
                let before = given.before;
                known.usage.set(packets - before.0, octets - before.1);
            }
        }
    }

    /// Fails unless a port can lease an address and TCP port, with the reason.
    pub(super) fn check(&self, port: u32, local: SocketAddr, leases: &[Leased]) -> Result<(), Why> {
        let scopes = self.host.uses().scopes.values();
        let mut scopes = scopes.filter(|scope| scope.contains(local));
        let alone = |why| {
            format!("IPsec associations are for one port alone, and {why} (`rnic-ctl lease show`)")
        };
        if self.protects(port, local.port()) {
            let with_it = [leases, &[(port, local, true)]].concat();
            let may = self
                .may_of(port)
                .ok_or("it is not known what the port may have")?;
            return scopes.try_for_each(|scope| {
                scope.is_within(may)?;
                scope.holder(&with_it).map(drop).map_err(alone)
            });
        }
        // Nobody takes what another one has.
        scopes.try_for_each(|scope| match scope.holder(leases) {
            Ok(Some(holder))
                if self
                    .may_of(holder)
                    .is_some_and(|may| scope.is_within(may).is_ok()) =>
            {
                Err(alone(format!("port {holder} has those for {local}")))
            }
            _ => Ok(()),
        })
    }

    /// Returns TCP ports from which a port may connect protected, if a policy says that it has to: no
    /// more than `most`, and those first that no other port has.
    pub(super) fn ports_to(
        &self,
        port: u32,
        (local, remote): (IpAddr, SocketAddr),
        leases: &[Leased],
        most: usize,
    ) -> Vec<u16> {
        let Some(may) = self.may_of(port) else {
            return Vec::new();
        };
        let selects = |demand: &&Demand| {
            let selector = &demand.selector;
            demand.outgoing
                && matches!(demand.action, Action::Protect(_))
                && selector.selects_some(local, remote.ip())
                && selector.remote_ports.contains(remote.port())
                && may.covers(selector.local_ports)
        };
        let numbers =
            |demand: &Demand| demand.selector.local_ports.iter().filter(|port| *port != 0);
        let is_others = |demand: &&Demand| {
            let first = numbers(demand).next().unwrap_or(0);
            self.check(port, SocketAddr::new(local, first), leases)
                .is_err()
        };
        let mut demands: Vec<_> = self.host.demands().iter().filter(selects).collect();
        demands.sort_by_key(is_others);
        demands.into_iter().flat_map(numbers).take(most).collect()
    }

    /// Ends the associations of a port that has ended. Its number may be another's the next moment.
    pub(super) fn end_port(&mut self, port: u32) {
        self.end_of(port, |_| true);
        if let Some(may) = &mut self.may {
            may.remove(&port);
        }
        self.told.remove(&port);
        self.changed = true;
    }

    /// Ends the associations of a port that are for what was taken from it.
    pub(super) fn end_lease(&mut self, port: u32, local: SocketAddr) {
        self.end_of(port, |scope| {
            scope.is_none_or(|scope| scope.contains(local))
        });
        self.changed = true;
    }

    fn end_of(&mut self, port: u32, which: impl Fn(Option<&Scope>) -> bool) {
        let scope_of = |id: &SaId| {
            let known = self.host.known().get(id)?;
            self.host.uses().scopes.get(&known.association.request)
        };
        let given = self.given.iter().filter(|(_, given)| given.port == port);
        let ended = given.map(|(id, _)| *id).filter(|id| which(scope_of(id)));
        for id in ended.collect::<Vec<_>>() {
            self.take(id);
        }
    }

    /// Gives associations to those who are to have them, and takes them from others. Returns the
    /// ports for which something has changed.
    pub(super) fn update(
        &mut self,
        leases: &[Leased],
        ports: &BTreeSet<u32>,
        is_on_link: impl Fn(IpAddr) -> bool,
    ) -> Vec<u32> {
        if !self.is_due() {
            return Vec::new();
        }
        (self.changed, self.host.uses_mut().changed) = (false, false);
        self.end_those_of_gone_ports(ports);
        self.forget_those_that_are_gone();
        let replaced = std::mem::take(&mut self.host.uses_mut().replaced);
        let ids: Vec<_> = self.host.known().keys().copied().collect();
        for id in ids {
            let holder = match self.given.get(&id) {
                Some(given) if given.port == NOBODY => Err(ENDED.to_owned()),
                _ => self.holder_of(id, leases, &is_on_link),
            };
            let result = match holder {
                Ok(Some(port)) => self.give(id, port, replaced.contains(&id)),
                Ok(None) if replaced.contains(&id) => {
                    self.take(id);
                    Ok(())
                }
                Ok(None) => Ok(()),
                Err(why) => {
                    self.take(id);
                    Err(why)
                }
            };
            self.complain(id, result);
        }
        self.compare(leases, ports)
    }

    fn end_those_of_gone_ports(&mut self, ports: &BTreeSet<u32>) {
        if let Some(may) = &mut self.may {
            may.retain(|port, _| ports.contains(port));
        }
        self.told.retain(|port, _| ports.contains(port));
        let given = self.given.iter();
        let gone = given.filter(|(_, given)| given.port != NOBODY && !ports.contains(&given.port));
        for id in gone.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.take(id);
        }
    }

    /// Forgets the associations that the kernel has no more. Those that it has and that cannot be
    /// used end.
    fn forget_those_that_are_gone(&mut self) {
        let known = self.host.known();
        let unknown = self.given.keys().filter(|id| !known.contains_key(id));
        for id in unknown.copied().collect::<Vec<_>>() {
            if self.host.may_have(id) {
                self.take(id);
            } else {
                self.given.remove(&id);
                self.clear(id);
            }
        }
        let known = self.host.known();
        self.complaints.retain(|id, _| known.contains_key(id));
    }

    /// Returns the port that is to have an association, if there is one; or why nobody is.
    fn holder_of(
        &self,
        id: SaId,
        leases: &[Leased],
        is_on_link: impl Fn(IpAddr) -> bool,
    ) -> Result<Option<u32>, String> {
        let Some(known) = self.host.known().get(&id) else {
            return Ok(None);
        };
        let request = known.association.request;
        let peer = match known.is_outbound {
            true => id.destination,
            false => known.association.source,
        };
        let Some(scope) = self.host.uses().scopes.get(&request) else {
            return Ok(None);
        };
        // What is for nobody is so whoever has leased what.
        let mut all = self.may.iter().flat_map(BTreeMap::values);
        if !all.any(|may| scope.is_within(may).is_ok()) {
            let fault = scope.fault().map(str::to_owned);
            return Err(fault.unwrap_or_else(|| NOBODYS.into()));
        }
        let Some(port) = scope.holder(leases)? else {
            return Ok(None);
        };
        let may = self
            .may_of(port)
            .ok_or("it is not known what its port may have")?;
        scope.is_within(may)?;
        match may.peers.contain(peer, is_on_link(peer)) {
            true => Ok(Some(port)),
            false => Err(format!("port {port} may not speak with {peer} (`peers`)")),
        }
    }

    /// Gives an association to a port. One that another port has had is ended. `is_new`: it may have
    /// replaced one of the same name, of which nothing holds.
    fn give(&mut self, id: SaId, port: u32, is_new: bool) -> Result<(), String> {
        match self.given.get(&id) {
            Some(given) if given.port == port && !is_new => return Ok(()),
            Some(given) if given.port == port => {
                self.given.remove(&id);
                self.clear(id);
            }
            Some(_) => {
                self.take(id);
                return Err(ENDED.into());
            }
            None => {}
        }
        // One that it was told of must stay: its replay window would begin anew.
        let has = self.given.values().filter(|given| given.port == port);
        if has.count() >= MOST_ASSOCIATIONS {
            return Err(format!(
                "port {port} has {MOST_ASSOCIATIONS} already, which are as many as a port can have; use several processes"
            ));
        }
        let known = self.host.known().get(&id).ok_or("it is gone")?;
        let (is_outbound, source) = (known.is_outbound, known.association.source);
        let first = match is_outbound {
            true => Some(self.host.take_numbers(id)?).map(|first| (first.start, first.end)),
            false => None,
        };
        let added = match is_outbound {
            true => self.sent.add_for(port, id, Some(source)),
            false => self.received.add_for(port, id, None),
        };
        added.map_err(|why| format!("the programs cannot be told of it: {why}"))?;
        info!(
            "{}: port {port} has the IPsec association of SPI {:#010x} to {}",
            self.netdev, id.spi, id.destination
        );
        let before = (0, 0);
        let given = Given {
            port,
            first,
            before,
        };
        self.given.insert(id, given);
        Ok(())
    }

    /// Takes an association from the port that has it, if one has. It has had the keys: the
    /// association ends, and is nobody's until the kernel has it no more.
    fn take(&mut self, id: SaId) {
        let Some(given) = self.given.get_mut(&id) else {
            return;
        };
        let had = std::mem::replace(&mut given.port, NOBODY);
        // First, so that who follows this process knows, and no packet goes to the kernel.
        for map in [&mut self.received, &mut self.sent] {
            if map.used(id).is_ok() {
                // What is there can be overwritten.
                let _ = map.add_for(NOBODY, id, None);
            }
        }
        let ended = self.host.end(id);
        if had == NOBODY {
            return;
        }
        let SaId { spi, destination } = id;
        let netdev = &self.netdev;
        match ended {
            Ok(()) => info!(
                "{netdev}: the IPsec association of SPI {spi:#010x} to {destination} ends, of which port {had} had the key"
            ),
            Err(why) => warn!(
                "{netdev}: the IPsec association of SPI {spi:#010x} to {destination} stays, of which port {had} had the key; \
                 delete it (`ip xfrm state delete`): {why}"
            ),
        }
    }

    fn clear(&mut self, id: SaId) {
        // It is in one of both.
        let _ = self.received.remove(id);
        let _ = self.sent.remove(id);
    }

    fn complain(&mut self, id: SaId, result: Result<(), String>) {
        let Err(why) = result else {
            self.complaints.remove(&id);
            return;
        };
        if self.complaints.get(&id) != Some(&why) {
            warn!(
                "{}: no client gets the IPsec association of SPI {:#010x} to {}: {why}",
                self.netdev, id.spi, id.destination
            );
            self.complaints.insert(id, why);
        }
    }

    /// Returns the ports for which something has changed since they were told.
    fn compare(&mut self, leases: &[Leased], ports: &BTreeSet<u32>) -> Vec<u32> {
        let mut changed = Vec::new();
        for port in ports {
            let now = self.made_for(*port, leases);
            let before = self.told.get(port);
            if before.map_or(now != PortProtection::default(), |before| *before != now) {
                self.told.insert(*port, now);
                changed.push(*port);
            }
        }
        changed
    }

    /// Returns what protects a port, as it was last.
    pub(super) fn of(&self, port: u32) -> PortProtection {
        self.told.get(&port).cloned().unwrap_or_default()
    }

    fn made_for(&self, port: u32, leases: &[Leased]) -> PortProtection {
        let own = leases
            .iter()
            .filter(|(of, _, is_protected)| *of == port && *is_protected);
        let own: Vec<SocketAddr> = own.map(|(_, local, _)| *local).collect();
        let is_for = |demand: &&Demand| {
            let selector = &demand.selector;
            own.iter().any(|local| {
                let here = match local.ip().is_unspecified() {
                    true => selector.local.is_ipv4() == local.is_ipv4(),
                    false => selector.local.contains(local.ip()),
                };
                here && selector.local_ports.contains(local.port())
            })
        };
        let demands = self.host.demands().iter().filter(is_for).copied();
        let demands: Vec<_> = demands.take(MOST_DEMANDS).collect();
        let given = self.given.iter().filter(|(_, given)| given.port == port);
        let associations = given.filter_map(|(id, given)| {
            let is_dying = self.host.uses().dying.contains(id);
            association(self.host.known().get(id)?, is_dying, given.first)
        });
        let mut associations: Vec<_> = associations.collect();
        associations.sort_by_key(|one| std::cmp::Reverse((!one.is_dying, one.age)));
        let addresses = match demands.is_empty() && associations.is_empty() {
            true => Vec::new(),
            false => self.addresses(&demands),
        };
        PortProtection {
            demands,
            addresses,
            associations,
        }
    }

    /// Returns addresses of this host: those that policies name first.
    fn addresses(&self, demands: &[Demand]) -> Vec<IpAddr> {
        let own = self.host.own();
        let named = demands.iter().map(|demand| demand.selector.local.address());
        let named: BTreeSet<_> = named.filter(|address| own.contains(address)).collect();
        let others = own.difference(&named);
        named
            .iter()
            .chain(others)
            .copied()
            .take(MOST_ADDRESSES)
            .collect()
    }

    /// Takes more sequence numbers for a port. Fails with the reason if it does not have the
    /// association.
    pub(super) fn take_numbers(&mut self, port: u32, id: SaId) -> Result<(u64, u64), Why> {
        if self.given.get(&id).is_none_or(|given| given.port != port) {
            return Err("the association is not this port's".into());
        }
        let block = self.host.take_numbers(id)?;
        Ok((block.start, block.end))
    }

    /// Asks the key managers for an association between two hosts in some name (reqid), if a policy
    /// for what a port has leased demands one.
    pub(super) fn acquire(
        &mut self,
        port: u32,
        name: u32,
        (local, remote): (IpAddr, IpAddr),
        now: Instant,
    ) {
        let Some(told) = self.told.get(&port) else {
            return;
        };
        let may = told.demands.iter().find_map(|demand| match demand.action {
            Action::Protect(template)
                if demand.outgoing
                    && template.request == name
                    && demand.selector.selects_some(local, remote) =>
            {
                Some(template)
            }
            _ => None,
        });
        if let Some(template) = may {
            let template = template.between(local, remote);
            let request = Request::Acquire {
                template,
                local,
                remote,
            };
            self.host.request(request, now);
        }
    }

    /// Returns the port that has sealed a packet, of which a router says that it was too big. The
    /// port knows whether that is so.
    pub(super) fn sender_of(&self, told: &EspTooBig) -> Option<u32> {
        let id = SaId {
            spi: told.header.spi,
            destination: told.destination,
        };
        let port = self.given.get(&id)?.port;
        (port != NOBODY).then_some(port)
    }

    /// Lists the associations that ports have.
    pub(super) fn given(&self) -> impl Iterator<Item = (SaId, u32)> {
        let given = self.given.iter().map(|(id, given)| (*id, given.port));
        given.filter(|(_, port)| *port != NOBODY)
    }
}

impl AsFd for SharedProtection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.host.as_fd()
    }
}
