//! The worker: drives an engine over sockets, turn by turn, and sleeps when nothing is to be done.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rnic_core::connection::{Associated, KernelTcp, SctpSession, Socketed};
use rnic_core::engine::{
    Driver, EngineConfig, EngineEnd, KernelCarrier, Look, Sleeper, SplitTurn, Turn,
};
use rnic_core::memory::doorbell::Doorbells;
use rnic_core::time::Instant;
use rnic_manager::{Bell, PrivateFd};

use crate::sockets::KernelSockets;

/// The longest sleep while peers have not acknowledged everything. The kernel does not tell of
/// acknowledgments: it is asked.
const ACK_SLEEP: Duration = Duration::from_micros(500);

/// How often those are asked that have acknowledged nothing for long.
const STALLED_EVERY: Duration = Duration::from_millis(5);

/// How often it is looked for peers that have had no answer, and whose octets the kernel may not have
/// acknowledged. A worker that sleeps looks each [`ACK_SLEEP`].
const OWED_EVERY: Duration = Duration::from_micros(100);

/// The longest sleep while something waits that nothing announces.
const BACKLOG_SLEEP: Duration = Duration::from_millis(1);

/// A worker that spins looks at all sockets in one turn of so many, and asks what peers have
/// acknowledged no more often than this.
const TURNS_PER_LOOK: u32 = 8;
const ACKS_EVERY: Duration = Duration::from_micros(10);

/// What the kernel may add to a sleep: better awake too early than too late.
const TIMER_SLACK: Duration = Duration::from_micros(60);

/// Drives an engine over sockets, on a thread of its own or inline: by calls of [`Turn::turn`].
pub struct SocketWorker<T: KernelCarrier = KernelTcp<KernelSockets>> {
    driver: Driver<T>,
    sleeper: Arc<WorkerSleeper>,
    started: Clock,
    /// Turns since all sockets were looked at.
    turns: u32,
    /// When peers' acknowledgments are asked for again.
    acks_at: Instant,
    stalled_at: Instant,
    /// When peers have acknowledgments that have had no answer since.
    owed_at: Instant,
}

/// A worker over SCTP associations.
pub type AssociationWorker = SocketWorker<SctpSession<KernelSockets>>;

impl SocketWorker {
    /// Makes a worker over TCP. `secret` must be unpredictable. `bell` is the one whose waker `end`'s
    /// link was made with. Fails if there is no descriptor to sleep at.
    pub fn new(
        sockets: KernelSockets,
        config: EngineConfig,
        secret: [u8; 32],
        end: EngineEnd,
        bell: Bell,
    ) -> io::Result<Self> {
        let ready = sockets.as_fd().try_clone_to_owned()?.into();
        let driver = Driver::over(Socketed::new(sockets), config, secret, end);
        Ok(Self::driving(driver, bell, ready))
    }
}

impl AssociationWorker {
    /// Makes a worker over SCTP, as [`new`](SocketWorker::new) makes one over TCP.
    pub fn over_sctp(
        sockets: KernelSockets,
        config: EngineConfig,
        secret: [u8; 32],
        end: EngineEnd,
        bell: Bell,
    ) -> io::Result<Self> {
        let ready = sockets.as_fd().try_clone_to_owned()?.into();
        let driver = Driver::over(Associated::new(sockets), config, secret, end);
        Ok(Self::driving(driver, bell, ready))
    }
}

impl<T: KernelCarrier> SocketWorker<T> {
    fn driving(driver: Driver<T>, bell: Bell, ready: PrivateFd) -> Self {
        Self {
            sleeper: Arc::new(WorkerSleeper {
                bell,
                ready,
                doorbells: driver.doorbells().clone(),
            }),
            driver,
            started: Clock::now(),
            turns: 0,
            acks_at: Instant::ZERO,
            stalled_at: Instant::ZERO,
            owed_at: Instant::ZERO,
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Returns how long it may sleep: until a timer expires, or until it must ask the kernel. The next
    /// turn looks at everything.
    fn longest_sleep(&mut self, at_most: Duration) -> Duration {
        let now = self.now();
        (self.turns, self.acks_at) = (0, now);
        let timer = self.driver.next_timeout();
        let mut sleep = timer.map_or(at_most, |at| at.since(now).min(at_most));
        if self.driver.awaits_acks() || self.driver.owes_acks() {
            sleep = sleep.min(ACK_SLEEP);
        } else if self.driver.has_stalled() {
            sleep = sleep.min(STALLED_EVERY);
        }
        if self.driver.has_backlog() {
            sleep = sleep.min(BACKLOG_SLEEP);
        }
        sleep
    }
}

/// Where a worker sleeps: at its bell, and at what is readable when a socket is ready.
struct WorkerSleeper {
    bell: Bell,
    ready: PrivateFd,
    doorbells: Arc<Doorbells>,
}

impl Sleeper for WorkerSleeper {
    fn sleep(&self, at_most: Duration) {
        let timeout = TimeSpec::from_duration(at_most.saturating_sub(TIMER_SLACK));
        let fds = [self.bell.as_fd(), self.ready.as_fd()];
        let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        // A signal ends it too.
        let _ = ppoll(&mut fds, Some(timeout), None);
        self.bell.silence();
        self.doorbells.awake();
    }

    fn wake(&self) {
        self.bell.ring();
    }
}

impl<T: KernelCarrier> Turn for SocketWorker<T> {
    fn turn(&mut self) -> bool {
        let now = self.now();
        let look = Look {
            at_all_sockets: self.turns == 0,
            for_acknowledgments: now >= self.acks_at,
            for_stalled: now >= self.stalled_at,
            for_owed: now >= self.owed_at,
        };
        if look.for_stalled {
            self.stalled_at = now + STALLED_EVERY;
        }
        if look.for_owed {
            self.owed_at = now + OWED_EVERY;
        }
        self.turns = (self.turns + 1) % TURNS_PER_LOOK;
        if look.for_acknowledgments {
            self.acks_at = now + ACKS_EVERY;
        }
        self.driver.begin(now).finish_on_sockets(look)
    }

    fn is_settled(&self) -> bool {
        self.driver.is_settled()
    }

    fn wait(&mut self, at_most: Duration) {
        let at_most = self.longest_sleep(at_most);
        if self.driver.prepare_to_sleep() {
            self.sleeper.clone().sleep(at_most);
        }
        self.driver.awake();
    }
}

impl<T: KernelCarrier> SplitTurn for SocketWorker<T> {
    fn begin_sleep(&mut self, at_most: Duration) -> Option<Duration> {
        if !self.driver.prepare_to_sleep() {
            self.driver.awake();
            return None;
        }
        Some(self.longest_sleep(at_most))
    }

    fn sleeper(&mut self) -> Arc<dyn Sleeper> {
        self.sleeper.clone()
    }
}
