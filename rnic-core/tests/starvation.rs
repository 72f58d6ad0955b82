//! Many connections on few frames, while the link fails for a time and peers vanish, close their
//! windows, or have their segments cut by routers. Whatever happens, the others make progress,
//! everything that a peer may still take arrives, and everything ends: no frame and no connection
//! is left.
//!
//! `STARVATION_SEEDS` is the number of seeds to try, from `STARVATION_FROM` on.

mod common;

use std::ops::Range;
use std::time::Duration;

use common::*;
use fastrand::Rng;
use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{SharedRegion, Simulation, TestQp};
use rnic_core::verbs::status::WcStatus;
use rnic_core::wire::ddp::Stag;
use rnic_core::wire::icmp::TooBig;

const SEEDS: u64 = 100;

/// One seed in so many has hundreds of connections.
const CROWDED: u64 = 100;

const STEPS: usize = 12;

/// The most octets of a request.
const MOST: usize = 60_000;

/// Outages in a run, together shorter than the time after which a connection gives up.
const OUTAGES: u32 = 2;

/// The time until a connection finds out that the link is up again: the longest timeouts in a row
/// that an outage causes.
const PATIENCE: Duration = Duration::from_secs(300);

/// The time until the frames of a silent peer are freed.
const SOON: Duration = Duration::from_secs(10);

/// A connection between the hosts, and what is posted on it and not complete.
struct Pair {
    qp: TestQp,
    open: usize,
}

/// How a raw peer behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Well,
    /// It has vanished.
    Vanished,
    /// Its window is closed for good, and it acknowledges probes.
    Closed,
    /// The host has aborted its connection.
    GivenUp,
}

struct Peer {
    raw: RawConnection,
    mood: Mood,
}

