//! Associations that the workers of this process seal and open frames with.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use rnic_core::esp::{Change, InboundSa, OutboundSa, Sa, SaId, USUAL_WINDOW, Usage, Window};

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
}

impl Own {
    /// Begins to use an association. Returns where it is counted what it does.
    pub(super) fn begin_outbound(&mut self, id: SaId, made: OutboundSa) -> Arc<Usage> {
        let usage = made.usage().clone();
        let made = Arc::new(made);
        self.outbound.insert(id, made.clone());
        self.changes.push_back(Change::Outbound(made));
        usage
    }

    /// Begins to open the packets of an association, from the moment when they come here.
    pub(super) fn begin_inbound(
        &mut self,
        (id, port): (SaId, Option<u16>),
        made: InboundSa,
    ) -> Result<Arc<Usage>, String> {
        let usage = made.usage().clone();
        let made = Arc::new(made);
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
        let port = sa.encapsulation.map(|ports| ports.destination);
        let window = found.window.max(USUAL_WINDOW);
        let window = Window::new(window, found.extended, found.received);
        let made = InboundSa::new(sa, keys, window).map_err(|why| why.to_string())?;
        self.begin_inbound((found.id, port), made)
    }

    fn remove(&mut self, id: SaId) {
        // Nobody opens its packets any more. If it is not in the map, the kernel gets them already.
        let _ = self.steered.remove(id);
        self.outbound.remove(&id);
        self.inbound.remove(&id);
        self.changes.push_back(Change::Gone(id));
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
        };
        let opened = Self::open(&link.name, if_id, own)?;
        #[cfg(feature = "testing")]
        let opened = opened.with_given();
        Ok(opened)
    }

    /// Returns the next change that all workers must be told.
    pub(crate) fn poll_change(&mut self) -> Option<Change> {
        self.uses_mut().changes.pop_front()
    }
}
