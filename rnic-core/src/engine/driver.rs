//! One turn of a worker, without the device: what all implementations of
//! [`Turn`](super::mailbox::Turn) share.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::connection::{AddressPair, KernelTcp, NextHop, Sockets};
use crate::engine::{
    Carrier, Engine, EngineConfig, EngineEnd, KernelCarrier, Look, NextHopRequest,
};
use crate::esp::ProtectionCounts;
use crate::memory::doorbell::Doorbells;
use crate::memory::epoch::{Guard, Worker};
use crate::memory::frames::TxFrames;
use crate::tcp::Tcp;
use crate::time::Instant;
use crate::wire::icmp::TooBig;
use crate::wire::packet::Checksums;

/// The most commands carried out in one turn, so that frames do not wait long.
const COMMANDS_PER_TURN: usize = 64;

/// The most parcels of frames from other engines handled in one turn.
const PARCELS_PER_TURN: usize = 4;

/// For so many turns in a row, timers may wait for frames that have arrived already.
const TURNS_WITHOUT_TIMERS: u8 = 16;

/// An engine with its link to the host.
pub struct Driver<T: Carrier = Tcp> {
    engine: Engine<T>,
    end: EngineEnd,
    memory: Worker,
    /// Turns since timers were handled.
    without_timers: u8,
}

impl Driver {
    /// Makes an engine that takes its commands from `end`. `secret` must be unpredictable: sequence
    /// numbers and hashes depend on it. All engines of a device have the same one.
    pub fn new(config: EngineConfig, secret: [u8; 32], end: EngineEnd) -> Self {
        Self::over((), config, secret, end)
    }

    /// Returns whether the engine has requests about next hops.
    #[inline]
    pub fn asks_for_next_hop(&self) -> bool {
        self.engine.asks_for_next_hop()
    }

    /// Returns the next request about next hops.
    pub fn poll_next_hop_request(&mut self) -> Option<NextHopRequest> {
        self.engine.poll_next_hop_request()
    }

    /// Sets the next hop of a path that the engine follows, or changes it.
    pub fn set_next_hop(&mut self, path: AddressPair, hop: NextHop) {
        self.engine.set_next_hop(path, hop);
    }

    /// Marks the peer as unreachable by a path: connections being opened there fail, established
    /// ones go on with the next hop they know, and the next connection makes the engine ask again.
    pub fn set_unreachable(&mut self, path: AddressPair) {
        self.engine.set_unreachable(path);
    }

    /// Sets the VLANs of local addresses whose frames arrive [without their
    /// tag](Engine::set_untagged).
    pub fn set_untagged(&mut self, vlans: BTreeMap<IpAddr, u16>) {
        self.engine.set_untagged(vlans);
    }
}

impl<T: Carrier> Driver<T> {
    /// Makes an engine over what its connections share below them. It takes its commands from
    /// `end`. `secret` must be unpredictable.
    pub fn over(
        below: T::Below,
        config: EngineConfig,
        secret: [u8; 32],
        mut end: EngineEnd,
    ) -> Self {
        let mut engine = Engine::over(below, config, secret);
        if let Some(place) = end.place.take() {
            engine.take_place(place);
        }
        Self {
            memory: end.table.worker(),
            engine,
            end,
            without_timers: 0,
        }
    }

    /// Begins a turn by carrying out commands. Until the batch ends, the revocation of a memory
    /// region waits.
    #[inline]
    pub fn begin(&mut self, now: Instant) -> Batch<'_, T> {
        let (engine, end, guard) = (&mut self.engine, &self.end, self.memory.enter());
        let busy = handle_commands(engine, end, now, &guard, COMMANDS_PER_TURN);
        Batch {
            engine,
            end,
            guard,
            without_timers: &mut self.without_timers,
            more_to_come: false,
            now,
            busy,
        }
    }

    /// Returns whether a turn without frames would have anything to do. If not, a worker need not
    /// begin one.
    pub fn is_due(&mut self, now: Instant) -> bool {
        self.end.doorbells.is_ringing() || T::is_waited_for(&self.engine) || self.engine.is_due(now)
    }

    /// Records that the device has lost its link, or has it again. Connections wait for it as long
    /// as TCP does.
    pub fn set_port(&mut self, active: bool) {
        self.engine.set_port(active);
    }

    /// Returns when the next timer goes off.
    pub fn next_timeout(&mut self) -> Option<Instant> {
        self.engine.next_timeout()
    }

    /// Returns whether something waits for room in the device or for a free frame. Then a worker
    /// must not sleep long.
    pub fn has_backlog(&self) -> bool {
        self.engine.has_backlog()
    }

    /// Returns whether all connections are [settled](Engine::is_settled) and no command waits.
    pub fn is_settled(&self) -> bool {
        self.end.commands.is_empty() && self.engine.is_settled()
    }

    /// Returns the engine, for its counters.
    pub fn engine(&self) -> &Engine<T> {
        &self.engine
    }

    /// Prepares for a worker's sleep: from here on, a doorbell or command wakes it. Returns whether
    /// it may sleep.
    pub fn prepare_to_sleep(&self) -> bool {
        let nothing_waits = || self.end.commands.is_empty() && !T::is_waited_for(&self.engine);
        self.end.doorbells.prepare_to_sleep() && nothing_waits()
    }

    /// Ends that: the worker is awake and need not be woken.
    pub fn awake(&self) {
        self.end.doorbells.awake();
    }

    /// Returns the doorbells, on which a sleep can be [ended](Doorbells::awake) without the engine.
    pub fn doorbells(&self) -> &Arc<Doorbells> {
        &self.end.doorbells
    }

    /// Returns the number of the engine among those of its device.
    pub fn number(&self) -> u16 {
        self.end.number()
    }
}

