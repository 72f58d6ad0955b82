//! A send queue that the application has stopped.

use super::Rdmap;

impl Rdmap {
    /// Begins no more work requests until it is to [go on](Self::go_on). With a number of the stop,
    /// [`take_drained`](Self::take_drained) tells when those that have begun are done.
    pub fn stop(&mut self, stop: Option<u32>) {
        self.requester.stop_beginning(stop);
    }

    /// Begins work requests again.
    pub fn go_on(&mut self) {
        self.requester.go_on();
    }

    /// Returns whether it was stopped, and it was not told yet that no request is unfinished.
    pub fn is_draining(&self) -> bool {
        self.requester.is_draining()
    }

    /// Returns the number of the stop, once, if all requests are done that had begun.
    pub fn take_drained(&mut self) -> Option<u32> {
        self.requester.take_drained()
    }
}
