//! Two hosts that do anything at any time over a bad link: connect, accept, reject, post, bind
//! windows and invalidate them, disconnect, abort, destroy, revoke. Whatever they do, every request
//! completes once and in order, every event fits those before it, and in the end nothing is left.

mod common;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use common::*;
use fastrand::Rng;
use rnic_core::connection::{ConnectionOptions, Event};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::ids::{CqId, QpNumber, RequestId};
use rnic_core::memory::{binding::Binding, table::Access};
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{PD, QpSettings, SharedRegion, Simulation, TestQp, TestSrq};
use rnic_core::verbs::{
    sge::Sge,
    srq::SrqEvent,
    status::WcStatus,
    wr::{RecvWr, SendWr, WcOpcode, WrOpcode},
};
use rnic_core::wire::ddp::{Stag, TaggedOffset};
use rnic_core::wire::rdmap::AtomicOperation;

const SEEDS: u64 = 300;
const STEPS: usize = 120;
const QUEUE_PAIRS: usize = 5;
const PORT: u16 = 7000;
const REGION: usize = 20_000;
const WINDOWS: usize = 3;

fn bindable() -> Access {
    all_rights() | Access::MW_BIND
}

/// The state of a queue pair, as the events of its host have it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Idle,
    Connecting,
    Up,
    Over,
}

/// A queue pair, and what was posted to it and has not completed.
struct Queues {
    qp: TestQp,
    state: State,
    sends: VecDeque<u64>,
    receives: VecDeque<u64>,
}

impl Queues {
    fn new(qp: TestQp) -> Self {
        Self {
            qp,
            state: State::Idle,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
        }
    }

    /// Checks that completions come once, in order, and only with a connection. Receives of a
    /// shared queue have no order.
    fn poll(&mut self, shared: Option<&mut Shared>, seed: u64) {
        let mut shared = shared;
        for completion in self.qp.poll() {
            let (id, opcode, status) = outcome(&completion);
            let receive = matches!(opcode, WcOpcode::Recv | WcOpcode::RecvImmediate);
            let expected = match &mut shared {
                Some(shared) if receive => shared.posted.remove(&id),
                _ if receive => self.receives.pop_front() == Some(id),
                _ => self.sends.pop_front() == Some(id),
            };
            assert!(expected, "seed {seed}: {completion:?}");
            assert!(
                matches!(self.state, State::Up | State::Over),
                "seed {seed}: {completion:?} without a connection"
            );
            assert!(
                status == WcStatus::Success || self.state == State::Over,
                "seed {seed}: {completion:?} on a connection that stands"
            );
        }
    }
}

/// A shared receive queue, and what was posted to it and has not completed.
struct Shared {
    srq: TestSrq,
    posted: HashSet<u64>,
}

