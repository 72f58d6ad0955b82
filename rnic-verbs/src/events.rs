//! Sorting the engine's events: to queue pairs, and connection requests to listeners.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rnic_core::connection::{EndReason, Event, Notice, ReadDepths};
use rnic_core::engine::{Events, WorkerGone};
use rnic_core::ids::{ListenerId, RequestId};
use rnic_core::verbs::qp::{QpNumber, StreamId};
use tracing::{debug, info, warn};

use crate::asynchronous::AsyncEvent;
use crate::device::{Inner, LONGEST_WAIT};
use crate::error::Error;
use crate::state::{QpState, SharedState};

/// A connection that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// The local address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// What the peer handed over in its reply (empty on the accepting side, which saw it in the request).
    pub private_data: Vec<u8>,
    /// Reads that this side accepts at once.
    pub ird: u16,
    /// Reads that this side may have outstanding.
    pub ord: u16,
    /// What the peer stated, whatever came of it.
    pub peer_depths: Option<ReadDepths>,
}

/// What happened to the connection of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// It stands.
    Established(Established),
    /// The peer declined. The queue pair is idle again.
    Rejected {
        /// What the peer had to say.
        private_data: Vec<u8>,
        /// The read depths that it stated.
        peer_depths: Option<ReadDepths>,
    },
    /// It did not come to be. The queue pair is idle again.
    Failed(EndReason),
    /// It ended; [`EndReason`] tells of a Terminate message sent or received. All requests complete.
    Disconnected(EndReason),
}

/// A request that waits to be answered.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) request: RequestId,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) private_data: Vec<u8>,
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    pub(crate) mpa_revision: u8,
}

#[derive(Debug)]
pub(crate) struct QpBox {
    stream: StreamId,
    pub(crate) events: VecDeque<ConnectionEvent>,
    pub(crate) state: SharedState,
}

impl QpBox {
    pub(crate) fn new(stream: StreamId, state: SharedState) -> Self {
        Self {
            stream,
            events: VecDeque::new(),
            state,
        }
    }

    /// The next event. A mailbox that is empty, as nearly all are, takes no memory.
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
    pub(crate) listeners: HashMap<ListenerId, VecDeque<Pending>>,
    /// Asynchronous events, if anybody wants them.
    asynchronous: Option<VecDeque<AsyncEvent>>,
    /// Some thread waits for events, on everybody's behalf.
    pumping: bool,
    /// A worker has ended.
    worker_gone: bool,
    /// Workers that have found the network device gone, with no event of theirs left in the channel but that.
    without_device: usize,
}

