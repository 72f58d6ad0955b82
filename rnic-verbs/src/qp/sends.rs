//! Which requests of a send queue are sent, and when.

use std::time::Duration;

use rnic_core::engine::Command;

use super::Qp;
use crate::error::Error;

impl Qp {
    /// Has what was posted be sent before what others send, as far as the connection has room for
    /// it now, and waits until that is done, at most for `timeout`. Allowed in every state. Fails
    /// only if the worker has ended.
    pub fn send_first(&self, timeout: Duration) -> Result<(), Error> {
        let qp = self.number;
        let send = |reply| Command::SendFirst { qp, reply };
        self.inner().ask(self.worker, timeout, send)?;
        Ok(())
    }

    /// Stops the send queue, as `ibv_modify_qp` does to `IBV_QPS_SQD`: requests that have begun are
    /// finished, and no other begins until [`resume_sends`](Self::resume_sends). Requests may be
    /// posted meanwhile. [`AsyncEvent::SqDrained`](crate::AsyncEvent::SqDrained) tells that the
    /// last of those that had begun is finished. Allowed in every state. Fails only if the worker
    /// has ended.
    pub fn stop_sends(&mut self) -> Result<(), Error> {
        let Some(stop) = self.inner().router.boxes().begin_draining(self.number) else {
            return Ok(());
        };
        let qp = self.number;
        let stop = |reply| Command::StopSends { qp, stop, reply };
        // What is posted from now on must not begin.
        self.inner().ask(self.worker, Duration::MAX, stop)?;
        Ok(())
    }

    /// Lets the requests of a send queue begin again that was [stopped](Self::stop_sends).
    pub fn resume_sends(&mut self) -> Result<(), Error> {
        self.inner().router.boxes().end_draining(self.number);
        self.command(Command::ResumeSends(self.number))
    }

    /// Returns whether the send queue is [stopped](Self::stop_sends), and requests that had begun
    /// are not finished.
    pub fn is_draining(&self) -> bool {
        let boxes = self.inner().router.boxes();
        let mailbox = boxes.qps.get(&self.number);
        mailbox.is_some_and(|mailbox| mailbox.is_draining)
    }
}
