//! The engines of one device: which of them has which connection, and frames that come to the wrong
//! one.
//!
//! Each engine has queues of the device. The device chooses the queue of a frame by its addresses
//! (RSS), so all frames of a connection mostly come to one engine. There are exceptions: the
//! administrator changed the indirection table; the peer's host chose another queue than ours
//! would; the engine of a shared receive queue adopted the connection. Then the engine that
//! received the frame, and has no such connection, hands it to the engine that has. A single engine
//! has none of this.
//!
//! A frame is copied to a parcel, and parcels are sent at the end of the turn, with one wake-up for
//! all. Each pair of engines has parcels of its own, which come back and are used again. An engine
//! remembers the owners of connections until any connection ends or moves, so that it seldom takes
//! the lock of the table. Most frames have the headers of the one handed over before, and are
//! compared with that alone: the owner of the connection verifies their checksums.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::connection::FlowKey;
use crate::memory::doorbell::Doorbells;
use crate::memory::parcel::{OCTETS, Parcel};
use crate::wire::packet::{Checksums, Packet};
use crate::wire::prediction::Prediction;

use super::command::Command;

/// The most frames in a parcel. Each pair of engines has [`PARCELS`], which keep their memory.
const FRAMES: usize = 16;

/// Parcels for each pair of engines, in one direction. Where they are not enough, frames are lost
/// as on a full queue of the device, and TCP sends them again.
const PARCELS: usize = 32;

/// The most connections of other engines that an engine remembers.
const REMEMBERED: usize = 1024;

/// The engine that owns each connection. An engine looks here when it has no such connection, and
/// does not remember the owner.
#[derive(Debug, Default)]
struct Owners {
    table: Mutex<HashMap<FlowKey, u16>>,
    /// How often the table has changed: what was read from it before is then out of date.
    changes: AtomicU64,
}

impl Owners {
    fn lock(&self) -> MutexGuard<'_, HashMap<FlowKey, u16>> {
        // A panic of another thread leaves it consistent: it is whole after every statement.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Counts a change, before the table is unlocked.
    fn has_changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Makes another engine the owner of a connection. `tell` sends that engine its command before
    /// others can see the new owner: frames that they then hand to it find the command there.
    fn give(&self, key: &FlowKey, owner: u16, tell: impl FnOnce()) {
        let mut table = self.lock();
        table.insert(*key, owner);
        self.has_changed();
        tell();
    }
}

/// The way from one engine to another.
struct EngineLink {
    /// Empty parcels.
    empty: Receiver<Parcel>,
    /// Where filled parcels go, with the number of the engine that they come from.
    full: Sender<(u16, Parcel)>,
    /// The parcel that is being filled.
    open: Option<Parcel>,
    commands: Sender<Command>,
    doorbells: Arc<Doorbells>,
    wake: Waker,
}

/// What an engine remembers of other engines' connections while the table does not change.
#[derive(Default)]
struct Foreign {
    as_of: u64,
    owners: HashMap<FlowKey, u16>,
    /// The connection of the last frame.
    latest: Option<FlowKey>,
    /// The predicted headers of the next frame, if the last two were of one connection, and the
    /// owner of that.
    expected: Option<(Prediction, u16)>,
}

/// Which engine handles a frame that belongs to no connection of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handler {
    /// This engine: no engine has its connection.
    This,
    Other(u16),
    Nobody,
}

/// The outcome of handing a frame to another engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandOver {
    Handed,
    /// Too many frames wait there already.
    Lost,
}

/// An engine's place among those of its device.
pub struct EnginePlace {
    number: u16,
    owners: Arc<Owners>,
    foreign: Foreign,
    /// By the number of the engine.
    links: Vec<EngineLink>,
    /// Whether a parcel has to be sent, or its receiver has to be woken.
    has_parcels: bool,
    handed_here: Receiver<(u16, Parcel)>,
    /// Where parcels that were emptied go back, by the number of the engine that they came from.
    homes: Vec<Sender<Parcel>>,
    /// Another engine handed over the frame that is being handled: it goes no further, even if its
    /// connection has moved on.
    has_come_far: bool,
}