struct World {
    seed: u64,
    rng: Rng,
    sim: Simulation,
    source: SharedRegion,
    target: SharedRegion,
    pairs: Vec<Pair>,
    peers: Vec<Peer>,
    outages: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let config = EngineConfig::default();
        // A decoder that reads everything would take most of the time.
        let mut sim = match seed % 8 {
            0 => watched(&config, link(&mut rng), seed),
            _ => Simulation::new(&config, link(&mut rng), seed),
        };
        for host in 0..2 {
            sim.hosts[host].set_frames(rng.usize(48..400));
        }
        let (pairs, peers) = match seed % CROWDED {
            CROWDED_SEED => (110, 110),
            _ => (rng.usize(1..12), rng.usize(1..24)),
        };
        let source = sim.hosts[0].share(&pattern(MOST), all_rights());
        let target = sim.hosts[1].share(&[0; MOST], all_rights());
        let options = ConnectionOptions::default();
        let pairs = (0..pairs).map(|_| {
            let (qp, _) = sim.connect(&options).expect("the link is up");
            Pair { qp, open: 0 }
        });
        let pairs = pairs.collect();
        let peers = (0..peers).map(|_| {
            let raw = accept_raw(&mut sim, &options);
            sim.raw[raw.peer].sack = rng.bool();
            sim.raw[raw.peer].send_ddp(nothing(), &[]);
            let mood = Mood::Well;
            Peer { raw, mood }
        });
        let peers = peers.collect();
        Self {
            seed,
            rng,
            sim,
            source,
            target,
            pairs,
            peers,
            outages: 0,
        }
    }

    fn step(&mut self) {
        match self.rng.u8(0..10) {
            0..=3 => self.work(),
            4..=6 => self.spoil(),
            7 => self.outage(),
            8 => self.give_up(),
            _ => self.run_for(0..3000),
        }
        self.run_for(0..20);
        if self.outages == 0 {
            self.one_moves(SOON);
        }
    }

    /// Lets some milliseconds pass.
    fn run_for(&mut self, milliseconds: Range<u64>) {
        let milliseconds = self.rng.u64(milliseconds);
        self.sim.run_for(Duration::from_millis(milliseconds));
        for pair in &mut self.pairs {
            for completion in pair.qp.poll() {
                let status = outcome(&completion).2;
                assert_eq!(status, WcStatus::Success, "seed {}", self.seed);
                pair.open -= 1;
            }
        }
    }

    /// Posts requests on some connections.
    fn work(&mut self) {
        for pair in 0..self.pairs.len() {
            if self.rng.bool() && self.pairs[pair].open < 8 {
                self.post(pair);
            }
        }
    }

    fn post(&mut self, pair: usize) {
        let octets = self.rng.usize(1..MOST);
        let request = write(1, &self.source, self.target.stag, octets);
        let pair = &mut self.pairs[pair];
        pair.open += 1;
        self.sim.hosts[0].post_send(&mut pair.qp, request);
    }

    /// Lets some healthy peers fail, with much in flight to them.
    fn spoil(&mut self) {
        let most = self.rng.usize(0..=self.peers.len());
        let well = |peer: &&mut Peer| peer.mood == Mood::Well;
        for Peer { raw, mood } in self.peers.iter_mut().filter(well).take(most) {
            let peer = &mut self.sim.raw[raw.peer];
            if self.rng.bool() {
                (*mood, peer.acknowledges) = (Mood::Vanished, false);
            } else {
                (*mood, peer.window) = (Mood::Closed, 0);
            }
            let octets = self.rng.usize(1..MOST);
            let request = write(1, &self.source, Stag(0x1234), octets);
            self.sim.hosts[0].post_send(&mut raw.qp, request);
            if self.rng.u8(0..3) > 0 {
                continue;
            }
            self.sim.run_now();
            let peer = &self.sim.raw[raw.peer];
            let too_big = TooBig {
                local: peer.host_address(),
                remote: peer.address(),
                seq: peer.rcv_nxt(),
                mtu: self.rng.u16(500..1400),
            };
            let now = self.sim.now;
            self.sim.hosts[0].handle_too_big(now, &too_big);
        }
    }

    fn outage(&mut self) {
        if self.outages == OUTAGES {
            return;
        }
        self.outages += 1;
        self.work();
        self.run_for(1..2);
        self.sim.link.set_impairments(cut_link());
        self.work();
        self.run_for(15_000..60_000);
        let link = link(&mut self.rng);
        self.sim.link.set_impairments(link);
    }

    /// Aborts the connections to some peers.
    fn give_up(&mut self) {
        for peer in &mut self.peers {
            if peer.mood != Mood::Well && self.rng.u8(0..3) == 0 {
                peer.mood = Mood::GivenUp;
                let number = peer.raw.qp.number;
                self.sim.hosts[0].command(match self.rng.bool() {
                    true => Command::Abort(number),
                    false => Command::DestroyQp(number),
                });
            }
        }
    }

    /// Checks that some connection makes progress.
    fn one_moves(&mut self, limit: Duration) {
        let pair = self.rng.usize(..self.pairs.len());
        self.post(pair);
        let Self { sim, pairs, .. } = self;
        let pair = &mut pairs[pair];
        let moved = sim.run_until(limit, |_| {
            pair.open -= pair.qp.poll().len();
            pair.open == 0
        });
        let in_use = sim.hosts[0].frames_in_use();
        assert!(moved, "seed {}: {in_use} frames in use", self.seed);
    }

    /// Checks that, with the link up, connections to healthy peers make progress and the others end
    /// in time.
    fn finish(mut self) {
        let seed = self.seed;
        self.sim.link.set_impairments(Impairments {
            delay: Duration::from_micros(50),
            ..Impairments::default()
        });
        for pair in 0..self.pairs.len() {
            self.post(pair);
        }
        for _ in 0..PATIENCE.as_secs() {
            self.run_for(1000..1001);
            if self.pairs.iter().all(|pair| pair.open == 0) {
                break;
            }
        }
        let in_use = self.sim.hosts[0].frames_in_use();
        for pair in &self.pairs {
            assert_eq!(pair.open, 0, "seed {seed}: {in_use} frames in use");
        }
        self.run_for(600_000..600_001);
        assert_eq!(self.sim.hosts[0].frames_in_use(), 0, "seed {seed}");
        for Peer { raw, mood } in &self.peers {
            let reason = self.sim.hosts[0].end_of(raw.qp.number);
            match mood {
                Mood::Well | Mood::Closed => assert_eq!(reason, None, "seed {seed}: {mood:?}"),
                Mood::Vanished => assert_eq!(reason, Some(EndReason::TimedOut), "seed {seed}"),
                Mood::GivenUp => {}
            }
            self.sim.hosts[0].command(Command::Abort(raw.qp.number));
        }
        for pair in &self.pairs {
            self.sim.hosts[0].command(Command::Disconnect(pair.qp.number));
        }
        assert_nothing_left(&mut self.sim);
    }
}

/// Which of [`CROWDED`] seeds in a row has many connections.
const CROWDED_SEED: u64 = 7;

fn link(rng: &mut Rng) -> Impairments {
    Impairments {
        delay: Duration::from_micros(rng.u64(10..2000)),
        loss: if rng.bool() { rng.u32(0..20) } else { 0 },
        ..Impairments::default()
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.step();
    }
    world.finish();
}

#[test]
fn whatever_peers_and_links_do_others_move_and_all_ends() {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let seeds = number("STARVATION_SEEDS").unwrap_or(SEEDS);
    let first = number("STARVATION_FROM").unwrap_or(0);
    (first..first + seeds).for_each(run);
}
