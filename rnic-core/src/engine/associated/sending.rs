//! The turns of sessions to send.

use crate::connection::{Associations, Context, Wants};
use crate::memory::epoch::Guard;
use crate::time::Instant;

use super::SessionEngine;

/// The most chunks that a session sends in a turn.
const BURST: u64 = 64;

impl<L: Associations> SessionEngine<L> {
    /// Sends what sessions have to send. Returns whether there was anything.
    pub(super) fn send_all(&mut self, now: Instant, guard: &Guard<'_>) -> bool {
        let mut any = false;
        for _ in 0..self.schedule.ready().len() {
            let Some(index) = self.schedule.take_ready(&mut self.connections) else {
                break;
            };
            let before = self.connections[index].stage();
            let number = self.connections[index].association();
            let is_overdue = self.connections[index].take_overdue();
            let more = match self.send_for(index, now, guard) {
                Some((sent, has_room)) => {
                    any |= sent > 0;
                    self.note_unacknowledged(number);
                    has_room && sent == BURST
                }
                None => false,
            };
            self.follow(index, before, now, guard);
            let wants = Wants {
                send: more,
                ..self.connections[index].wants(now, false)
            };
            self.schedule(index, wants);
            if is_overdue {
                self.set_up_again(number, now, guard);
            }
        }
        any
    }

    /// Sends what a session has to send. Returns how many chunks that were and whether the kernel
    /// has room for more. `None` if it has none, or the association is over.
    fn send_for(&mut self, index: usize, now: Instant, guard: &Guard<'_>) -> Option<(u64, bool)> {
        let Self {
            below,
            connections,
            config,
            cqs,
            srqs,
            events,
            counters,
            next_request,
            ..
        } = self;
        let mut context = Context {
            now,
            fast_paths: config.fast_paths,
            guard,
            cqs,
            srqs,
            events,
            counters,
            next_request,
        };
        let connection = &mut connections[index];
        let association = below.associations.get_mut(connection.association())?;
        association.is_shared &= connection.check_peer(association, &mut context);
        if !association.is_writable {
            return None;
        }
        let (staging, socket) = (&mut below.staging, &mut association.socket);
        let (sent, has_room) = connection.send_chunks(staging, socket, BURST, &mut context);
        association.is_writable = has_room;
        if let Some(place) = connection.place() {
            let sent = std::iter::repeat_n(place, sent as usize);
            association.sent.extend(sent);
        }
        Some((sent, has_room))
    }
}
