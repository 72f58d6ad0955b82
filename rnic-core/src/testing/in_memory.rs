//! Two devices in one process, joined by a link in memory, in real time: the same engine without a NIC.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant as Clock};

use crossbeam_channel::{Receiver, Sender, bounded, never, select, unbounded};

use crate::engine::{
    Driver, EngineConfig, EngineEnd, HostEnd, Net, NetError, NextHop, PortLease, Turn, link,
};
use crate::memory::table::StagTable;
use crate::time::Instant;
use crate::wire::ethernet::MacAddr;
use crate::wire::packet::Checksums;

use super::VecFrames;

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
    /// What drives the engine.
    pub worker: InMemoryWorker,
    /// Address services.
    pub net: Arc<InMemoryNet>,
    /// Its address.
    pub address: IpAddr,
}

/// Two devices, 192.0.2.1 and 192.0.2.2. `seeds` are their secrets, for STags and for sequence numbers.
pub fn pair(seeds: [[u8; 32]; 2]) -> (InMemoryDevice, InMemoryDevice) {
    pair_with(&EngineConfig::default(), seeds)
}

/// The same with settings of the engines.
pub fn pair_with(config: &EngineConfig, seeds: [[u8; 32]; 2]) -> (InMemoryDevice, InMemoryDevice) {
    let ends = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
    let (to_second, from_first) = unbounded();
    let (to_first, from_second) = unbounded();
    let started = Clock::now();
    let open = |end: usize, to_peer, from_peer| {
        let engine = |secret, link| Driver::new(config.clone(), secret, link);
        device(
            ends[end].into(),
            seeds[end],
            engine,
            to_peer,
            from_peer,
            started,
        )
    };
    (
        open(0, to_second, from_second),
        open(1, to_first, from_first),
    )
}

fn device(
    address: IpAddr,
    seed: [u8; 32],
    engine: impl FnOnce([u8; 32], EngineEnd) -> Driver,
    to_peer: Sender<Vec<u8>>,
    from_peer: Receiver<Vec<u8>>,
    started: Clock,
) -> InMemoryDevice {
    let (wake, woken) = bounded(1);
    let waker = Waker::from(Arc::new(Alarm(wake)));
    let (host, end) = link(Arc::new(StagTable::new(STAGS, seed)), QUEUE_PAIRS, waker);
    let secret = seed.map(|octet| octet.rotate_left(3) ^ 0xa5);
    let driver = engine(secret, end);
    let tx = VecFrames::new(FRAMES);
    let worker = InMemoryWorker {
        driver,
        tx,
        to_peer,
        from_peer,
        woken,
        started,
        waiting: None,
    };
    let net = Arc::new(InMemoryNet {
        address,
        used: Arc::default(),
    });
    InMemoryDevice {
        host,
        worker,
        net,
        address,
    }
}

/// Wakes a worker out of its wait.
struct Alarm(Sender<()>);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        // A full channel means that it is being woken already.
        let _ = self.0.try_send(());
    }
}

/// Drives one engine whose frames go to and come from the other device.
pub struct InMemoryWorker {
    driver: Driver,
    tx: VecFrames,
    to_peer: Sender<Vec<u8>>,
    from_peer: Receiver<Vec<u8>>,
    woken: Receiver<()>,
    started: Clock,
    /// A frame that ended a wait.
    waiting: Option<Vec<u8>>,
}

impl InMemoryWorker {
    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    fn answer_next_hops(&mut self) {
        // Nobody looks at link addresses here.
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        while let Some(destination) = self.driver.poll_next_hop_request() {
            let hop = NextHop {
                source_mac: mac,
                destination_mac: mac,
                vlan: None,
                mtu: 1500,
            };
            self.driver.set_next_hop(destination, hop);
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
        let frames = frames.take(BATCH).map(|frame| (frame, Checksums::Verify));
        batch.handle_frames(frames, &mut self.tx);
        if !self.from_peer.is_empty() {
            batch.expect_more();
        }
        let busy = batch.finish(&mut self.tx);
        self.answer_next_hops();
        for frame in self.tx.take_transmitted() {
            // A peer that has gone receives nothing, as on a real wire.
            let _ = self.to_peer.send(frame);
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
        let end = self.driver.end();
        let must_stay_awake = !end.doorbells.prepare_to_sleep() || !end.commands.is_empty();
        if must_stay_awake || self.driver.has_backlog() {
            return self.driver.end().doorbells.awake();
        }
        select! {
            recv(self.from_peer) -> frame => match frame {
                Ok(frame) => self.waiting = Some(frame),
                // A peer that has gone would end every wait at once.
                Err(_) => self.from_peer = never(),
            },
            recv(self.woken) -> _ => {}
            default(at_most) => {}
        }
        self.driver.end().doorbells.awake();
    }
}

/// The ports of one device.
pub struct InMemoryNet {
    address: IpAddr,
    used: Arc<Mutex<HashSet<u16>>>,
}

impl InMemoryNet {
    fn reserve(&self, local: SocketAddr) -> Result<(SocketAddr, PortLease), NetError> {
        if !local.ip().is_unspecified() && local.ip() != self.address {
            return Err(NetError::NotLocal(local, "the in-memory link".into()));
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let port = match local.port() {
            0 => (49152..=65535).find(|port| !used.contains(port)),
            port => (!used.contains(&port)).then_some(port),
        };
        let port = port.ok_or(NetError::InUse(local))?;
        used.insert(port);
        let lease = Arc::new(Lease {
            port,
            used: self.used.clone(),
        });
        Ok((SocketAddr::new(local.ip(), port), lease))
    }
}

impl Net for InMemoryNet {
    fn listen(&self, local: SocketAddr) -> Result<(SocketAddr, PortLease), NetError> {
        self.reserve(local)
    }

    fn active(
        &self,
        _remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<(SocketAddr, PortLease), NetError> {
        self.reserve(local.unwrap_or(SocketAddr::new(self.address, 0)))
    }
}

/// Gives a port back when nobody uses it any more.
struct Lease {
    port: u16,
    used: Arc<Mutex<HashSet<u16>>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.used
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.port);
    }
}
