//! Shared receive queues: which stream gets which receive, what happens to the receives of a stream
//! that ends, and limit events.

mod common;

use std::time::Duration;

use common::*;
use fastrand::Rng;
use rnic_core::connection::{ConnectionOptions, EndReason, Event};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::ids::CqId;
use rnic_core::testing::link::Impairments;
use rnic_core::testing::raw_peer::ddp;
use rnic_core::testing::simulation::{QpSettings, SharedRegion, Simulation, TestQp, TestSrq};
use rnic_core::verbs::{
    sge::Sge,
    srq::{SrqEvent, SrqLimit},
    status::WcStatus,
    wr::{Completion, RecvWr, SendWr, WcOpcode, WrOpcode},
};
use rnic_core::wire::ddp::{DdpHeader, MessageOffset, QueueNumber};
use rnic_core::wire::rdmap::Opcode;

/// Octets of each receive.
const ROOM: usize = 1024;

/// Host 0 with a shared receive queue, whose receives are pieces of one region, and raw peers that
/// connect to it.
struct Scene {
    sim: Simulation,
    srq: TestSrq,
    memory: SharedRegion,
}

impl Scene {
    fn new(max_in_process: u32) -> Self {
        let mut sim = simulation();
        let srq = sim.hosts[0].create_srq(16, max_in_process);
        let memory = sim.hosts[0].share(&[0; 64 * ROOM], all_rights());
        Self { sim, srq, memory }
    }

    fn post(&mut self, wr_ids: impl IntoIterator<Item = u64>) {
        for wr_id in wr_ids {
            let sge = Sge {
                offset: wr_id * ROOM as u64,
                length: ROOM as u32,
                lkey: self.memory.stag.0,
            };
            let receive = RecvWr::new(wr_id, &[sge]).unwrap();
            self.sim.hosts[0].post_shared(&mut self.srq, receive);
        }
    }

    /// Connects a raw peer whose stream takes its receives from the shared queue. It sends markers:
    /// FPDUs that they show are placed, and take a receive, out of order.
    fn join(&mut self) -> RawConnection {
        self.join_with(QpSettings::default())
    }

    fn join_with(&mut self, settings: QpSettings) -> RawConnection {
        let qp = self.sim.hosts[0].create_qp_on(&self.srq, settings);
        let options = ConnectionOptions {
            markers: true,
            ..ConnectionOptions::default()
        };
        let peer = accept_raw_with(&mut self.sim, &qp, &options);
        self.sim.raw[peer].markers_from = Some(request(16).len() as u32);
        self.sim.raw[peer].send_ddp(nothing(), &[]);
        self.sim.run_now();
        RawConnection { peer, qp }
    }

    /// Makes the FPDU of a Send of one segment.
    fn message(&self, raw: &RawConnection, msn: u32, text: &[u8]) -> Vec<u8> {
        self.sim.raw[raw.peer].fpdu(&ddp(send_header(msn), text))
    }

    /// Sends a message `ahead` octets ahead of order.
    fn message_ahead(&mut self, raw: &RawConnection, ahead: u32, msn: u32, text: &[u8]) -> Vec<u8> {
        self.sim.raw[raw.peer].skip(ahead);
        let octets = self.message(raw, msn, text);
        self.sim.raw[raw.peer].skip(ahead.wrapping_neg());
        octets
    }

    fn send(&mut self, raw: &RawConnection, msn: u32, text: &[u8]) {
        let octets = self.message(raw, msn, text);
        self.sim.raw[raw.peer].send(&octets);
        self.sim.run_now();
    }

    /// Returns the content of a receive.
    fn text(&self, wr_id: u64, len: usize) -> Vec<u8> {
        let mut text = vec![0; len];
        let at = wr_id as usize * ROOM;
        self.memory.region.read(at, &mut text).unwrap();
        text
    }

    fn news(&self) -> Vec<SrqEvent> {
        let news = |event: &Event| match event {
            Event::SharedReceives(news) => Some(*news),
            _ => None,
        };
        self.sim.hosts[0].events.iter().filter_map(news).collect()
    }
}

