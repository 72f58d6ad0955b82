//! The objects of the program by their numbers, by which the engine names them.
#![allow(unsafe_code, reason = "the program's objects")]

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

use crate::adapter::Adapter;
use crate::errno::lock;
use crate::objects::{Cq, Qp, Srq};

/// The queue pairs.
pub(crate) static QPS: Registry<Qp> = Registry::new();
/// The completion queues.
pub(crate) static CQS: Registry<Cq> = Registry::new();
/// The shared receive queues.
pub(crate) static SRQS: Registry<Srq> = Registry::new();

/// Objects of one kind, of all adapters.
pub(crate) struct Registry<T>(Mutex<BTreeMap<(usize, u32), Entry<T>>>);

struct Entry<T>(*const T);

// SAFETY: it is a reference to an object that threads share, which `Registry` follows only while
// that is there.
unsafe impl<T: Sync> Send for Entry<T> {}

impl<T: Sync> Registry<T> {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub(crate) fn add(&self, adapter: &Adapter, number: u32, object: &T) {
        lock(&self.0).insert((adapter.index, number), Entry(object));
    }

    /// Removes an object, which must be done before it is destroyed. Nobody is in
    /// [`with`](Self::with) it any more then.
    pub(crate) fn remove(&self, adapter: &Adapter, number: u32) {
        lock(&self.0).remove(&(adapter.index, number));
    }

    /// Lets an object have another number. `change` changes it meanwhile: nobody finds it by
    /// either.
    pub(crate) fn move_to<R>(
        &self,
        adapter: &Adapter,
        from: u32,
        to: u32,
        change: impl FnOnce() -> R,
    ) -> R {
        let mut objects = lock(&self.0);
        let entry = objects.remove(&(adapter.index, from));
        let changed = change();
        if let Some(entry) = entry {
            objects.insert((adapter.index, to), entry);
        }
        changed
    }

    /// Calls `what` with an object, if it is there. The object is not destroyed meanwhile. `what`
    /// must not wait for anybody who makes or destroys objects.
    pub(crate) fn with<R>(
        &self,
        adapter: &Adapter,
        number: u32,
        what: impl FnOnce(&T) -> R,
    ) -> Option<R> {
        let objects = lock(&self.0);
        let entry = objects.get(&(adapter.index, number))?;
        // SAFETY: it is removed before it is destroyed, which the lock keeps from happening now.
        Some(what(unsafe { &*entry.0 }))
    }

    /// Returns its lock, which a child makes new.
    pub(crate) fn renewed(&self) -> &Mutex<impl Default> {
        &self.0
    }

    /// Calls `what` with each object, unless somebody holds the lock at the moment.
    pub(crate) fn each(&self, mut what: impl FnMut(&T)) {
        let Ok(objects) = self.0.try_lock() else {
            return;
        };
        for entry in objects.values() {
            // SAFETY: it is removed before it is destroyed, which the lock keeps from happening
            // now.
            what(unsafe { &*entry.0 });
        }
    }
}

/// What is done with a queue pair that is about to be destroyed.
static LEAVING: OnceLock<fn(&Qp)> = OnceLock::new();

/// Registers `what` to be called, for rdma_cm, with each queue pair that is about to be destroyed.
pub(crate) fn on_leaving(what: fn(&Qp)) {
    LEAVING.get_or_init(|| what);
}

/// Tells that a queue pair is about to be destroyed.
pub(crate) fn leaving(qp: &Qp) {
    if let Some(what) = LEAVING.get() {
        what(qp);
    }
}