/// One turn of a worker.
pub struct Batch<'a, T: Carrier = Tcp> {
    engine: &'a mut Engine<T>,
    end: &'a EngineEnd,
    guard: Guard<'a>,
    without_timers: &'a mut u8,
    more_to_come: bool,
    now: Instant,
    busy: bool,
}

impl Batch<'_> {
    /// Prefetches what the frames need that [`handle_frames`](Self::handle_frames) gets next. Of
    /// each it takes the front, with the headers at least.
    pub fn prefetch<'a>(&mut self, heads: impl Iterator<Item = &'a [u8]>) {
        self.engine.prefetch_for_frames(heads);
    }

    /// Handles received frames, each from the destination MAC address on, with what is known of its
    /// checksums.
    // Inlined, so that the frames' iterator is read where it was written. A move would read it in
    // larger pieces than it was written in, and the processor would wait for that (no store
    // forwarding).
    #[inline(always)]
    pub fn handle_frames<F: TxFrames>(
        &mut self,
        frames: impl IntoIterator<Item = (impl AsRef<[u8]>, Checksums)>,
        tx: &mut F,
    ) {
        let frames = &mut frames.into_iter();
        self.busy |= self.engine.handle_frames(self.now, &self.guard, frames, tx);
    }

    /// Handles an ICMP "packet too big" about a packet of ours.
    pub fn handle_too_big(&mut self, too_big: &TooBig) {
        self.busy = true;
        self.engine.handle_too_big(self.now, &self.guard, too_big);
    }

    /// Handles that a path takes packets of at most `mtu` octets. The caller has made sure that this
    /// is true.
    pub fn narrow(&mut self, path: AddressPair, mtu: u16) {
        self.busy = true;
        self.engine.narrow(self.now, &self.guard, path, mtu);
    }

    /// Counts frames that were opened, sealed or dropped on their way from and to the device.
    pub fn count_protection(&mut self, counts: &ProtectionCounts) {
        self.engine.count_protection(counts);
    }

    /// Notes that more frames have arrived than this turn handles. After a pause of this process
    /// they may hold the acknowledgments that timers wait for, so timers are handled behind them.
    pub fn expect_more(&mut self) {
        self.more_to_come = true;
    }

    /// Ends the turn: handles new work requests and timers, sends frames, and passes on completions
    /// and events. Returns whether the turn had anything to do.
    #[inline(always)]
    pub fn finish<F: TxFrames>(mut self, tx: &mut F) -> bool {
        if self.engine.has_looped() {
            self.busy = true;
            self.engine.handle_looped(self.now, &self.guard, tx);
        }
        if self.engine.has_others() {
            self.busy |= exchange_parcels(self.engine, self.end, self.now, &self.guard, tx);
        }
        self.handle_doorbells();
        if self.has_time_for_timers() {
            self.busy |= self.engine.handle_timeouts(self.now, &self.guard, tx);
        }
        self.busy |= self.engine.flush_completions();
        let mut sent = 0;
        while !self.engine.is_enough(sent) {
            let more = self.engine.poll_transmit(self.now, &self.guard, tx);
            if more == 0 {
                break;
            }
            self.busy = true;
            sent += more;
        }
        self.tell()
    }
}

