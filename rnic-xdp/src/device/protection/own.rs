//! Associations that the workers of this process seal and open frames with.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::RandomState;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use rnic_core::esp::{
    Change, InboundSa, Keys, OutboundSa, Sa, SaId, Top, USUAL_WINDOW, Usage, Window,
};

use super::{HostProtection, Uses};
use crate::device::error::OpenError;
use crate::device::netlink::{Association, Link, Policies};
use crate::device::steering::{SteeredAssociations, Steering};

/// What the workers must be told, and what they share.
pub(crate) struct Own {
    pub(super) steered: SteeredAssociations,
    pub(super) changes: VecDeque<Change>,
    outbound: BTreeMap<SaId, Arc<OutboundSa>>,
    inbound: BTreeMap<SaId, Arc<InboundSa>>,
    /// Those of which another one is to be used as soon as there is one.
    dying: BTreeSet<SaId>,
    /// What was received under each key, by its fingerprint: an association may be added again with
    /// its key, and with the kernel's counter of a moment ago.
    received: HashMap<u64, Top>,
    hasher: RandomState,
    /// The device has one worker.
    pub(super) one_worker: bool,
}

impl Own {
    /// Begins to use an association. Returns where it is counted what it does.
    pub(super) fn begin_outbound(&mut self, id: SaId, made: OutboundSa) -> Arc<Usage> {
        let usage = made.usage().clone();
        let made = Arc::new(match self.one_worker {
            true => made.for_one_worker(),
            false => made,
        });
        self.outbound.insert(id, made.clone());
        self.changes.push_back(Change::Outbound(made));
        usage
    }

    /// Begins to open the packets of an association, from the moment when they come here. `window`
    /// and `received` are those of the kernel.
    pub(super) fn begin_inbound(
        &mut self,
        sa: Sa,
        keys: &Keys,
        (window, received): (u32, u64),
    ) -> Result<Arc<Usage>, String> {
        let (id, port) = (sa.id, sa.encapsulation.map(|ports| ports.destination));
        let print = keys.fingerprint(&self.hasher);
        let before = self.received.get(&print).map_or(0, Top::get);
        let window = Window::new(window.max(USUAL_WINDOW), sa.extended, received.max(before));
        let top = window.shared_top().clone();
        let made = InboundSa::new(sa, keys, window).map_err(|why| why.to_string())?;
        self.received.insert(print, top);
        let usage = made.usage().clone();
        let made = Arc::new(match self.one_worker {
            true => made.for_one_worker(),
            false => made,
        });
        let steered = self.steered.add(id, port);
        steered.map_err(|why| format!("cannot steer its packets here: {why}"))?;
        self.inbound.insert(id, made.clone());
        self.changes.push_back(Change::Inbound(made));
        Ok(usage)
    }
}

impl Uses for Own {
    fn add(
        &mut self,
        sa: Sa,
        found: &Association,
        is_outbound: bool,
    ) -> Result<Arc<Usage>, String> {
        let (_, _, keys) = found.usable.as_ref().map_err(Clone::clone)?;
        if is_outbound {
            let made = OutboundSa::new(sa, keys, found.added).map_err(|why| why.to_string())?;
            return Ok(self.begin_outbound(found.id, made));
        }
        self.begin_inbound(sa, keys, (found.window, found.received))
    }

    fn remove(&mut self, id: SaId) {
        // Nobody opens its packets any more. If it is not in the map, the kernel gets them already.
        let _ = self.steered.remove(id);
        self.tell(Change::Gone(id));
    }

    fn add_numbers(&mut self, id: SaId, block: Range<u64>) {
        if let Some(association) = self.outbound.get(&id) {
            association.numbers().add(block);
        }
    }

    fn received(&self, id: SaId) -> u64 {
        let association = self.inbound.get(&id);
        association.map_or(0, |association| association.window().top())
    }

    fn tell(&mut self, change: Change) {
        match change {
            Change::Dying(id) if self.outbound.contains_key(&id) => {
                self.dying.insert(id);
            }
            Change::Gone(id) => {
                self.outbound.remove(&id);
                self.inbound.remove(&id);
                self.dying.remove(&id);
            }
            _ => {}
        }
        self.changes.push_back(change);
    }

    fn note_policies(&mut self, _: &Policies) {}

    fn takes_numbers(&self) -> bool {
        true
    }

    fn counts_genuine(&self) -> bool {
        true
    }
}

impl HostProtection<Own> {
    /// Reads the associations and policies for a device that this process has for itself, in the
    /// network namespace of this thread.
    pub(crate) fn open_own(
        link: &Link,
        if_id: NonZeroU32,
        steering: &Steering,
        workers: u32,
    ) -> Result<Self, OpenError> {
        let steered = steering
            .associations()
            .map_err(|source| OpenError::System {
                doing: "open the map of steered associations",
                source,
            })?;
        let own = Own {
            steered,
            changes: VecDeque::new(),
            outbound: BTreeMap::new(),
            inbound: BTreeMap::new(),
            dying: BTreeSet::new(),
            received: HashMap::new(),
            hasher: RandomState::new(),
            one_worker: workers == 1,
        };
        let opened = Self::open(&link.name, if_id, own)?;
        #[cfg(feature = "testing")]
        let opened = opened.with_given();
        Ok(opened)
    }

    /// Returns all that a worker must know which begins, as changes.
    pub(crate) fn state(&self) -> Vec<Change> {
        let own = self.uses();
        let mut state = vec![
            Change::Addresses(self.own.iter().copied().collect()),
            Change::Demands(self.demands.clone()),
        ];
        state.extend(own.inbound.values().cloned().map(Change::Inbound));
        state.extend(own.outbound.values().cloned().map(Change::Outbound));
        state.extend(own.dying.iter().copied().map(Change::Dying));
        state
    }

    /// Returns the next change that all workers must be told.
    pub(crate) fn poll_change(&mut self) -> Option<Change> {
        self.uses_mut().changes.pop_front()
    }
}