/// Makes a text so long that its FPDU holds a marker at any position.
fn long(text: &str) -> Vec<u8> {
    let mut text = text.as_bytes().to_vec();
    text.resize(600, b'.');
    text
}

fn received(qp: &mut TestQp) -> Vec<(u64, WcStatus)> {
    let done = qp.poll();
    assert!(done.iter().all(|c| c.opcode() == Ok(WcOpcode::Recv)));
    done.iter().map(|c| (c.wr_id, c.status())).collect()
}

fn done(wr_id: u64) -> (u64, WcStatus) {
    (wr_id, WcStatus::Success)
}

fn flushed(wr_id: u64) -> (u64, WcStatus) {
    (wr_id, WcStatus::WrFlushed)
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn receives_are_taken_in_the_order_in_which_messages_begin() {
    let mut scene = Scene::new(8);
    scene.post(0..6);
    let (mut a, mut b) = (scene.join(), scene.join());
    // The second and third message of one peer overtake its first, and a message of the other comes
    // between.
    let texts = ["first", "second", "third"].map(long);
    let first = scene.message(&a, 1, &texts[0]);
    let ahead = first.len() as u32;
    let second = scene.message_ahead(&a, ahead, 2, &texts[1]);
    scene.sim.raw[a.peer].send_ahead(ahead, &second);
    scene.sim.run_now();
    scene.send(&b, 1, b"other");
    let behind = ahead + second.len() as u32;
    let third = scene.message_ahead(&a, behind, 3, &texts[2]);
    scene.sim.raw[a.peer].send_ahead(behind, &third);
    scene.sim.run_now();
    // Placed, and not yet delivered.
    assert_eq!(scene.text(0, 600), texts[1]);
    assert_eq!(
        (received(&mut a.qp), received(&mut b.qp)),
        (vec![], vec![done(1)])
    );
    scene.sim.raw[a.peer].send(&first);
    scene.sim.run_now();
    // Completed in the order of the stream, each with the receive that it took.
    assert_eq!(received(&mut a.qp), [done(3), done(0), done(2)]);
    let other = b"other".to_vec();
    for (wr_id, text) in [3, 0, 2, 1].iter().zip(texts.iter().chain([&other])) {
        assert_eq!(scene.text(*wr_id, text.len()), *text);
    }
    // A duplicate segment takes no receive.
    scene.sim.raw[a.peer].skip((second.len() + third.len()) as u32);
    scene.send(&a, 4, b"fourth");
    assert_eq!(received(&mut a.qp), [done(4)]);
}

#[test]
fn immediate_data_take_a_shared_receive_too() {
    let mut scene = Scene::new(8);
    scene.post([7]);
    let mut raw = scene.join();
    let header = untagged(Opcode::Immediate, QueueNumber::SEND, 1, true);
    scene.sim.raw[raw.peer].send_ddp(DdpHeader::Untagged(header), b"8 octets");
    scene.sim.run_now();
    let told = raw.qp.poll();
    assert_eq!(
        (told[0].wr_id, told[0].opcode(), &told[0].immediate),
        (7, Ok(WcOpcode::RecvImmediate), b"8 octets")
    );
}

/// Receives that a stream has begun to fill are flushed with it; the others stay in the queue.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn a_stream_that_fails_gives_back_what_it_holds_and_nothing_else() {
    let mut scene = Scene::new(8);
    scene.post(0..4);
    let (mut bad, mut good) = (scene.join(), scene.join());
    let second = scene.message_ahead(&bad, 500, 2, &long("ahead"));
    scene.sim.raw[bad.peer].send_ahead(500, &second);
    scene.sim.run_now();
    // Half a message.
    let half = untagged(Opcode::Send, QueueNumber::SEND, 1, false);
    scene.sim.raw[bad.peer].send_ddp(DdpHeader::Untagged(half), b"half");
    scene.sim.run_now();
    assert_eq!(received(&mut bad.qp), []);
    scene.sim.raw[bad.peer].abort();
    scene.sim.run_now();
    assert_eq!(received(&mut bad.qp), [flushed(1), flushed(0)]);
    let last = Event::LastReceive { qp: bad.qp.number };
    let events = &scene.sim.hosts[0].events;
    let over = events
        .iter()
        .position(|event| matches!(event, Event::Disconnected { .. }));
    assert_eq!(
        events.iter().position(|event| *event == last),
        over.map(|at| at + 1)
    );
    scene.send(&good, 1, b"one");
    scene.send(&good, 2, b"two");
    assert_eq!(received(&mut good.qp), [done(2), done(3)]);
    // Now none is left: the next Send ends its stream.
    let (mut late, mut other) = (scene.join(), scene.join());
    scene.send(&late, 1, b"too many");
    let reason = scene.sim.hosts[0].end_of(late.qp.number);
    assert!(
        matches!(reason, Some(EndReason::TerminateSent { control, .. })
            if (control.layer, control.error_type, control.code) == (1, 2, 2)),
        "{reason:?}"
    );
    assert_eq!(received(&mut late.qp), []);
    scene.post([9]);
    scene.send(&other, 1, b"served");
    assert_eq!(received(&mut other.qp), [done(9)]);
    assert_eq!(received(&mut good.qp), []);
}

