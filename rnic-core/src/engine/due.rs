//! Sending and timers: connections that may have something to send, that have a delayed ACK due, or
//! whose timer has gone off.

use std::sync::atomic::Ordering;

use super::Engine;
use crate::connection::{IdleSend, Transmit, Transport, Wants, has_room};
use crate::memory::epoch::Guard;
use crate::memory::frames::{RESERVED_FRAMES, TxFrames};
use crate::time::Instant;

/// The most frames that a connection sends before others have their turn. While it sends several in
/// a row its state stays in cache, and the peer receives them in a row.
const BURST: u64 = 16;

/// Octets sent in a turn, or a little more: so few that the device still finds them in the cache.
const TURN: u64 = 96 * 1024;

/// While more than one part in this many of all frames is free, frames are not short.
const PLENTY: usize = 8;

impl Engine {
    /// Sends a burst of the next connection that has something to send. Returns the number of
    /// frames. It is called until that is 0, or enough was sent for a turn.
    #[inline]
    pub fn poll_transmit<F: TxFrames>(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        tx: &mut F,
    ) -> u64 {
        self.release_returned(tx);
        for _ in 0..self.schedule.ready().len() {
            if !has_room(tx) {
                self.counters.engine.no_transmit_frame += 1;
                return 0;
            }
            self.prefetch_ready();
            let Some(index) = self.schedule.take_ready(&mut self.connections) else {
                return 0;
            };
            let sent = self.transmit_burst(index, now, guard, tx);
            self.counters.engine.frames_sent += sent;
            if sent > 0 {
                return sent;
            }
            // What goes without frames takes time, too. The others are first in the next turn.
            if self.looped.is_spent() {
                return 0;
            }
        }
        0
    }

    /// Returns whether this number of frames is enough for a turn.
    #[inline]
    pub(super) fn is_enough(&self, frames: u64) -> bool {
        frames >= BURST && frames * u64::from(self.config.mtu) >= TURN
    }

    /// Sends a burst of a connection. If it may have more to send, or lacked a frame, it goes to
    /// the end of the queue; otherwise it leaves the queue. Returns the number of frames.
    #[inline]
    fn transmit_burst<F: TxFrames>(
        &mut self,
        index: usize,
        now: Instant,
        guard: &Guard<'_>,
        tx: &mut F,
    ) -> u64 {
        let (connection, mut context) = self.lend(index, now, guard);
        let Some(send) = IdleSend::eligible(connection, &context, tx) else {
            return self.transmit_many(index, now, guard, tx);
        };
        send.commit(connection, &mut context, tx);
        let wants = Wants {
            timer: !connection.has_timer_for_idle_send(now),
            ..Wants::default()
        };
        self.schedule(index, wants);
        1
    }

    #[inline(never)]
    fn transmit_many<F: TxFrames>(
        &mut self,
        index: usize,
        now: Instant,
        guard: &Guard<'_>,
        tx: &mut F,
    ) -> u64 {
        let share = self.share(tx);
        let mut back = None;
        if self.connections[index].path().leads_back() {
            if self.send_directly(index, now, guard) {
                self.schedule(index, Wants::SEND);
                return 0;
            }
            back = self.looped.take_empty();
            if back.is_none() {
                self.schedule(index, Wants::SEND);
                return 0;
            }
        }
        let (connection, mut context) = self.lend(index, now, guard);
        let before = connection.stage();
        let (sent, last) = connection.transmit(BURST, share, &mut context, tx, &mut back);
        if let Some(parcel) = back {
            self.looped.push(parcel);
        }
        self.follow(index, before, now, guard);
        if last == Transmit::Starved {
            self.counters.engine.no_transmit_frame += 1;
        }
        let wants = Wants {
            send: last != Transmit::Nothing,
            ..self.connections[index].wants(now, self.has_many())
        };
        self.schedule(index, wants);
        if wants.ended {
            self.release_returned(tx);
        }
        sent
    }

    /// Returns how many frames the connection may hold that has its turn.
    fn share<F: TxFrames>(&self, tx: &F) -> usize {
        let spilled = self.spilled.load(Ordering::Relaxed) / usize::from(self.config.mtu).max(1);
        let waiting = self.schedule.ready().len();
        share(tx.total(), tx.available(), spilled, waiting)
    }

    /// Releases the frames of connections that are over.
    #[inline]
    fn release_returned<F: TxFrames>(&mut self, tx: &mut F) {
        for frame in self.returned.drain(..) {
            tx.release(frame);
        }
    }

