//! What becomes of the host's associations on a shared device: clients use them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use rnic_core::esp::{Change, InboundSa, OutboundSa, Sa, SaId, USUAL_WINDOW, Usage, Window};

use super::scope::Scope;
use crate::device::netlink::{Association, Policies};
use crate::device::protection::Uses;

/// What is known of the policies, and whether anything has changed.
#[derive(Default)]
pub(super) struct Clients {
    pub(super) changed: bool,
    pub(super) dying: BTreeSet<SaId>,
    /// What associations are for, by their requests.
    pub(super) scopes: BTreeMap<u32, Scope>,
    /// What key managers are to be asked for, by policies that name no request.
    pub(super) asking: Option<Scope>,
    /// Associations that are gone, of which another one may have the name.
    pub(super) replaced: BTreeSet<SaId>,
}

impl Uses for Clients {
    fn add(
        &mut self,
        sa: Sa,
        found: &Association,
        is_outbound: bool,
    ) -> Result<Arc<Usage>, String> {
        let (_, _, keys) = found.usable.as_ref().map_err(Clone::clone)?;
        // Whether its client can use it.
        let made = match is_outbound {
            true => OutboundSa::new(sa, keys, found.added).map(drop),
            false => {
                let window = Window::new(USUAL_WINDOW, found.extended, found.received);
                InboundSa::new(sa, keys, window).map(drop)
            }
        };
        made.map_err(|why| why.to_string())?;
        self.changed = true;
        Ok(Arc::default())
    }

    fn remove(&mut self, id: SaId) {
        self.dying.remove(&id);
        self.replaced.insert(id);
        self.changed = true;
    }

    fn add_numbers(&mut self, _: SaId, _: Range<u64>) {
        // They are taken so that nobody else has them: a client is told those that it asks for.
        self.changed = true;
    }

    fn received(&self, _: SaId) -> u64 {
        // The clients know.
        0
    }

    fn tell(&mut self, change: Change) {
        if let Change::Dying(id) = change {
            self.dying.insert(id);
        }
        self.changed = true;
    }

    fn note_policies(&mut self, policies: &Policies) {
        let asking = policies.that_ask();
        self.asking = (!asking.is_empty()).then(|| Scope::that_asks(&asking));
        let requests = policies.by_request().into_iter();
        let scopes = requests.map(|(request, all)| (request, Scope::of(request, &all)));
        self.scopes = scopes.collect();
        self.changed = true;
    }

    fn takes_numbers(&self) -> bool {
        false
    }

    fn counts_genuine(&self) -> bool {
        // The programs count, and the clients have the keys.
        false
    }
}
