//! The worker: drives one engine over one interface, turn by turn, and sleeps when nothing is to be
//! done.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rnic_core::engine::{
    Batch, Driver, EngineConfig, EngineEnd, NextHopRequest, Sleeper, SplitTurn, Turn,
};
use rnic_core::memory::doorbell::Doorbells;
use rnic_core::time::Instant;
use rnic_core::wire::icmp::Report;

use crate::device::clock::clock;
use crate::device::error::OpenError;
use crate::device::interface::{
    ControlHandle, InterfaceReport, OpenSocket, RxRing, TxSide, WorkerNotice, XdpInterface,
};
use crate::device::protected::Protected;
use crate::device::routes::{LinkState, Update};
use rnic_manager::Bell;

/// How often to look for notices of the control thread.
const NOTICES_EVERY: Duration = Duration::from_millis(1);
/// Notices taken in one turn, so that a flood of them does not delay frames.
const NOTICES_PER_TURN: usize = 16;
/// The longest sleep while something waits for the device or for a free frame, which nothing
/// announces.
const BACKLOG_SLEEP: Duration = Duration::from_millis(1);
/// What the kernel may add to a sleep: better awake too early than too late.
const TIMER_SLACK: Duration = Duration::from_micros(60);
/// How long to sleep at a time once the device is gone.
const GONE_SLEEP: Duration = Duration::from_millis(10);

/// Drives an engine over an interface, on a thread of its own or inline: by calls of
/// [`Turn::turn`].
pub struct Worker {
    driver: Driver,
    interface: XdpInterface,
    /// Makes the calls that may block; the worker makes none.
    control: ControlHandle,
    notices: Receiver<WorkerNotice>,
    notices_at: Instant,
    /// What protects its frames, if anything does.
    protected: Option<Box<Protected>>,
    bell: Bell,
    /// Where it sleeps while others drive it, once it did. Obsolete when sockets come or go.
    sleeper: Option<Arc<WorkerSleeper>>,
    link: LinkState,
    /// The clock when it started.
    started: u64,
}

impl Worker {
    /// Makes a worker for an open interface, in the network namespace of this thread. The engine's
    /// MTU becomes the interface's.
    ///
    /// `secret` must be unpredictable. `bell` is the one whose waker `end`'s link was made with.
    pub fn new(
        interface: XdpInterface,
        config: EngineConfig,
        secret: [u8; 32],
        end: EngineEnd,
        bell: Bell,
    ) -> Result<Self, OpenError> {
        Self::start(interface, config, secret, (end, bell), clock())
    }

    /// Makes a worker for each share of an open device. `ends` are of
    /// [mailboxes](rnic_core::engine::mailboxes) made together, as many as there are shares, each
    /// with the bell of its waker.
    pub fn for_shares(
        shares: Vec<XdpInterface>,
        config: &EngineConfig,
        secret: [u8; 32],
        ends: Vec<(EngineEnd, Bell)>,
    ) -> Result<Vec<Self>, OpenError> {
        // A peer may have connections on several of them: they share one clock and one secret.
        let started = clock();
        let shares = shares.into_iter().zip(ends);
        shares
            .map(|(interface, end)| Self::start(interface, config.clone(), secret, end, started))
            .collect()
    }

    fn start(
        interface: XdpInterface,
        config: EngineConfig,
        secret: [u8; 32],
        (end, bell): (EngineEnd, Bell),
        started: u64,
    ) -> Result<Self, OpenError> {
        let mtu = interface.report().mtu;
        let config = EngineConfig {
            mtu: mtu.try_into().unwrap_or(u16::MAX),
            partial_checksums: interface.has_partial_checksums(),
            marks: interface.device().is_some(),
            needs_crcs: config.needs_crcs || interface.needs_crcs(),
            ..config
        };
        let control = interface.control().clone();
        let required = interface.required_ports();
        let mut driver = Driver::new(config, secret, end);
        let mut protected = required.map(|ports| Box::new(Protected::new(ports.clone())));
        // What is known already counts from the first frame on.
        let (notices, known) = control.join(interface.number(), bell.waker())?;
        for change in known {
            if let Some(protected) = &mut protected {
                protected.apply(&mut driver, change);
            }
        }
        let mut worker = Self {
            protected,
            notices,
            control,
            driver,
            interface,
            notices_at: Instant::ZERO,
            bell,
            sleeper: None,
            link: LinkState::Active,
            started,
        };
        worker.follow_notices(Instant::ZERO);
        Ok(worker)
    }

