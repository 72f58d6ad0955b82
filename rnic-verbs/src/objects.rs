//! The objects of a device, as far as an administrator may want to know them. Whoever makes an
//! object enters it here, and removes it at its end; queue pairs are with their mailboxes, and
//! registrations in the STag table.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rnic_core::ids::{CqId, ListenerId, PdId, SrqId};
use rnic_core::memory::ring::level::Level;
use rnic_core::verbs::wr::{Completion, RecvWr, SendWr};

/// What a queue pair is made of.
#[derive(Debug)]
pub(crate) struct QpFacts {
    pub(crate) pd: PdId,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) sq: Level<SendWr>,
    pub(crate) receives: ReceiveFacts,
}

/// Where the receives of a queue pair come from.
#[derive(Debug)]
pub(crate) enum ReceiveFacts {
    Own(Level<RecvWr>),
    Shared(SrqId),
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SrqFacts {
    pub(crate) pd: PdId,
    pub(crate) receives: Level<RecvWr>,
}

/// The objects that have no other list.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    /// Those that have a handle.
    pub(crate) pds: BTreeSet<PdId>,
    /// The rings that are written to, one for each worker.
    pub(crate) cqs: BTreeMap<CqId, Vec<Level<Completion>>>,
    pub(crate) srqs: BTreeMap<SrqId, SrqFacts>,
    pub(crate) listeners: BTreeMap<ListenerId, SocketAddr>,
}

impl Lists {
    /// Notes that a worker writes to another ring.
    pub(crate) fn resize_cq(&mut self, cq: CqId, worker: usize, level: Level<Completion>) {
        let levels = self.cqs.get_mut(&cq);
        if let Some(slot) = levels.and_then(|levels| levels.get_mut(worker)) {
            *slot = level;
        }
    }
}

/// These lists, behind a lock that is held for moments only, and never on the way of a frame.
#[derive(Debug, Default)]
pub(crate) struct Objects(Mutex<Lists>);

impl Objects {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Lists> {
        // Consistent after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl QpFacts {
    /// Facts of a queue pair that does not matter.
    pub(crate) fn for_tests() -> Self {
        use rnic_core::memory::ring::ring;
        let (sends, _) = ring(1).unwrap();
        Self {
            pd: PdId(1),
            send_cq: CqId(0),
            recv_cq: CqId(0),
            sq: Level::from(&sends),
            receives: ReceiveFacts::Shared(SrqId(0)),
        }
    }
}
