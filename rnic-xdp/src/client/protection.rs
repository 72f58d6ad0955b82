//! The associations that rnicd gives a port, for the worker and for who asks what protects a
//! connection. rnicd says each time all that there is: what is new of it is told.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::RandomState;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use nix::sys::prctl::set_dumpable;
use rnic_core::esp::{
    Change, Demand, InboundSa, Keys, OutboundSa, RequiredPorts, SaId, Top, Window,
};
use rnic_manager::protection::{Association, Demanded, Protection};
use tracing::{info, warn};

use crate::device::interface::HostIpsec;

/// What protects a port.
pub(super) struct PortProtection {
    /// The local TCP ports that speak protected or not at all.
    pub(super) required: RequiredPorts,
    known: HostIpsec,
    associations: BTreeMap<SaId, Association>,
    /// Those to send with, as the worker has them.
    outbound: BTreeMap<SaId, Arc<OutboundSa>>,
    demands: Vec<Demand>,
    addresses: Vec<std::net::IpAddr>,
    changes: VecDeque<Change>,
    /// What rnicd has said of what there is now, unless it has said all.
    parts: Protection,
    /// What there is now, while the worker is still to be told what there was before: rnicd may
    /// say so again and again, and one is kept.
    newest: Option<Protection>,
    /// The end of the last numbers under each key, by its fingerprint, whatever becomes of
    /// associations and of rnicd.
    taken: HashMap<u64, u64>,
    /// What was received under each key: the kernel is not told of it, and may have the association
    /// again. What was received stays so.
    received: HashMap<u64, Top>,
    hasher: RandomState,
}

impl PortProtection {
    pub(super) fn new(required: RequiredPorts, known: HostIpsec) -> Self {
        Self {
            required,
            known,
            associations: BTreeMap::new(),
            outbound: BTreeMap::new(),
            demands: Vec::new(),
            addresses: Vec::new(),
            changes: VecDeque::new(),
            parts: Protection::default(),
            newest: None,
            taken: HashMap::new(),
            received: HashMap::new(),
            hasher: RandomState::new(),
        }
    }

    /// Returns the next change that the worker must be told.
    pub(super) fn poll_change(&mut self) -> Option<Change> {
        if self.changes.is_empty()
            && let Some(newest) = self.newest.take()
        {
            self.set(newest);
        }
        let change = self.changes.pop_front()?;
        let known = &self.known.protection;
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        known.note(&change);
        Some(change)
    }