impl Boxes {
    /// Puts an event where it belongs. One for an object that is gone is dropped; a request that came for a
    /// listener that is gone was dropped by the engine too.
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
                let Some(queue) = self.listeners.get_mut(&listener) else {
                    return;
                };
                queue.push_back(Pending {
                    request,
                    peer,
                    local,
                    private_data,
                    ird,
                    ord,
                    mpa_revision,
                });
            }
            Event::RequestGone { request } => {
                for queue in self.listeners.values_mut() {
                    queue.retain(|pending| {
                        let is_gone = pending.request == request;
                        if is_gone {
                            debug!("{} has gone before it was answered", pending.peer);
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
                if let Some(event) = AsyncEvent::of_end(qp, &reason) {
                    self.tell(event);
                }
                self.deliver_to(qp, ConnectionEvent::Disconnected(reason));
            }
            Event::LastReceive { qp } => self.tell(AsyncEvent::QpLastWqeReached { qp }),
            Event::Port { active: true } => self.tell(AsyncEvent::PortActive),
            Event::Port { active: false } => self.tell(AsyncEvent::PortError),
            Event::SharedReceives(news) => self.tell(news.into()),
            Event::WorkerEnded => self.worker_gone = true,
            Event::DeviceGone => self.without_device += 1,
            Event::CompletionOverrun { cq, qp } => self.tell(AsyncEvent::CqError { cq, qp }),
        }
    }

    fn tell(&mut self, event: AsyncEvent) {
        let Some(events) = &mut self.asynchronous else {
            return;
        };
        // A link that comes and goes takes no more room with time.
        if event.is_port() && events.iter().filter(|event| event.is_port()).count() > 1 {
            events.retain(|event| !event.is_port());
        }
        events.push_back(event);
    }

    /// Takes the mailbox of a queue pair away, and what nobody has read of it: peers that come and go take no more room with
    /// time.
    pub(crate) fn remove_qp(&mut self, qp: QpNumber) {
        self.qps.remove(&qp);
        if let Some(events) = &mut self.asynchronous {
            events.retain(|event| event.qp() != Some(qp));
        }
    }

    /// Somebody wants asynchronous events from now on. Says no if somebody else does.
    pub(crate) fn begin_gathering(&mut self) -> bool {
        let free = self.asynchronous.is_none();
        self.asynchronous.get_or_insert_default();
        free
    }

    /// Nobody wants them any more.
    pub(crate) fn end_gathering(&mut self) {
        self.asynchronous = None;
    }

    pub(crate) fn next_async_event(&mut self) -> Option<AsyncEvent> {
        self.asynchronous.as_mut()?.pop_front()
    }

    fn deliver_to(&mut self, qp: QpNumber, event: ConnectionEvent) {
        if let Some(mailbox) = self.qps.get_mut(&qp) {
            mailbox.state.set(match &event {
                ConnectionEvent::Established(_) => QpState::Rts,
                ConnectionEvent::Rejected { .. } | ConnectionEvent::Failed(_) => QpState::Init,
                ConnectionEvent::Disconnected(
                    EndReason::TerminateSent { .. } | EndReason::TerminateReceived { .. },
                ) => QpState::Terminate,
                ConnectionEvent::Disconnected(_) => QpState::Error,
            });
            mailbox.events.push_back(event);
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
        // Its mailbox knows whose it was.
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
        Event::LastReceive { qp } => {
            debug!("{qp}: the last receive that it took from its shared receive queue is complete");
        }
        Event::CompletionOverrun { cq, qp } => {
            warn!("{qp}: its connection ends because {cq} is full");
        }
        Event::SharedReceives(news) => debug!("{}", AsyncEvent::from(*news)),
        Event::Port { active: true } => info!("the device has its link again"),
        Event::Port { active: false } => warn!("the device has lost its link"),
        Event::DeviceGone => warn!("{}", EndReason::DeviceGone),
        Event::WorkerEnded => warn!("a worker of the device has ended"),
    }
}

/// The unread events and the mailboxes. Events are read only under the lock of the mailboxes, so that they reach these in
/// order.
#[derive(Debug)]
pub(crate) struct Router {
    events: Arc<Events>,
    boxes: Mutex<Boxes>,
    /// For those who wait while another thread pumps.
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

    /// The mailboxes, with everything that has arrived.
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
                // Nothing may be left unread to wake it.
                self.events.nudge();
            }
        }
        boxes
    }

    /// Waits until `take` finds something. `None` after `timeout`.
    pub(crate) fn wait<T>(
        &self,
        device: &Inner,
        timeout: Duration,
        mut take: impl FnMut(&mut Boxes) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        // A wait of centuries is one without end.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let mut boxes = self.boxes();
            if let Some(found) = take(&mut boxes) {
                return Ok(Some(found));
            }
            if boxes.worker_gone {
                return Err(WorkerGone.into());
            }
            if boxes.without_device >= device.workers() {
                return Err(Error::DeviceGone);
            }
            let now = Instant::now();
            let left = deadline.map_or(LONGEST_WAIT, |at| at.saturating_duration_since(now));
            if device.is_inline() {
                drop(boxes);
                let did = device.drive()?;
                if self.events.is_empty() {
                    if left.is_zero() {
                        return Ok(None);
                    }
                    if !did {
                        device.idle(left);
                    }
                }
            } else if left.is_zero() {
                return Ok(None);
            } else {
                self.block(boxes, left);
            }
        }
    }

    /// Blocks until there may be news, or `left` has passed. One thread, the pump, waits for events, the others for what
    /// the pump or a passer-by delivers.
    fn block(&self, mut boxes: MutexGuard<'_, Boxes>, left: Duration) {
        if boxes.pumping {
            drop(
                self.changed
                    .wait_timeout(boxes, left)
                    .unwrap_or_else(PoisonError::into_inner),
            );
            return;
        }
        boxes.pumping = true;
        // From here on whoever delivers nudges; what came before concerns nobody any more.
        self.events.forget_nudge();
        drop(boxes);
        self.events.wait(left);
        self.lock().pumping = false;
        // One of the others takes over.
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Boxes> {
        // Whole after every statement.
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
