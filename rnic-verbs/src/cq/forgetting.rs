//! Completions of queue pairs that are gone.

use rnic_core::ids::QpNumber;

use super::{Completion, Cq, Lane};
use crate::error::Error;
use crate::ring::ring;

impl Cq {
    /// Removes the completions of a queue pair that was dropped, which wait to be polled. The
    /// others stay, in their order. A worker that has not yet heard of the end of the queue pair
    /// may still complete requests of it: when [`Device::barrier`](crate::Device::barrier) returns,
    /// all workers have. Fails, and removes nothing, if there is no memory for a copy of the
    /// others.
    pub fn forget(&mut self, qp: QpNumber) -> Result<(), Error> {
        self.lanes.iter_mut().try_for_each(|lane| lane.forget(qp))
    }
}

impl Lane {
    fn forget(&mut self, qp: QpNumber) -> Result<(), Error> {
        let held = self.held();
        if held == 0 {
            return Ok(());
        }
        // What is kept goes to a ring in front of the engine's.
        let capacity = u32::try_from(held).unwrap_or(u32::MAX);
        let (mut kept, consumer) = ring(capacity.next_power_of_two())?;
        let mut one = [Completion::default()];
        for _ in 0..held {
            if self.take(&mut one) == 1 && one[0].qp() != qp && kept.push(one[0].0).is_err() {
                debug_assert!(false, "as many fit as were held");
            }
        }
        self.newer
            .push_front(std::mem::replace(&mut self.ring, consumer));
        Ok(())
    }
}
