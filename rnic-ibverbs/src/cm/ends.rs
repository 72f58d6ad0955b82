//! Ends of connections that are told a moment later.
//!
//! A peer may send its last message and disconnect at once. The program gets the completions in one
//! way, and the end in another: it may read of the end first, although both have come. Some programs
//! destroy the queue pair then, and with it the completions: libfabric's verbs provider takes what
//! it has sent for failed, and waits for what it has received. From an adapter the end comes by way
//! of the kernel, which gives programs the time to poll. So an end waits here for what succeeded
//! before it to be polled. A program that does not poll is told nevertheless.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rnic_verbs::{ConnectionEvent, QpNumber};

use crate::adapter::Adapter;
use crate::cm::id::Id;
use crate::cm::outcome;
use crate::cm::verbs::holds_success;
use crate::errno::lock;

/// How long an end waits at most, and how often the completion queues are looked at meanwhile.
const LONGEST: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(1);

/// The ends on an adapter that wait.
#[derive(Default)]
pub(super) struct Ends(Mutex<Vec<End>>);

struct End {
    qp: QpNumber,
    id: Arc<Id>,
    event: ConnectionEvent,
    until: Instant,
}

impl Ends {
    /// Tells an id of an end, or keeps it until its time has come. Who has disconnected himself waits
    /// for it.
    pub(super) fn tell(
        &self,
        adapter: &Adapter,
        qp: QpNumber,
        id: Arc<Id>,
        event: ConnectionEvent,
    ) {
        let is_asked_for = id.state().disconnected;
        if is_asked_for || !holds_success(adapter, qp) {
            return outcome::tell(&id, event);
        }
        let until = Instant::now() + LONGEST;
        lock(&self.0).push(End {
            qp,
            id,
            event,
            until,
        });
    }

    /// Tells the ends whose time has come. Returns when to look again.
    pub(super) fn tell_due(&self, adapter: &Adapter, now: Instant) -> Option<Instant> {
        let waiting = std::mem::take(&mut *lock(&self.0));
        let (due, later): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|end| now >= end.until || !holds_success(adapter, end.qp));
        let again = (!later.is_empty()).then(|| now + LOOK);
        lock(&self.0).extend(later);
        due.into_iter().for_each(End::tell);
        again
    }

    /// Tells the end of a queue pair now, if it waits.
    pub(super) fn tell_now(&self, qp: QpNumber) {
        self.remove(qp).into_iter().for_each(End::tell);
    }

    /// Tells the ends of connections to a host now: it connects anew, and not every program takes two
    /// connections of a peer.
    pub(super) fn tell_of(&self, peer: IpAddr) {
        let is_of = |end: &mut End| end.id.state().remote.is_some_and(|at| at.ip() == peer);
        let ends: Vec<_> = lock(&self.0).extract_if(.., is_of).collect();
        ends.into_iter().for_each(End::tell);
    }

    /// Forgets the end of a queue pair.
    pub(super) fn forget(&self, qp: QpNumber) {
        drop(self.remove(qp));
    }

    fn remove(&self, qp: QpNumber) -> Vec<End> {
        let is_this = |end: &mut End| end.qp == qp;
        lock(&self.0).extract_if(.., is_this).collect()
    }
}

impl End {
    fn tell(self) {
        outcome::tell(&self.id, self.event);
    }
}