struct World {
    seed: u64,
    rng: Rng,
    sim: Simulation,
    queues: [HashMap<QpNumber, Queues>; 2],
    /// The shared receive queue of a host, if it has one.
    shared: [Option<Shared>; 2],
    regions: [Vec<SharedRegion>; 2],
    windows: [Vec<Stag>; 2],
    requests: [Vec<RequestId>; 2],
    next_id: u64,
    next_port: u16,
    ended: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let link = impairments(&mut rng);
        let config = EngineConfig {
            mtu: if seed % 4 == 3 { 9000 } else { 1500 },
            ..EngineConfig::default()
        };
        let mut sim = watched(&config, link, seed);
        let mut shared = [None, None];
        let (mut queues, mut regions) = ([HashMap::new(), HashMap::new()], [vec![], vec![]]);
        for host in 0..2 {
            sim.hosts[host].listen(PORT);
            if rng.u8(0..4) == 0 {
                sim.hosts[host].set_frames(60);
            }
            if rng.bool() {
                let srq = sim.hosts[host].create_srq(256, rng.u32(1..20));
                let posted = HashSet::new();
                shared[host] = Some(Shared { srq, posted });
            }
            for number in 1..=QUEUE_PAIRS as u32 {
                let srq = shared[host].as_ref().map(|shared| &shared.srq);
                let settings = QpSettings::default();
                let qp = sim.hosts[host].add_qp(QpNumber(number), settings, srq);
                queues[host].insert(qp.number, Queues::new(qp));
                regions[host].push(sim.hosts[host].share(&[0; REGION], bindable()));
            }
        }
        let windows = [0, 1].map(|host: usize| {
            let table = sim.hosts[host].table();
            let window = |_| table.allocate_window(PD).unwrap();
            (0..WINDOWS).map(window).collect()
        });
        Self {
            seed,
            rng,
            sim,
            queues,
            shared,
            regions,
            windows,
            requests: Default::default(),
            next_id: 0,
            next_port: 10_000,
            ended: 0,
        }
    }

    fn some_qp(&mut self, host: usize) -> &mut Queues {
        let number = QpNumber(self.rng.u32(1..=QUEUE_PAIRS as u32));
        self.queues[host].get_mut(&number).unwrap()
    }

    fn some_region(&mut self, host: usize) -> (Stag, Sge) {
        let at = self.rng.usize(..self.regions[host].len());
        let region = &self.regions[host][at];
        let len = if self.rng.bool() {
            self.rng.usize(0..REGION)
        } else {
            self.rng.usize(0..100)
        };
        (region.stag, sge(region, len))
    }

    fn options(&mut self) -> ConnectionOptions {
        ConnectionOptions {
            mpa_revision: self.rng.u8(1..=2),
            crc: self.rng.bool(),
            markers: self.rng.u8(0..4) == 0,
            first_fpdu_delay: Duration::from_micros(self.rng.u64(0..2) * 500),
            connect_timeout: Duration::from_secs(self.rng.u64(1..20)),
            ..ConnectionOptions::default()
        }
    }

    fn step(&mut self) {
        let host = self.rng.usize(0..2);
        match self.rng.u8(0..35) {
            0..=3 => self.connect(host),
            4..=8 => self.decide(host),
            9..=19 => self.post_send(host),
            20..=25 => self.post_recv(host),
            26 => {
                let number = self.some_qp(host).qp.number;
                self.sim.hosts[host].command(Command::Disconnect(number));
            }
            27 => {
                let number = self.some_qp(host).qp.number;
                self.sim.hosts[host].command(Command::Abort(number));
            }
            28 => self.destroy(host),
            29 => self.revoke(host),
            30..=32 => self.post_local(host),
            _ => {
                let micros = self.rng.u64(0..20_000);
                self.run_for(Duration::from_micros(micros));
            }
        }
        if self.rng.bool() {
            self.run_for(Duration::from_micros(10));
        }
    }

    fn run_for(&mut self, time: Duration) {
        self.sim.run_for(time);
        for host in 0..2 {
            for event in std::mem::take(&mut self.sim.hosts[host].events) {
                self.handle(host, event);
            }
            for queues in self.queues[host].values_mut() {
                queues.poll(self.shared[host].as_mut(), self.seed);
            }
        }
    }

    /// Checks that an event fits those before it.
    fn handle(&mut self, host: usize, event: Event) {
        let (qp, from, to) = match event {
            Event::ConnectRequest { request, .. } => return self.requests[host].push(request),
            Event::RequestGone { request } => {
                return self.requests[host].retain(|other| *other != request);
            }
            Event::Established { qp, .. } => (qp, State::Connecting, State::Up),
            Event::Rejected { qp, .. } | Event::Failed { qp, .. } => {
                (qp, State::Connecting, State::Idle)
            }
            Event::Disconnected { qp, .. } => (qp, State::Up, State::Over),
            Event::LastReceive { qp } => (qp, State::Over, State::Over),
            Event::SharedReceives(SrqEvent::HighWater { .. }) => return,
            // Events of limits, devices, overruns, workers and RC, which do not occur here.
            Event::Port { .. }
            | Event::PeerLeft { .. }
            | Event::SendsDrained { .. }
            | Event::SharedReceives(_)
            | Event::CompletionOverrun { .. }
            | Event::ListenerEnded { .. }
            | Event::DeviceGone
            | Event::WorkerEnded => {
                panic!("{event:?}")
            }
        };
        self.ended += usize::from(from == State::Up);
        let queues = self.queues[host].get_mut(&qp).unwrap();
        assert_eq!(queues.state, from, "seed {}: {event:?}", self.seed);
        queues.state = to;
    }

    fn connect(&mut self, host: usize) {
        let options = self.options();
        let remote = self.sim.hosts[1 - host].socket(PORT);
        self.next_port += 1;
        let port = self.next_port;
        let queues = self.some_qp(host);
        if queues.state != State::Idle {
            return;
        }
        queues.state = State::Connecting;
        let number = queues.qp.number;
        let qp = &self.queues[host][&number].qp;
        self.sim.hosts[host].connect(qp, port, remote, &options);
    }

    fn decide(&mut self, host: usize) {
        let Some(request) = self.requests[host].pop() else {
            return;
        };
        if self.rng.u8(0..8) == 0 {
            let private_data = pattern(self.rng.usize(0..500));
            return self.sim.hosts[host].command(Command::Reject {
                request,
                private_data,
            });
        }
        let options = self.options();
        let queues = self.some_qp(host);
        if queues.state != State::Idle {
            return self.requests[host].push(request);
        }
        queues.state = State::Connecting;
        let number = queues.qp.number;
        let qp = &self.queues[host][&number].qp;
        self.sim.hosts[host].accept(request, qp, &options);
    }

    fn post_send(&mut self, host: usize) {
        let (_, local) = self.some_region(host);
        let (region, _) = self.some_region(1 - host);
        let window = self.some_window(1 - host);
        let window = self.sim.hosts[1 - host].table().live(window);
        let remote = window.filter(|_| self.rng.bool()).unwrap_or(region);
        self.next_id += 1;
        let id = self.next_id;
        let local = match self.rng.u8(0..60) {
            // Not registered here.
            0 => Sge {
                lkey: local.lkey ^ 0xff00,
                ..local
            },
            _ => local,
        };
        let offset = match self.rng.u8(0..60) {
            0 => TaggedOffset(REGION as u64),
            _ => TaggedOffset(0),
        };
        let wr = match window.filter(|_| self.rng.u8(0..6) == 0) {
            Some(stag) => invalidate(id, stag),
            None => self.request(id, local).with_remote(remote, offset),
        };
        self.post(host, wr);
    }

    fn post(&mut self, host: usize, wr: SendWr) {
        let queues = self.some_qp(host);
        if queues.sends.len() < 200 {
            queues.sends.push_back(wr.wr_id);
            let number = queues.qp.number;
            let qp = &mut self.queues[host].get_mut(&number).unwrap().qp;
            self.sim.hosts[host].post_send(qp, wr);
        }
    }

    /// Makes a random work request. Its data, if it has any, are in `local`.
    fn request(&mut self, id: u64, local: Sge) -> SendWr {
        let with_data = |opcode| SendWr::new(id, opcode).with_sges(&[local]).unwrap();
        let sink = Sge { length: 8, ..local };
        let number = self.rng.u64(..);
        match self.rng.u8(0..7) {
            0 => with_data(WrOpcode::Send),
            1 => with_data(WrOpcode::Write),
            2 => with_data(WrOpcode::Read),
            3 => with_data(WrOpcode::WriteImmediate),
            4 => SendWr::new(id, WrOpcode::Immediate).with_immediate(number.to_ne_bytes()),
            5 => {
                let add = AtomicOperation::FetchAdd {
                    add: number,
                    mask: number.rotate_left(9),
                };
                SendWr::atomic(id, add, sink)
            }
            _ => {
                let swap = AtomicOperation::CmpSwap {
                    swap: number,
                    swap_mask: u64::MAX,
                    compare: 0,
                    compare_mask: number,
                };
                SendWr::atomic(id, swap, sink)
            }
        }
    }

    fn some_window(&mut self, host: usize) -> Stag {
        self.windows[host][self.rng.usize(..WINDOWS)]
    }

    /// Binds or invalidates a window on a random queue pair, which may not be its own.
    fn post_local(&mut self, host: usize) {
        let (region, _) = self.some_region(host);
        let window = self.some_window(host);
        self.next_id += 1;
        let id = self.next_id;
        let table = self.sim.hosts[host].table();
        let wr = match (table.live(window), self.rng.u8(0..3)) {
            (Some(_), 0) => return table.recall(window).unwrap(),
            (Some(stag), 1) => SendWr::invalidate(id, stag),
            _ => {
                let binding = Binding {
                    stag: table.new_key(window).0,
                    region: region.0,
                    length: REGION as u64,
                    access: (Access::REMOTE_READ | Access::REMOTE_WRITE).0,
                    ..Binding::default()
                };
                SendWr::bind(id, WrOpcode::BindWindow, &binding)
            }
        };
        self.post(host, wr);
    }

    fn post_recv(&mut self, host: usize) {
        let (stag, _) = self.some_region(host);
        for _ in 0..self.rng.usize(1..4) {
            self.next_id += 1;
            let id = self.next_id;
            let whole = Sge {
                offset: 0,
                length: REGION as u32,
                lkey: stag.0,
            };
            let wr = RecvWr::new(id, &[whole]).unwrap();
            if let Some(shared) = &mut self.shared[host] {
                if shared.posted.len() < 200 {
                    shared.posted.insert(id);
                    self.sim.hosts[host].post_shared(&mut shared.srq, wr);
                }
                continue;
            }
            let queues = self.some_qp(host);
            if queues.receives.len() < 200 {
                queues.receives.push_back(id);
                let number = queues.qp.number;
                let qp = &mut self.queues[host].get_mut(&number).unwrap().qp;
                self.sim.hosts[host].post_recv(qp, wr);
            }
        }
    }

    /// Destroys a queue pair. Its number is used again at once.
    fn destroy(&mut self, host: usize) {
        let number = self.some_qp(host).qp.number;
        let mut old = self.queues[host].remove(&number).unwrap();
        self.sim.hosts[host].command(Command::DestroyQp(number));
        if let Some(shared) = &mut self.shared[host] {
            // The shared receives that it had taken complete, and none of its own requests.
            self.sim.run_now();
            old.state = State::Over;
            old.poll(Some(shared), self.seed);
        }
        self.sim.hosts[host].command(Command::DestroyCq(CqId(number.0)));
        let srq = self.shared[host].as_ref().map(|shared| &shared.srq);
        let qp = self.sim.hosts[host].add_qp(number, QpSettings::default(), srq);
        self.queues[host].insert(number, Queues::new(qp));
    }

    fn revoke(&mut self, host: usize) {
        let at = self.rng.usize(..self.regions[host].len());
        let fresh = self.sim.hosts[host].share(&[0; REGION], bindable());
        let old = std::mem::replace(&mut self.regions[host][at], fresh);
        let table = self.sim.hosts[host].table();
        table.revoke_with_windows(old.stag).unwrap();
    }

    /// Ends everything, and checks that every request has completed and nothing is left.
    fn finish(mut self) -> usize {
        self.sim.link.set_impairments(Impairments::default());
        for host in 0..2 {
            self.sim.hosts[host].unlisten(PORT);
            for number in 1..=QUEUE_PAIRS as u32 {
                let end = match self.rng.bool() {
                    true => Command::Disconnect(QpNumber(number)),
                    false => Command::Abort(QpNumber(number)),
                };
                self.sim.hosts[host].command(end);
            }
        }
        self.run_for(SECOND * 900);
        for queues in self.queues.iter().flat_map(HashMap::values) {
            let (sends, receives) = (queues.sends.len(), queues.receives.len());
            match queues.state {
                State::Idle => {}
                State::Over => assert_eq!((sends, receives), (0, 0), "seed {}", self.seed),
                other => panic!("seed {}: a queue pair is still {other:?}", self.seed),
            }
        }
        for shared in self.shared.iter().flatten() {
            let (posted, left) = (shared.posted.len(), shared.srq.posted());
            assert_eq!(
                posted, left as usize,
                "seed {}: receives are lost",
                self.seed
            );
        }
        assert_nothing_left(&mut self.sim);
        self.ended
    }
}

fn impairments(rng: &mut Rng) -> Impairments {
    let mut share = |most| if rng.bool() { rng.u32(0..=most) } else { 0 };
    let (loss, duplication, reordering, cutting) = (share(30), share(30), share(100), share(100));
    Impairments {
        delay: Duration::from_micros(rng.u64(1..500)),
        loss,
        duplication,
        reordering,
        jitter: Duration::from_micros(500),
        cutting,
        ..Impairments::default()
    }
}

fn run(seed: u64) -> usize {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.step();
    }
    world.run_for(SECOND / 10);
    world.finish()
}

#[test]
fn whatever_hosts_do_every_request_completes_once_and_nothing_is_left() {
    let ended: usize = (0..SEEDS).map(run).sum();
    assert!(
        ended > SEEDS as usize,
        "{ended} connections stood and ended"
    );
}
