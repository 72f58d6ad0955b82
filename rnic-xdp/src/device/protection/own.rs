//! Associations that a worker of this process seals and opens frames with.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use rnic_core::esp::{Change, InboundSa, OutboundSa, Sa, SaId, USUAL_WINDOW, Usage, Window};

use super::{HostProtection, Uses};
use crate::device::error::OpenError;
use crate::device::netlink::{Association, Link, Policies};
use crate::device::steering::{SteeredAssociations, Steering};

/// What the worker must be told.
pub(crate) struct Own {
    pub(super) steered: SteeredAssociations,
    pub(super) changes: VecDeque<Change>,
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
            let usage = made.usage().clone();
            self.changes.push_back(Change::Outbound(Box::new(made)));
            return Ok(usage);
        }
        let port = sa.encapsulation.map(|ports| ports.destination);
        let window = found.window.max(USUAL_WINDOW);
        let window = Window::new(window, found.extended, found.received);
        let made = InboundSa::new(sa, keys, window).map_err(|why| why.to_string())?;
        let usage = made.usage().clone();
        let steered = self.steered.add(found.id, port);
        steered.map_err(|why| format!("cannot steer its packets here: {why}"))?;
        self.changes.push_back(Change::Inbound(Box::new(made)));
        Ok(usage)
    }

    fn remove(&mut self, id: SaId) {
        // Nobody opens its packets any more. If it is not in the map, the kernel gets them already.
        let _ = self.steered.remove(id);
        self.changes.push_back(Change::Gone(id));
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
        let changes = VecDeque::new();
        let opened = Self::open(&link.name, if_id, Own { steered, changes })?;
        #[cfg(feature = "testing")]
        let opened = opened.with_given();
        Ok(opened)
    }

    /// Returns the next change that the worker must be told.
    pub(crate) fn poll_change(&mut self) -> Option<Change> {
        self.uses_mut().changes.pop_front()
    }
}
