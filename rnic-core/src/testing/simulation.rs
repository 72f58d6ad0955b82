//! Two hosts with an engine each on virtual time, and raw peers whose frames a test makes itself.

use std::net::SocketAddr;
use std::time::Duration;

use crate::connection::ConnectionOptions;
use crate::engine::EngineConfig;
use crate::time::Instant;

use super::host::{Chosen, MAX_TURNS, Machine};
use super::link::{Impairments, Link};
use super::raw_peer::RawPeer;

pub use super::host::{
    Host, Neighbours, PD, QpSettings, SharedRegion, TestEndpoint, TestQp, TestSrq,
};

/// Where a tap sees a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapPoint {
    /// A host sends it. It may still be lost.
    Sent(usize),
    /// A raw peer sends it.
    SentRaw(usize),
    /// It arrives at a host.
    Arrived(usize),
}

/// A function that sees every frame.
pub type Tap = Box<dyn FnMut(TapPoint, &[u8])>;

/// Two hosts and the link between them, and raw peers beside them.
pub struct Simulation<M = Chosen> {
    /// The virtual time.
    pub now: Instant,
    /// The hosts, 0 and 1.
    pub hosts: [Host<M>; 2],
    /// The link.
    pub link: Link,
    /// Peers whose frames the test makes. What a host sends to their addresses arrives at once.
    pub raw: Vec<RawPeer>,
    /// Sees every frame.
    pub tap: Option<Tap>,
    /// What has arrived at hosts that are stopped.
    stopped: [Option<Vec<Vec<u8>>>; 2],
}

/// As many frames as a stopped host keeps: its receive ring is full then.
const RECEIVE_RING: usize = 64;

impl Simulation {
    /// Makes two hosts that are not connected.
    pub fn new(config: &EngineConfig, impairments: Impairments, seed: u64) -> Self {
        Self::over(config, impairments, seed)
    }
}

impl<M: Machine> Simulation<M> {
    /// Makes two hosts as [`new`](Simulation::new) does, over something else.
    pub fn over(config: &EngineConfig, impairments: Impairments, seed: u64) -> Self {
        Self {
            now: Instant::ZERO + Duration::from_secs(1),
            hosts: [
                Host::over(0, config.clone(), seed),
                Host::over(1, config.clone(), !seed),
            ],
            link: Link::new(impairments, seed),
            raw: Vec::new(),
            tap: None,
            stopped: [None, None],
        }
    }

    /// Stops a host, as SIGSTOP does a process: no timer of it fires until it goes on, and it
    /// answers nothing.
    pub fn stop(&mut self, host: usize) {
        self.stopped[host] = Some(Vec::new());
    }

    /// Lets a stopped host go on with what is in its receive ring.
    pub fn resume(&mut self, host: usize) {
        let arrived = self.stopped[host].take();
        let mut all = [Vec::new(), Vec::new()];
        all[host] = arrived.unwrap_or_default();
        self.settle(all);
    }

    /// Runs all hosts until nothing is left to do at this time, then moves time to the next arrival
    /// or timer. Returns whether there is one.
    pub fn step(&mut self) -> bool {
        let next = self.work();
        self.now = next.map_or(self.now, |next| next.max(self.now));
        next.is_some()
    }

    /// Runs all hosts until nothing is left to do at this time. Returns when the next arrival or
    /// timer is.
    fn work(&mut self) -> Option<Instant> {
        let mut arrived = [Vec::new(), Vec::new()];
        while let Some((to, frame)) = self.link.receive(self.now) {
            arrived[to].push(frame);
        }
        self.settle(arrived);
        let run = self.hosts.iter_mut().zip(&self.stopped);
        let run = run.filter(|(_, stopped)| stopped.is_none());
        let timers = run.filter_map(|(host, _)| host.next_timeout());
        timers.chain(self.link.next_arrival()).min()
    }

