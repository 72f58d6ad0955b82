//! Posting to the send queue and the receive queue.

use rnic_core::verbs::wr::SendWr;

use super::{Qp, Receives};
use crate::address::Sge;
use crate::error::{PostError, PostSendsError};
use crate::request::{SendRequest, receive};
use crate::state::QpState;

impl Qp {
    /// Posts a request to the send queue. Once the queue pair connects or accepts, requests wait
    /// until they may be sent. Before that it fails, unless the request sends nothing: such a
    /// request waits, because the peer's first message may need the window that it binds. If
    /// connecting fails, what waits goes on to wait: for the next attempt, or for
    /// [`fail`](Self::fail), which completes it flushed. After the connection has ended, the
    /// request completes with [`WrFlushed`](crate::WcStatus::WrFlushed). The memory that it names
    /// must not change until it completes.
    #[inline]
    pub fn post_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.push_send(request)?;
        self.ring();
        Ok(())
    }

    /// Posts several requests with one doorbell, like a list given to `ibv_post_send`. With short
    /// requests the doorbell is much of the cost. The engine may see none of them before the
    /// iterator has ended.
    ///
    /// # Errors
    /// The requests before the one that is refused are posted, those after it are not.
    #[inline]
    pub fn post_sends<'a>(
        &mut self,
        requests: impl IntoIterator<Item = SendRequest<'a>>,
    ) -> Result<(), PostSendsError> {
        let mut posted = 0;
        let mut refused = None;
        for request in requests {
            if let Err(error) = self.push_send(&request) {
                refused = Some(PostSendsError { posted, error });
                break;
            }
            posted += 1;
        }
        if posted > 0 {
            self.ring();
        }
        refused.map_or(Ok(()), Err)
    }

    #[inline]
    fn push_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let Some((front, payload)) = request.plain(self.caps.max_sge, self.caps.max_inline) else {
            return self.push_other(request);
        };
        if !self.takes_sends {
            self.check_connected()?;
        }
        self.push_plain(&front, payload)
    }

    #[inline]
    pub(super) fn push_plain(&mut self, front: &SendWr, payload: &[u8]) -> Result<(), PostError> {
        self.sq
            .push_octets(front, SendWr::FRONT_WORDS, payload)
            .map_err(|_| PostError::SendQueueFull(self.sq.capacity()))
    }

    /// Pushes a request that is not [plain](SendRequest::plain).
    #[inline(never)]
    fn push_other(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let wr = request.encode(self.caps.max_sge, self.caps.max_inline)?;
        if !self.takes_sends && !request.is_local() {
            self.check_connected()?;
        }
        self.push_encoded(&wr)
    }

    pub(super) fn push_encoded(&mut self, wr: &SendWr) -> Result<(), PostError> {
        self.sq
            .push_front(wr, wr.words())
            .map_err(|_| PostError::SendQueueFull(self.sq.capacity()))
    }

    /// Decides whether requests may be posted, whatever becomes of the connection: for an
    /// application that has states of its own, as a queue pair of InfiniBand. While the send queue
    /// is open, what is posted waits for the connection, before an attempt to connect and between
    /// two of them as well. While it is not, posting fails with [`PostError::NotConnected`], except
    /// for requests that send nothing.
    pub fn open_sends(&mut self, open: bool) {
        (self.takes_sends, self.is_gated) = (open, true);
    }

    /// Fails unless it connects or was connected, which the application may not have read yet.
    #[cold]
    pub(super) fn check_connected(&mut self) -> Result<(), PostError> {
        match self.state() {
            state if self.is_gated => Err(PostError::NotConnected(state)),
            QpState::Init => Err(PostError::NotConnected(QpState::Init)),
            QpState::Connecting => Ok(()),
            _ => {
                self.takes_sends = true;
                Ok(())
            }
        }
    }

    /// Rings the doorbell: the engine looks at the queues.
    #[inline]
    pub(super) fn ring(&self) {
        self.inner().ring(self.worker, self.number);
    }

    /// Posts a buffer for one message to the receive queue. Every Send of the peer needs one.
    /// Allowed in every state: before the connection is established it waits for a message, after
    /// it has ended it completes flushed. Fails if the queue is full, if there are more pieces than
    /// `max_sge`, or if the queue pair has a shared receive queue.
    pub fn post_recv(&mut self, wr_id: u64, pieces: &[Sge]) -> Result<(), PostError> {
        let wr = receive(wr_id, pieces, self.caps.max_sge)?;
        let Receives::Own(rq) = &mut self.rq else {
            return Err(PostError::SharedQueue);
        };
        rq.push_front(&wr, wr.words())
            .map_err(|_| PostError::ReceiveQueueFull(rq.capacity()))?;
        // In state Error the engine flushes it when it sees it.
        self.ring();
        Ok(())
    }

    /// Returns how many requests fit the send queue now.
    pub fn send_room(&self) -> u32 {
        self.sq.free()
    }
}
