//! Which port has which association. One that a port has had is never another's: it ends first.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rnic_core::esp::SaId;
use tracing::{info, warn};

use super::keys::NOBODY;
use super::scope::{Leased, Leases, Scope, UNNAMED};
use super::telling::MOST_ASSOCIATIONS;
use super::{Given, SharedProtection, print};
use crate::device::steering::Holder;

/// Why nobody gets an association for which no user may have the TCP ports.
const NOBODYS: &str =
    "its policies select TCP ports that are not all `protected` for one user (rnicd.toml)";

/// Why nobody gets one that another client has had.
const ENDED: &str =
    "a client had its key, so that it ends; where it stays, delete it (`ip xfrm state delete`)";

/// Why nobody has one any more that must not be used.
const SPENT: &str = "it has reached its limits";

/// The port that is to have an association, if one is; or why none is.
type Recipient = Result<Option<u32>, String>;

/// What becomes of an association.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// All is as it is to be.
    Keep,
    /// Nobody has it, for a reason.
    Nobody(String),
    /// A port gets it, which may have it: then nothing was done with it yet.
    Give(u32),
    /// It ends, for a reason.
    End(String),
}

/// Returns what becomes of an association that a port has or [`NOBODY`] has had, if one has.
/// `is_again`: it was added again with its key.
fn step(given: Option<u32>, recipient: Recipient, is_again: bool) -> Step {
    match (given, recipient) {
        (Some(NOBODY), _) => Step::End(ENDED.into()),
        (Some(_), Err(why)) => Step::End(why),
        (None, Err(why)) => Step::Nobody(why),
        (None, Ok(Some(port))) => Step::Give(port),
        (None, Ok(None)) => Step::Keep,
        (Some(had), Ok(Some(port))) if had != port => Step::End(ENDED.into()),
        (Some(had), Ok(_)) if is_again => Step::Give(had),
        // One that has leased nothing of it any more may do so again.
        (Some(_), Ok(_)) => Step::Keep,
    }
}

impl SharedProtection {
    /// Gives associations to those who are to have them, and takes them from others. Returns the
    /// ports for which something has changed. The recipients are found once for each reqid.
    pub(in crate::shared) fn update(
        &mut self,
        leases: impl FnOnce() -> Vec<Leased>,
        ports: &BTreeSet<u32>,
        is_on_link: impl Fn(IpAddr) -> bool,
    ) -> Vec<u32> {
        if !self.is_due() {
            return Vec::new();
        }
        (self.changed, self.host.uses_mut().changed) = (false, false);
        let leases: Leases = leases().into_iter().collect();
        let replaced = std::mem::take(&mut self.host.uses_mut().replaced);
        self.forget_other_keys(&replaced);
        self.end_those_of_gone_ports(ports);
        self.forget_those_that_are_gone();
        let scopes = self.host.uses().scopes.iter();
        let recipients = scopes.map(|(request, scope)| (*request, self.recipient(scope, &leases)));
        let recipients: BTreeMap<_, _> = recipients.collect();
        let ids: Vec<_> = self.host.known().keys().copied().collect();
        for id in ids {
            let recipient = self.recipient_of(id, &recipients, &is_on_link);
            let is_new = !self.given.contains_key(&id);
            if is_new {
                self.recall(id);
            }
            let given = self.given.get(&id).map(|given| given.port);
            let is_again = is_new || replaced.contains(&id);
            let result = match step(given, recipient, is_again) {
                Step::Keep => Ok(()),
                Step::Nobody(why) => Err(why),
                Step::Give(port) => {
                    let result = self.give(id, port);
                    if result.is_err() && is_new {
                        self.forget(id);
                    }
                    // What fails may have been busy.
                    self.retries |= result.is_err();
                    result
                }
                Step::End(why) => {
                    self.take(id);
                    Err(why)
                }
            };
            self.complain(id, result);
        }
        self.compare(&leases, ports)
    }

    /// Finds out whether a port had the key of an association before. If one had, nobody sends or
    /// receives with it until it is decided what becomes of it.
    fn recall(&mut self, id: SaId) {
        let Some(known) = self.host.known().get(&id) else {
            return;
        };
        let (is_outbound, udp) = (known.is_outbound, known.association.encapsulation);
        let Some(print) = print(known) else {
            return;
        };
        let Some(port) = self.former.port_of(print) else {
            return;
        };
        let map = match is_outbound {
            true => &mut self.sent,
            false => &mut self.received,
        };
        let nobody = Holder {
            port: NOBODY,
            print,
            source: None,
            udp,
            sends: is_outbound,
        };
        // Without room for it in the map, the kernel has it alone.
        let _ = map.add_for(nobody, id);
        let given = Given {
            port,
            print,
            first: None,
            before: (0, 0),
        };
        self.given.insert(id, given);
    }

    /// Forgets who had associations that are no more, where others with other keys have their names.
    /// Nobody has had those keys, and nothing was done with them.
    fn forget_other_keys(&mut self, replaced: &BTreeSet<SaId>) {
        for id in replaced {
            let now = self.host.known().get(id).and_then(print);
            let had = self.given.get(id).map(|given| given.print);
            if now.is_some() && had.is_some() && now != had {
                self.forget(*id);
            }
        }
    }

