//! Quiescent points: how whoever revokes memory knows that no worker uses it any more.
//!
//! A worker looks STags up, and copies through what it found, only inside a batch. Its epoch is odd inside and
//! even outside, and grows at each step. Revocation first makes the STag invalid, then waits for each worker
//! that was inside a batch to have left it: whatever a worker looks up afterwards, it finds the STag invalid.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::table::StagTable;

/// The published state of one worker, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Epoch {
    /// Odd inside a batch.
    count: AtomicU64,
    /// Which thread the batch runs on; meaningful while `count` is odd.
    thread: AtomicUsize,
}

/// The calling thread, as a number that no other living thread has.
fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// All workers of a table.
#[derive(Debug, Default)]
pub(super) struct Workers {
    epochs: Mutex<Vec<Arc<Epoch>>>,
}

impl Workers {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Epoch>>> {
        // The list is whole after every statement, so a panic of another holder does not spoil it.
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the calling thread is inside a batch, so that waiting would never end.
    pub(super) fn inside_batch(&self) -> bool {
        self.lock().iter().any(|epoch| {
            epoch.count.load(Ordering::Acquire) % 2 == 1
                && epoch.thread.load(Ordering::Relaxed) == this_thread()
        })
    }

    /// Waits until every worker has been outside a batch since the call.
    pub(super) fn wait(&self) {
        // Pairs with the fence in `Worker::open`: either the worker's lookups come after what the caller
        // wrote, or its odd epoch is seen here.
        fence(Ordering::SeqCst);
        let inside: Vec<(Arc<Epoch>, u64)> = self
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
                    0..64 => std::hint::spin_loop(),
                    64..1024 => std::thread::yield_now(),
                    _ => std::thread::sleep(Duration::from_micros(50)),
                }
            }
        }
    }
}

/// A worker's right to read the STag table. Each worker has one of its own.
#[derive(Debug)]
pub struct Worker {
    table: Arc<StagTable>,
    epoch: Arc<Epoch>,
    /// Guards open now: the epoch is odd while there are any.
    depth: Cell<u32>,
}

impl Worker {
    pub(super) fn new(table: Arc<StagTable>) -> Self {
        let epoch = Arc::new(Epoch::default());
        table.workers().lock().push(epoch.clone());
        Self {
            table,
            epoch,
            depth: Cell::new(0),
        }
    }

    /// The table.
    pub fn table(&self) -> &Arc<StagTable> {
        &self.table
    }

    /// Begins a batch: opens the table for reading until the guard is dropped, which is a quiescent point. Guards
    /// may nest; then the end of the last one is. Do not sleep while holding one.
    pub fn enter(&self) -> Guard<'_> {
        self.open();
        Guard { worker: self }
    }

    fn open(&self) {
        let depth = self.depth.get();
        self.depth.set(depth + 1);
        if depth == 0 {
            self.epoch.thread.store(this_thread(), Ordering::Relaxed);
            let count = self.epoch.count.load(Ordering::Relaxed);
            // Release: whoever sees the batch sees its thread.
            self.epoch
                .count
                .store(count.wrapping_add(1), Ordering::Release);
            // Pairs with the fence in `Workers::wait`.
            fence(Ordering::SeqCst);
        }
    }

    fn close(&self) {
        let depth = self.depth.get() - 1;
        self.depth.set(depth);
        if depth == 0 {
            let count = self.epoch.count.load(Ordering::Relaxed);
            // Release: the copies of this batch come before it.
            self.epoch
                .count
                .store(count.wrapping_add(1), Ordering::Release);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // No guard is left, but one may have been forgotten instead of dropped.
        if self.depth.replace(1) > 0 {
            self.close();
        }
        self.table
            .workers()
            .lock()
            .retain(|epoch| !Arc::ptr_eq(epoch, &self.epoch));
    }
}

/// An open STag table: what is found through it stays mapped until it is dropped.
#[derive(Debug)]
pub struct Guard<'w> {
    worker: &'w Worker,
}

impl Guard<'_> {
    /// The table that it opens.
    pub fn table(&self) -> &StagTable {
        &self.worker.table
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.worker.close();
    }
}
