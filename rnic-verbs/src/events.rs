//! Delivery of the engine's events to mailboxes: those of queue pairs, and those of listeners for
//! connection requests.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rnic_core::connection::{EndReason, Event, Notice, ReadDepths};
use rnic_core::engine::{Events, WorkerGone};
use rnic_core::ids::{ListenerId, QpNumber, RequestId, StreamId};
use tracing::{debug, info, warn};

use crate::async_event::AsyncEvent;
use crate::error::Error;
use crate::objects::QpFacts;
use crate::state::{QpState, SharedState};

/// An established connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// The local address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// The private data of the peer's MPA Reply (empty on the accepting side, which has that of the
    /// request).
    pub private_data: Vec<u8>,
    /// The IRD of this side: Reads that it accepts at once.
    pub ird: u16,
    /// The ORD of this side: Reads that it may have outstanding.
    pub ord: u16,
    /// The read depths that the peer stated, which may differ from those agreed.
    pub peer_depths: Option<ReadDepths>,
}

/// What happened to the connection of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// The connection is established.
    Established(Established),
    /// The peer rejected the connection. The queue pair is idle again.
    Rejected {
        /// The private data of its MPA Reply.
        private_data: Vec<u8>,
        /// The read depths that it stated.
        peer_depths: Option<ReadDepths>,
    },
    /// Connecting failed. The queue pair is idle again.
    Failed(EndReason),
    /// The connection ended. [`EndReason`] includes a Terminate message that was sent or received.
    /// All requests complete.
    Disconnected(EndReason),
    /// The peer of a connection [with the semantics of RC](crate::ConnectionOptions::rc) has left
    /// it. The queue pair stays as it is: requests that are unfinished, and those that are posted
    /// from now on, wait until the application [fails](crate::Qp::fail_as) the queue pair, as an
    /// adapter does with [`RetryExceeded`](crate::WcStatus::RetryExceeded) after some time. Then it
    /// is `Disconnected`.
    PeerLeft(EndReason),
}

/// A connection request that waits to be accepted or rejected.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) request: RequestId,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) private_data: Vec<u8>,
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    pub(crate) mpa_revision: u8,
    /// Nothing unprotected passes the listener's port.
    pub(crate) is_protected: bool,
}

/// What has come to a listener.
#[derive(Debug, Default)]
pub(crate) struct ListenerBox {
    pub(crate) requests: VecDeque<Pending>,
    /// Nothing unprotected passes its port.
    pub(crate) is_protected: bool,
    /// Why no more come.
    pub(crate) ended: Option<EndReason>,
}

/// The ends of a connection, and what was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The local address.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// IRD and ORD, once it is established.
    pub depths: Option<(u16, u16)>,
}

#[derive(Debug)]
pub(crate) struct QpBox {
    stream: StreamId,
    /// What it was made of, for an administrator.
    pub(crate) made_of: Arc<QpFacts>,
    /// Its connection, or the last one.
    pub(crate) ends: Option<Ends>,
    pub(crate) events: VecDeque<ConnectionEvent>,
    /// Its connection has the semantics of RC.
    pub(crate) rc: bool,
    /// The peer has left, with the semantics of RC.
    pub(crate) peer_left: bool,
    /// How often its send queue was stopped, and whether the engine has yet to say that it has
    /// drained.
    stops: u32,
    pub(crate) is_draining: bool,
    pub(crate) state: SharedState,
}

impl QpBox {
    pub(crate) fn new(stream: StreamId, state: SharedState, made_of: QpFacts) -> Self {
        Self {
            stream,
            made_of: Arc::new(made_of),
            ends: None,
            events: VecDeque::new(),
            rc: false,
            peer_left: false,
            stops: 0,
            is_draining: false,
            state,
        }
    }

    /// Removes and returns the next event. An empty mailbox uses no memory: nearly all are empty.
    pub(crate) fn next_event(&mut self) -> Option<ConnectionEvent> {
        let event = self.events.pop_front();
        if self.events.is_empty() {
            self.events = VecDeque::new();
        }
        event
    }
}

