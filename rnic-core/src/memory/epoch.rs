//! Quiescent points: revocation waits for them, and then knows that no worker uses the memory any
//! more.
//!
//! A worker looks STags up, and copies through what it found, only inside a batch. Its epoch is odd
//! inside and even outside, and grows at each step. Revocation first makes the STag invalid, then
//! waits for each worker that was inside a batch to have left it: whatever a worker looks up
//! afterwards, it finds the STag invalid.

use std::cell::Cell;
use std::sync::Arc;

use super::table::StagTable;
use super::workers::{WorkerEpoch, thread_of_batch};
use crate::sync::atomic::{Ordering, fence};

/// A worker's right to read the STag table. Each worker has one of its own.
#[derive(Debug)]
pub struct Worker {
    table: Arc<StagTable>,
    epoch: Arc<WorkerEpoch>,
    /// Guards open now: the epoch is odd while there are any.
    depth: Cell<u32>,
}

impl StagTable {
    /// Returns a worker's right to read the table.
    pub fn worker(self: &Arc<Self>) -> Worker {
        Worker::new(self.clone())
    }
}

impl Worker {
    fn new(table: Arc<StagTable>) -> Self {
        let epoch = Arc::new(WorkerEpoch::default());
        table.workers().lock().push(epoch.clone());
        Self {
            table,
            epoch,
            depth: Cell::new(0),
        }
    }

    /// Returns the table.
    pub fn table(&self) -> &Arc<StagTable> {
        &self.table
    }

    /// Begins a batch: opens the table for reading until the guard is dropped, which is a quiescent
    /// point. Guards may nest; then the end of the last one is. Do not sleep while holding one.
    pub fn enter(&self) -> Guard<'_> {
        self.open();
        Guard { worker: self }
    }

    fn open(&self) {
        let depth = self.depth.get();
        self.depth.set(depth + 1);
        if depth == 0 {
            let thread = thread_of_batch();
            self.epoch.thread.store(thread, Ordering::Relaxed);
            let count = self.epoch.count.load(Ordering::Relaxed);
            // Release: a thread that sees the batch sees its thread number.
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
    /// Returns the table that it opens.
    pub fn table(&self) -> &StagTable {
        &self.worker.table
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.worker.close();
    }
}

#[cfg(test)]
mod models;
