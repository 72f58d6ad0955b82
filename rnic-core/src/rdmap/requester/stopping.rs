//! A send queue that the application has stopped: requests that have begun go on to their end, and
//! others wait.

use super::Requester;

impl Requester {
    /// Begins no more requests. With a number of the stop, it is [told](Self::take_drained) when
    /// those that have begun are done.
    pub(in super::super) fn stop_beginning(&mut self, stop: Option<u32>) {
        let begun = self.first + self.requests.len() as u64;
        let limits = self.limits();
        limits.stopped.get_or_insert(begun);
        limits.draining = stop;
        self.update_end();
    }

    /// Begins requests again.
    pub(in super::super) fn go_on(&mut self) {
        let limits = self.limits();
        (limits.stopped, limits.draining) = (None, None);
        self.update_end();
    }

    /// Returns whether it is still to be told that requests which had begun are done.
    pub(in super::super) fn is_draining(&self) -> bool {
        let limits = self.limits.as_ref();
        limits.is_some_and(|limits| limits.draining.is_some())
    }

    /// Returns the number of the stop, once, if all requests are done that had begun.
    pub(in super::super) fn take_drained(&mut self) -> Option<u32> {
        let limits = self.limits.as_mut()?;
        match self.requests.is_empty() && self.reading.is_none() {
            true => limits.draining.take(),
            false => None,
        }
    }
}