    /// Reports what the interface is.
    pub fn report(&self) -> &InterfaceReport {
        self.interface.report()
    }

    #[inline]
    fn now(&self) -> Instant {
        Instant::from_nanos(clock().saturating_sub(self.started))
    }

    /// Requests next hops, and handles notices. Returns whether there was any. Notices are looked
    /// for at intervals, and after a request.
    #[inline]
    fn follow_routes(&mut self, now: Instant) -> bool {
        (now >= self.notices_at || self.driver.asks_for_next_hop()) && self.follow_notices(now)
    }

    fn follow_notices(&mut self, now: Instant) -> bool {
        while self.control.has_room()
            && let Some(request) = self.driver.poll_next_hop_request()
        {
            if let (Some(protected), NextHopRequest::Forget(path)) = (&mut self.protected, request)
            {
                protected.forget(path);
            }
            self.control.ask(self.interface.number(), request);
        }
        if let Some(protected) = &mut self.protected {
            protected.ask(&self.control);
        }
        self.notices_at = now + NOTICES_EVERY;
        let mut any = false;
        for _ in 0..NOTICES_PER_TURN {
            let Ok(notice) = self.notices.try_recv() else {
                return any;
            };
            any = true;
            self.handle_notice(now, notice);
        }
        self.notices_at = now;
        any
    }

    fn handle_notice(&mut self, now: Instant, notice: WorkerNotice) {
        let Self {
            driver,
            interface,
            protected,
            ..
        } = self;
        match notice {
            WorkerNotice::NextHop(update) => match (protected, update) {
                (Some(protected), update) => protected.update(driver, update),
                (None, Update::Set(path, hop)) => driver.set_next_hop(path, hop),
                (None, Update::Unreachable(path)) => driver.set_unreachable(path),
            },
            WorkerNotice::Protection(change) => {
                if let Some(protected) = protected {
                    protected.apply(driver, change);
                }
            }
            WorkerNotice::Untagged(vlans) => driver.set_untagged(vlans),
            WorkerNotice::Link(state) => self.set_link(now, state),
            WorkerNotice::TooBig(report) => {
                let mut batch = driver.begin(now);
                match (&mut *protected, report) {
                    (Some(protected), report) => protected.handle_too_big(&mut batch, &report),
                    (None, Report::Segment(too_big)) => batch.handle_too_big(&too_big),
                    (None, Report::Protected(_)) => {}
                }
                finish(batch, protected, &mut interface.tx);
                interface.tx.kick();
            }
            WorkerNotice::Revoked(lease) => {
                let mut batch = driver.begin(now);
                batch.revoke(lease);
                finish(batch, protected, &mut interface.tx);
            }
            WorkerNotice::Queues(queues) => {
                interface.rx.add(queues);
                self.sleeper = None;
            }
        }
    }

    fn set_link(&mut self, now: Instant, state: LinkState) {
        let Self {
            driver,
            interface,
            protected,
            ..
        } = self;
        self.link = state;
        if state == LinkState::Gone {
            // No frame is sent or received any more.
            self.sleeper = None;
            interface.rx.close();
            interface.tx.close();
            let mut batch = driver.begin(now);
            batch.lose_device();
            finish(batch, protected, &mut interface.tx);
        } else if interface.number() == 0 {
            // All workers get the notice; one reports it.
            driver.set_port(state == LinkState::Active);
        }
    }

    /// Returns how long it may sleep: until a timer expires, or until something may have room
    /// again.
    fn longest_sleep(&mut self, at_most: Duration) -> Duration {
        let now = self.now();
        let timer = self.driver.next_timeout();
        let sleep = timer.map_or(at_most, |at| at.since(now).min(at_most));
        let waits = self.driver.has_backlog() || self.interface.tx.is_pending();
        match self.link {
            LinkState::Active if waits => sleep.min(BACKLOG_SLEEP),
            // The control thread sends a notice when the link is up again.
            _ => sleep,
        }
    }

