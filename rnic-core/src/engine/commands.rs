//! How the commands of the host are carried out.

use std::net::SocketAddr;

use crate::connection::{
    self, Connection, ConnectionOptions, Context, EndReason, Event, FlowKey, LocalEnd, Transport,
    Wants, without_scope,
};
use crate::ids::{ListenerId, QpNumber, RequestId};
use crate::memory::epoch::Guard;
use crate::time::Instant;
use crate::verbs::{
    WcStatus,
    cq::CqTable,
    qp::{QpState, QueuePair},
};

use super::Engine;
use super::carrier::Carrier;
use super::command::Command;
use super::listener::Listener;
use super::queue_pairs::EndLocation;

impl<T: Carrier> Engine<T> {
    /// Answers the commands that are answered at the end of a turn.
    #[inline]
    pub(super) fn answer(&mut self) {
        if !self.answers.is_empty() {
            self.answer_all();
        }
    }

    #[cold]
    fn answer_all(&mut self) {
        for reply in self.answers.drain(..) {
            // The host may have given up waiting.
            let _ = reply.send(());
        }
    }

    /// Carries out a command of the host.
    pub fn handle_command(&mut self, now: Instant, guard: &Guard<'_>, command: Command) {
        match command {
            Command::CreateCq {
                cq,
                producer,
                arming,
                notify,
            } => {
                // The host numbers its queues: one that uses a number twice harms only itself.
                let _ = self.cqs.add(cq, producer, notify, arming);
            }
            Command::ResizeCq {
                cq,
                producer,
                older,
                reply,
            } => {
                // The host may have given up waiting.
                let _ = reply.send(self.cqs.resize(cq, producer, older));
            }
            Command::DestroyCq(cq) => self.cqs.remove(cq),
            Command::CreateSrq { srq, ring, bell } => {
                // As for completion queues.
                let _ = self.srqs.add(srq, ring, bell);
            }
            Command::ReceivesPosted(srq) => self.serve_waiting(now, guard, srq),
            Command::SetRnrRetry { qp, rnr_retry } => self.set_rnr_retry(now, guard, qp, rnr_retry),
            Command::SendFirst { qp, reply } => {
                if let Some(index) = self.qps.connection_of(qp) {
                    self.schedule.put_first(index, &mut self.connections);
                }
                self.answers.push(reply);
            }
            Command::StopSends { qp, stop, reply } => {
                self.stop_sends(now, guard, qp, stop);
                // The host may have given up waiting.
                let _ = reply.send(());
            }
            Command::SetRemoteAccess {
                qp,
                remote_access,
                reply,
            } => {
                self.on_qp(now, guard, qp, |connection, _| {
                    connection.set_remote_access(remote_access);
                });
                // The host may have given up waiting.
                let _ = reply.send(());
            }
            Command::ResumeSends(qp) => self.resume_sends(now, guard, qp),
            Command::SetUserTimeout { qp, user_timeout } => {
                self.set_user_timeout(now, guard, qp, user_timeout);
            }
            Command::ArmSrq { srq, limit } => {
                let news = self.srqs.arm(srq, limit);
                self.events.extend(news.map(Event::SharedReceives));
                // What was denied to a stream may be allowed now.
                self.serve_waiting(now, guard, srq);
            }
            Command::DestroySrq(srq) => self.srqs.remove(srq),
            Command::CreateQp(qp) => self.qps.put(LocalEnd::Qp(qp)),
            Command::TakeQp { qp, reply } => {
                // The host may have given up waiting.
                let _ = reply.send(self.qps.take_idle_qp(qp));
            }
            Command::CreateEndpoint(endpoint) => self.qps.put(LocalEnd::Endpoint(endpoint)),
            Command::DestroyQp(qp) => self.destroy_qp(now, guard, qp),
            Command::Resolve { path, reply } => {
                // The host may have given up waiting.
                let _ = reply.send(T::resolves(self, now, path));
            }
            Command::Listen {
                listener,
                local,
                peers,
                reservation,
                refusals,
            } => {
                let new = Listener {
                    local: without_scope(local),
                    peers,
                    reservation,
                    refusals,
                    waiting: 0,
                };
                match T::listen(self, listener, &new.reservation) {
                    Ok(()) => drop(self.listeners.insert(listener, new)),
                    Err(reason) => {
                        let ended = Event::ListenerEnded { listener, reason };
                        self.events.push_back(ended);
                    }
                }
            }
            Command::Limit { listener, peers } => {
                if let Some(listener) = self.listeners.get_mut(&listener) {
                    listener.peers = peers;
                }
            }
            Command::Unlisten(listener) => {
                T::unlisten(self, listener);
                self.unlisten(now, guard, listener);
            }
            Command::Connect {
                qp,
                local,
                remote,
                options,
                reservation,
            } => {
                let key = FlowKey::new(local, remote);
                T::connect(self, now, guard, qp, key, options, reservation);
            }
            Command::Accept {
                request,
                qp,
                options,
            } => {
                self.accept(now, guard, request, qp, options);
            }
            Command::AcceptElsewhere {
                engine,
                request,
                qp,
                stream,
                options,
            } => self.accept_elsewhere(now, guard, engine, request, (qp, stream), options),
            Command::Adopt(adoption) => self.adopt(now, guard, *adoption),
            Command::Reject {
                request,
                private_data,
            } => self.reject(now, guard, request, &private_data),
            Command::Disconnect(qp) => {
                self.on_qp(now, guard, qp, Connection::disconnect);
                self.end_orphan(qp);
            }
            Command::Abort(qp) => {
                self.on_qp(now, guard, qp, Connection::abort);
                self.end_orphan(qp);
            }
            Command::Fail(qp) => self.fail(now, guard, qp, WcStatus::WrFlushed),
            Command::FailAs { qp, status } => self.fail(now, guard, qp, status),
            Command::Barrier(reply) => {
                // The host may have given up waiting.
                let _ = reply.send(());
            }
            Command::IsLeaving(reply) => {
                let mut all = self.connections.iter();
                // The host may have given up waiting.
                let _ = reply.send(all.any(|(_, connection)| connection.is_leaving()));
            }
            Command::Snapshot(reply) => {
                // The host may have given up waiting.
                let _ = reply.send(self.snapshot(now));
            }
        }
    }