    /// Handles delayed ACKs and timers that are due. Returns whether there were any.
    #[inline]
    pub fn handle_timeouts<F: TxFrames>(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        tx: &mut F,
    ) -> bool {
        let mut any = false;
        while let Some(index) = self.schedule.take_ack_due(now, &mut self.connections) {
            any = true;
            self.schedule(index, Wants::SEND);
        }
        if self.schedule.has_expired(now) {
            any |= self.handle_timers(now, guard, tx);
        }
        any
    }

    /// Handles the timers that have gone off. Returns whether there was still something to do for
    /// any.
    #[inline(never)]
    fn handle_timers<F: TxFrames>(&mut self, now: Instant, guard: &Guard<'_>, tx: &mut F) -> bool {
        let mut any = false;
        let spilled = self.spilled.clone();
        while let Some((index, due)) = self.schedule.take_expired(now, &mut self.connections) {
            self.prefetch_timer();
            if due {
                any = true;
                self.counters.engine.timers_expired += 1;
                self.with_connection(index, now, guard, |connection, context| {
                    connection.handle_timeout(context, tx, &spilled);
                });
            }
        }
        any
    }
}

impl<T: Transport> Engine<T> {
    /// Returns whether something waits for room in the device, for a free frame or for room in a
    /// completion queue.
    pub fn has_backlog(&self) -> bool {
        !self.schedule.ready().is_empty() || self.cqs.has_backlogs()
    }

    /// Returns whether a timer has gone off, or frames, completions or events wait.
    pub fn is_due(&mut self, now: Instant) -> bool {
        self.has_backlog() || self.has_events() || self.is_time(now)
    }

    /// Returns whether a delayed ACK is due or a timer has gone off: see
    /// [`handle_timeouts`](Self::handle_timeouts).
    #[inline]
    pub(super) fn is_time(&self, now: Instant) -> bool {
        self.schedule.has_ack_due(now) || self.schedule.has_expired(now)
    }

    /// Returns when the next timer goes off, or an earlier time.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.schedule.next_timeout()
    }
}

/// Returns how many of `total` frames a connection may hold until they are acknowledged. Of all
/// frames `free` are free, `waiting` other connections have something to send, and octets that
/// would fill `spilled` frames are spilled because peers are silent.
///
/// That is all but the reserve. Where frames are short, it is an equal share, or a burst if that is
/// more. Spilled memory is limited too: the result halves with each time that all frames' worth is
/// spilled.
#[inline]
fn share(total: usize, free: usize, spilled: usize, waiting: usize) -> usize {
    let mut most = total.saturating_sub(RESERVED_FRAMES).max(1);
    if spilled >= total {
        let times = (spilled / total.max(1)).min(usize::BITS as usize - 1);
        most = (most >> times).max(1);
    }
    if waiting == 0 || free > total / PLENTY {
        return most;
    }
    (most / (1 + waiting)).max(most.min(BURST as usize))
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn a_connection_alone_may_hold_all_frames_but_the_reserve() {
        assert_eq!(share(4096, 4096, 0, 0), 4064);
        assert_eq!(share(4096, 33, 0, 0), 4064);
        // Where frames are plenty, others that wait do not reduce the share.
        assert_eq!(share(4096, 1000, 0, 10_000), 4064);
    }

    #[test]
    fn where_frames_are_short_all_that_wait_may_hold_as_many() {
        assert_eq!(share(4096, 400, 0, 1), 2032);
        assert_eq!(share(4096, 400, 0, 99), 40);
        // A burst: with less, connections would take turns too often.
        assert_eq!(share(4096, 400, 0, 9999), 16);
        assert_eq!(share(40, 3, 0, 9999), 8);
    }

    #[test]
    fn spilled_octets_are_bounded() {
        assert_eq!(share(4096, 4000, 4095, 0), 4064);
        assert_eq!(share(4096, 4000, 4096, 0), 2032);
        assert_eq!(share(4096, 4000, 3 * 4096, 0), 508);
        assert_eq!(share(4096, 10, 12 * 4096, 100), 1);
        assert_eq!(share(4096, 10, usize::MAX, 100), 1);
        assert_eq!(share(0, 0, 0, 0), 1);
        // One peer after the other falls silent, each with as many frames held as allowed.
        let spilled = (0..10_000).fold(0, |spilled, _| spilled + share(4096, 4096, spilled, 0));
        assert!(spilled <= 13 * 4096 + 10_000, "{spilled}");
    }
}