#[test]
fn a_message_that_is_too_long_spoils_the_receive_that_it_took() {
    let mut scene = Scene::new(8);
    scene.post(0..2);
    let mut raw = scene.join();
    scene.send(&raw, 1, &[1; ROOM + 1]);
    assert_eq!(received(&mut raw.qp), [(0, WcStatus::LocalLengthError)]);
}

#[test]
fn the_requests_of_a_destroyed_queue_pair_complete() {
    let mut scene = Scene::new(8);
    scene.post(0..2);
    let mut raw = scene.join();
    let header = DdpHeader::Untagged(untagged(Opcode::Send, QueueNumber::SEND, 1, false));
    scene.sim.raw[raw.peer].send_ddp(header, b"half");
    scene.sim.run_now();
    scene.sim.hosts[0].command(Command::DestroyQp(raw.qp.number));
    scene.sim.run_now();
    assert_eq!(received(&mut raw.qp), [flushed(0)]);
    let mut next = scene.join();
    scene.send(&next, 1, b"goes on");
    assert_eq!(received(&mut next.qp), [done(1)]);
}

/// A message ahead of order for which no receive is left waits, and gets one that is posted
/// meanwhile.
#[test]
fn a_message_ahead_of_order_without_a_receive_waits() {
    let mut scene = Scene::new(8);
    let mut raw = scene.join();
    let first = scene.message(&raw, 1, b"words");
    let ahead = first.len() as u32;
    let second = scene.message_ahead(&raw, ahead, 2, &long("words"));
    scene.sim.raw[raw.peer].send_ahead(ahead, &second);
    scene.sim.run_now();
    scene.post(0..2);
    scene.sim.raw[raw.peer].send(&first);
    scene.sim.run_now();
    assert_eq!(received(&mut raw.qp), [done(0), done(1)]);
}

/// RFC 5042 section 6.4.3.1: a peer that begins many messages and ends none.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn a_peer_holds_no_more_receives_than_it_may() {
    // rfc: 5040-122, 5041-98, 5042-15
    let mut scene = Scene::new(4);
    scene.post(0..16);
    let (mut greedy, mut modest) = (scene.join(), scene.join());
    let first = scene.message(&greedy, 1, &long("mine"));
    let mut ahead = first.len() as u32;
    for msn in 2..=16 {
        let message = scene.message_ahead(&greedy, ahead, msn, &long("mine"));
        scene.sim.raw[greedy.peer].send_ahead(ahead, &message);
        ahead += message.len() as u32;
        scene.sim.run_now();
    }
    let told = SrqEvent::HighWater {
        srq: scene.srq.id,
        qp: greedy.qp.number,
        in_process: 3,
    };
    assert_eq!(scene.news(), [told]);
    scene.send(&modest, 1, b"here");
    assert_eq!(received(&mut modest.qp), [done(3)], "it has taken three");
    // The messages were only reordered: nothing is lost.
    scene.sim.raw[greedy.peer].send(&first);
    scene.sim.run_now();
    let order = [4, 0, 1, 2].into_iter().chain(5..16);
    assert_eq!(
        received(&mut greedy.qp),
        order.map(done).collect::<Vec<_>>()
    );
}