    /// Prepares to sleep: from here on doorbells and commands ring the bell. Returns whether it may
    /// sleep.
    fn prepare_to_sleep(&mut self) -> bool {
        // The next turn looks for notices.
        self.notices_at = Instant::ZERO;
        // The bell rings for notices after this look.
        self.driver.prepare_to_sleep() && self.notices.is_empty()
    }
}

/// Ends a turn.
#[inline(always)]
fn finish(batch: Batch<'_>, protected: &mut Option<Box<Protected>>, tx: &mut TxSide) -> bool {
    match protected {
        None => batch.finish(tx),
        Some(protected) => protected.finish(batch, tx),
    }
}

/// Has the engine handle the frames of a queue.
#[inline(always)]
fn handle_frames(
    batch: &mut Batch<'_>,
    protected: &mut Option<Box<Protected>>,
    queue: &RxRing,
    tx: &mut TxSide,
) {
    if let Some(protected) = protected {
        return protected.handle_frames(batch, queue, tx);
    }
    batch.prefetch(queue.heads());
    match queue.whole_frames() {
        Some(frames) => batch.handle_frames(frames, tx),
        None => batch.handle_frames(queue.frames(), tx),
    }
}

/// Sleeps until a socket has a frame, the bell rings, or time is up.
fn sleep<'a>(bell: &'a Bell, sockets: impl Iterator<Item = BorrowedFd<'a>>, at_most: Duration) {
    let timeout = TimeSpec::from_duration(at_most.saturating_sub(TIMER_SLACK));
    let fds = std::iter::once(bell.as_fd()).chain(sockets);
    let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    // A signal wakes it too.
    let _ = ppoll(&mut fds, Some(timeout), None);
    bell.silence();

    let failed = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
    let gone = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| events.intersects(failed));
    let is_gone = fds[1..].iter().any(gone);
    if is_gone {
        std::thread::sleep(at_most.min(GONE_SLEEP));
    }
}

/// Where a worker sleeps while other threads drive it: at its bell and its sockets, which stay open
/// meanwhile.
struct WorkerSleeper {
    bell: Bell,
    sockets: Vec<Arc<OpenSocket>>,
    doorbells: Arc<Doorbells>,
}

impl Sleeper for WorkerSleeper {
    fn sleep(&self, at_most: Duration) {
        let sockets = self.sockets.iter().map(|socket| socket.as_fd());
        sleep(&self.bell, sockets, at_most);
        self.doorbells.awake();
    }

    fn wake(&self) {
        self.bell.ring();
    }
}

impl Turn for Worker {
    fn turn(&mut self) -> bool {
        let now = self.now();
        let interface = &mut self.interface;
        let frames: usize = interface.rx.queues_mut().map(|queue| queue.receive()).sum();
        if frames == 0 && !self.driver.is_due(now) {
            interface.tx.reclaim();
            return self.follow_routes(now);
        }
        let mut batch = self.driver.begin(now);
        if frames > 0 {
            for queue in interface.rx.queues_mut() {
                handle_frames(&mut batch, &mut self.protected, queue, &mut interface.tx);
                queue.refill();
                if queue.has_more() {
                    batch.expect_more();
                }
            }
        }
        let busy = finish(batch, &mut self.protected, &mut interface.tx);
        interface.tx.reclaim();
        self.follow_routes(now) || busy
    }

    fn is_settled(&self) -> bool {
        // Without a link nothing can be sent.
        self.link != LinkState::Active || self.driver.is_settled()
    }

    fn wait(&mut self, at_most: Duration) {
        let at_most = self.longest_sleep(at_most);
        if self.prepare_to_sleep() {
            let sockets = self.interface.rx.sockets().map(|socket| socket.as_fd());
            sleep(&self.bell, sockets, at_most);
        }
        self.driver.awake();
    }
}

impl SplitTurn for Worker {
    fn begin_sleep(&mut self, at_most: Duration) -> Option<Duration> {
        if !self.prepare_to_sleep() {
            self.driver.awake();
            return None;
        }
        Some(self.longest_sleep(at_most))
    }

    fn sleeper(&mut self) -> Arc<dyn Sleeper> {
        let sleeper = self.sleeper.get_or_insert_with(|| {
            Arc::new(WorkerSleeper {
                bell: self.bell.clone(),
                sockets: self.interface.rx.sockets().cloned().collect(),
                doorbells: self.driver.doorbells().clone(),
            })
        });
        sleeper.clone()
    }
}
