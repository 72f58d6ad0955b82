//! Completions that no worker writes: those of datagrams, which the application carries itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rnic_core::memory::ring::Producer;
use rnic_core::verbs::{cq::Arming, wr};

use super::channel::Channel;
use super::completion::Completion;

/// Writes completions to a queue beside the workers of its device. Clones write to the same queue.
#[derive(Clone, Debug)]
pub struct CqWriter {
    producer: Arc<Mutex<Producer<wr::Completion>>>,
    arming: Arc<Arming>,
    channel: Arc<Channel>,
}

impl CqWriter {
    /// Makes the writer of a queue. `producer` is the ring that it alone writes to.
    pub(super) fn new(
        producer: Producer<wr::Completion>,
        arming: Arc<Arming>,
        channel: Arc<Channel>,
    ) -> Self {
        Self {
            producer: Arc::new(Mutex::new(producer)),
            arming,
            channel,
        }
    }

    /// Returns the ring, for another one to take its place.
    pub(super) fn lock(&self) -> MutexGuard<'_, Producer<wr::Completion>> {
        self.producer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a completion, and notifies the application if it has armed the queue for such a one.
    /// Returns false if the queue has no room.
    pub fn write(&self, completion: Completion) -> bool {
        let fits = self.lock().push(completion.0).is_ok();
        let is_solicited = completion.is_solicited() || !completion.is_success();
        if fits && self.arming.fire(is_solicited) {
            self.channel.notify();
        }
        fits
    }

    /// Returns whether the queue has room for one more completion.
    pub fn has_room(&self) -> bool {
        self.lock().free() > 0
    }

    /// Returns whether the application waits for a notification.
    pub fn is_armed(&self) -> bool {
        self.arming.is_armed()
    }
}
