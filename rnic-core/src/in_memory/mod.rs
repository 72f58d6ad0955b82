//! Two devices in one process, joined by a link in memory, in real time: the engine without a NIC.

mod frames;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant as Clock};

use crossbeam_channel::{
    Receiver, Select, Sender, TryRecvError, bounded, never, select, unbounded,
};

use crate::connection::{NextHop, PortReservation};
use crate::engine::{
    Driver, EngineConfig, HostEnd, Net, NetError, NextHopRequest, Peers, Sleeper, SplitTurn, Turn,
    mailboxes,
};
use crate::memory::doorbell::Doorbells;
use crate::memory::table::StagTable;
use crate::time::Instant;
use crate::wire::ethernet::MacAddr;
use crate::wire::packet::Checksums;

pub use frames::{FRAME_LEN, VecFrames};

/// Frames handled in one turn.
const BATCH: usize = 64;

/// Transmit frames of each device.
const FRAMES: usize = 4096;

/// STags of each device.
const STAGS: usize = 4096;

/// Queue pairs of each device.
const QUEUE_PAIRS: u32 = 1024;

/// One of two joined devices: what an application needs to open it.
pub struct InMemoryDevice {
    /// The host's end of the link to the engine.
    pub host: HostEnd,
    /// The worker that drives the engine.
    pub worker: InMemoryWorker,
    /// Its addresses and ports.
    pub net: Arc<InMemoryNet>,
    /// Its address.
    pub address: IpAddr,
}

/// Makes two joined devices, 192.0.2.1 and 192.0.2.2. `seeds` are their secrets, for STags and
/// sequence numbers.
pub fn pair(seeds: [[u8; 32]; 2]) -> (InMemoryDevice, InMemoryDevice) {
    pair_with(&EngineConfig::default(), seeds)
}

/// Makes two joined devices with settings of the engines.
pub fn pair_with(config: &EngineConfig, seeds: [[u8; 32]; 2]) -> (InMemoryDevice, InMemoryDevice) {
    let (one, other) = pair_of_workers(config, seeds, 1, &Arc::default());
    let only = |mut device: InMemoryWorkers| InMemoryDevice {
        host: device.hosts.swap_remove(0),
        worker: device.workers.swap_remove(0),
        net: device.net,
        address: device.address,
    };
    (only(one), only(other))
}

/// One of two joined devices with several workers.
pub struct InMemoryWorkers {
    /// The host's ends of the mailboxes.
    pub hosts: Vec<HostEnd>,
    /// The workers, one for each engine.
    pub workers: Vec<InMemoryWorker>,
    /// Its addresses and ports.
    pub net: Arc<InMemoryNet>,
    /// Its address.
    pub address: IpAddr,
}

