//! Receiver not ready (RNR), on a connection with the semantics of RC: when parked messages are
//! received, and what becomes of them when the peer leaves.

use std::time::Duration;

use super::{Connection, Context, EndReason, Phase, Transport};

impl<T: Transport> Connection<T> {
    /// Receives what is parked, now that receives were posted to the queue pair, or are shared with
    /// it: in the latter case at most `most` messages that take one. Returns whether there was any.
    pub(crate) fn replay(&mut self, most: usize, context: &mut Context<'_, '_>) -> bool {
        let Phase::Streaming(stream) = &mut self.phase else {
            return false;
        };
        if !stream.is_parked() {
            return false;
        }
        let any = stream.replay(most, context);
        self.update_buffered(context);
        // The end of the connection may have waited for this.
        self.settle(context);
        any
    }

    /// Receives what is parked, because a shared receive is there for it. It no longer waits.
    pub(crate) fn replay_one(&mut self, context: &mut Context<'_, '_>) -> bool {
        if let Phase::Streaming(stream) = &mut self.phase {
            stream.called();
        }
        self.replay(1, context)
    }

    /// Returns whether requests of the peer are parked.
    pub(crate) fn is_parked(&self) -> bool {
        matches!(&self.phase, Phase::Streaming(stream) if stream.is_parked())
    }

    /// Returns whether its receives come from a shared queue.
    pub(crate) fn shares_receives(&self) -> bool {
        matches!(&self.phase, Phase::Streaming(stream) if stream.user.shares_receives())
    }

    /// Returns whether the stream goes on without TCP, because messages are parked: to the peer's
    /// program they are sent, so they are delivered when receives are posted. It does not go on if
    /// the application ends it.
    pub(super) fn outlives_tcp(&self) -> bool {
        match &self.phase {
            Phase::Streaming(stream) => stream.is_parked() && !stream.is_closing(),
            _ => false,
        }
    }

    /// Tells the application that the peer has left, as soon as requests wait for it. Without any,
    /// that is told behind the messages that are parked.
    pub(super) fn tell_departure(&mut self, reason: &EndReason, context: &mut Context<'_, '_>) {
        if let Phase::Streaming(stream) = &mut self.phase
            && stream.user.has_requests()
        {
            stream.tell_departure(reason, context);
        }
    }

    /// Returns whether the peer has told that it has no receives. It may keep its window closed.
    pub(super) fn is_peer_not_ready(&self) -> bool {
        matches!(&self.phase, Phase::Streaming(stream) if stream.is_peer_not_ready())
    }

    /// Sets how long the peer may leave what it is owed without acknowledgment.
    pub(crate) fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.tcp.set_user_timeout(timeout);
    }

    /// Sets how long requests wait for a peer without receives.
    pub(crate) fn set_rnr_retry(&mut self, rnr_retry: u8, context: &mut Context<'_, '_>) {
        match &mut self.phase {
            Phase::Streaming(stream) => stream.set_rnr_retry(rnr_retry, context.now),
            Phase::Connecting(connecting) => connecting.end.set_rnr_retry(rnr_retry),
            Phase::Responding { .. } | Phase::Waiting { .. } | Phase::Closing => {}
        }
    }
}