/// Mailboxes of all objects.
#[derive(Debug, Default)]
pub(crate) struct Boxes {
    pub(crate) qps: HashMap<QpNumber, QpBox>,
    pub(crate) listeners: HashMap<ListenerId, ListenerBox>,
    /// Asynchronous events, if there is a reader.
    asynchronous: Option<VecDeque<AsyncEvent>>,
    /// The queue pairs that got connection events, in the order of these, if one reader takes them
    /// for all.
    eventful: Option<VecDeque<QpNumber>>,
    /// A thread, the pump, waits for events on behalf of all.
    pumping: bool,
    /// A worker has ended.
    worker_gone: bool,
    /// Workers that have found the network device gone. That was their last event.
    without_device: usize,
}

impl Boxes {
    /// Puts an event into the mailbox of its object. An event for an object that is gone is
    /// dropped. A request for a listener that is gone was dropped by the engine too.
    fn deliver(&mut self, Notice { stream, event }: Notice) {
        let known = |qp: QpNumber| {
            let mailbox = self.qps.get(&qp);
            mailbox.is_some_and(|mailbox| stream == Some(mailbox.stream))
        };
        if !event.qp().is_none_or(known) {
            return;
        }
        log(&event);
        match event {
            Event::ConnectRequest {
                listener,
                request,
                peer,
                local,
                private_data,
                ird,
                ord,
                mpa_revision,
            } => {
                let Some(mailbox) = self.listeners.get_mut(&listener) else {
                    return;
                };
                mailbox.requests.push_back(Pending {
                    request,
                    peer,
                    local,
                    private_data,
                    ird,
                    ord,
                    mpa_revision,
                    is_protected: mailbox.is_protected,
                });
            }
            Event::RequestGone { request } => {
                for mailbox in self.listeners.values_mut() {
                    mailbox.requests.retain(|pending| {
                        let is_gone = pending.request == request;
                        if is_gone {
                            debug!(
                                "{} has gone before its connection request was answered",
                                pending.peer
                            );
                        }
                        !is_gone
                    });
                }
            }
            Event::Established {
                qp,
                local,
                peer,
                private_data,
                ird,
                ord,
                peer_depths,
            } => {
                let established = Established {
                    local,
                    peer,
                    private_data,
                    ird,
                    ord,
                    peer_depths,
                };
                self.deliver_to(qp, ConnectionEvent::Established(established));
            }
            Event::Rejected {
                qp,
                private_data,
                peer_depths,
            } => {
                let rejected = ConnectionEvent::Rejected {
                    private_data,
                    peer_depths,
                };
                self.deliver_to(qp, rejected);
            }
            Event::Failed { qp, reason } => self.deliver_to(qp, ConnectionEvent::Failed(reason)),
            Event::Disconnected { qp, reason } => {
                // RC has no event for a peer that leaves: the next request tells.
                let mailbox = self.qps.get(&qp);
                let left = mailbox.is_some_and(|mailbox| mailbox.peer_left);
                let rc = mailbox.is_some_and(|mailbox| mailbox.rc);
                if let Some(event) = AsyncEvent::of_end(qp, &reason, rc).filter(|_| !left) {
                    self.tell(event);
                }
                self.deliver_to(qp, ConnectionEvent::Disconnected(reason));
            }
            Event::PeerLeft { qp, reason } => {
                if let Some(mailbox) = self.qps.get_mut(&qp) {
                    mailbox.peer_left = true;
                }
                self.deliver_to(qp, ConnectionEvent::PeerLeft(reason));
            }
            Event::SendsDrained { qp, stop } => {
                // The application may have let it go on, and stopped it again.
                let is_now = |mailbox: &&mut QpBox| mailbox.is_draining && mailbox.stops == stop;
                if let Some(mailbox) = self.qps.get_mut(&qp).filter(is_now) {
                    mailbox.is_draining = false;
                    self.tell(AsyncEvent::SqDrained { qp });
                }
            }
            Event::LastReceive { qp } => self.tell(AsyncEvent::QpLastWqeReached { qp }),
            Event::Port { active: true } => self.tell(AsyncEvent::PortActive),
            Event::Port { active: false } => self.tell(AsyncEvent::PortError),
            Event::SharedReceives(event) => self.tell(event.into()),
            Event::ListenerEnded { listener, reason } => {
                if let Some(mailbox) = self.listeners.get_mut(&listener) {
                    mailbox.ended = Some(reason);
                }
            }
            Event::WorkerEnded => self.worker_gone = true,
            Event::DeviceGone => self.without_device += 1,
            Event::CompletionOverrun { cq, qp } => self.tell(AsyncEvent::CqError { cq, qp }),
        }
    }

