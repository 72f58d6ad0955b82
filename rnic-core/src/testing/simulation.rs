//! Two hosts with an engine each, on virtual time.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::engine::{
    Command, ConnectionOptions, Driver, EngineConfig, Event, HostEnd, ListenerId, NextHop,
    RequestId, link,
};
use crate::memory::region::{HugePages, Region};
use crate::memory::ring::{Consumer, Producer, ring};
use crate::memory::table::{Access, StagTable};
use crate::time::Instant;
use crate::verbs::cq::Arming;
use crate::verbs::qp::{CqId, PdId, QpNumber, QpState, QueuePair};
use crate::verbs::wr::{Completion, RecvWr, SendWr};
use crate::wire::ddp::{Stag, TaggedOffset};
use crate::wire::ethernet::MacAddr;
use crate::wire::packet::Checksums;

use super::VecFrames;
use super::link::{Impairments, Link};

/// Entries of each ring.
const RING: u32 = 256;

/// The one protection domain of a host.
const PD: PdId = PdId(1);

/// A region that the peer may reach, at addresses that begin at zero.
pub struct SharedRegion {
    /// Its memory.
    pub region: Arc<Region>,
    /// Its name.
    pub stag: Stag,
}

impl SharedRegion {
    /// A copy of its content.
    pub fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.region.len()];
        self.region
            .read(0, &mut bytes)
            .expect("the whole region is in the region");
        bytes
    }
}

/// The application's end of a queue pair, with one completion queue.
pub struct TestQp {
    /// Its name.
    pub number: QpNumber,
    sq: Producer<SendWr>,
    rq: Producer<RecvWr>,
    cq: Consumer<Completion>,
}

impl TestQp {
    /// Completions since the last call.
    pub fn poll(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.cq.pop()).collect()
    }
}

/// One host.
pub struct Host {
    /// Its address.
    pub address: Ipv4Addr,
    /// Events since the test took them.
    pub events: Vec<Event>,
    end: HostEnd,
    driver: Driver,
    tx: VecFrames,
    qps: u32,
}

impl Host {
    fn new(index: u8, config: EngineConfig, seed: u64) -> Self {
        let mut secret = [index; 32];
        secret[..8].copy_from_slice(&seed.to_le_bytes());
        let table = Arc::new(StagTable::new(64, secret));
        let (end, engine_end) = link(table, 64, Waker::noop().clone());
        Self {
            address: Ipv4Addr::new(192, 0, 2, index + 1),
            events: Vec::new(),
            end,
            driver: Driver::new(config, secret, engine_end),
            tx: VecFrames::new(2048),
            qps: 0,
        }
    }

    /// Sends a command to the engine.
    pub fn command(&self, command: Command) {
        self.end.send(command).expect("the engine is there");
    }

    /// The engine.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Registers fresh memory with content.
    pub fn share(&self, content: &[u8], access: Access) -> SharedRegion {
        let region = Region::allocate_unlocked(content.len().max(1), HugePages::None)
            .expect("ordinary memory is there");
        region.write(0, content).expect("the content fits");
        let region = Arc::new(region);
        let range = 0..region.len();
        let stag = self
            .end
            .table
            .register(region.clone(), range, TaggedOffset(0), access, PD)
            .expect("the table has room");
        SharedRegion { region, stag }
    }

    /// Takes a region away from the peer.
    pub fn revoke(&self, stag: Stag) {
        self.end.table.revoke(stag).expect("it was registered");
    }

    /// A queue pair, Idle.
    pub fn create_qp(&mut self) -> TestQp {
        self.qps += 1;
        let (number, id) = (QpNumber(self.qps), CqId(self.qps));
        let (sq, sq_end) = ring(RING).expect("memory for a ring");
        let (rq, rq_end) = ring(RING).expect("memory for a ring");
        let (cq_end, cq) = ring(2 * RING).expect("memory for a ring");
        let (arming, notify) = (Arc::new(Arming::new()), Waker::noop().clone());
        self.command(Command::CreateCq {
            cq: id,
            producer: cq_end,
            arming,
            notify,
        });
        self.command(Command::CreateQp(Box::new(QueuePair {
            number,
            pd: PD,
            sq: sq_end,
            rq: rq_end,
            send_cq: id,
            recv_cq: id,
            state: QpState::Idle,
            signal_all: true,
        })));
        TestQp { number, sq, rq, cq }
    }

    /// Posts a request to send.
    pub fn post_send(&self, qp: &mut TestQp, wr: SendWr) {
        qp.sq
            .push(wr)
            .expect("the test leaves room in the send queue");
        self.end.ring(qp.number);
    }

    /// Posts a buffer to receive into.
    pub fn post_recv(&self, qp: &mut TestQp, wr: RecvWr) {
        qp.rq
            .push(wr)
            .expect("the test leaves room in the receive queue");
        self.end.ring(qp.number);
    }

