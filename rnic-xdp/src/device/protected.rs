//! What a worker of a device needs whose frames are protected by ESP.

use std::collections::BTreeMap;

use rnic_core::connection::{AddressPair, NextHop};
use rnic_core::engine::{Batch, Driver};
use rnic_core::esp::{Change, Protection, RequiredPorts, Sealing};
use rnic_core::wire::icmp::Report;

use super::interface::{ControlHandle, RxRing, TxSide};
use super::routes::Update;

/// Opens what a worker receives, and seals what it sends.
pub(crate) struct Protected {
    protection: Protection,
    /// The next hops of the links, without what protection adds.
    hops: BTreeMap<AddressPair, NextHop>,
}

impl Protected {
    /// Makes one without associations and policies.
    pub(crate) fn new(required: RequiredPorts) -> Self {
        Self {
            protection: Protection::new(required),
            hops: BTreeMap::new(),
        }
    }

    /// Heeds a change of the host's associations or policies.
    pub(crate) fn apply(&mut self, driver: &mut Driver, change: Change) {
        // Of several that are missing to a host, one is asked for at a time.
        let may_lack_more = matches!(change, Change::Outbound(_));
        let concerned = self.protection.concerned(&change);
        self.protection.apply(change);
        let hops = self.hops.iter();
        for (path, hop) in hops.filter(|(path, _)| concerned.has(path.remote)) {
            tell(&self.protection, driver, *path, *hop);
            if may_lack_more {
                self.protection.ask(path.local, path.remote);
            }
        }
    }

    /// Passes on a change of a next hop: with a smaller MTU, and only when there is an association
    /// for all that needs one.
    pub(crate) fn update(&mut self, driver: &mut Driver, update: Update) {
        match update {
            Update::Set(path, hop) => {
                self.hops.insert(path, hop);
                tell(&self.protection, driver, path, hop);
                // Somebody wants to speak there. Later it is what cannot be sent that asks.
                self.protection.ask(path.local, path.remote);
            }
            Update::Unreachable(path) => {
                self.hops.remove(&path);
                driver.set_unreachable(path);
            }
        }
    }

    /// Forgets a next hop.
    pub(crate) fn forget(&mut self, path: AddressPair) {
        self.hops.remove(&path);
    }

    /// Heeds a router's message about a packet that was too big, if it may be.
    pub(crate) fn handle_too_big(&mut self, batch: &mut Batch<'_>, report: &Report) {
        let Self { protection, hops } = self;
        match report {
            Report::Segment(too_big) if protection.heeds(too_big) => batch.handle_too_big(too_big),
            Report::Segment(_) => {}
            Report::Protected(too_big) => {
                if !protection.has_sent(too_big) {
                    return;
                }
                for path in hops.keys() {
                    let mtu = protection.narrowed(too_big, path.local, path.remote);
                    if let Some(mtu) = mtu {
                        batch.narrow(*path, mtu);
                    }
                }
            }
        }
    }

    /// Asks for what is missing.
    pub(crate) fn ask(&mut self, control: &ControlHandle) {
        while control.has_room()
            && let Some(request) = self.protection.poll_request()
        {
            control.ask_for_protection(request);
        }
    }

    /// Has the engine handle the frames of a queue.
    pub(crate) fn handle_frames(&mut self, batch: &mut Batch<'_>, queue: &RxRing, tx: &mut TxSide) {
        let Protection { opener, sealer } = &mut self.protection;
        let mut tx = Sealing::new(tx, sealer);
        match queue.whole_frames() {
            Some(frames) => {
                opener.open(frames);
                let again = queue.whole_frames().into_iter().flatten();
                let again = again.map(|frame| move || frame);
                batch.handle_frames(opener.frames(again), &mut tx);
            }
            None => {
                opener.open(queue.frames());
                batch.handle_frames(opener.frames(queue.frames_later()), &mut tx);
            }
        }
    }

    /// Ends a turn.
    pub(crate) fn finish(&mut self, mut batch: Batch<'_>, tx: &mut TxSide) -> bool {
        batch.count_protection(&self.protection.take_counts());
        batch.finish(&mut Sealing::new(tx, &mut self.protection.sealer))
    }
}

fn tell(protection: &Protection, driver: &mut Driver, path: AddressPair, hop: NextHop) {
    let mtu = protection.inner_mtu(path.local, path.remote, hop.mtu);
    if let Some(mtu) = mtu {
        driver.set_next_hop(path, NextHop { mtu, ..hop });
    }
}
