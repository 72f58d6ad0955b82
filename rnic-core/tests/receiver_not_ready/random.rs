//! Both sides send everything to each other, over links that lose and reorder, and post their
//! receives late: nothing is lost, misplaced, out of order or stuck.

use std::collections::VecDeque;
use std::time::Duration;

use fastrand::Rng;
use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::EngineConfig;
use rnic_core::memory::table::Access;
use rnic_core::testing::deep;
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{QpSettings, SharedRegion, Simulation, TestQp, TestSrq};
use rnic_core::verbs::{
    sge::Sge,
    status::WcStatus,
    wr::{Completion, RecvWr, SendWr, WcOpcode, WrOpcode},
};
use rnic_core::wire::ddp::TaggedOffset;
use rnic_core::wire::rdmap::AtomicOperation;

use crate::common::all_rights;
use crate::scene::*;

const SEEDS: u64 = 400;

/// Room for each operation.
const SLOT: usize = 24_000;

/// Operations in each direction.
const OPERATIONS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Send,
    Write,
    WriteImmediate,
    Read,
    Atomic,
}

/// One host's half of a run.
struct Side {
    host: usize,
    qp: TestQp,
    srq: Option<TestSrq>,
    source: SharedRegion,
    /// What the peer writes to.
    target: SharedRegion,
    /// Where its Sends arrive.
    inbox: SharedRegion,
    sink: SharedRegion,
    number: SharedRegion,
    operations: Vec<(Kind, usize)>,
    /// The receives for the peer's operations that are not posted yet.
    receives: VecDeque<RecvWr>,
    requests: Vec<Completion>,
    received: Vec<Completion>,
}

fn piece(region: &SharedRegion, slot: usize, len: usize) -> Sge {
    Sge {
        offset: (slot * SLOT) as u64,
        length: len as u32,
        lkey: region.stag.0,
    }
}

fn is_received((kind, _): &(Kind, usize)) -> bool {
    matches!(kind, Kind::Send | Kind::WriteImmediate)
}

fn operations(rng: &mut Rng) -> Vec<(Kind, usize)> {
    use Kind::{Atomic, Read, Send, Write, WriteImmediate};
    let kinds = [Send, Send, Send, Write, WriteImmediate, Read, Atomic];
    let operation = |_| {
        let kind = kinds[rng.usize(..kinds.len())];
        let sizes = [0, 1, 64, 1400, 5000, SLOT, rng.usize(0..=SLOT)];
        let len = sizes[rng.usize(..sizes.len())];
        (kind, if kind == Atomic { 8 } else { len })
    };
    (0..OPERATIONS).map(operation).collect()
}

impl Side {
    fn new(
        sim: &mut Simulation,
        host: usize,
        qp: TestQp,
        srq: Option<TestSrq>,
        rng: &mut Rng,
    ) -> Self {
        let len = SLOT * OPERATIONS;
        let noise: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
        Self {
            host,
            qp,
            srq,
            source: sim.hosts[host].share(&noise, all_rights()),
            target: sim.hosts[host].share(&vec![0; len], all_rights()),
            inbox: sim.hosts[host].share(&vec![0; len], all_rights()),
            sink: sim.hosts[host].share(&vec![0; len], all_rights()),
            number: sim.hosts[host].share(&[0; 8], Access::REMOTE_ATOMIC),
            operations: operations(rng),
            receives: VecDeque::new(),
            requests: Vec::new(),
            received: Vec::new(),
        }
    }

    fn prepare_receives(&mut self, peer: &Self) {
        let count = peer.operations.iter().filter(|op| is_received(op)).count();
        let receive = |slot| RecvWr::new(slot as u64, &[piece(&self.inbox, slot, SLOT)]);
        self.receives = (0..count).filter_map(receive).collect();
    }

    fn post_receives(&mut self, sim: &Simulation, count: usize) {
        for wr in self.receives.drain(..count.min(self.receives.len())) {
            match &mut self.srq {
                None => sim.hosts[self.host].post_recv(&mut self.qp, wr),
                Some(srq) => sim.hosts[self.host].post_shared(srq, wr),
            }
        }
    }

    fn post_operations(&mut self, sim: &Simulation, peer: &Self) {
        for (slot, (kind, len)) in self.operations.iter().enumerate() {
            let at = TaggedOffset((slot * SLOT) as u64);
            let id = slot as u64;
            let from = [piece(&self.source, slot, *len)];
            let wr = match kind {
                Kind::Send => SendWr::new(id, WrOpcode::Send).with_sges(&from),
                Kind::Write => SendWr::new(id, WrOpcode::Write)
                    .with_remote(peer.target.stag, at)
                    .with_sges(&from),
                Kind::WriteImmediate => SendWr::new(id, WrOpcode::WriteImmediate)
                    .with_immediate(id.to_be_bytes())
                    .with_remote(peer.target.stag, at)
                    .with_sges(&from),
                Kind::Read => SendWr::new(id, WrOpcode::Read)
                    .with_remote(peer.source.stag, at)
                    .with_sges(&[piece(&self.sink, slot, *len)]),
                Kind::Atomic => {
                    let add = AtomicOperation::FetchAdd { add: 1, mask: 0 };
                    let sum = SendWr::atomic(id, add, piece(&self.sink, slot, 8));
                    Some(sum.with_remote(peer.number.stag, TaggedOffset(0)))
                }
            };
            sim.hosts[self.host].post_send(&mut self.qp, wr.unwrap());
        }
    }

    fn poll(&mut self) {
        for done in self.qp.poll() {
            assert_eq!(done.status(), WcStatus::Success, "{done:?}");
            match done.opcode() {
                Ok(WcOpcode::Recv | WcOpcode::RecvImmediate) => self.received.push(done),
                _ => self.requests.push(done),
            }
        }
    }