impl<T: Carrier> Batch<'_, T> {
    /// Ends all connections: the device is gone for good.
    pub fn lose_device(&mut self) {
        self.busy = true;
        self.engine.lose_device(self.now, &self.guard);
    }

    /// Ends all listeners and connections of a lease: it was revoked.
    pub fn revoke(&mut self, lease: SocketAddr) {
        self.busy = true;
        self.engine.revoke(self.now, &self.guard, lease);
    }

    /// Handles new work requests. Returns whether there were any.
    #[inline(always)]
    fn handle_doorbells(&mut self) -> bool {
        let Self {
            engine, guard, now, ..
        } = self;
        let mut any = false;
        self.end.doorbells.take(|qp| {
            any = true;
            engine.handle_doorbell(*now, guard, qp);
        });
        self.busy |= any;
        any
    }

    /// Returns whether this turn handles timers.
    #[inline(always)]
    fn has_time_for_timers(&mut self) -> bool {
        let waits = self.more_to_come && *self.without_timers < TURNS_WITHOUT_TIMERS;
        *self.without_timers = if waits { *self.without_timers + 1 } else { 0 };
        !waits
    }

    /// Passes on events and completions. Returns whether the turn had anything to do.
    #[inline(always)]
    fn tell(&mut self) -> bool {
        while self.engine.has_events()
            && let Some(notice) = self.engine.poll_event()
        {
            self.busy = true;
            self.end.events.tell(notice);
        }
        self.engine.notify_completions();
        self.engine.answer();
        self.busy
    }
}

/// Carries out commands of the host. Returns whether there were any.
#[inline]
fn handle_commands<T: Carrier>(
    engine: &mut Engine<T>,
    end: &EngineEnd,
    now: Instant,
    guard: &Guard<'_>,
    at_most: usize,
) -> bool {
    end.doorbells.take_commands() && carry_out_commands(engine, end, now, guard, at_most)
}

#[cold]
fn carry_out_commands<T: Carrier>(
    engine: &mut Engine<T>,
    end: &EngineEnd,
    now: Instant,
    guard: &Guard<'_>,
    at_most: usize,
) -> bool {
    let mut left = at_most;
    for command in end.commands.try_iter().take(at_most) {
        left -= 1;
        engine.handle_command(now, guard, command);
    }
    if left == 0 {
        // This worker is awake, so the ring need not wake it.
        let _ = end.doorbells.ring_commands();
    }
    left < at_most
}

/// Hands frames to other engines, and handles those that they handed here. Returns whether there
/// were any of the latter. A frame may belong to a connection that is on its way here: the command
/// that brings it was sent before the frame, so commands are carried out before each parcel.
#[inline(never)]
fn exchange_parcels<F: TxFrames>(
    engine: &mut Engine,
    end: &EngineEnd,
    now: Instant,
    guard: &Guard<'_>,
    tx: &mut F,
) -> bool {
    engine.send_parcels();
    let mut any = false;
    for _ in 0..PARCELS_PER_TURN {
        let Some(parcel) = engine.next_parcel() else {
            break;
        };
        any = true;
        handle_commands(engine, end, now, guard, end.commands.len());
        engine.handle_parcel(now, guard, parcel, tx);
    }
    any
}

impl<L: Sockets> Driver<KernelTcp<L>> {
    /// Returns the sockets.
    pub fn sockets(&self) -> &L {
        self.engine.sockets()
    }
}

impl<T: KernelCarrier> Driver<T> {
    /// Returns whether acknowledgments are awaited. The kernel tells of them only who asks, so a
    /// worker must not sleep long.
    pub fn awaits_acks(&self) -> bool {
        T::awaits_acks(&self.engine)
    }

    /// Returns whether they are awaited of peers that have acknowledged nothing for long. A worker
    /// that sleeps asks for them now and then.
    pub fn has_stalled(&self) -> bool {
        T::has_stalled(&self.engine)
    }

    /// Returns whether acknowledgments are owed that the kernel may delay.
    pub fn owes_acks(&self) -> bool {
        T::owes_acks(&self.engine)
    }
}

impl<T: KernelCarrier> Batch<'_, T> {
    /// Does the rest of the turn: new work requests, what sockets have, timers, and what is to be
    /// sent; and passes on completions and events. Returns whether the turn had anything to do.
    pub fn finish_on_sockets(mut self, look: Look) -> bool {
        // A look at sockets takes system calls: what was posted is not to wait for them.
        if self.handle_doorbells() {
            T::send(self.engine, self.now, &self.guard);
        }
        self.busy |= T::handle_sockets(self.engine, self.now, &self.guard, look);
        self.busy |= self.engine.handle_socket_timers(self.now, &self.guard);
        self.busy |= self.engine.flush_completions();
        self.busy |= T::send(self.engine, self.now, &self.guard);
        self.tell()
    }
}
