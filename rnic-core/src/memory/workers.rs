//! The workers of an STag table, and how revocation waits for them: see [`epoch`](super::epoch).

use std::cell::Cell;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::guarded;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use crate::sync::{Mutex, MutexGuard, hint, thread, thread_local};

/// The published state of one worker, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct WorkerEpoch {
    /// Odd inside a batch.
    pub(super) count: AtomicU64,
    /// Which thread the batch runs on; meaningful while `count` is odd.
    pub(super) thread: AtomicUsize,
}

thread_local! {
    /// Its address stands for the thread. Whether the thread has been [admitted](guarded::admit).
    static MARK: Cell<bool> = const { Cell::new(false) };
}

/// Returns the calling thread, as a number that no other living thread has.
pub(super) fn this_thread() -> usize {
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// Returns the calling thread, which begins a batch and may find memory of the program gone.
pub(super) fn thread_of_batch() -> usize {
    MARK.with(|mark| {
        if !mark.get() {
            mark.set(guarded::admit());
        }
        std::ptr::from_ref(mark).addr()
    })
}

/// All workers of a table.
#[derive(Debug, Default)]
pub(super) struct Workers {
    epochs: Mutex<Vec<Arc<WorkerEpoch>>>,
}

impl Workers {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Arc<WorkerEpoch>>> {
        // The list is whole after every statement, so a panic of another holder does not spoil it.
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the calling thread is inside a batch, so that waiting would never end.
    pub(super) fn inside_batch(&self) -> bool {
        self.lock().iter().any(|epoch| {
            epoch.count.load(Ordering::Acquire) % 2 == 1
                && epoch.thread.load(Ordering::Relaxed) == this_thread()
        })
    }

    /// Waits until every worker has been outside a batch since the call.
    pub(super) fn wait(&self) {
        // Pairs with the fence in `Worker::enter`: either the worker's lookups come after what the
        // caller wrote, or its odd epoch is seen here.
        fence(Ordering::SeqCst);
        let inside: Vec<(Arc<WorkerEpoch>, u64)> = self
            .lock()
            .iter()
            .map(|epoch| (epoch.clone(), epoch.count.load(Ordering::Acquire)))
            .filter(|(_, count)| count % 2 == 1)
            .collect();
        for (epoch, count) in inside {
            let mut tries = 0u32;
            // Acquire: what the worker copied in the batch happened before we return.
            while epoch.count.load(Ordering::Acquire) == count {
                tries += 1;
                match tries {
                    0..64 => hint::spin_loop(),
                    64..1024 => thread::yield_now(),
                    _ => thread::sleep(Duration::from_micros(50)),
                }
            }
        }
    }
}