    fn end_those_of_gone_ports(&mut self, ports: &BTreeSet<u32>) {
        self.former.end_others(ports);
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
            match self.host.may_have(id) {
                true => self.take(id),
                false => self.forget(id),
            }
        }
        let known = self.host.known();
        self.complaints.retain(|id, _| known.contains_key(id));
    }

    /// Returns the port that is to have the associations for a scope.
    fn recipient(&self, scope: &Scope, leases: &Leases) -> Recipient {
        // If no user may have all of these TCP ports, it does not matter what is leased.
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
        Ok(Some(port))
    }

    /// Returns the port that is to have an association.
    fn recipient_of(
        &self,
        id: SaId,
        recipients: &BTreeMap<u32, Recipient>,
        is_on_link: impl Fn(IpAddr) -> bool,
    ) -> Recipient {
        let Some(known) = self.host.known().get(&id) else {
            return Ok(None);
        };
        if known.has_ended() {
            return Err(SPENT.into());
        }
        if known.association.request == 0 {
            return Err(UNNAMED.into());
        }
        let recipient = recipients.get(&known.association.request);
        let Some(port) = recipient.cloned().unwrap_or(Ok(None))? else {
            return Ok(None);
        };
        let peer = match known.is_outbound {
            true => id.destination,
            false => known.association.source,
        };
        let may = self.may_of(port);
        match may.is_some_and(|may| may.peers.contain(peer, is_on_link(peer))) {
            true => Ok(Some(port)),
            false => Err(format!("port {port} may not speak with {peer} (`peers`)")),
        }
    }

    /// Gives an association to a port. No other one has had it.
    fn give(&mut self, id: SaId, port: u32) -> Result<(), String> {
        // One that it was told of must stay: its replay window would begin anew.
        let others = self.given.iter().filter(|(other, _)| **other != id);
        let has = others.filter(|(_, given)| given.port == port);
        if has.count() >= MOST_ASSOCIATIONS {
            return Err(format!(
                "port {port} has {MOST_ASSOCIATIONS} already, which are as many as a port can have; use several processes"
            ));
        }
        let known = self.host.known().get(&id).ok_or("it is gone")?;
        let is_outbound = known.is_outbound;
        let (source, udp) = (known.association.source, known.association.encapsulation);
        let print = print(known).ok_or("it has no key")?;
        let first = match is_outbound {
            true => Some(self.host.take_numbers(id)?).map(|first| (first.start, first.end)),
            false => None,
        };
        let holder = Holder {
            port,
            print,
            source: Some(source),
            udp,
            sends: is_outbound,
        };
        let map = match is_outbound {
            true => &mut self.sent,
            false => &mut self.received,
        };
        let added = map.add_for(holder, id);
        added.map_err(|why| format!("the programs cannot be told of it: {why}"))?;
        info!(
            "{}: port {port} has the IPsec association of SPI {:#010x} to {}",
            self.netdev, id.spi, id.destination
        );
        let before = (0, 0);
        let given = Given {
            port,
            print,
            first,
            before,
        };
        self.given.insert(id, given);
        Ok(())
    }

    /// Takes an association from the port that has it, if one has. It has had the keys: the
    /// association ends, and is nobody's until the kernel has it no more.
    pub(super) fn take(&mut self, id: SaId) {
        let Some(given) = self.given.get_mut(&id) else {
            return;
        };
        let had = std::mem::replace(&mut given.port, NOBODY);
        // First, so that who follows this process knows, and no packet goes to the kernel.
        for map in [&mut self.received, &mut self.sent] {
            // It is in one of both, and what is there can be overwritten.
            let _ = map.hand_to(NOBODY, given.print, id);
        }
        let ended = self.host.end(id);
        if had == NOBODY {
            return;
        }
        let SaId { spi, destination } = id;
        let netdev = &self.netdev;
        let why_it_stays = match ended {
            Ok(true) => None,
            Ok(false) => Some("rnic cannot use it any more".to_owned()),
            Err(why) => Some(why.to_string()),
        };
        match why_it_stays {
            None => info!(
                "{netdev}: the IPsec association of SPI {spi:#010x} to {destination} ends, of which port {had} had the key"
            ),
            Some(why) => warn!(
                "{netdev}: the IPsec association of SPI {spi:#010x} to {destination} stays, of which port {had} had the key; \
                 delete it (`ip xfrm state delete`): {why}"
            ),
        }
    }

    /// Forgets an association that is no more.
    fn forget(&mut self, id: SaId) {
        if let Some(given) = self.given.remove(&id) {
            self.former.note(given.print, given.port);
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_key_it_was_is_nobody_elses() {
        let why = || Err("why".to_owned());
        // The recipient has it.
        assert_eq!(step(None, Ok(Some(1)), false), Step::Give(1));
        assert_eq!(step(Some(1), Ok(Some(1)), false), Step::Keep);
        // It has given its lease back, and may lease it again, but nobody else.
        assert_eq!(step(Some(1), Ok(None), false), Step::Keep);
        for is_again in [false, true] {
            let ended = || Step::End(ENDED.into());
            assert_eq!(step(Some(1), Ok(Some(2)), is_again), ended());
            for recipient in [Ok(Some(1)), Ok(None), why()] {
                assert_eq!(step(Some(NOBODY), recipient, is_again), ended());
            }
            assert_eq!(step(Some(1), why(), is_again), Step::End("why".into()));
            assert_eq!(step(None, why(), is_again), Step::Nobody("why".into()));
            assert_eq!(step(None, Ok(None), is_again), Step::Keep);
        }
        // What was done with it before does not count.
        assert_eq!(step(Some(1), Ok(Some(1)), true), Step::Give(1));
        assert_eq!(step(Some(1), Ok(None), true), Step::Give(1));
    }
}
