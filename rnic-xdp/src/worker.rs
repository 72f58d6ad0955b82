//! The worker: drives one engine over one port, turn by turn, and sleeps when asked to.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use rnic_core::engine::{Driver, EngineConfig, EngineEnd, NextHopRequest, Turn};
use rnic_core::time::Instant;

use crate::bell::Bell;
use crate::error::OpenError;
use crate::icmp::Icmp;
use crate::port::{PortReport, XdpPort};
use crate::routes::{Routes, Update};

/// Changes of routes and neighbours, and what routers say, are looked for this often.
const NEWS_EVERY: Duration = Duration::from_millis(1);
/// New queues of the device are looked for this often.
const QUEUES_EVERY: Duration = Duration::from_secs(1);
/// The longest sleep while something waits for the device or for a free frame, which nothing announces.
const BACKLOG_SLEEP: Duration = Duration::from_millis(1);
/// What the kernel may add to a sleep: rather awake too early than too late.
const TIMER_SLACK: Duration = Duration::from_micros(60);
/// How long to let a device be that has gone.
const GONE_SLEEP: Duration = Duration::from_millis(10);

/// Drives an engine over a port: on a thread of its own or inline, whoever calls [`Turn::turn`].
pub struct Worker {
    driver: Driver,
    port: XdpPort,
    routes: Routes,
    icmp: Icmp,
    news_at: Instant,
    queues_at: Instant,
    bell: Bell,
    /// The clock when it started.
    started: u64,
}

impl Worker {
    /// A worker for an open port, in the network namespace of this thread. The engine's MTU becomes the port's.
    ///
    /// `secret` must be unpredictable. `bell` is the one whose waker `end`'s link was made with.
    pub fn new(
        port: XdpPort,
        config: EngineConfig,
        secret: [u8; 32],
        end: EngineEnd,
        bell: Bell,
    ) -> Result<Self, OpenError> {
        Self::start(port, config, secret, (end, bell), clock())
    }

    /// A worker for each share of an open device. `ends` are of [links](rnic_core::engine::links) made together, as many
    /// as there are shares, each with the bell of its waker.
    pub fn for_shares(
        shares: Vec<XdpPort>,
        config: &EngineConfig,
        secret: [u8; 32],
        ends: Vec<(EngineEnd, Bell)>,
    ) -> Result<Vec<Self>, OpenError> {
        // A peer may meet several of them: they have one clock, as they have one secret.
        let started = clock();
        let shares = shares.into_iter().zip(ends);
        shares
            .map(|(port, end)| Self::start(port, config.clone(), secret, end, started))
            .collect()
    }

    fn start(
        port: XdpPort,
        config: EngineConfig,
        secret: [u8; 32],
        (end, bell): (EngineEnd, Bell),
        started: u64,
    ) -> Result<Self, OpenError> {
        let mtu = port.report().mtu;
        let config = EngineConfig {
            mtu: mtu.try_into().unwrap_or(u16::MAX),
            ..config
        };
        Ok(Self {
            routes: Routes::open(port.link(), mtu)?,
            driver: Driver::new(config, secret, end),
            port,
            icmp: Icmp::open()?,
            news_at: Instant::ZERO,
            queues_at: Instant::ZERO,
            bell,
            started,
        })
    }

    /// What the port is.
    pub fn report(&self) -> &PortReport {
        self.port.report()
    }

    #[inline]
    fn now(&self) -> Instant {
        Instant::from_nanos(clock().saturating_sub(self.started))
    }

    /// Asks for next hops, and passes on what became known. Says whether there was anything. Between the times for news
    /// nothing becomes known unasked.
    #[inline]
    fn follow_routes(&mut self, now: Instant) -> bool {
        (now >= self.news_at || self.driver.asks_for_next_hop()) && self.follow_news(now)
    }

    fn follow_news(&mut self, now: Instant) -> bool {
        while let Some(request) = self.driver.poll_next_hop_request() {
            match request {
                NextHopRequest::Follow(destination) => {
                    self.routes.request(destination);
                    self.news_at = now;
                }
                NextHopRequest::Forget(destination) => self.routes.forget(destination),
            }
        }
        if now >= self.news_at {
            self.news_at = now + NEWS_EVERY;
            self.routes.poll(now);
            self.hear_routers(now);
            self.follow_queues(now);
        }
        let mut any = false;
        if let Some(active) = self.routes.poll_device() {
            any = true;
            // All workers see it; one tells.
            if self.driver.number() == 0 {
                self.driver.set_port(active);
            }
        }
        while let Some(update) = self.routes.poll_update() {
            any = true;
            match update {
                Update::Set(destination, hop) => self.driver.set_next_hop(destination, hop),
                Update::Unreachable(destination) => self.driver.set_unreachable(destination),
            }
        }
        any
    }