/// RFC 5042 section 6.4.3.1: low water, and which stream caused it.
#[test]
fn a_peer_that_takes_more_than_its_share_is_found_and_stopped() {
    // rfc: 5040-122, 5041-98, 5042-15
    let mut scene = Scene::new(8);
    scene.post(0..10);
    let (mut greedy, mut modest) = (scene.join(), scene.join());
    let limit = SrqLimit {
        left: 4,
        share: Some(5),
    };
    scene.sim.hosts[0].arm_srq(&scene.srq, limit);
    scene.sim.run_now();
    scene.send(&modest, 1, b"a");
    for msn in 1..=6 {
        scene.send(&greedy, msn, b"b");
    }
    let (srq, qp) = (scene.srq.id, greedy.qp.number);
    let low = SrqEvent::LimitReached {
        srq,
        left: 3,
        taken: 7,
        greediest: Some((qp, 6)),
    };
    assert_eq!(scene.news(), [low]);
    scene.send(&greedy, 7, b"b");
    let exceeded = SrqEvent::ShareExceeded { srq, qp, taken: 6 };
    assert_eq!(scene.news(), [low, exceeded]);
    assert!(matches!(
        scene.sim.hosts[0].end_of(qp),
        Some(EndReason::TerminateSent { .. })
    ));
    assert_eq!(
        received(&mut greedy.qp),
        (1..7).map(done).collect::<Vec<_>>()
    );
    for msn in 2..=4 {
        scene.send(&modest, msn, b"a");
    }
    assert_eq!(received(&mut modest.qp), [0, 7, 8, 9].map(done));
    assert_eq!(scene.news().len(), 2);
}

/// A queue pair whose completions are not polled ends, and the others of its shared queue are not
/// affected.
#[test]
fn a_completion_queue_that_overflows_ends_its_own_stream_only() {
    // rfc: 5040-114, 5042-20
    let mut scene = Scene::new(8);
    let small = QpSettings {
        cq: 2,
        ..QpSettings::default()
    };
    let (mut idle, mut busy) = (scene.join_with(small), scene.join());
    let mut msn = 0;
    while scene.sim.hosts[0].end_of(idle.qp.number).is_none() {
        msn += 1;
        assert!(msn < 100);
        scene.post([2 * u64::from(msn) % 64, (2 * u64::from(msn) + 1) % 64]);
        scene.send(&idle, msn, b"unseen");
        scene.send(&busy, msn, b"seen");
        assert_eq!(received(&mut busy.qp).len(), 1);
    }
    // One more than the ring holds and may wait for room in it.
    assert_eq!(msn, 2 + 16 + 1);
    let (cq, qp) = (CqId(idle.qp.number.0), idle.qp.number);
    let told = Event::CompletionOverrun { cq, qp };
    assert!(scene.sim.hosts[0].events.contains(&told));
    scene.post([0]);
    scene.send(&busy, msn + 1, b"goes on");
    assert_eq!(received(&mut busy.qp).len(), 1);
    // No completion is lost; that of the message which was one too many is flushed.
    let mut got = Vec::new();
    for _ in 0..19 {
        got.extend(received(&mut idle.qp));
        scene.sim.run_now();
    }
    assert_eq!(got.len(), 19);
    let (last, others) = got.split_last().unwrap();
    assert_eq!(last.1, WcStatus::WrFlushed);
    assert!(
        others.len() == 18
            && others
                .iter()
                .all(|(_, status)| *status == WcStatus::Success)
    );
}

/// One sender of the simulation.
struct Sender {
    near: TestQp,
    far: TestQp,
    sent: Vec<Vec<u8>>,
    got: Vec<Completion>,
}

const SENDERS: usize = 3;
const MESSAGES: usize = 40;
const SLOT: usize = 4096;

fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let link = Impairments {
        delay: Duration::from_micros(rng.u64(1..2000)),
        loss: rng.u32(0..50),
        duplication: rng.u32(0..50),
        corruption: rng.u32(0..20),
        reordering: rng.u32(0..300),
        jitter: Duration::from_micros(rng.u64(1..3000)),
        cutting: rng.u32(0..200),
    };
    let mut sim = Simulation::new(&EngineConfig::default(), link, seed);
    let mut srq = sim.hosts[1].create_srq(256, rng.u32(1..32));
    let memory = sim.hosts[1].share(&vec![0; SENDERS * MESSAGES * SLOT], all_rights());
    for wr_id in 0..(SENDERS * MESSAGES) as u64 {
        let sge = Sge {
            offset: wr_id * SLOT as u64,
            length: SLOT as u32,
            lkey: memory.stag.0,
        };
        let receive = RecvWr::new(wr_id, &[sge]).unwrap();
        sim.hosts[1].post_shared(&mut srq, receive);
    }
    let options = ConnectionOptions {
        markers: rng.bool(),
        ..ConnectionOptions::default()
    };
    let mut senders: Vec<Sender> = (0..SENDERS)
        .map(|_| {
            let near = sim.hosts[0].create_qp();
            let far = sim.hosts[1].create_qp_on(&srq, QpSettings::default());
            assert!(
                sim.connect_pair(&near, &far, &options, &options),
                "seed {seed}"
            );
            let message = |rng: &mut Rng| (0..rng.usize(0..SLOT)).map(|_| rng.u8(..)).collect();
            let sent = (0..MESSAGES).map(|_| message(&mut rng)).collect();
            Sender {
                near,
                far,
                sent,
                got: Vec::new(),
            }
        })
        .collect();
    for sender in &mut senders {
        let all = sender.sent.concat();
        let source = sim.hosts[0].share(&all, all_rights());
        let mut offset = 0;
        for (id, text) in sender.sent.iter().enumerate() {
            let sge = Sge {
                offset,
                length: text.len() as u32,
                lkey: source.stag.0,
            };
            offset += text.len() as u64;
            let wr = SendWr::new(id as u64, WrOpcode::Send);
            sim.hosts[0].post_send(&mut sender.near, wr.with_sges(&[sge]).unwrap());
        }
    }
    let done = sim.run_until(Duration::from_secs(300), |_| {
        for sender in &mut senders {
            sender.got.extend(sender.far.poll());
        }
        senders.iter().all(|sender| sender.got.len() == MESSAGES)
    });
    assert!(done, "seed {seed}: {:?}", sim.hosts[1].events);
    check(&senders, &memory, seed);
}

/// Each message is where its completion says, in the order of its stream, and no receive was used
/// twice.
fn check(senders: &[Sender], memory: &SharedRegion, seed: u64) {
    let content = memory.content();
    let mut used = [false; SENDERS * MESSAGES];
    for sender in senders {
        for (completion, text) in sender.got.iter().zip(&sender.sent) {
            assert_eq!(completion.status(), WcStatus::Success, "seed {seed}");
            assert_eq!(completion.byte_len as usize, text.len(), "seed {seed}");
            let slot = completion.wr_id as usize;
            assert!(!std::mem::replace(&mut used[slot], true), "seed {seed}");
            let at = slot * SLOT;
            assert!(content[at..at + text.len()] == **text, "seed {seed}");
        }
    }
    assert!(used.iter().all(|used| *used), "seed {seed}");
}

#[test]
fn messages_of_several_streams_arrive_whole_whatever_the_link_does() {
    (0..150).for_each(run);
}

/// Messages are in the order of the stream: octets outside of any message do not concern a shared
/// queue.
#[test]
fn a_later_segment_of_a_message_goes_to_its_receive() {
    let mut scene = Scene::new(8);
    scene.post(0..3);
    let (mut a, mut b) = (scene.join(), scene.join());
    let mut header = untagged(Opcode::Send, QueueNumber::SEND, 1, false);
    scene.sim.raw[a.peer].send_ddp(DdpHeader::Untagged(header), b"two ");
    scene.sim.run_now();
    scene.send(&b, 1, b"between");
    header.last = true;
    header.offset = MessageOffset(4);
    scene.sim.raw[a.peer].send_ddp(DdpHeader::Untagged(header), b"parts");
    scene.sim.run_now();
    assert_eq!(
        (received(&mut a.qp), received(&mut b.qp)),
        (vec![done(0)], vec![done(1)])
    );
    assert_eq!(scene.text(0, 9), b"two parts");
}