/// Makes two joined devices with several workers. What worker *n* sends arrives at worker *n* +
/// `shift` of the other device. `shift` may change.
pub fn pair_of_workers(
    config: &EngineConfig,
    seeds: [[u8; 32]; 2],
    workers: usize,
    shift: &Arc<AtomicUsize>,
) -> (InMemoryWorkers, InMemoryWorkers) {
    let lines = || (0..workers).map(|_| unbounded()).unzip();
    let (to_second, from_first): (Vec<_>, Vec<_>) = lines();
    let (to_first, from_second): (Vec<_>, Vec<_>) = lines();
    let started = Clock::now();
    let open = |address: Ipv4Addr, seed: [u8; 32], to_peer: Vec<Sender<Vec<u8>>>, from_peer| {
        let (wakes, woken): (Vec<_>, Vec<_>) = (0..workers).map(|_| bounded(1)).unzip();
        let wakes = wakes.into_iter().map(|wake| Arc::new(WorkerWaker(wake)));
        let wakes: Vec<_> = wakes.collect();
        let table = Arc::new(StagTable::new(STAGS, seed));
        let (hosts, ends): (Vec<_>, Vec<_>) = {
            let wakers = wakes.iter().cloned().map(Waker::from);
            mailboxes(&table, QUEUE_PAIRS, wakers.collect())
                .into_iter()
                .unzip()
        };
        let secret = seed.map(|octet| octet.rotate_left(3) ^ 0xa5);
        let wire = InMemoryWire {
            to_peer: to_peer.into(),
            shift: shift.clone(),
        };
        let parts = ends.into_iter().zip(Vec::into_iter(from_peer));
        let parts = parts.zip(wakes.into_iter().zip(woken));
        let worker = |((end, from_peer), (wake, woken))| InMemoryWorker {
            driver: Driver::new(config.clone(), secret, end),
            tx: VecFrames::new(FRAMES),
            wire: wire.clone(),
            from_peer,
            wake,
            woken,
            started,
            waiting: None,
        };
        InMemoryWorkers {
            hosts,
            workers: parts.map(worker).collect(),
            net: Arc::new(InMemoryNet {
                address: address.into(),
                address_v6: within_documentation(address).into(),
                used: Arc::default(),
            }),
            address: address.into(),
        }
    };
    (
        open(
            Ipv4Addr::new(192, 0, 2, 1),
            seeds[0],
            to_second,
            from_second,
        ),
        open(Ipv4Addr::new(192, 0, 2, 2), seeds[1], to_first, from_first),
    )
}

/// Returns the IPv6 address with the same last octet: 2001:db8::1, and so on.
fn within_documentation(address: Ipv4Addr) -> Ipv6Addr {
    let last = address.octets()[3].into();
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last)
}

/// The wire to the other device.
#[derive(Clone)]
struct InMemoryWire {
    to_peer: Arc<[Sender<Vec<u8>>]>,
    shift: Arc<AtomicUsize>,
}

impl InMemoryWire {
    fn send(&self, worker: u16, frame: Vec<u8>) {
        let to = usize::from(worker) + self.shift.load(Ordering::Relaxed);
        // A peer that is gone receives nothing, as on a real wire.
        let _ = self.to_peer[to % self.to_peer.len()].send(frame);
    }
}

/// Wakes a worker.
struct WorkerWaker(Sender<()>);

impl Wake for WorkerWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // If the channel is full, the worker is being woken already.
        let _ = self.0.try_send(());
    }
}

/// Drives one engine, whose frames go to and come from the other device.
pub struct InMemoryWorker {
    driver: Driver,
    tx: VecFrames,
    wire: InMemoryWire,
    from_peer: Receiver<Vec<u8>>,
    wake: Arc<WorkerWaker>,
    woken: Receiver<()>,
    started: Clock,
    /// A frame that ended a wait.
    waiting: Option<Vec<u8>>,
}

impl InMemoryWorker {
    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    fn resolve_next_hops(&mut self) {
        // Link addresses have no meaning here.
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        while let Some(request) = self.driver.poll_next_hop_request() {
            let NextHopRequest::Follow(path) = request else {
                continue;
            };
            let hop = NextHop {
                source_mac: mac,
                destination_mac: mac,
                vlan: None,
                mtu: 1500,
                advertised_mss: None,
            };
            self.driver.set_next_hop(path, hop);
        }
    }
}

impl Turn for InMemoryWorker {
    fn turn(&mut self) -> bool {
        let now = self.now();
        let mut batch = self.driver.begin(now);
        let frames = self
            .waiting
            .take()
            .into_iter()
            .chain(self.from_peer.try_iter());
        let frames = frames.take(BATCH).map(|frame| (frame, Checksums::None));
        batch.handle_frames(frames, &mut self.tx);
        if !self.from_peer.is_empty() {
            batch.expect_more();
        }
        let busy = batch.finish(&mut self.tx);
        self.resolve_next_hops();
        for frame in self.tx.take_transmitted() {
            self.wire.send(self.driver.number(), frame);
        }
        busy
    }

    fn is_settled(&self) -> bool {
        self.driver.is_settled()
    }