    pub(super) fn accept(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        request: RequestId,
        number: QpNumber,
        options: ConnectionOptions,
    ) {
        let Some(&(index, _)) = self.requests.get(&request) else {
            let reason = EndReason::Reset;
            return self.events.push_back(Event::Failed { qp: number, reason });
        };
        let Some(end) = self.qps.take_idle(number) else {
            // The host has decided, so no other decision will come.
            self.reject(now, guard, request, &[]);
            let reason = EndReason::QpNotIdle;
            return self.events.push_back(Event::Failed { qp: number, reason });
        };
        self.take_request(request);
        let options = &self.permitted(options);
        *self.qps.place(number) = Some(EndLocation::Connected(index));
        T::accepted(self, now, index);
        self.with_connection(index, now, guard, |connection, context| {
            connection.accept(end, options, context);
        });
    }

    /// Ends all listeners and connections of a lease at once, because nothing can be sent from
    /// there any more.
    pub fn revoke(&mut self, now: Instant, guard: &Guard<'_>, lease: SocketAddr) {
        let reason = EndReason::Revoked { lease };
        let ended = self.listeners.extract_if(|_, ended| ended.local == lease);
        let ended: Vec<ListenerId> = ended.map(|(listener, _)| listener).collect();
        for listener in ended {
            T::unlisten(self, listener);
            let reason = reason.clone();
            let ended = Event::ListenerEnded { listener, reason };
            self.events.push_back(ended);
        }
        self.cut_off(now, guard, &reason, |local| {
            let any_address = lease.ip().is_unspecified() && lease.is_ipv4() == local.is_ipv4();
            lease.port() == local.port() && (any_address || lease.ip() == local.ip())
        });
    }
}

impl<T: Transport> Engine<T> {
    /// Records that a connection waits for the application's decision.
    pub(super) fn add_request(&mut self, request: RequestId, index: usize) {
        if let Some(id) = self.connections[index].listener() {
            self.requests.insert(request, (index, id));
            if let Some(listener) = self.listeners.get_mut(&id) {
                listener.waiting += 1;
            }
        }
    }

    /// Records, as [`add_request`](Self::add_request) does, that a connection waits for a decision,
    /// if the listener has room for one more. Otherwise turns the peer away. Then the event of its
    /// request, which was made in this turn, is withdrawn before the host reads it.
    pub(super) fn add_request_or_refuse(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        request: RequestId,
        index: usize,
    ) {
        let listener = self.connections[index].listener();
        if listener.is_some_and(|id| self.has_backlog_for(id)) {
            return self.add_request(request, index);
        }
        let (connection, mut context) = self.lend(index, now, guard);
        connection.turn_away(&mut context);
        self.counters.rdma.requests_refused += 1;
        self.events.push_back(Event::RequestGone { request });
    }

