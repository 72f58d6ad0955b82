//! Sorting the engine's events: to queue pairs, and connection requests to listeners.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use rnic_core::engine::{EndReason, Event, ListenerId, RequestId, WorkerGone};
use rnic_core::verbs::qp::QpNumber;

use crate::device::Inner;
use crate::error::Error;

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
}

/// What happened to the connection of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// It stands.
    Established(Established),
    /// The peer declined, and said this. The queue pair is idle again.
    Rejected(Vec<u8>),
    /// It did not come to be. The queue pair is idle again.
    Failed(EndReason),
    /// It ended; [`EndReason`] tells of a Terminate message sent or received. All requests complete.
    Disconnected(EndReason),
}

/// Where the connection of a queue pair stands, as far as events told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QpState {
    /// Not connected. Requests may be posted, and wait.
    #[default]
    Idle,
    /// Connecting or accepting.
    Connecting,
    /// Connected.
    Connected,
    /// Over. Requests complete flushed.
    Error,
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

#[derive(Debug, Default)]
pub(crate) struct QpBox {
    pub(crate) events: VecDeque<ConnectionEvent>,
    pub(crate) state: QpState,
}

/// Mailboxes of all objects.
#[derive(Debug, Default)]
pub(crate) struct Boxes {
    pub(crate) qps: HashMap<QpNumber, QpBox>,
    pub(crate) listeners: HashMap<ListenerId, VecDeque<Pending>>,
    /// Some thread blocks on the channel, on everybody's behalf.
    pumping: bool,
}

impl Boxes {
    /// Puts an event where it belongs. One for an object that is gone is dropped; a request that came for a
    /// listener that is gone was dropped by the engine too.
    fn deliver(&mut self, event: Event) {
        let (qp, event, state) = match event {
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
                if let Some(queue) = self.listeners.get_mut(&listener) {
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
                return;
            }
            Event::RequestGone { request } => {
                for queue in self.listeners.values_mut() {
                    queue.retain(|pending| pending.request != request);
                }
                return;
            }
            Event::Established {
                qp,
                local,
                peer,
                private_data,
                ird,
                ord,
            } => {
                let established = Established {
                    local,
                    peer,
                    private_data,
                    ird,
                    ord,
                };
                (
                    qp,
                    ConnectionEvent::Established(established),
                    QpState::Connected,
                )
            }
            Event::Rejected { qp, private_data } => {
                (qp, ConnectionEvent::Rejected(private_data), QpState::Idle)
            }
            Event::Failed { qp, reason } => (qp, ConnectionEvent::Failed(reason), QpState::Idle),
            Event::Disconnected { qp, reason } => {
                (qp, ConnectionEvent::Disconnected(reason), QpState::Error)
            }
        };
        if let Some(mailbox) = self.qps.get_mut(&qp) {
            mailbox.events.push_back(event);
            mailbox.state = state;
        }
    }
}

/// The channel and the mailboxes.
#[derive(Debug)]
pub(crate) struct Router {
    events: Receiver<Event>,
    boxes: Mutex<Boxes>,
    changed: Condvar,
}

/// How long the application's thread sleeps at a time while it drives the engine inline.
const INLINE_SLEEP: Duration = Duration::from_millis(50);

impl Router {
    pub(crate) fn new(events: Receiver<Event>) -> Self {
        Self {
            events,
            boxes: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The mailboxes, with everything that has arrived.
    pub(crate) fn boxes(&self) -> MutexGuard<'_, Boxes> {
        let mut boxes = self.lock();
        // What the channel's end means is found out by whoever waits.
        while let Ok(event) = self.events.try_recv() {
            boxes.deliver(event);
            self.changed.notify_all();
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
            let now = Instant::now();
            let left = deadline.map_or(Duration::from_secs(3600), |at| {
                at.saturating_duration_since(now)
            });
            if device.is_inline() {
                drop(boxes);
                if self.events.is_empty() && self.disconnected() {
                    return Err(WorkerGone.into());
                }
                let did = device.drive();
                if self.events.is_empty() {
                    if left.is_zero() {
                        return Ok(None);
                    }
                    if !did {
                        device.idle(left.min(INLINE_SLEEP));
                    }
                }
            } else if left.is_zero() {
                return Ok(None);
            } else {
                self.block(boxes, left)?;
            }
        }
    }

    /// Whether the engine's end is gone. Keeps an event that it finds instead.
    fn disconnected(&self) -> bool {
        match self.events.try_recv() {
            Ok(event) => {
                self.lock().deliver(event);
                false
            }
            Err(TryRecvError::Empty) => false,
            Err(TryRecvError::Disconnected) => true,
        }
    }

    /// Blocks until some event was delivered, by this thread or the one that pumps, or `left` has passed.
    fn block(&self, mut boxes: MutexGuard<'_, Boxes>, left: Duration) -> Result<(), Error> {
        if boxes.pumping {
            // The pump notifies when it delivers and when it stops.
            drop(
                self.changed
                    .wait_timeout(boxes, left)
                    .unwrap_or_else(PoisonError::into_inner),
            );
            return Ok(());
        }
        boxes.pumping = true;
        drop(boxes);
        let event = self.events.recv_timeout(left);
        let mut boxes = self.lock();
        boxes.pumping = false;
        self.changed.notify_all();
        match event {
            Ok(event) => boxes.deliver(event),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(WorkerGone.into()),
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Boxes> {
        // Whole after every statement.
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
