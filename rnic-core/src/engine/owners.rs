//! The engines of one device: which of them has which connection, and frames that come to the wrong one.
//!
//! Each engine has queues of the device, and the device chooses the queue of a frame by its addresses, so that the engine
//! which meets a connection first goes on meeting it. Where it does not (the administrator changed the table of queues; the
//! peer's host chose another queue than ours would), the engine that finds no such connection of its own looks here, and hands
//! the frame to the one that has it, in a copy. An engine that is alone has none of this.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::memory::doorbell::Doorbells;
use crate::memory::epoch::Guard;
use crate::memory::frames::TxFrames;
use crate::time::Instant;
use crate::wire::packet::{Checksums, Packet};

use super::Engine;
use super::flows::FlowKey;
use super::link::{Command, RequestId};
use super::passive::Stranger;

/// Frames that wait for one engine. Beyond that they are lost, as on a full queue of the device: TCP sends them again.
const WAITING: usize = 512;

/// Frames from other engines handled in one turn.
const HANDED_PER_TURN: usize = 64;

/// Whose each connection is. Looked at where an engine finds no connection of its own, never on the way of other frames.
#[derive(Debug, Default)]
struct Owners(Mutex<HashMap<FlowKey, u16>>);

impl Owners {
    fn lock(&self) -> MutexGuard<'_, HashMap<FlowKey, u16>> {
        // Whole after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to one engine.
#[derive(Clone)]
struct Way {
    frames: Sender<Box<[u8]>>,
    commands: Sender<Command>,
    doorbells: Arc<Doorbells>,
    wake: Waker,
}

/// Who is to handle a frame that belongs to no connection of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handler {
    /// This engine: nobody has its connection.
    This,
    Other(u16),
    Nobody,
}

/// What became of a frame for another engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandOver {
    Handed,
    /// Too many wait there already.
    Lost,
}

/// An engine's place among those of its device.
pub struct Place {
    number: u16,
    owners: Arc<Owners>,
    /// By the number of the engine.
    ways: Arc<[Way]>,
    handed_here: Receiver<Box<[u8]>>,
    /// The frame at hand was handed here: it goes no further, whoever has its connection by now.
    has_come_far: bool,
}

impl Way {
    fn wake(&self) {
        if self.doorbells.ring_commands() {
            self.wake.wake_by_ref();
        }
    }
}

/// The places of engines that are reached in these ways: their commands, doorbells and wakers.
pub(super) fn places(
    engines: impl Iterator<Item = (Sender<Command>, Arc<Doorbells>, Waker)>,
) -> Vec<Place> {
    let owners = Arc::<Owners>::default();
    let (ways, inboxes): (Vec<Way>, Vec<_>) = engines
        .map(|(commands, doorbells, wake)| {
            let (frames, inbox) = bounded(WAITING);
            let way = Way {
                frames,
                commands,
                doorbells,
                wake,
            };
            (way, inbox)
        })
        .unzip();
    let ways: Arc<[Way]> = ways.into();
    let place = |(number, handed_here)| Place {
        number,
        owners: owners.clone(),
        ways: ways.clone(),
        handed_here,
        has_come_far: false,
    };
    (0..).zip(inboxes).map(place).collect()
}

impl Place {
    /// The engine's number, from 0 on.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Makes a connection this engine's. Says no if another has it.
    pub(super) fn claim(&self, key: &FlowKey) -> bool {
        match self.owners.lock().entry(*key) {
            Entry::Occupied(owner) => *owner.get() == self.number,
            Entry::Vacant(vacant) => {
                vacant.insert(self.number);
                true
            }
        }
    }

    /// A connection of this engine is over.
    pub(super) fn release(&self, key: &FlowKey) {
        self.owners.lock().remove(key);
    }

    /// Who handles the frame at hand, of a connection that this engine does not know.
    pub(super) fn handler(&self, key: &FlowKey) -> Handler {
        match self.owners.lock().get(key).copied() {
            None => Handler::This,
            Some(owner) if owner != self.number && !self.has_come_far => Handler::Other(owner),
            // It is on its way from one engine to another.
            Some(_) => Handler::Nobody,
        }
    }

    /// Gives a connection of this engine to another, which is told what to do with it.
    pub(super) fn give_away(&self, owner: u16, key: Option<FlowKey>, command: Command) {
        let Some(way) = self.ways.get(usize::from(owner)) else {
            return;
        };
        if let Some(key) = key {
            self.owners.lock().insert(key, owner);
        }
        // An engine that has gone leaves its connections to their peers' patience.
        let _ = way.commands.send(command);
        way.wake();
    }

    /// Copies a frame to another engine.
    pub(super) fn hand_over(&self, owner: u16, frame: &[u8]) -> HandOver {
        let way = &self.ways[usize::from(owner)];
        if way.frames.is_full() || way.frames.try_send(frame.into()).is_err() {
            return HandOver::Lost;
        }
        way.wake();
        HandOver::Handed
    }

    /// The next frame that was handed here. Until [`ended`](Self::ended) it is the one at hand.
    pub(super) fn next(&mut self) -> Option<Box<[u8]>> {
        let frame = self.handed_here.try_recv().ok()?;
        self.has_come_far = true;
        Some(frame)
    }

    /// Frames come from the device again.
    pub(super) fn ended(&mut self) {
        self.has_come_far = false;
    }

    /// Whether frames wait that were handed here.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.handed_here.is_empty()
    }
}

impl Engine {
    /// Makes it one of several engines of a device, which must all have the same secret: what one of them says of itself
    /// to a peer (a cookie, a timestamp) may come back to another. Before anything else.
    pub fn take_place(&mut self, place: Place) {
        self.next_request = RequestId::first_of(place.number()).0;
        self.place = Some(Box::new(place));
    }

    /// What becomes of a frame that belongs to no connection here.
    pub(super) fn handle_stranger<F: TxFrames>(
        &mut self,
        stranger: Stranger,
        frame: &[u8],
        packet: &Packet<'_>,
        tx: &mut F,
    ) {
        match (stranger, &self.place) {
            (Stranger::Elsewhere(owner), Some(place)) => match place.hand_over(owner, frame) {
                HandOver::Handed => self.counters.engine.handed_over += 1,
                HandOver::Lost => self.counters.engine.lost_in_hand_over += 1,
            },
            (Stranger::Answered(header), _) => {
                self.counters.engine.no_connection += 1;
                self.reply(packet, &header, tx);
            }
            (Stranger::Ignored | Stranger::Elsewhere(_), _) => {
                self.counters.engine.no_connection += 1;
            }
        }
    }

    /// Handles frames that other engines handed here, up to a batch. Says whether there were any.
    pub fn handle_handed_over<F: TxFrames>(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        tx: &mut F,
    ) -> bool {
        let mut any = false;
        for _ in 0..HANDED_PER_TURN {
            let Some(frame) = self.place.as_mut().and_then(|place| place.next()) else {
                break;
            };
            any = true;
            self.counters.engine.taken_over += 1;
            self.handle_frames(now, guard, [(frame, Checksums::Verify)], tx);
        }
        if let Some(place) = self.place.as_mut().filter(|_| any) {
            place.ended();
        }
        any
    }

    /// Whether frames wait that other engines handed here.
    pub fn is_waited_for(&self) -> bool {
        self.place
            .as_ref()
            .is_some_and(|place| place.is_waited_for())
    }
}