    /// Notes that a send queue is being stopped. Returns the number of the stop.
    pub(crate) fn begin_draining(&mut self, qp: QpNumber) -> Option<u32> {
        let mailbox = self.qps.get_mut(&qp)?;
        mailbox.stops = mailbox.stops.wrapping_add(1);
        mailbox.is_draining = true;
        Some(mailbox.stops)
    }

    /// Notes that a send queue goes on.
    pub(crate) fn end_draining(&mut self, qp: QpNumber) {
        if let Some(mailbox) = self.qps.get_mut(&qp) {
            mailbox.is_draining = false;
        }
    }

    fn tell(&mut self, event: AsyncEvent) {
        let Some(events) = &mut self.asynchronous else {
            return;
        };
        // A link that goes up and down must not fill the memory.
        if event.is_port() && events.iter().filter(|event| event.is_port()).count() > 1 {
            events.retain(|event| !event.is_port());
        }
        events.push_back(event);
    }

    /// Removes the mailbox of a queue pair with all unread events, so that peers that come and go
    /// do not fill the memory.
    pub(crate) fn remove_qp(&mut self, qp: QpNumber) {
        self.qps.remove(&qp);
        if let Some(events) = &mut self.asynchronous {
            events.retain(|event| event.qp() != Some(qp));
        }
    }

    /// Begins to keep asynchronous events. Returns false if they have a reader already.
    pub(crate) fn begin_gathering(&mut self) -> bool {
        let free = self.asynchronous.is_none();
        self.asynchronous.get_or_insert_default();
        free
    }

    /// Stops keeping asynchronous events.
    pub(crate) fn end_gathering(&mut self) {
        self.asynchronous = None;
    }

    /// Begins to note which queue pairs get connection events. Returns false if somebody reads them
    /// for all already.
    pub(crate) fn begin_noting(&mut self) -> bool {
        let free = self.eventful.is_none();
        self.eventful.get_or_insert_default();
        free
    }

    /// Stops noting them.
    pub(crate) fn end_noting(&mut self) {
        self.eventful = None;
    }

    /// Removes and returns the oldest connection event of those that were noted, and are still
    /// there.
    pub(crate) fn next_connection_event(&mut self) -> Option<(QpNumber, ConnectionEvent)> {
        loop {
            let qp = self.eventful.as_mut()?.pop_front()?;
            let event = self.qps.get_mut(&qp).and_then(QpBox::next_event);
            if let Some(event) = event {
                return Some((qp, event));
            }
        }
    }

    /// Fails if a worker has ended, or if each of `workers` has found the network device gone.
    pub(crate) fn check_alive(&self, workers: usize) -> Result<(), Error> {
        if self.worker_gone {
            return Err(WorkerGone.into());
        }
        if self.without_device >= workers {
            return Err(Error::DeviceGone);
        }
        Ok(())
    }

    pub(crate) fn next_async_event(&mut self) -> Option<AsyncEvent> {
        self.asynchronous.as_mut()?.pop_front()
    }

    fn deliver_to(&mut self, qp: QpNumber, event: ConnectionEvent) {
        if let Some(mailbox) = self.qps.get_mut(&qp) {
            match &event {
                ConnectionEvent::Established(established) => {
                    mailbox.ends = Some(Ends {
                        local: established.local,
                        remote: established.peer,
                        depths: Some((established.ird, established.ord)),
                    });
                }
                ConnectionEvent::Rejected { .. } | ConnectionEvent::Failed(_) => {
                    mailbox.ends = None;
                }
                ConnectionEvent::Disconnected(_) | ConnectionEvent::PeerLeft(_) => {}
            }
            mailbox.state.set(match &event {
                ConnectionEvent::PeerLeft(_) => mailbox.state.get(),
                ConnectionEvent::Established(_) => QpState::Rts,
                ConnectionEvent::Rejected { .. } | ConnectionEvent::Failed(_) => QpState::Init,
                ConnectionEvent::Disconnected(
                    EndReason::TerminateSent { .. } | EndReason::TerminateReceived { .. },
                ) => QpState::Terminate,
                ConnectionEvent::Disconnected(_) => QpState::Error,
            });
            mailbox.events.push_back(event);
            if let Some(eventful) = &mut self.eventful {
                eventful.push_back(qp);
            }
        }
    }
}

