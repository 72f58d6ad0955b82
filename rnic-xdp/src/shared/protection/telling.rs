//! What each port is told of what protects it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use rnic_core::esp::{Demand, SaId};

use super::SharedProtection;
use super::keys::NOBODY;
use super::port::{PortAssociation, PortProtection, association};
use super::scope::Leases;

/// The most associations and policies of which a client is told, and the most addresses of this
/// host: each change tells it all again. What it is not told of, it neither sends nor receives.
pub(super) const MOST_ASSOCIATIONS: usize = 1024;
const MOST_DEMANDS: usize = 1024;
const MOST_ADDRESSES: usize = 256;

impl SharedProtection {
    /// Returns the ports for which something has changed since they were told. Only those are looked
    /// at that have something to do with associations.
    pub(super) fn compare(&mut self, leases: &Leases, ports: &BTreeSet<u32>) -> Vec<u32> {
        let mut given = BTreeMap::<u32, Vec<SaId>>::new();
        for (id, one) in self.given.iter().filter(|(_, one)| one.port != NOBODY) {
            given.entry(one.port).or_default().push(*id);
        }
        let leased = leases.protected();
        let concerned = self.told.keys().chain(given.keys()).chain(leased.keys());
        let concerned: BTreeSet<_> = concerned.copied().collect();
        let mut changed = Vec::new();
        for port in concerned.intersection(ports) {
            let leased = leased.get(port).map_or(&[][..], Vec::as_slice);
            let given = given.get(port).map_or(&[][..], Vec::as_slice);
            let now = self.made_for(leased, given);
            let before = self.told.get(port);
            if before.map_or(now != PortProtection::default(), |before| *before != now) {
                self.told.insert(*port, now);
                changed.push(*port);
            }
        }
        changed
    }

    /// Returns what protects a port, as it was last.
    pub(in crate::shared) fn of(&self, port: u32) -> PortProtection {
        self.told.get(&port).cloned().unwrap_or_default()
    }

    /// Returns what protects a port with what it has leased, and the associations that it has.
    fn made_for(&self, leased: &[SocketAddr], given: &[SaId]) -> PortProtection {
        let is_for = |demand: &&Demand| {
            let selector = &demand.selector;
            leased.iter().any(|local| {
                let here = match local.ip().is_unspecified() {
                    true => selector.local.is_ipv4() == local.is_ipv4(),
                    false => selector.local.contains(local.ip()),
                };
                here && selector.local_ports.contains(local.port())
            })
        };
        let demands = self.host.demands().iter().filter(is_for).copied();
        let demands: Vec<_> = demands.take(MOST_DEMANDS).collect();
        let associations = given.iter().filter_map(|id| self.made_of(*id));
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

    fn made_of(&self, id: SaId) -> Option<PortAssociation> {
        let is_dying = self.host.uses().dying.contains(&id);
        let first = self.given.get(&id)?.first;
        association(self.host.known().get(&id)?, is_dying, first)
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
}
