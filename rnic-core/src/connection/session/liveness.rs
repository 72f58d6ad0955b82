//! Whether the peer is still there: each session has its own patience, and all sessions of an
//! association hear the peer by its packets.

use crate::connection::association::{Association, AssociationSocket};
use crate::connection::{Associations, Connection, Context};
use crate::tcp::{State, TcpFailure};
use crate::time::Instant;

use super::SctpSession;

impl<L> SctpSession<L> {
    /// Returns whether the peer owes an acknowledgment.
    pub(super) fn is_owed(&self) -> bool {
        self.session.acked() < self.session.submitted() || self.pending.is_some()
    }

    /// Returns when [`handle_liveness`](Self::handle_liveness) has something to do.
    pub(super) fn liveness_timeout(&self) -> Option<Instant> {
        let is_watched = !matches!(self.state, State::SynSent | State::Closed) && !self.is_gone;
        if !self.liveness.needs_timer() || !is_watched {
            return None;
        }
        // What is outstanding probes the peer by itself.
        let probes = !self.liveness.keepalive_due && !self.is_owed();
        let keepalive = self.liveness.keepalive_at().filter(|_| probes);
        Instant::earliest([self.liveness.user_timeout_at(), keepalive])
    }

    /// Fails behind the user timeout, or has the peer [checked](Connection::check_peer).
    pub(super) fn handle_liveness(&mut self, now: Instant) {
        if self.liveness_timeout().is_none_or(|at| at > now) {
            return;
        }
        if self.liveness.user_timeout_at().is_some_and(|at| at <= now) {
            self.fail(TcpFailure::TimedOut);
        } else {
            self.liveness.keepalive_due = true;
        }
    }
}

impl<L: Associations> Connection<SctpSession<L>> {
    /// Probes the peer if that is due, unless it was heard. Returns false if this session has
    /// found that nobody is there any more: then the association is not for others.
    pub(crate) fn check_peer(
        &mut self,
        association: &mut Association<L::Socket>,
        context: &mut Context<'_, '_>,
    ) -> bool {
        if std::mem::take(&mut self.tcp.is_patience_new) {
            association.outlast(self.tcp.seat.connection, self.tcp.liveness.user_timeout);
        }
        if std::mem::take(&mut self.tcp.liveness.keepalive_due) {
            self.tcp.probe(association, context.now);
            self.settle(context);
        }
        self.tcp.failure != Some(TcpFailure::TimedOut)
    }
}

impl<L: Associations> SctpSession<L> {
    fn probe(&mut self, association: &mut Association<L::Socket>, now: Instant) {
        let liveness = &mut self.liveness;
        let heard = association.socket.heard();
        if liveness.probes > 0 && heard != self.heard {
            liveness.on_segment(now);
        } else if liveness.probes == 0 && association.heard_at > liveness.last_received_at {
            liveness.on_segment(association.heard_at);
        } else if liveness.has_given_up(now) {
            self.fail(TcpFailure::TimedOut);
        } else {
            liveness.on_probe(now);
            self.heard = heard;
            self.counters.keepalives += 1;
            association.socket.probe();
        }
    }
}
