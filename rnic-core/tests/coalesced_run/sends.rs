//! Runs of segments of a Send.

use std::ops::Range;
use std::sync::Arc;

use rnic_core::ddp::{BufferSupply, DdpStream};
use rnic_core::ids::StreamId;
use rnic_core::memory::region::{HugePages, Region};
use rnic_core::memory::table::StagTable;
use rnic_core::testing::simulation::QpSettings;
use rnic_core::verbs::sge::Sge;
use rnic_core::verbs::wr::RecvWr;
use rnic_core::wire::ddp::{MessageOffset, TaggedOffset, UntaggedHeader};
use rnic_core::wire::rdmap::Control;

use super::*;

/// A piece of a receive.
#[derive(Clone, Debug)]
enum Piece {
    Target(Range<usize>),
    Other(Range<usize>),
    /// So many octets of memory that is not registered.
    Nowhere(usize),
}

/// A receive of one piece, all of the target.
fn whole() -> Vec<Piece> {
    vec![Piece::Target(0..ROOM)]
}

/// What the application was told: id, status and octets of each completion.
type Told = Vec<(u64, WcStatus, u32)>;

/// A change of a segment's headers.
type Change = fn(&mut UntaggedHeader);

/// What arrives: Sends of [`PIECES`] segments, of which one may differ.
#[derive(Clone)]
struct Plan {
    receives: Vec<Vec<Piece>>,
    sends: usize,
    /// A segment, and what is changed of its header, of its length, and on the way.
    change: Option<(usize, Change)>,
    length: Option<(usize, usize)>,
    twist: Option<(usize, Twist)>,
    shared: bool,
}

impl Plan {
    fn new(receives: Vec<Vec<Piece>>) -> Self {
        Self {
            sends: receives.len(),
            receives,
            change: None,
            length: None,
            twist: None,
            shared: false,
        }
    }

    /// Sends all of it, in one batch or frame by frame.
    fn run(&self, at_once: bool) -> (Outcome, Told) {
        let mut scene = Scene::with_receives(&self.receives, self.shared);
        for number in 0..self.sends * PIECES {
            self.send(&mut scene, number);
        }
        scene.arrive(at_once);
        let polled = scene.raw.qp.poll();
        let told = polled
            .iter()
            .map(|wc| (wc.wr_id, wc.status(), wc.byte_len))
            .collect();
        (scene.outcome(), told)
    }

    /// Sends one segment, with its number in all octets.
    fn send(&self, scene: &mut Scene, number: usize) {
        let of = |changed: usize| changed == number;
        let len = self.length.filter(|(at, _)| of(*at));
        let payload = vec![number as u8 + 1; len.map_or(PIECE, |(_, len)| len)];
        let mut header = send_header(number);
        if let Some((_, change)) = self.change.filter(|(at, _)| of(*at)) {
            change(&mut header);
        }
        scene.send(DdpHeader::Untagged(header), &payload);
        if let Some((_, twist)) = self.twist.filter(|(at, _)| of(*at)) {
            twist.change(scene.sim.raw[scene.raw.peer].outbox());
        }
    }

    /// Returns the outcome, which is the [same either way](same_either_way).
    fn outcome(&self, least_runs: u64) -> (Outcome, Told) {
        same_either_way(least_runs, |at_once| self.run(at_once))
    }
}

/// Returns the header of a segment of the Sends that follow each other.
fn send_header(number: usize) -> UntaggedHeader {
    let (message, at) = (number / PIECES, number % PIECES);
    let mut header = untagged(
        Opcode::Send,
        QueueNumber::SEND,
        message as u32 + 1,
        at == PIECES - 1,
    );
    header.offset = MessageOffset((at * PIECE) as u32);
    header
}

impl Scene {
    fn with_receives(receives: &[Vec<Piece>], shared: bool) -> Self {
        Self::new().receiving(receives, shared)
    }

    fn receiving(self, receives: &[Vec<Piece>], shared: bool) -> Self {
        let mut scene = self;
        let (target, other) = (scene.target.stag.0, scene.other.stag.0);
        let sge = |piece: &Piece| {
            let (lkey, octets) = match piece {
                Piece::Target(octets) => (target, octets.clone()),
                Piece::Other(octets) => (other, octets.clone()),
                Piece::Nowhere(len) => (target ^ 1, 0..*len),
            };
            Sge {
                offset: octets.start as u64,
                length: octets.len() as u32,
                lkey,
            }
        };
        let receives: Vec<_> = (1..)
            .zip(receives)
            .map(|(id, pieces)| {
                let sges: Vec<_> = pieces.iter().map(sge).collect();
                RecvWr::new(id, &sges).unwrap()
            })
            .collect();
        let host = &mut scene.sim.hosts[0];
        if shared {
            let mut srq = host.create_srq(8, 8);
            for receive in receives {
                host.post_shared(&mut srq, receive);
            }
            let qp = host.create_qp_on(&srq, QpSettings::default());
            let peer = accept_raw_with(&mut scene.sim, &qp, &ConnectionOptions::default());
            scene.raw = RawConnection { peer, qp };
            scene.sim.raw[peer].send_ddp(nothing(), &[]);
            scene.sim.run_now();
        } else {
            for receive in receives {
                host.post_recv(&mut scene.raw.qp, receive);
            }
        }
        scene
    }
}