    fn is_done(&self, peer: &Self) -> bool {
        let wanted = peer.operations.iter().filter(|op| is_received(op)).count();
        self.requests.len() == OPERATIONS && self.received.len() == wanted
    }

    /// Checks what this side has got of its own requests and of the peer's.
    fn check(&self, peer: &Self, seed: u64) {
        let order: Vec<u64> = self.requests.iter().map(|done| done.wr_id).collect();
        assert_eq!(order, (0..OPERATIONS as u64).collect::<Vec<_>>(), "{seed}");
        let mut received = self.received.iter();
        let (sink, target) = (self.sink.content(), self.target.content());
        let (inbox, theirs) = (self.inbox.content(), peer.source.content());
        let mut sum: u64 = 0;
        for (slot, operation) in peer.operations.iter().enumerate() {
            let (kind, len) = *operation;
            let range = slot * SLOT..slot * SLOT + len;
            let done = is_received(operation).then(|| received.next().unwrap());
            assert!(
                done.is_none_or(|done| done.byte_len == len as u32),
                "{seed}"
            );
            let arrived = match (kind, done) {
                (Kind::Send, Some(done)) => &inbox[done.wr_id as usize * SLOT..][..len],
                (Kind::Write, _) => &target[range.clone()],
                (Kind::WriteImmediate, Some(done)) => {
                    assert_eq!(done.immediate, (slot as u64).to_be_bytes(), "{seed}");
                    &target[range.clone()]
                }
                _ => continue,
            };
            assert!(arrived == &theirs[range], "{seed}: {kind:?} {slot}");
        }
        for (slot, (kind, len)) in self.operations.iter().enumerate() {
            let range = slot * SLOT..slot * SLOT + len;
            match kind {
                Kind::Read => assert!(sink[range.clone()] == theirs[range], "{seed}: Read {slot}"),
                Kind::Atomic => {
                    assert_eq!(sink[range], sum.to_ne_bytes(), "{seed}: atomic {slot}");
                    sum += 1;
                }
                Kind::Send | Kind::Write | Kind::WriteImmediate => {}
            }
        }
        assert_eq!(peer.number.content(), sum.to_ne_bytes(), "{seed}");
    }
}

fn impairments(rng: &mut Rng) -> Impairments {
    let share = |rng: &mut Rng, most: u32| if rng.bool() { rng.u32(0..=most) } else { 0 };
    Impairments {
        delay: Duration::from_micros(rng.u64(1..2000)),
        loss: share(rng, 50),
        duplication: share(rng, 50),
        corruption: share(rng, 20),
        reordering: share(rng, 200),
        jitter: Duration::from_micros(rng.u64(1..3000)),
        cutting: share(rng, 300),
    }
}

/// Runs a seed. Returns how often streams were parked, and XOFFs received.
fn run(seed: u64) -> (u64, u64) {
    let mut rng = Rng::with_seed(seed);
    let config = EngineConfig {
        mtu: if seed % 4 == 3 { 9000 } else { 1500 },
        ..EngineConfig::default()
    };
    let mut sim = network(&config, impairments(&mut rng), seed);
    let options = ConnectionOptions {
        markers: seed % 5 == 1,
        crc: seed % 7 != 2,
        ord: rng.u16(1..=4),
        peer_to_peer: rng.bool(),
        ..rc()
    };
    let srq = seed
        .is_multiple_of(3)
        .then(|| sim.hosts[1].create_srq(64, 8));
    let active = sim.hosts[0].create_qp();
    let passive = match &srq {
        None => sim.hosts[1].create_qp(),
        Some(srq) => sim.hosts[1].create_qp_on(srq, QpSettings::default()),
    };
    let established = sim.connect_pair(&active, &passive, &options, &options);
    assert!(established, "{seed}");
    let mut one = Side::new(&mut sim, 0, active, None, &mut rng);
    let mut other = Side::new(&mut sim, 1, passive, srq, &mut rng);
    one.prepare_receives(&other);
    other.prepare_receives(&one);
    one.post_operations(&sim, &other);
    other.post_operations(&sim, &one);
    for _ in 0..20_000 {
        sim.run_for(Duration::from_micros(rng.u64(1..20_000)));
        for side in [&mut one, &mut other] {
            side.poll();
            if rng.bool() {
                side.post_receives(&sim, rng.usize(0..=2));
            }
        }
        if one.is_done(&other) && other.is_done(&one) {
            break;
        }
    }
    for (side, peer) in [(&one, &other), (&other, &one)] {
        let events = &sim.hosts[side.host].events;
        let counts = (side.requests.len(), side.received.len());
        assert!(side.is_done(peer), "{seed}: {counts:?}, {events:?}");
        side.check(peer, seed);
    }
    // An XON may be on its way still.
    sim.run_for(Duration::from_secs(60));
    let counted = [0, 1].map(|host| {
        assert_nothing_parked(&mut sim, host);
        let counters = counters(&mut sim, host);
        (counters.streams_parked, counters.xoffs_received)
    });
    (counted[0].0 + counted[1].0, counted[0].1 + counted[1].1)
}

#[test]
fn every_message_comes_once_and_in_order_however_late_receives_are_posted() {
    let threads = std::thread::available_parallelism().map_or(2, usize::from) as u64;
    let all = deep(SEEDS);
    let share = move |thread: u64| {
        let seeds = (0..all).filter(move |seed| seed % threads == thread);
        let counted = seeds.map(run);
        counted.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    };
    let (parked, xoffs) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || share(thread)))
            .collect();
        let results = workers.into_iter().map(|worker| worker.join().unwrap());
        results.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    assert!(parked > 2 * all, "{parked} parked");
    assert!(xoffs > all, "{xoffs} XOFFs");
}
