//! Sections: what one call of the program begins and another one ends, `ibv_wr_start` to
//! `ibv_wr_complete`, and `ibv_start_poll` to `ibv_end_poll`.
//!
//! A section has what is under construction, or was polled last, and nothing else: the queue pair
//! or the completion queue itself is locked only within a call. So all other calls go on meanwhile,
//! on the same object too and from the same thread. They come before what the section posts.
//!
//! What manual pages forbid and real providers hang at: to begin a section again that the thread is
//! in, which is an error here (`ibv_start_poll` gives EBUSY, `ibv_wr_complete` EINVAL); and two
//! threads that each wait for a section of the other, which hangs here too. To end a section in
//! another thread than the one that began it, or to destroy its object from another thread, is
//! undefined.
//!
//! # The order of the locks
//!
//! Who has one of these takes only those behind it:
//!
//! 1. sections, in the order in which the program nests them; then the change of a queue pair;
//! 2. the registries, then the lists of contexts;
//! 3. the adapters and their numbers, the locks of rdma_cm, those of rsockets;
//! 4. the settings of a queue pair, the binding of a window; what waits for queue pairs; the
//!    datagrams of an adapter;
//! 5. a queue pair;
//! 6. completion queues, two of them by their addresses;
//! 7. a shared receive queue, a memory region;
//! 8. the engine, and what rnic-verbs locks, which is its own affair: a turn of the engine is taken
//!    only if nobody has it;
//! 9. in a turn of the engine, or without: the notifier of a completion queue, then the queue of
//!    events of a channel.
#![allow(unsafe_code, reason = "what one entry point begins and another ends")]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::errno::lock;

/// A section of an object, and what belongs to the thread that is in it.
pub(crate) struct Section<T: 'static> {
    /// The thread that is in it, or 0. Each thread compares it with itself alone.
    owner: AtomicUsize,
    /// Held by that thread. Stands before the lock: members are dropped in their order.
    guard: UnsafeCell<Option<MutexGuard<'static, T>>>,
    inside: Mutex<T>,
}

/// The thread is in the section already.
#[derive(Debug)]
pub(crate) struct Within;

impl<T: Default> Default for Section<T> {
    fn default() -> Self {
        Self {
            owner: AtomicUsize::new(0),
            guard: UnsafeCell::new(None),
            inside: Mutex::default(),
        }
    }
}

impl<T> Section<T> {
    /// Returns whether the calling thread is in it.
    pub(crate) fn is_mine(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == this_thread()
    }

    /// Begins it, once no other thread is in it. Fails if this one is.
    pub(crate) fn enter(&'static self) -> Result<(), Within> {
        if self.is_mine() {
            return Err(Within);
        }
        let guard = lock(&self.inside);
        self.owner.store(this_thread(), Ordering::Relaxed);
        // SAFETY: this thread has the lock, with which `guard` belongs to it.
        unsafe { *self.guard.get() = Some(guard) };
        Ok(())
    }

    /// Returns what is inside, or `None` if nobody is in the section.
    ///
    /// # Safety
    /// No other thread than the calling one is in the section. It lets the reference go before it
    /// calls this again, or ends it.
    #[allow(clippy::mut_from_ref, reason = "the caller's promise")]
    pub(crate) unsafe fn inside(&self) -> Option<&mut T> {
        // SAFETY: `guard` belongs to the thread that is in the section, which is the calling one.
        unsafe { (*self.guard.get()).as_deref_mut() }
    }

    /// Ends it.
    ///
    /// # Safety
    /// As of [`inside`](Self::inside).
    pub(crate) unsafe fn leave(&self) {
        self.owner.store(0, Ordering::Relaxed);
        // SAFETY: as in `inside`.
        drop(unsafe { (*self.guard.get()).take() });
    }
}

/// Returns a number of the calling thread, which no other one has that lives.
fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}