/// The octets of so many segments of Sends, from the first.
fn sent(segments: Range<usize>) -> Vec<u8> {
    segments
        .flat_map(|number| [number as u8 + 1; PIECE])
        .collect()
}

#[test]
fn sends_are_placed_whole() {
    for shared in [false, true] {
        let mut plan = Plan::new(vec![whole(), whole()]);
        plan.shared = shared;
        let (outcome, told) = plan.outcome(2);
        assert_eq!(outcome.target.0, sent(PIECES..2 * PIECES));
        assert_eq!(outcome.rdma.octets_placed, 2 * ROOM as u64);
        assert_eq!(outcome.end, None);
        let all = ROOM as u32;
        assert_eq!(told, [1, 2].map(|id| (id, WcStatus::Success, all)));
    }
}

/// Without CRCs only TCP tells whether the octets are whole. Runs of frames are for streams with
/// them; over sockets runs are taken all the same.
#[test]
fn sends_without_crcs_are_placed_whole() {
    let plan = Plan::new(vec![whole()]);
    for at_once in [false, true] {
        let mut scene = Scene::without_crcs().receiving(&plan.receives, false);
        for number in 0..PIECES {
            plan.send(&mut scene, number);
        }
        let ((), runs) = counted(|| scene.arrive(at_once));
        assert_eq!(runs, u64::from(at_once && cfg!(carrier_sockets)));
        let told = outcomes(&mut scene.raw.qp);
        assert_eq!(told, [(1, WcOpcode::Recv, WcStatus::Success)]);
        let outcome = scene.outcome();
        assert_eq!(outcome.target.0, sent(0..PIECES));
        assert_eq!(outcome.rdma.octets_placed, ROOM as u64);
    }
}

/// A run goes to one piece of the scatter list; segments that reach into two are placed too.
// rfc: 5041-72c, 5041-72d the whole payload lies inside the buffer
#[test]
fn a_send_is_scattered_over_the_pieces_of_its_receive() {
    let pieces = vec![
        Piece::Target(7..7),
        Piece::Target(1000..1000 + 3 * PIECE),
        Piece::Other(5..6),
        Piece::Target(0..0),
        Piece::Other(100..100 + ROOM - 3 * PIECE - 1),
    ];
    let (outcome, told) = Plan::new(vec![pieces]).outcome(2);
    let octets = sent(0..PIECES);
    let (front, behind) = octets.split_at(3 * PIECE);
    let mut target = vec![0; ROOM];
    target[1000..][..front.len()].copy_from_slice(front);
    let mut other = vec![0; ROOM];
    other[5] = behind[0];
    other[100..][..behind.len() - 1].copy_from_slice(&behind[1..]);
    assert_eq!((outcome.target.0, outcome.other.0), (target, other));
    assert_eq!(told, [(1, WcStatus::Success, ROOM as u32)]);
}

/// Returns the outcome of a Send that ends its connection, of which so many octets of the target
/// are written.
fn refused(plan: &Plan, written: usize) {
    let (outcome, told) = plan.outcome(1);
    assert_eq!(outcome.target.0[..written], sent(0..PIECES)[..written]);
    assert!(outcome.target.0[written..].iter().all(|octet| *octet == 0));
    let sent = matches!(outcome.end, Some(EndReason::TerminateSent { .. }));
    assert!(sent, "{:?}", outcome.end);
    assert!(
        told.iter()
            .all(|(_, status, _)| *status != WcStatus::Success)
    );
}

// rfc: 5041-72d, 5041-73c the payload lies inside the buffer
#[test]
fn a_send_that_is_longer_than_its_receive_is_refused_there() {
    let room = 7 * PIECE + 9;
    let receive = vec![Piece::Target(0..room)];
    refused(&Plan::new(vec![receive]), 7 * PIECE);
    let gone = vec![Piece::Target(0..room), Piece::Nowhere(ROOM)];
    refused(&Plan::new(vec![gone]), 7 * PIECE);
}

