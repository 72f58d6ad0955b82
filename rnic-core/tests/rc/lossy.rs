//! One side leaves right after a message was delivered to it, on links that lose, reorder,
//! duplicate and damage: the other's requests succeed if they were delivered, and only then.

use std::time::Duration;

use fastrand::Rng;
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{SharedRegion, Simulation, TestQp};
use rnic_core::verbs::status::WcStatus::{RetryExceeded, Success, WrFlushed};
use rnic_core::verbs::wr::{Completion, WcOpcode};
use rnic_core::verbs::{SendWr, WrOpcode};
use rnic_core::wire::ddp::{Stag, TaggedOffset};

use crate::common::*;
use crate::scene::*;

const SEEDS: u64 = 400;

/// Octets of the longest message.
const ROOM: usize = 20_000;

const LIMIT: Duration = Duration::from_secs(300);

fn impairments(rng: &mut Rng) -> Impairments {
    let share = |rng: &mut Rng, most: u32| if rng.bool() { rng.u32(0..=most) } else { 0 };
    Impairments {
        delay: Duration::from_micros(rng.u64(1..2000)),
        loss: share(rng, 100),
        duplication: share(rng, 50),
        corruption: share(rng, 20),
        reordering: share(rng, 200),
        jitter: Duration::from_micros(rng.u64(1..3000)),
        cutting: share(rng, 300),
    }
}

fn is_receive(completion: &Completion) -> bool {
    matches!(
        completion.opcode(),
        Ok(WcOpcode::Recv | WcOpcode::RecvImmediate)
    )
}

/// Makes a request that takes a receive of the peer, which has memory under `there`.
fn request(rng: &mut Rng, id: u64, source: &SharedRegion, there: Stag) -> SendWr {
    let len = [0, 10, 1400, ROOM][rng.usize(..4)];
    let opcode = [
        WrOpcode::Send,
        WrOpcode::SendImmediate,
        WrOpcode::WriteImmediate,
    ][rng.usize(..3)];
    SendWr::new(id, opcode)
        .with_remote(there, TaggedOffset(0))
        .with_sges(&[sge(source, len)])
        .unwrap()
}

struct Side {
    host: usize,
    qp: TestQp,
    memory: SharedRegion,
    /// How its requests ended, and how many receives it has completed.
    ended: Vec<Completion>,
    received: usize,
}

impl Side {
    fn poll(&mut self) {
        for completion in self.qp.poll() {
            if !is_receive(&completion) {
                self.ended.push(completion);
            } else if completion.status() == Success {
                self.received += 1;
            }
        }
    }

    fn post(&mut self, sim: &Simulation, rng: &mut Rng, requests: u64, there: Stag) {
        let host = &sim.hosts[self.host];
        for id in 0..requests {
            let wr = request(rng, id, &self.memory, there);
            host.post_send(&mut self.qp, wr);
        }
    }

    fn post_receives(&mut self, sim: &Simulation, count: u64) {
        for id in 0..count {
            let wr = recv(id, &self.memory, ROOM);
            sim.hosts[self.host].post_recv(&mut self.qp, wr);
        }
    }
}

fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let (mut sim, decoder) = watched_by(&EngineConfig::default(), impairments(&mut rng), seed);
    decoder.borrow_mut().rc = true;
    let (first, second) = sim.connect(&rc()).expect("it stands");
    let mut sides = [(0, first), (1, second)].map(|(host, qp)| Side {
        host,
        qp,
        memory: sim.hosts[host].share(&vec![0; ROOM], all_rights()),
        ended: Vec::new(),
        received: 0,
    });
    sides.rotate_left(rng.usize(..2));
    let [mut leaver, mut stayer] = sides;
    let (count, back) = (rng.u64(1..16), rng.u64(0..4));
    // Mostly all.
    let leaves_behind = if rng.bool() {
        count
    } else {
        rng.u64(0..=count)
    };
    leaver.post_receives(&sim, count);
    stayer.post_receives(&sim, back + 3);
    // The responder may send once it has received.
    stayer.post(&sim, &mut rng, count, leaver.memory.stag);
    leaver.post(&sim, &mut rng, back, stayer.memory.stag);
    if stayer.host == 1 && back == 0 {
        let begin = request(&mut rng, 0, &leaver.memory, stayer.memory.stag);
        sim.hosts[0].post_send(&mut leaver.qp, begin);
    }
    let came = sim.run_until(LIMIT, |_| {
        leaver.poll();
        leaver.received as u64 >= leaves_behind
    });
    assert!(came, "seed {seed}: {} messages came", leaver.received);
    let leave = [Command::DestroyQp, Command::Fail, Command::Abort][rng.usize(..3)];
    sim.hosts[leaver.host].command(leave(leaver.qp.number));
    let number = stayer.qp.number;
    let over = sim.run_until(LIMIT, |sim| departure(sim, stayer.host, number).is_some());
    assert!(over, "seed {seed}: {:?}", stayer.ended);
    sim.run_for(SECOND);
    leaver.poll();
    stayer.poll();
    // What was delivered is done, and the rest waits.
    assert_eq!(stayer.ended.len(), leaver.received, "seed {seed}");
    assert_eq!(ends(&sim, stayer.host, &stayer.qp), 0);
    let all_came = leaver.received as u64 == count;
    if all_came {
        sim.hosts[stayer.host].post_send(&mut stayer.qp, inline_send(99, b""));
        sim.run_for(SECOND);
    }
    give_up(&mut sim, stayer.host, &stayer.qp);
    stayer.poll();
    if all_came {
        let last = stayer.ended.pop().map(|done| (done.wr_id, done.status()));
        assert_eq!(last, Some((99, RetryExceeded)), "seed {seed}");
    }
    assert_eq!(stayer.ended.len() as u64, count, "seed {seed}");
    for (at, completion) in stayer.ended.iter().enumerate() {
        let expected = match at.cmp(&leaver.received) {
            std::cmp::Ordering::Less => Success,
            std::cmp::Ordering::Equal => RetryExceeded,
            std::cmp::Ordering::Greater => WrFlushed,
        };
        let told = (completion.wr_id, completion.status());
        assert_eq!(told, (at as u64, expected), "seed {seed}");
    }
    assert_eq!(ends(&sim, stayer.host, &stayer.qp), 1);
    sim.hosts[stayer.host].post_send(&mut stayer.qp, inline_send(100, b""));
    sim.run_for(SECOND);
    stayer.poll();
    let last = stayer.ended.last().map(|done| (done.wr_id, done.status()));
    assert_eq!(last, Some((100, WrFlushed)), "seed {seed}");
    assert_nothing_left(&mut sim);
}

#[test]
fn requests_succeed_if_they_were_delivered_before_the_peer_left() {
    std::thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || (0..SEEDS).filter(|seed| seed % 2 == half).for_each(run));
        }
    });
}