    /// Listens on a port.
    pub fn listen(&self, port: u16) {
        let local = SocketAddr::new(self.address.into(), port);
        let listener = ListenerId(u32::from(port));
        self.command(Command::Listen {
            listener,
            local,
            lease: Arc::new(()),
        });
    }

    fn answer_next_hops(&mut self) {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        while let Some(destination) = self.driver.poll_next_hop_request() {
            let hop = NextHop {
                source_mac: mac,
                destination_mac: mac,
                vlan: None,
                mtu: 9000,
            };
            self.driver.set_next_hop(destination, hop);
        }
    }

    fn turn(&mut self, now: Instant, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut batch = self.driver.begin(now);
        for frame in frames {
            batch.handle_frame(frame, Checksums::Verify, &mut self.tx);
        }
        batch.finish(&mut self.tx);
        self.answer_next_hops();
        self.events.extend(self.end.events.try_iter());
        self.tx.take_transmitted()
    }

    /// The requests to connect among the events.
    pub fn connect_requests(&self) -> impl Iterator<Item = RequestId> {
        self.events.iter().filter_map(|event| match event {
            Event::ConnectRequest { request, .. } => Some(*request),
            _ => None,
        })
    }

    /// Whether a queue pair is connected.
    pub fn is_established(&self, number: QpNumber) -> bool {
        let established =
            |event: &&Event| matches!(event, Event::Established { qp, .. } if *qp == number);
        self.events.iter().any(|event| established(&event))
    }
}

/// Two hosts and the link between them.
pub struct Simulation {
    /// The time.
    pub now: Instant,
    /// The hosts, 0 and 1.
    pub hosts: [Host; 2],
    /// The link.
    pub link: Link,
}

impl Simulation {
    /// Two hosts that have not spoken yet.
    pub fn new(config: &EngineConfig, impairments: Impairments, seed: u64) -> Self {
        Self {
            now: Instant::ZERO + Duration::from_secs(1),
            hosts: [
                Host::new(0, config.clone(), seed),
                Host::new(1, config.clone(), !seed),
            ],
            link: Link::new(impairments, seed),
        }
    }

    /// Lets both hosts work until nothing is left to do at this time, then moves time to the next arrival or
    /// timer. Says whether there is any.
    pub fn step(&mut self) -> bool {
        let mut arrived = [Vec::new(), Vec::new()];
        while let Some((to, frame)) = self.link.receive(self.now) {
            arrived[to].push(frame);
        }
        // A second turn, because next hops are answered after the first.
        for frames in [arrived, Default::default()] {
            for (index, frames) in frames.into_iter().enumerate() {
                for frame in self.hosts[index].turn(self.now, &frames) {
                    self.link.send(self.now, 1 - index, frame);
                }
            }
        }
        let timers = self
            .hosts
            .iter_mut()
            .filter_map(|host| host.driver.next_timeout());
        let next = timers.chain(self.link.next_arrival()).min();
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        true
    }

    /// Steps until something holds. Says whether it came to hold within `limit` of virtual time.
    pub fn run_until(&mut self, limit: Duration, mut holds: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        while !holds(self) {
            if self.now > end || !self.step() {
                return holds(self);
            }
        }
        true
    }

    /// Steps for some virtual time, or until nothing is left to do.
    pub fn run_for(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    /// Connects a fresh queue pair of host 0 to one of host 1, which accepts.
    pub fn connect(&mut self, options: &ConnectionOptions) -> Option<(TestQp, TestQp)> {
        const PORT: u16 = 7174;
        let local = SocketAddr::new(
            self.hosts[0].address.into(),
            40_000 + self.hosts[0].qps as u16,
        );
        let remote = SocketAddr::new(self.hosts[1].address.into(), PORT);
        self.hosts[1].listen(PORT);
        let active = self.hosts[0].create_qp();
        let passive = self.hosts[1].create_qp();
        self.hosts[0].command(Command::Connect {
            qp: active.number,
            local,
            remote,
            options: options.clone(),
            lease: Arc::new(()),
        });
        let asked = self.hosts[1].connect_requests().count();
        let limit = Duration::from_secs(60);
        self.run_until(limit, |sim| sim.hosts[1].connect_requests().count() > asked)
            .then_some(())?;
        let request = self.hosts[1].connect_requests().last()?;
        let (qp, options) = (passive.number, options.clone());
        self.hosts[1].command(Command::Accept {
            request,
            qp,
            options,
        });
        let numbers = (active.number, passive.number);
        self.run_until(limit, |sim| {
            sim.hosts[0].is_established(numbers.0) && sim.hosts[1].is_established(numbers.1)
        })
        .then_some((active, passive))
    }
}