    /// Removes a request that waits no more. Returns its connection.
    pub(super) fn take_request(&mut self, request: RequestId) -> Option<usize> {
        let (index, id) = self.requests.remove(&request)?;
        // Connections of a listener that was closed are being ended.
        if let Some(listener) = self.listeners.get_mut(&id) {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
        Some(index)
    }

    fn on_qp(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        qp: QpNumber,
        run: impl FnOnce(&mut Connection<T>, &mut Context<'_, '_>),
    ) {
        if let Some(index) = self.qps.connection_of(qp) {
            self.with_connection(index, now, guard, run);
        }
    }

    /// Moves a queue pair to Error. One that is not connected ends, as the application sees it,
    /// like one that was. The oldest unfinished request completes with `status`.
    fn fail(&mut self, now: Instant, guard: &Guard<'_>, number: QpNumber, status: WcStatus) {
        self.on_qp(now, guard, number, |connection, context| {
            connection.fail_oldest(status);
            connection.abort(context);
        });
        let Self {
            qps, cqs, events, ..
        } = self;
        if let Some(EndLocation::Here(end)) = qps.place(number)
            && end.state() != QpState::Error
        {
            let reason = match end.state() {
                // The application gives up waiting for the peer that has left.
                QpState::Orphaned(departure) if status == WcStatus::RetryExceeded => {
                    departure.into()
                }
                _ => EndReason::Local,
            };
            end.fail(status, reason, cqs, events);
        }
    }

    /// Ends a queue pair that is orphaned, for the application.
    fn end_orphan(&mut self, number: QpNumber) {
        let Self {
            qps, cqs, events, ..
        } = self;
        if let Some(EndLocation::Here(end)) = qps.place(number)
            && matches!(end.state(), QpState::Orphaned(_))
        {
            end.fail(WcStatus::WrFlushed, EndReason::Local, cqs, events);
        }
    }

    fn destroy_qp(&mut self, now: Instant, guard: &Guard<'_>, qp: QpNumber) {
        let connection = self.qps.connection_of(qp);
        if let Some(EndLocation::Here(LocalEnd::Qp(mut qp))) = self.qps.place(qp).take()
            && matches!(qp.state, QpState::Orphaned(_))
            && qp.rq.is_shared()
        {
            // Receives that it had taken belong to the shared queue.
            connection::flush(&mut qp, &mut self.cqs);
        }
        // The host would take events that it has not yet read for those of the next queue pair with
        // this number.
        self.events.retain(|event| event.qp() != Some(qp));
        if let Some(index) = connection {
            self.with_connection(index, now, guard, Connection::abandon);
        }
        self.cqs.forget_backlog(qp);
    }

    fn unlisten(&mut self, now: Instant, guard: &Guard<'_>, listener: ListenerId) {
        self.listeners.remove(&listener);
        let of_listener: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.listener() == Some(listener))
            .map(|(index, _)| index)
            .collect();
        for index in of_listener {
            self.with_connection(index, now, guard, Connection::abort);
        }
    }

    /// Returns the options of an application as far as the administrator permits, and the device
    /// has them.
    // rfc: 5044-28b only the administrator can have a connection do without CRCs
    pub(super) fn permitted(&self, options: ConnectionOptions) -> ConnectionOptions {
        ConnectionOptions {
            crc: options.crc || self.config.needs_crcs,
            traffic_class: if self.config.marks {
                options.traffic_class
            } else {
                0
            },
            ..options
        }
    }

    pub(super) fn reject(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        request: RequestId,
        private_data: &[u8],
    ) {
        if let Some(index) = self.take_request(request) {
            self.with_connection(index, now, guard, |connection, context| {
                connection.reject(private_data, context);
            });
        }
    }

    /// Handles the doorbell of a queue pair, to which new requests were posted.
    #[inline]
    pub fn handle_doorbell(&mut self, now: Instant, guard: &Guard<'_>, number: u32) {
        let number = QpNumber(number);
        if self.counters.rdma.streams_parked_now > 0 && self.replay(now, guard, number) {
            return;
        }
        match self.qps.connection_of(number) {
            Some(index) => self.schedule(index, Wants::SEND),
            None => self.flush_unconnected(number),
        }
    }

    #[cold]
    pub(super) fn flush_unconnected(&mut self, number: QpNumber) {
        if let Some(EndLocation::Here(LocalEnd::Qp(qp))) = self.qps.place(number) {
            flush(qp, &mut self.cqs);
        }
    }

    /// Flushes what was posted to queue pairs that are over, now that completion queues have room
    /// again.
    pub(super) fn flush_queue_pairs(&mut self) {
        for place in self.qps.places.iter_mut().flatten() {
            if let EndLocation::Here(LocalEnd::Qp(qp)) = place {
                flush(qp, &mut self.cqs);
            }
        }
    }
}

/// Completes what was posted to a queue pair that is over. While completions wait for room, the
/// requests stay where they are: so the application cannot have more of them waiting than its
/// queues hold.
fn flush(qp: &mut QueuePair, cqs: &mut CqTable) {
    let has_room = !cqs.has_backlog(qp.send_cq) && !cqs.has_backlog(qp.recv_cq);
    if qp.state == QpState::Error && has_room {
        connection::flush(qp, cqs);
    }
}
