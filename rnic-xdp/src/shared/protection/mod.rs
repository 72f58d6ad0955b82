//! The host's Security Associations for clients of a shared device. A client gets the keys of those
//! that are for what it has leased alone, and keeps them for good: when its port ends, its
//! associations end, and the key managers make others for the next one.
//!
//! What it does with them is counted by the programs, and their sequence numbers are taken here,
//! from the kernel's counter.

mod clients;
mod ending;
mod giving;
mod keys;
mod port;
mod scope;
mod telling;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rnic_core::esp::{Action, Demand, Request, SaId};
use rnic_core::time::Instant;
use rnic_core::wire::icmp::EspTooBig;

use self::clients::Clients;
use self::ending::end_all;
pub(super) use self::ending::end_given;
use self::keys::{FormerKeys, NOBODY};
pub use self::port::{PortAssociation, PortProtection};
pub(super) use self::scope::Leases;
pub use self::scope::MayProtect;
use self::scope::{Scope, UNNAMED};
use super::programs::SharedSteering;
use crate::device::error::OpenError;
use crate::device::netlink::{RouteSocket, Spent};
use crate::device::protection::{HostProtection, Known};
use crate::device::steering::{SteeredAssociations, UsedAssociation};

/// How often it is read what clients have done.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// An association that a port has, or has had: who had the keys has them until the kernel has the
/// association no more.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    /// [`NOBODY`] if it has ended.
    port: u32,
    /// A fingerprint of its key.
    print: u32,
    first: Option<(u64, u64)>,
    /// What the kernel was told by a former process of what is counted: packets and octets.
    before: (u64, u64),
}

/// Returns a fingerprint of the key of an association.
fn print(known: &Known) -> Option<u32> {
    let usable = known.association.usable.as_ref().ok()?;
    Some(usable.2.print())
}

impl Given {
    /// Takes over what a former process has given. `spent`: what the kernel was told, which may be less
    /// than the programs have counted since.
    fn taken_over(used: &UsedAssociation, spent: Spent) -> Self {
        Self {
            port: used.port,
            print: used.print,
            first: None,
            before: (
                used.packets.min(spent.packets),
                used.octets.min(spent.octets),
            ),
        }
    }
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
    /// The keys of those that are no more.
    former: FormerKeys,
    /// Leases or ports have changed since the last update.
    changed: bool,
    /// Something failed that is to be tried again.
    retries: bool,
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
        let mut host = HostProtection::open(netdev, if_id, Clients::default())?;
        let failed = |source| OpenError::System {
            doing: "open the maps of clients' associations",
            source,
        };
        let [received, sent] = steering.associations().map_err(failed)?;
        let mut given = BTreeMap::new();
        for map in [&received, &sent] {
            let listed = map.list().map_err(failed)?.into_iter();
            given.extend(listed.map(|(id, used)| {
                let known = host.known().get(&id);
                let spent = known.map(|known| known.association.spent);
                (id, Given::taken_over(&used, spent.unwrap_or_default()))
            }));
        }
        // Those of another `ipsec_if_id` are followed no more.
        let others = given.iter().filter(|(id, _)| !host.may_have(**id));
        end_all(&others.map(|(id, given)| (*id, given.print)).collect())?;
        let replaced = given.iter().filter(|(id, given)| {
            let now = host.known().get(id).and_then(print);
            now.is_some_and(|now| now != given.print)
        });
        host.uses_mut().replaced = replaced.map(|(id, _)| *id).collect();
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
            retries: false,
            former: FormerKeys::default(),
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

    /// Notes that there are other ports now.
    pub(super) fn note_ports(&mut self) {
        self.changed = true;
    }

    /// Notes that a port has leased something, or given it back: that may change who is to have
    /// associations.
    pub(super) fn note_lease(&mut self, port: u32, local: SocketAddr) {
        let mut scopes = self.host.uses().scopes.values();
        self.changed |=
            self.protects(port, local.port()) || scopes.any(|scope| scope.contains(local));
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
            self.changed |= std::mem::take(&mut self.retries);
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

    /// Fails unless a port can lease an address and TCP port, with the reason. The leases are asked
    /// for only if there may be associations for it.
    pub(super) fn check(
        &self,
        port: u32,
        local: SocketAddr,
        leases: &impl Deref<Target = Leases>,
    ) -> Result<(), Why> {
        let uses = self.host.uses();
        let scopes = uses.scopes.values();
        let mut scopes = scopes.filter(|scope| scope.contains(local));
        let alone = |why| {
            format!("IPsec associations are for one port alone, and {why} (`rnic-ctl lease show`)")
        };
        if self.protects(port, local.port()) {
            let may = self
                .may_of(port)
                .ok_or("it is not known what the port may have")?;
            if let Some(asking) = uses.asking.as_ref().filter(|all| all.contains(local)) {
                asking.is_within(may)?;
                let mut known = self.host.known().values();
                if known.any(|known| known.association.request == 0) {
                    return Err(UNNAMED.into());
                }
            }
            return scopes.try_for_each(|scope| {
                scope.is_within(may)?;
                match scope.holder(leases).map_err(alone)? {
                    Some(other) if other != port => {
                        Err(alone(format!("port {other} has leased some of it")))
                    }
                    _ => Ok(()),
                }
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
        leases: &impl Deref<Target = Leases>,
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
        demands.sort_by_cached_key(is_others);
        demands.into_iter().flat_map(numbers).take(most).collect()
    }

    /// Ends the associations of a port that has ended. Its number may be another's the next moment.
    pub(super) fn end_port(&mut self, port: u32) {
        self.end_of(port, |_| true);
        self.former.end_port(port);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_while_no_rnicd_ran_counts() {
        let used = |packets, octets| {
            let mut used = UsedAssociation::new(7, 9, None);
            (used.packets, used.octets) = (packets, octets);
            used
        };
        let told = Spent {
            octets: 1000,
            packets: 10,
        };
        let before = |used| Given::taken_over(&used, told).before;
        // 5 packets more were counted than were told.
        assert_eq!(before(used(15, 1500)), (10, 1000));
        // The kernel, or who had it before, has done some, too.
        assert_eq!(before(used(6, 600)), (6, 600));
        let given = Given::taken_over(&used(15, 1500), told);
        assert_eq!((given.port, given.print), (7, 9));
    }
}