/// A segment in the middle whose header is another.
// rfc: 5041-40, 5041-45, 5041-47, 5041-72a, 5041-72e
#[test]
fn a_segment_of_another_message_or_place_is_not_taken_for_the_next() {
    const MIDDLE: usize = PIECES / 2;
    let changes: [(Change, bool); 11] = [
        (|header| header.msn.0 += 1, true),
        (|header| header.msn.0 -= 1, true),
        (|header| header.queue = QueueNumber::READ_REQUEST, true),
        (|header| header.queue = QueueNumber(9), true),
        (|header| header.offset.0 += 4, true),
        (|header| header.offset.0 -= PIECE as u32, true),
        (|header| header.offset.0 |= 1 << 31, true),
        (
            |header| header.ulp = Control::new(Opcode::SendSolicited).into(),
            true,
        ),
        (
            |header| header.ulp = Control::new(Opcode::Terminate).into(),
            true,
        ),
        (|header| header.ulp32 = 1, false),
        (|header| header.last = true, true),
    ];
    for (number, (change, is_refused)) in changes.into_iter().enumerate() {
        println!("change {number}");
        let mut plan = Plan::new(vec![whole(), whole()]);
        plan.change = Some((MIDDLE, change));
        let (outcome, _) = plan.outcome(1);
        assert_eq!(outcome.end.is_some(), is_refused, "{:?}", outcome.end);
        let written = match is_refused {
            true => sent(0..MIDDLE - 1),
            false => sent(PIECES..2 * PIECES),
        };
        assert!(outcome.target.0.starts_with(&written));
    }
    for len in [PIECE - 1, PIECE + 1, 1] {
        let mut plan = Plan::new(vec![whole(), whole()]);
        plan.length = Some((MIDDLE, len));
        let (outcome, told) = plan.outcome(1);
        let sent = matches!(outcome.end, Some(EndReason::TerminateSent { .. }));
        assert!(sent, "{len}: {:?}", outcome.end);
        assert_eq!(told.len(), 2, "flushed");
    }
}

/// What befalls a frame in the middle.
// rfc: 5044-37
#[test]
fn what_happens_to_frames_of_a_send_has_the_same_outcome() {
    for (twist, ends) in [
        (Twist::Crc, true),
        (Twist::Checksum, false),
        (Twist::IpChecksum, false),
        (Twist::Lost, false),
        (Twist::Twice, false),
        (Twist::Marked, false),
        (Twist::Unpushed, false),
        (Twist::Ack, false),
        (Twist::Window, false),
        (Twist::Timestamps, false),
        (Twist::Flag(Flags::SYN), false),
        (Twist::Flag(Flags::URG), false),
        (Twist::Flag(Flags::ECE), false),
    ] {
        println!("{twist:?}");
        let mut plan = Plan::new(vec![whole(), whole()]);
        plan.twist = Some((PIECES / 2, twist));
        let (outcome, _) = plan.outcome(1);
        assert_eq!(outcome.end.is_some(), ends, "{:?}", outcome.end);
    }
}

/// What would be longer is left to the ordinary way, which refuses it.
// rfc: 5041-50 messages are shorter than 2^32 octets
#[test]
fn a_run_ends_with_the_longest_message() {
    let table = Arc::new(StagTable::new(4, [1; 32]));
    let region = Arc::new(Region::allocate_unlocked(100, HugePages::None).unwrap());
    let access = Access::LOCAL_WRITE;
    let stag = table.register(region, 0..100, TaggedOffset(0), access, PD);
    let worker = table.worker();
    let guard = worker.enter();
    let mut ddp = DdpStream::new((PD, StreamId(1)).into(), 1);
    ddp.open(QueueNumber::SEND, BufferSupply::Posted);
    let mut next = send_header(0);
    ddp.passed(&DdpHeader::Untagged(next), u32::MAX - 9, false);
    next.offset = MessageOffset(u32::MAX - 9);
    let piece = |lkey, length| Sge {
        offset: 0,
        length,
        lkey,
    };
    let buffer = [piece(0, u32::MAX - 20), piece(stag.unwrap().0, 100)];
    let place = ddp.place_for_rest(&next, &buffer, &guard);
    assert_eq!(place.map(|place| place.len()), Some(9));
    next.offset.0 -= 1;
    let elsewhere = ddp.place_for_rest(&next, &buffer, &guard);
    assert!(elsewhere.is_none());
}

/// Between two batches the application revokes its memory.
// rfc: 5040-110, 5041-91, 5042-11
#[test]
fn a_send_does_not_go_on_in_memory_that_was_taken_back() {
    let plan = Plan::new(vec![whole()]);
    let mut scene = Scene::with_receives(&plan.receives, false);
    for number in 0..6 {
        plan.send(&mut scene, number);
    }
    let ((), runs) = counted(|| scene.arrive(true));
    assert_eq!(runs, 1);
    scene.sim.hosts[0].revoke(scene.target.stag);
    for number in 6..PIECES {
        plan.send(&mut scene, number);
    }
    scene.arrive(true);
    let outcome = scene.outcome();
    assert_eq!(outcome.target.0[..6 * PIECE], sent(0..6));
    assert!(
        outcome.target.0[6 * PIECE..]
            .iter()
            .all(|octet| *octet == 0)
    );
    assert!(matches!(outcome.end, Some(EndReason::TerminateSent { .. })));
}
