//! Frames that belong to no connection of an engine, and those that come from another engine of the
//! device.

use crate::connection::Transport;
use crate::counters::DropReason;
use crate::ids::RequestId;
use crate::memory::epoch::Guard;
use crate::memory::frames::TxFrames;
use crate::memory::parcel::Parcel;
use crate::time::Instant;
use crate::wire::packet::{Checksums, Packet};

use super::Engine;
use super::owners::{EnginePlace, HandOver};
use super::passive::Stranger;

impl<T: Transport> Engine<T> {
    /// Makes this one of several engines of a device, before any other call. All must have the same
    /// secret: what one of them sends to a peer (a cookie, a timestamp) may come back to another.
    pub fn take_place(&mut self, place: EnginePlace) {
        self.next_request = RequestId::first_of(place.number()).0;
        self.place = Some(Box::new(place));
    }
}

impl Engine {
    /// Handles a frame that belongs to no connection here.
    pub(super) fn handle_stranger<F: TxFrames>(
        &mut self,
        stranger: Stranger,
        frame: &[u8],
        packet: &Packet<'_>,
        tx: &mut F,
    ) {
        match stranger {
            Stranger::Elsewhere(owner) => {
                if let Some(place) = &mut self.place {
                    place.expect_like(frame, packet, owner);
                }
                // Its checksums were good.
                self.hand_over(owner, frame, Checksums::Unnecessary);
            }
            Stranger::Cookie(syn_ack) => self.reply(packet, &syn_ack, tx),
            Stranger::Refused(reason) => {
                self.drop_frame(reason);
                self.refuse(packet, tx);
            }
            Stranger::Ignored(reason) => self.drop_frame(reason),
        }
    }

    /// Hands a frame to another engine.
    pub(super) fn hand_over(&mut self, owner: u16, frame: &[u8], checksums: Checksums) {
        let Some(place) = &mut self.place else { return };
        match place.hand_over(owner, frame, checksums) {
            HandOver::Handed => self.counters.engine.handed_over += 1,
            HandOver::Lost => self.drop_frame(DropReason::HandOverFull),
        }
    }

    /// Returns whether other engines share the device.
    #[inline]
    pub(super) fn has_others(&self) -> bool {
        self.place.is_some()
    }

    /// Sends frames to the engines that have their connections. Called once per turn.
    pub fn send_parcels(&mut self) {
        if let Some(place) = &mut self.place {
            place.send_parcels();
        }
    }

    /// Returns the next parcel of frames from another engine. Before it is
    /// [handled](Self::handle_parcel), the caller carries out the commands that wait: one of them
    /// may bring a connection of these frames.
    pub(super) fn next_parcel(&self) -> Option<(u16, Parcel)> {
        self.place.as_ref()?.next()
    }

    /// Handles frames that another engine handed here.
    pub(super) fn handle_parcel<F: TxFrames>(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        parcel: (u16, Parcel),
        tx: &mut F,
    ) {
        self.counters.engine.taken_over += parcel.1.len() as u64;
        self.set_come_far(true);
        self.handle_frames(now, guard, &mut parcel.1.frames(), tx);
        self.set_come_far(false);
        if let Some(place) = &mut self.place {
            place.give_back(parcel);
        }
    }

    fn set_come_far(&mut self, has_come_far: bool) {
        if let Some(place) = &mut self.place {
            place.set_come_far(has_come_far);
        }
    }

    /// Returns whether frames from other engines, or from connections with this device, wait.
    pub fn is_waited_for(&self) -> bool {
        let place = self.place.as_ref();
        self.has_looped() || place.is_some_and(|place| place.is_waited_for())
    }
}