/// Returns whether a parcel has room for one more frame of so many octets.
fn has_room(parcel: &Parcel, octets: usize) -> bool {
    parcel.len() < FRAMES && parcel.octets() + octets <= OCTETS
}

impl EngineLink {
    fn wake(&self) {
        if self.doorbells.ring_commands() {
            self.wake.wake_by_ref();
        }
    }

    /// Copies a frame to the open parcel. If that has no room, it is sent first, without waking its
    /// receiver.
    fn add(&mut self, number: u16, frame: &[u8], checksums: Checksums) -> HandOver {
        let open = self.open.as_ref();
        if open.is_some_and(|parcel| !has_room(parcel, frame.len())) {
            self.send(number);
        }
        if self.open.is_none() {
            self.open = self.empty.try_recv().ok();
        }
        let Some(parcel) = &mut self.open else {
            return HandOver::Lost;
        };
        parcel.add(frame, checksums);
        HandOver::Handed
    }

    /// Sends the open parcel, if there is one.
    fn send(&mut self, number: u16) {
        if let Some(parcel) = self.open.take() {
            // There is room for all parcels. If the other engine is gone, its connections time out
            // at their peers.
            let _ = self.full.try_send((number, parcel));
        }
    }
}

/// Makes the places of engines, which are reached by these commands, doorbells and wakers.
pub(super) fn places(
    engines: impl ExactSizeIterator<Item = (Sender<Command>, Arc<Doorbells>, Waker)>,
) -> Vec<EnginePlace> {
    let owners = Arc::<Owners>::default();
    let count = engines.len();
    let place = |number| {
        let (to_here, handed_here) = bounded(PARCELS * count);
        let place = EnginePlace {
            number,
            owners: owners.clone(),
            foreign: Foreign::default(),
            links: Vec::new(),
            has_parcels: false,
            handed_here,
            homes: Vec::new(),
            has_come_far: false,
        };
        (place, to_here)
    };
    let (mut places, inboxes): (Vec<_>, Vec<_>) = (0..count as u16).map(place).unzip();
    for ((commands, doorbells, wake), (to, full)) in engines.zip(inboxes.into_iter().enumerate()) {
        for from in 0..count {
            let (home, empty) = bounded(PARCELS);
            // A parcel gets its memory when it is first used, and keeps it.
            for _ in 0..PARCELS {
                let _ = home.send(Parcel::default());
            }
            places[from].links.push(EngineLink {
                empty,
                full: full.clone(),
                open: None,
                commands: commands.clone(),
                doorbells: doorbells.clone(),
                wake: wake.clone(),
            });
            places[to].homes.push(home);
        }
    }
    places
}

impl EnginePlace {
    /// Returns the engine's number, from 0 on.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Makes this engine the owner of a connection, unless another is. Returns which engine handles
    /// the frame.
    pub(super) fn claim(&self, key: &FlowKey) -> Handler {
        let mut table = self.owners.lock();
        match table.entry(*key) {
            Entry::Occupied(owner) if *owner.get() != self.number => self.other(*owner.get()),
            Entry::Occupied(_) => Handler::This,
            Entry::Vacant(vacant) => {
                vacant.insert(self.number);
                // No engine remembers another owner of it.
                Handler::This
            }
        }
    }

    /// Removes a connection that is over, if this engine is its owner.
    pub(super) fn release(&self, key: &FlowKey) {
        let mut table = self.owners.lock();
        if let Entry::Occupied(owner) = table.entry(*key)
            && *owner.get() == self.number
        {
            owner.remove();
            self.owners.has_changed();
        }
    }

    /// Returns which engine handles a frame of a connection that this one does not have.
    pub(super) fn handler(&mut self, key: &FlowKey) -> Handler {
        match self.remembered(key).or_else(|| self.look_up(key)) {
            None => Handler::This,
            // The connection is on its way to this engine.
            Some(owner) if owner == self.number => Handler::Nobody,
            Some(owner) => self.other(owner),
        }
    }