    /// Returns whether the worker may have to be told something.
    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty() || self.newest.is_some()
    }

    /// Takes over a part of what there is now, of which `more` come.
    pub(super) fn add(&mut self, part: Protection, more: bool) {
        // A core dump would have the keys.
        if !part.associations.is_empty()
            && let Err(errno) = set_dumpable(false)
        {
            warn!("no IPsec association is used: it cannot be kept from core dumps: {errno}");
            return self.forget_parts();
        }
        self.parts.extend(part);
        if !more {
            self.newest = Some(std::mem::take(&mut self.parts));
        }
    }

    /// Forgets parts of which the others do not come any more.
    pub(super) fn forget_parts(&mut self) {
        self.parts = Protection::default();
    }

    /// Takes over all that there is now.
    fn set(&mut self, now: Protection) {
        if now.addresses != self.addresses {
            self.changes
                .push_back(Change::Addresses(now.addresses.clone()));
            self.addresses = now.addresses;
        }
        let demands: Vec<_> = now.demands.iter().filter_map(Demanded::demand).collect();
        if demands != self.demands {
            self.changes.push_back(Change::Demands(demands.clone()));
            self.demands = demands;
        }
        let all = now.associations.into_iter().map(|one| (one.id(), one));
        let mut all: BTreeMap<_, _> = all.collect();
        let is_still =
            |id: &SaId, known: &Association| all.get(id).is_some_and(|found| is_same(found, known));
        let known = self.associations.iter();
        let gone = known.filter(|(id, known)| !is_still(id, known));
        for id in gone.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.associations.remove(&id);
            self.outbound.remove(&id);
            self.changes.push_back(Change::Gone(id));
            info!("the IPsec association of SPI {:#010x} is gone", id.spi);
        }
        for (id, found) in std::mem::take(&mut all) {
            let before = self.associations.get(&id).map(|known| known.dying);
            if before.is_none()
                && let Err(why) = self.begin(&found)
            {
                warn!(
                    "the IPsec association of SPI {:#010x} is not used: {why}",
                    id.spi
                );
                continue;
            }
            if found.dying && before != Some(true) {
                self.changes.push_back(Change::Dying(id));
            }
            self.associations.insert(id, found);
        }
    }

    /// Begins to use an association.
    fn begin(&mut self, found: &Association) -> Result<(), String> {
        let (sa, keys) = found
            .sa()
            .ok_or("its algorithm is unknown; upgrade the program")?;
        let id = sa.id;
        info!(
            "ESP {} by {} from {} to {}, SPI {:#010x}",
            sa.mode, sa.algorithm, sa.source, id.destination, id.spi
        );
        if !found.outbound {
            let print = keys.fingerprint(&self.hasher);
            let before = self.received.get(&print);
            let received = before.map_or(0, Top::get).max(found.received);
            let window = Window::new(found.window, found.extended, received);
            let top = window.shared_top().clone();
            let made = InboundSa::new(sa, &keys, window).map_err(|why| why.to_string())?;
            let made = made.for_one_worker();
            self.received.insert(print, top);
            self.changes.push_back(Change::Inbound(Arc::new(made)));
            return Ok(());
        }
        let made = OutboundSa::new(sa, &keys, found.age).map_err(|why| why.to_string())?;
        // A port has one worker.
        let made = made.for_one_worker();
        let made = Arc::new(made);
        self.outbound.insert(id, made.clone());
        self.changes.push_back(Change::Outbound(made));
        if let Some((first, end)) = found.first {
            self.use_numbers(id, &keys, first..end);
        }
        Ok(())
    }

    /// Hands numbers of an association to the worker. Without any it may ask again.
    pub(super) fn add_numbers(&mut self, id: SaId, numbers: Range<u64>) {
        let found = self.associations.get(&id).and_then(Association::sa);
        if let Some((_, keys)) = found {
            self.use_numbers(id, &keys, numbers);
        }
    }

    fn use_numbers(&mut self, id: SaId, keys: &Keys, numbers: Range<u64>) {
        let taken = self
            .taken
            .entry(keys.fingerprint(&self.hasher))
            .or_default();
        // Nothing may come twice, whatever is said.
        let numbers = match numbers.start >= *taken {
            true => numbers,
            false => 0..0,
        };
        *taken = numbers.end.max(*taken);
        if let Some(association) = self.outbound.get(&id) {
            association.numbers().add(numbers);
        }
    }
}

/// Returns whether what is said of an association is still about the same one.
fn is_same(one: &Association, other: &Association) -> bool {
    let known = |found: &Association| {
        let (sa, keys) = found.sa()?;
        Some((sa, keys, found.outbound))
    };
    known(one) == known(other)
}

#[cfg(test)]
mod tests {
    use rnic_manager::protection::Secret;

    use super::*;

    fn association(spi: u32, key: u8, first: Option<(u64, u64)>) -> Association {
        Association {
            spi,
            source: [192, 0, 2, 1].into(),
            destination: [192, 0, 2, 2].into(),
            tunnel: false,
            algorithm: "rfc4106(gcm(aes))".into(),
            extended: true,
            udp: None,
            request: 7,
            encryption: Secret::new(&[key; 20]),
            integrity: Secret::new(&[]),
            outbound: first.is_some(),
            dying: false,
            age: 1,
            window: 1024,
            received: 0,
            first,
        }
    }

    /// Returns the changes since the last call, in words.
    fn changes(protection: &mut PortProtection) -> Vec<String> {
        let next = || protection.poll_change();
        let all = std::iter::from_fn(next).map(|change| match change {
            Change::Demands(demands) => format!("{} demands", demands.len()),
            Change::Addresses(own) => format!("{} addresses", own.len()),
            Change::Inbound(_) => "in".into(),
            Change::Outbound(_) => "out".into(),
            Change::Dying(id) => format!("{} dying", id.spi),
            Change::Gone(id) => format!("{} gone", id.spi),
        });
        all.collect()
    }