    /// Looks for queues that the administrator has added to the device.
    fn follow_queues(&mut self, now: Instant) {
        if now >= self.queues_at {
            self.queues_at = now + QUEUES_EVERY;
            // A queue that cannot be opened is tried again; `rnic-ctl steering` counts what comes there.
            let _ = self.port.follow_queues();
        }
    }

    /// Passes on what routers say of packets that were too big for them.
    fn hear_routers(&mut self, now: Instant) {
        let Self {
            driver, port, icmp, ..
        } = self;
        icmp.poll(|too_big| {
            let mut batch = driver.begin(now);
            batch.handle_too_big(&too_big, &mut port.tx);
            batch.finish(&mut port.tx);
            port.tx.kick();
        });
    }

    /// How long it may sleep: until a timer goes off, or something may have got room.
    fn longest_sleep(&mut self, at_most: Duration) -> Duration {
        let now = self.now();
        let timers = self
            .driver
            .next_timeout()
            .into_iter()
            .chain(self.routes.next_timeout());
        let sleep = timers.map(|at| at.since(now)).fold(at_most, Duration::min);
        if self.driver.has_backlog() || self.port.tx.is_pending() {
            sleep.min(BACKLOG_SLEEP)
        } else {
            sleep
        }
    }

    /// Sleeps until a frame arrives, the bell rings, a route changes, or time is up.
    fn sleep(&mut self, at_most: Duration) {
        let others = [self.routes.as_fd(), self.bell.as_fd()];
        let routers = self.icmp.fds();
        let fds = others
            .into_iter()
            .chain(routers)
            .chain(self.port.rx.sockets());
        let timeout = TimeSpec::from_duration(at_most.saturating_sub(TIMER_SLACK));
        let ports = self.port.rx.sockets().count();
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // Interrupted by a signal is as good as woken.
        let _ = ppoll(&mut fds, Some(timeout), None);
        self.bell.silence();

        // An error of the routes' socket says that news were lost: it ends when they are read anew.
        let first_port = fds.len() - ports;
        let has_news = fds.iter().take(first_port).any(|fd| fd.any() == Some(true));
        let failed = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
        let gone = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| events.intersects(failed));
        let is_gone = fds[first_port..].iter().any(gone);
        if has_news {
            self.news_at = Instant::ZERO;
        }
        if is_gone {
            std::thread::sleep(at_most.min(GONE_SLEEP));
        }
    }
}

/// Nanoseconds on the monotonic clock. Each turn asks, also one that finds nothing: as the standard library has it, the
/// arithmetic around the clock takes half as long as the clock.
#[inline]
fn clock() -> u64 {
    // Every kernel has this clock.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(TimeSpec::new(0, 0));
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

impl Turn for Worker {
    fn turn(&mut self) -> bool {
        let now = self.now();
        let port = &mut self.port;
        let frames: usize = port.rx.queues_mut().map(|queue| queue.receive()).sum();
        if frames == 0 && !self.driver.is_due(now) {
            port.tx.reclaim();
            return self.follow_routes(now);
        }
        let mut batch = self.driver.begin(now);
        if frames > 0 {
            for queue in port.rx.queues_mut() {
                batch.foresee(queue.heads());
                match queue.whole_frames() {
                    Some(frames) => batch.handle_frames(frames, &mut port.tx),
                    None => batch.handle_frames(queue.frames(), &mut port.tx),
                }
                queue.refill();
                if queue.has_more() {
                    batch.expect_more();
                }
            }
        }
        let busy = batch.finish(&mut port.tx);
        port.tx.reclaim();
        self.follow_routes(now) || busy
    }

    fn is_settled(&self) -> bool {
        self.driver.is_settled()
    }

    fn wait(&mut self, at_most: Duration) {
        let at_most = self.longest_sleep(at_most);
        if self.driver.prepare_to_sleep() {
            self.sleep(at_most);
        }
        self.driver.awake();
    }
}