    fn wait(&mut self, at_most: Duration) {
        let now = self.now();
        let until_timer = self.driver.next_timeout().map(|at| at.since(now));
        let at_most = until_timer.map_or(at_most, |timer| timer.min(at_most));
        if !self.driver.prepare_to_sleep() || self.driver.has_backlog() {
            return self.driver.awake();
        }
        select! {
            recv(self.from_peer) -> frame => match frame {
                Ok(frame) => self.waiting = Some(frame),
                // A peer that is gone would end every wait at once.
                Err(_) => self.from_peer = never(),
            },
            recv(self.woken) -> _ => {}
            default(at_most) => {}
        }
        self.driver.awake();
    }
}

impl SplitTurn for InMemoryWorker {
    fn begin_sleep(&mut self, at_most: Duration) -> Option<Duration> {
        match self.from_peer.try_recv() {
            Ok(frame) => self.waiting = Some(frame),
            Err(TryRecvError::Disconnected) => self.from_peer = never(),
            Err(TryRecvError::Empty) => {}
        }
        let may_sleep = self.waiting.is_none() && !self.driver.has_backlog();
        if !may_sleep || !self.driver.prepare_to_sleep() {
            self.driver.awake();
            return None;
        }
        let now = self.now();
        let until_timer = self.driver.next_timeout().map(|at| at.since(now));
        Some(until_timer.map_or(at_most, |timer| timer.min(at_most)))
    }

    fn sleeper(&mut self) -> Arc<dyn Sleeper> {
        Arc::new(InMemorySleeper {
            from_peer: self.from_peer.clone(),
            wake: self.wake.clone(),
            woken: self.woken.clone(),
            doorbells: self.driver.doorbells().clone(),
        })
    }
}

/// Where a worker sleeps.
struct InMemorySleeper {
    from_peer: Receiver<Vec<u8>>,
    wake: Arc<WorkerWaker>,
    woken: Receiver<()>,
    doorbells: Arc<Doorbells>,
}

impl Sleeper for InMemorySleeper {
    fn sleep(&self, at_most: Duration) {
        let mut any = Select::new();
        any.recv(&self.from_peer);
        any.recv(&self.woken);
        let _ = any.ready_timeout(at_most);
        let _ = self.woken.try_recv();
        self.doorbells.awake();
    }

    fn wake(&self) {
        self.wake.wake_by_ref();
    }
}

/// The addresses and ports of one device.
pub struct InMemoryNet {
    address: IpAddr,
    /// A second one, for connections of the device with itself.
    address_v6: IpAddr,
    used: Arc<Mutex<HashSet<u16>>>,
}

impl InMemoryNet {
    fn reserve(&self, local: SocketAddr) -> Result<(SocketAddr, PortReservation), NetError> {
        let own = [self.address, self.address_v6].contains(&local.ip());
        if !local.ip().is_unspecified() && !own {
            return Err(NetError::NotLocal(local, "the in-memory link".into()));
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let port = match local.port() {
            0 => (49152..=65535).find(|port| !used.contains(port)),
            port => (!used.contains(&port)).then_some(port),
        };
        let port = port.ok_or(NetError::InUse(local.into()))?;
        used.insert(port);
        let reservation = Arc::new(Reservation {
            port,
            used: self.used.clone(),
        });
        Ok((SocketAddr::new(local.ip(), port), reservation))
    }
}

impl Net for InMemoryNet {
    fn listen_to(
        &self,
        local: SocketAddr,
        _peers: &Peers,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        self.reserve(local)
    }

    fn active(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        _engine: u16,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        let address = match remote.is_ipv4() {
            true => self.address,
            false => self.address_v6,
        };
        self.reserve(local.unwrap_or(SocketAddr::new(address, 0)))
    }
}

/// Returns a port when the reservation is dropped.
struct Reservation {
    port: u16,
    used: Arc<Mutex<HashSet<u16>>>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.used
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.port);
    }
}