    /// Has rnicd say that there are these.
    fn say(protection: &mut PortProtection, associations: &[Association]) {
        let all = Protection {
            associations: associations.to_vec(),
            ..Protection::default()
        };
        protection.add(all, false);
    }

    fn set(protection: &mut PortProtection, associations: &[Association]) -> Vec<String> {
        say(protection, associations);
        changes(protection)
    }

    /// Takes all numbers that an association has. Returns the first and the last.
    fn taken(port: &PortProtection, id: SaId) -> Vec<u64> {
        let numbers = port.outbound[&id].numbers();
        let all: Vec<_> = std::iter::from_fn(|| numbers.take(false)).collect();
        let ends = all.first().into_iter().chain(all.last());
        ends.copied().collect()
    }

    #[test]
    fn nothing_counts_before_all_parts_have_come() {
        let mut port = PortProtection::new(RequiredPorts::none(), HostIpsec::default());
        let part = |spi| Protection {
            associations: vec![association(spi, spi as u8, None)],
            ..Protection::default()
        };
        port.add(part(1), true);
        assert_eq!(changes(&mut port), [""; 0]);
        port.add(part(2), false);
        assert_eq!(changes(&mut port), ["in", "in"]);
        // The connection is lost between two parts.
        port.add(part(1), true);
        port.forget_parts();
        port.add(part(2), false);
        assert_eq!(changes(&mut port), ["1 gone"]);
    }

    #[test]
    fn a_worker_that_takes_nothing_has_one_state_waiting() {
        let mut port = PortProtection::new(RequiredPorts::none(), HostIpsec::default());
        let all: Vec<_> = (1..=9)
            .map(|spi| association(spi, spi as u8, None))
            .collect();
        say(&mut port, &all[..1]);
        assert!(port.has_changes());
        assert!(matches!(port.poll_change(), Some(Change::Inbound(_))));
        for round in 0..100 {
            say(&mut port, &all[round % 7..]);
        }
        // It has the first one, and in the end there are all others.
        let mut told = changes(&mut port);
        assert_eq!(told.remove(0), "1 gone");
        assert_eq!(told, ["in"; 8]);
        assert!(!port.has_changes());
    }

    #[test]
    fn what_is_new_is_told_once() {
        let mut port = PortProtection::new(RequiredPorts::none(), HostIpsec::default());
        let (to, from) = (association(1, 1, Some((10, 20))), association(2, 2, None));
        let both = [to.clone(), from.clone()];
        assert_eq!(set(&mut port, &both), ["out", "in"]);
        assert_eq!(taken(&port, to.id()), [10, 19]);
        // rnicd, which may be another one, says it again. What was taken is not taken again, and
        // what was received is not forgotten.
        assert_eq!(set(&mut port, &both), [""; 0]);
        let dying = Association { dying: true, ..to };
        assert_eq!(set(&mut port, &[dying.clone(), from.clone()]), ["1 dying"]);
        assert_eq!(set(&mut port, &[dying, from.clone()]), [""; 0]);
        assert_eq!(set(&mut port, &[from]), ["1 gone"]);
    }

    #[test]
    fn no_number_comes_twice_under_a_key() {
        let mut port = PortProtection::new(RequiredPorts::none(), HostIpsec::default());
        set(&mut port, &[association(1, 1, Some((10, 20)))]);
        set(&mut port, &[]);
        // The key comes back with another SPI, and with numbers of an earlier time.
        let id = association(3, 1, None).id();
        let again = set(&mut port, &[association(3, 1, Some((15, 30)))]);
        assert_eq!((again, taken(&port, id)), (vec!["out".into()], vec![]));
        for (said, told) in [(19..40, vec![]), (20..40, vec![20, 39]), (20..40, vec![])] {
            port.add_numbers(id, said);
            assert_eq!(taken(&port, id), told);
        }
        // Another key under the same name is another association.
        let other = set(&mut port, &[association(3, 9, Some((5, 6)))]);
        assert_eq!(other, ["3 gone", "out"]);
        assert_eq!(taken(&port, id), [5, 5]);
    }
}