/// Writes an event to the log.
fn log(event: &Event) {
    match event {
        Event::ConnectRequest {
            peer,
            local,
            private_data,
            ird,
            ord,
            mpa_revision,
            ..
        } => debug!(
            "{peer} asks to connect to {local}: MPA revision {mpa_revision}, IRD {ird}, ORD {ord}, {} octets of private data",
            private_data.len()
        ),
        // Logged where the mailbox names its peer.
        Event::RequestGone { .. } => {}
        Event::Established {
            qp,
            local,
            peer,
            ird,
            ord,
            ..
        } => debug!("{qp}: connection from {local} to {peer} is established, IRD {ird}, ORD {ord}"),
        Event::Rejected {
            qp, private_data, ..
        } => debug!(
            "{qp}: the peer rejects the connection with an MPA Reply ({} octets of private data)",
            private_data.len()
        ),
        Event::Failed { qp, reason } => debug!("{qp}: connecting failed: {reason}"),
        Event::Disconnected { qp, reason } => debug!("{qp}: connection ended: {reason}"),
        Event::PeerLeft { qp, reason } => debug!("{qp}: the peer has left: {reason}"),
        Event::SendsDrained { qp, .. } => debug!("{qp}: its send queue has drained"),
        Event::LastReceive { qp } => {
            debug!("{qp}: the last receive that it took from its shared receive queue is complete");
        }
        Event::CompletionOverrun { cq, qp } => {
            warn!("{qp}: its connection ends because {cq} is full");
        }
        Event::SharedReceives(event) => debug!("{}", AsyncEvent::from(*event)),
        Event::Port { active: true } => info!("the device has its link again"),
        Event::Port { active: false } => warn!("the device has lost its link"),
        Event::ListenerEnded { reason, .. } => warn!("a listener has ended: {reason}"),
        Event::DeviceGone => warn!("{}", EndReason::DeviceGone),
        Event::WorkerEnded => warn!("a worker of the device has ended"),
    }
}

/// Brings events to the mailboxes. It reads events only under the lock of the mailboxes, so that
/// they arrive in order.
#[derive(Debug)]
pub(crate) struct Router {
    events: Arc<Events>,
    boxes: Mutex<Boxes>,
    /// Wakes the threads that wait while another one is the pump.
    changed: Condvar,
}

impl Router {
    pub(crate) fn new(events: Arc<Events>) -> Self {
        Self {
            events,
            boxes: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Locks the mailboxes, after delivering all events that have arrived.
    pub(crate) fn boxes(&self) -> MutexGuard<'_, Boxes> {
        let mut boxes = self.lock();
        let mut delivered = false;
        while let Some(notice) = self.events.next() {
            boxes.deliver(notice);
            delivered = true;
        }
        if delivered {
            self.changed.notify_all();
            if boxes.pumping {
                // This thread has read the events that would have woken the pump.
                self.events.nudge();
            }
        }
        boxes
    }

    /// Returns whether events have arrived that are not delivered yet.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Blocks until there may be events, or `left` has passed. One thread, the pump, waits for the
    /// engine's events. The others wait until it, or any thread that looks at the mailboxes,
    /// delivers some.
    pub(crate) fn block(&self, mut boxes: MutexGuard<'_, Boxes>, left: Duration) {
        if boxes.pumping {
            drop(
                self.changed
                    .wait_timeout(boxes, left)
                    .unwrap_or_else(PoisonError::into_inner),
            );
            return;
        }
        boxes.pumping = true;
        // From here on a thread that delivers nudges the pump. An earlier nudge is obsolete.
        self.events.forget_nudge();
        drop(boxes);
        self.events.wait(left);
        self.lock().pumping = false;
        // Another thread becomes the pump.
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Boxes> {
        // Consistent after every statement.
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