    /// Hands what arrived to the hosts, and runs them and the raw peers until nothing is left to
    /// do.
    fn settle(&mut self, mut arrived: [Vec<Vec<u8>>; 2]) {
        for _ in 0..MAX_TURNS {
            let mut busy = false;
            for (index, frames) in std::mem::take(&mut arrived).into_iter().enumerate() {
                if let Some(ring) = &mut self.stopped[index] {
                    let room = RECEIVE_RING - ring.len();
                    ring.extend(frames.into_iter().take(room));
                    continue;
                }
                self.show(TapPoint::Arrived(index), &frames);
                let (did, sent) = self.hosts[index].turn(self.now, &frames);
                busy |= did;
                self.show(TapPoint::Sent(index), &sent);
                for frame in sent {
                    match self.raw.iter_mut().find(|peer| peer.is_addressed(&frame)) {
                        Some(peer) => peer.handle_frame(&frame),
                        None => self.link.send(self.now, 1 - index, frame),
                    }
                }
            }
            for number in 0..self.raw.len() {
                let frames = self.raw[number].take_frames();
                self.show(TapPoint::SentRaw(number), &frames);
                arrived[self.raw[number].host()].extend(frames);
            }
            if !busy && arrived.iter().all(Vec::is_empty) {
                return;
            }
        }
        panic!("the hosts never come to rest");
    }

    fn show(&mut self, point: TapPoint, frames: &[Vec<u8>]) {
        if let Some(tap) = &mut self.tap {
            frames.iter().for_each(|frame| tap(point, frame));
        }
    }

    /// Runs until `holds` is true. Returns whether that was within `limit` of virtual time.
    pub fn run_until(&mut self, limit: Duration, mut holds: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        while !holds(self) {
            match self.work() {
                Some(next) if next <= end => self.now = self.now.max(next),
                next => {
                    self.now = next.map_or(self.now, |_| end);
                    return holds(self);
                }
            }
        }
        true
    }

    /// Runs for some virtual time, or until nothing is left to do.
    pub fn run_for(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    /// Runs all hosts until nothing is left to do at this time.
    pub fn run_now(&mut self) {
        // A second turn does what the first has put off.
        for _ in 0..2 {
            self.settle(Default::default());
            self.now = self.now + Duration::from_nanos(1);
        }
    }

    /// Adds a raw peer. Returns its index in `raw`.
    pub fn add_raw_peer(&mut self, host: usize, host_port: u16) -> usize {
        let number = self.raw.len();
        let peer = RawPeer::new(number as u8, host, self.hosts[host].socket(host_port));
        self.raw.push(peer);
        number
    }

    /// Adds a raw peer with an address of its own. Returns its index in `raw`.
    pub fn add_raw_peer_at(&mut self, host: usize, host_port: u16, address: SocketAddr) -> usize {
        let to = self.hosts[host].socket(host_port);
        self.raw.push(RawPeer::at(address, host, to));
        self.raw.len() - 1
    }

    /// Connects a new queue pair of host 0 to a new one of host 1, both with the same options.
    pub fn connect(&mut self, options: &ConnectionOptions) -> Option<(TestQp, TestQp)> {
        self.connect_with(options, options)
    }

    /// Connects a new queue pair of host 0 to a new one of host 1.
    pub fn connect_with(
        &mut self,
        active: &ConnectionOptions,
        passive: &ConnectionOptions,
    ) -> Option<(TestQp, TestQp)> {
        let pair = (self.hosts[0].create_qp(), self.hosts[1].create_qp());
        self.connect_pair(&pair.0, &pair.1, active, passive)
            .then_some(pair)
    }

    /// Connects a queue pair of host 0 to one of host 1. Returns whether both are established.
    pub fn connect_pair(
        &mut self,
        active: &TestQp,
        passive: &TestQp,
        options: &ConnectionOptions,
        accept: &ConnectionOptions,
    ) -> bool {
        const PORT: u16 = 7174;
        let limit = Duration::from_secs(60);
        let remote = self.hosts[1].socket(PORT);
        let port = 40_000 + active.number.0 as u16;
        let asked = self.hosts[1].connect_requests().count();
        self.hosts[1].listen(PORT);
        self.hosts[0].connect(active, port, remote, options);
        if !self.run_until(limit, |sim| sim.hosts[1].connect_requests().count() > asked) {
            return false;
        }
        let Some(request) = self.hosts[1].connect_requests().last() else {
            return false;
        };
        self.hosts[1].accept(request, passive, accept);
        self.hosts[1].unlisten(PORT);
        self.run_until(limit, |sim| {
            sim.hosts[0].is_established(active.number)
                && sim.hosts[1].is_established(passive.number)
        })
    }
}