    /// Returns which engine handles a frame of a connection of another engine.
    fn other(&self, owner: u16) -> Handler {
        if self.has_come_far {
            Handler::Nobody
        } else {
            Handler::Other(owner)
        }
    }

    fn remembered(&mut self, key: &FlowKey) -> Option<u16> {
        let changes = self.owners.changes();
        if self.foreign.as_of != changes {
            self.foreign = Foreign {
                as_of: changes,
                ..Foreign::default()
            };
        }
        self.foreign.owners.get(key).copied()
    }

    fn look_up(&mut self, key: &FlowKey) -> Option<u16> {
        let owner = self.owners.lock().get(key).copied()?;
        if owner != self.number {
            if self.foreign.owners.len() == REMEMBERED {
                self.foreign.owners.clear();
            }
            self.foreign.owners.insert(*key, owner);
        }
        Some(owner)
    }

    /// Returns the owner of a frame's connection, if its headers are like those of the last one
    /// handed over. The checksums are not verified.
    pub(super) fn recognise(&self, frame: &[u8]) -> Option<u16> {
        let (expected, owner) = self.foreign.expected.as_ref()?;
        if self.has_come_far || self.foreign.as_of != self.owners.changes() {
            return None;
        }
        expected.parse(frame, Checksums::Unnecessary)?;
        Some(*owner)
    }

    /// Predicts the headers of the next frame from this one, which is of another engine's
    /// connection.
    pub(super) fn expect_like(&mut self, frame: &[u8], packet: &Packet<'_>, owner: u16) {
        let key = FlowKey::new(packet.destination, packet.source);
        // Where the frames of several connections alternate, the next is not like this one.
        let again = self.foreign.latest.replace(key) == Some(key);
        if again {
            let expected = Prediction::like(frame, packet, false);
            self.foreign.expected = expected.map(|expected| (expected, owner));
        }
    }

    /// Hands a connection of this engine to another, with a command for it.
    pub(super) fn give_away(&self, owner: u16, key: Option<FlowKey>, command: Command) {
        let Some(link) = self.links.get(usize::from(owner)) else {
            return;
        };
        let tell = || {
            // If the other engine is gone, its connections time out at their peers.
            let _ = link.commands.send(command);
            link.wake();
        };
        match key {
            Some(key) => self.owners.give(&key, owner, tell),
            None => tell(),
        }
    }

    /// Copies a frame for another engine, to be [sent](Self::send_parcels) at the end of the turn.
    pub(super) fn hand_over(&mut self, owner: u16, frame: &[u8], checksums: Checksums) -> HandOver {
        self.has_parcels = true;
        self.links[usize::from(owner)].add(self.number, frame, checksums)
    }

    /// Sends what was handed over in this turn, and wakes the engines that it is for.
    pub(super) fn send_parcels(&mut self) {
        if !self.has_parcels {
            return;
        }
        self.has_parcels = false;
        for link in &mut self.links {
            link.send(self.number);
            if !link.full.is_empty() {
                link.wake();
            }
        }
    }

    /// Returns the next parcel from another engine, with the number of that engine.
    pub(super) fn next(&self) -> Option<(u16, Parcel)> {
        self.handed_here.try_recv().ok()
    }

    /// Returns a parcel to the engine that it came from.
    pub(super) fn give_back(&mut self, (from, mut parcel): (u16, Parcel)) {
        parcel.clear();
        let _ = self.homes[usize::from(from)].try_send(parcel);
    }

    /// Sets whether the next frames come from another engine, or from the device.
    pub(super) fn set_come_far(&mut self, has_come_far: bool) {
        self.has_come_far = has_come_far;
    }

    /// Returns whether frames from other engines wait.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.handed_here.is_empty()
    }
}

#[cfg(test)]
mod moving;
#[cfg(test)]
mod tests;
