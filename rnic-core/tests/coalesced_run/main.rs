//! Coalesced runs: segments of a Write, a Send or a Read Response in a row. The outcome of any frames
//! must be the same as if each had come alone.

#[path = "../common/mod.rs"]
mod common;
mod disguised;
mod reads;
mod sends;

use std::fmt;

use common::*;
use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::counters::{DropCounters, DropReason, RdmaCounters};
use rnic_core::engine::EngineConfig;
use rnic_core::fast_paths::{FastPath, taken};
use rnic_core::memory::{binding::Binding, table::Access};
use rnic_core::testing::raw_peer;
use rnic_core::testing::simulation::{PD, SharedRegion, Simulation, TestQp};
use rnic_core::verbs::{
    status::WcStatus,
    wr::{SendWr, WcOpcode, WrOpcode},
};
use rnic_core::wire::checksum::{Checksums, sum};
use rnic_core::wire::ddp::{DdpHeader, QueueNumber, Stag};
use rnic_core::wire::packet::parse;
use rnic_core::wire::rdmap::Opcode;
use rnic_core::wire::tcp::{Flags, Seq, Timestamps};

/// Octets of payload in a segment, and segments of a message.
const PIECE: usize = 260;
const PIECES: usize = 12;
const ROOM: usize = PIECE * PIECES;

/// A change of a segment of a Write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Twist {
    /// To an invalid STag, or to another valid one.
    InvalidStag,
    OtherStag,
    /// To another place in the buffer.
    Jump(u64),
    /// With another number of octets.
    Length(usize),
    Last,
    Opcode,
    /// Damaged on the way.
    Crc,
    Checksum,
    IpChecksum,
    /// Lost, duplicated, or marked by a router.
    Lost,
    Twice,
    Marked,
    /// With other header fields than its neighbours.
    Flag(Flags),
    Unpushed,
    Ack,
    Window,
    Timestamps,
}

/// The engine's side of a connection.
struct Scene {
    sim: Simulation,
    raw: RawConnection,
    target: SharedRegion,
    other: SharedRegion,
}

/// The outcome.
#[derive(Debug, PartialEq)]
struct Outcome {
    target: Content,
    other: Content,
    end: Option<EndReason>,
    sent: Vec<u8>,
    acknowledged: u32,
    reset: bool,
    rdma: RdmaCounters,
    tcp: [u64; 4],
    frames: u64,
    drops: DropCounters,
}

/// What memory holds, in a short form.
#[derive(PartialEq)]
struct Content(Vec<u8>);

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|one, next| one == next);
        f.debug_list()
            .entries(runs.map(|run| (run[0], run.len())))
            .finish()
    }
}

impl Scene {
    fn new() -> Self {
        let mut sim = simulation();
        let raw = accept_raw(&mut sim, &ConnectionOptions::default());
        Self::of(sim, raw)
    }

    /// Makes one whose sides agree to do without CRCs.
    fn without_crcs() -> Self {
        let mut sim = simulation();
        let options = ConnectionOptions {
            crc: false,
            ..ConnectionOptions::default()
        };
        let qp = sim.hosts[0].create_qp();
        let peer = sim.add_raw_peer(0, RAW_PORT);
        // The C bit.
        let mut request = request(16);
        request[16] &= !0x40;
        accept_request(&mut sim, peer, &qp, &options, &request);
        sim.raw[peer].crc = false;
        Self::of(sim, RawConnection { peer, qp })
    }

    fn of(mut sim: Simulation, raw: RawConnection) -> Self {
        let target = sim.hosts[0].share(&[0; ROOM], all_rights());
        let other = sim.hosts[0].share(&[0; ROOM], all_rights());
        sim.raw[raw.peer].send_ddp(nothing(), &[]);
        sim.run_now();
        Self {
            sim,
            raw,
            target,
            other,
        }
    }

    fn send(&mut self, header: DdpHeader, payload: &[u8]) {
        self.sim.raw[self.raw.peer].send_ddp(header, payload);
    }

    /// Sends a piece of a Write, with its number in all octets.
    fn send_piece(&mut self, number: usize, twist: Option<Twist>) {
        let (mut stag, mut at, mut len) =
            (self.target.stag, (number % PIECES * PIECE) as u64, PIECE);
        let (mut last, mut opcode) = (number % PIECES == PIECES - 1, Opcode::Write);
        match twist {
            Some(Twist::InvalidStag) => stag.0 ^= 1,
            Some(Twist::OtherStag) => stag = self.other.stag,
            Some(Twist::Jump(to)) => at = to,
            Some(Twist::Length(other)) => len = other,
            Some(Twist::Last) => last = true,
            Some(Twist::Opcode) => opcode = Opcode::ReadResponse,
            _ => {}
        }
        let payload = vec![number as u8 + 1; len];
        self.send(tagged(opcode, stag, at, last), &payload);
        if let Some(twist) = twist {
            twist.change(self.sim.raw[self.raw.peer].outbox());
        }
    }

    /// Sends pieces, some with a twist.
    fn send_pieces(&mut self, twists: &[Option<Twist>]) {
        for (number, twist) in twists.iter().enumerate() {
            self.send_piece(number, *twist);
        }
    }

    /// Lets everything arrive that was sent, at once or one by one.
    fn arrive(&mut self, at_once: bool) {
        let frames = std::mem::take(self.sim.raw[self.raw.peer].outbox());
        for frames in frames.chunks(if at_once { usize::MAX } else { 1 }) {
            self.sim.raw[self.raw.peer]
                .outbox()
                .extend_from_slice(frames);
            self.sim.run_now();
        }
    }

    fn end(&self) -> Option<EndReason> {
        self.sim.hosts[0].end_of(self.raw.qp.number)
    }

    fn outcome(mut self) -> Outcome {
        self.sim.run_for(SECOND);
        let snapshot = self.sim.hosts[0].snapshot(self.sim.now);
        let peer = &self.sim.raw[self.raw.peer];
        let (tcp, engine) = (snapshot.tcp, snapshot.engine);
        Outcome {
            target: Content(self.target.content()),
            other: Content(self.other.content()),
            end: self.end(),
            sent: peer.received.clone(),
            acknowledged: peer.acknowledged,
            reset: peer.reset,
            // Data behind the end of a stream may or may not be queued, depending on when the end
            // is processed.
            rdma: RdmaCounters {
                octets_buffered: 0,
                ..snapshot.rdma
            },
            tcp: [
                tcp.segments_received,
                tcp.octets_received,
                tcp.out_of_order,
                tcp.duplicates,
            ],
            frames: engine.frames_received,
            drops: snapshot.drops,
        }
    }
}

impl Twist {
    /// Changes the frame that was sent last.
    fn change(self, frames: &mut Vec<Vec<u8>>) {
        let Some(mut frame) = frames.pop() else {
            return;
        };
        let packet = parse(&frame, Checksums::None).unwrap();
        let (mut header, mut octets) = (packet.segment.header, packet.segment.payload.to_vec());
        match self {
            Self::Crc => {
                let at = octets.len() / 2;
                octets[at] ^= 4;
            }
            Self::Flag(flag) => header.flags |= flag,
            Self::Unpushed => header.flags = Flags(header.flags.0 & !Flags::PSH.0),
            Self::Ack => header.ack = Seq(header.ack.0.wrapping_sub(1)),
            Self::Window => header.window -= 1,
            Self::Timestamps => {
                header.options.timestamps = Some(Timestamps { value: 1, echo: 0 });
            }
            _ => {}
        }
        let rebuilt = raw_peer::frame(packet.source, packet.destination, &header, &octets);
        frame = rebuilt;
        match self {
            Self::Lost => return,
            Self::Twice => frames.push(frame.clone()),
            Self::Checksum => frame[60] ^= 1,
            Self::IpChecksum => frame[19] ^= 1,
            Self::Marked => {
                frame[15] |= 3;
                frame[24..26].fill(0);
                let check = !sum(&frame[14..34]);
                frame[24..26].copy_from_slice(&check.to_be_bytes());
            }
            _ => {}
        }
        frames.push(frame);
    }
}

fn outcome(twists: &[Option<Twist>], at_once: bool) -> Outcome {
    let mut scene = Scene::new();
    scene.send_pieces(twists);
    scene.arrive(at_once);
    scene.outcome()
}

/// Returns the outcome, and how often runs were taken meanwhile.
fn counted<T>(run: impl FnOnce() -> T) -> (T, u64) {
    let count = || taken::times(FastPath::CoalescedRun).expect("tests have debug assertions");
    let before = count();
    let outcome = run();
    (outcome, count() - before)
}

/// Returns the outcome of frames that come at once, which takes at least so many runs. It must be the
/// same if they come one by one, which takes none.
fn same_either_way<T: PartialEq + fmt::Debug>(least_runs: u64, run: impl Fn(bool) -> T) -> T {
    let (by_one, none) = counted(|| run(false));
    let (at_once, runs) = counted(|| run(true));
    assert_eq!(at_once, by_one);
    assert_eq!((none, runs.max(least_runs)), (0, runs));
    at_once
}

/// Returns the outcome of pieces of which the one in the middle has a twist. It must be the same if
/// they come one by one.
fn with_twist(twist: Option<Twist>) -> Outcome {
    let mut twists = vec![None; PIECES];
    twists[PIECES / 2] = twist;
    let at_once = outcome(&twists, true);
    assert_eq!(at_once, outcome(&twists, false), "{twist:?}");
    at_once
}

/// Returns how far a target is written as it would be without any twist.
fn written(outcome: &Outcome) -> usize {
    let right = |(at, octet): (usize, &u8)| *octet == (at / PIECE + 1) as u8;
    outcome
        .target
        .0
        .iter()
        .enumerate()
        .take_while(|it| right(*it))
        .count()
}

#[test]
fn a_run_is_placed_whole() {
    let outcome = with_twist(None);
    assert_eq!(written(&outcome), ROOM);
    assert_eq!(outcome.rdma.fpdus_received, PIECES as u64 + 1);
    assert_eq!(outcome.rdma.octets_placed, ROOM as u64);
    assert_eq!(outcome.end, None);
}

// rfc: 5041-33, 5041-73a, 5041-73d, 5041-73e, 5041-83, 5044-37
#[test]
fn what_must_not_be_placed_is_not_and_ends_the_connection() {
    let middle = PIECES / 2 * PIECE;
    let beyond = (ROOM - PIECE + 1) as u64;
    for twist in [
        Twist::InvalidStag,
        // A message has one STag.
        Twist::OtherStag,
        Twist::Jump(beyond),
        Twist::Jump(u64::MAX - 7),
        Twist::Length(ROOM),
        Twist::Opcode,
        Twist::Crc,
    ] {
        let outcome = with_twist(Some(twist));
        assert_eq!(written(&outcome), middle, "{twist:?}");
        assert!(
            outcome.target.0[middle..].iter().all(|octet| *octet == 0),
            "{twist:?}"
        );
        let sent = matches!(outcome.end, Some(EndReason::TerminateSent { .. }));
        assert!(sent, "{twist:?}: {:?}", outcome.end);
        assert_eq!(outcome.rdma.terminates_sent, 1);
    }
}

// rfc: 5041-73a, 5041-73c, 5041-73d
#[test]
fn a_segment_elsewhere_is_placed_there() {
    let outcome = with_twist(Some(Twist::Jump(0)));
    assert_eq!(outcome.target.0[0], PIECES as u8 / 2 + 1);
    let outcome = with_twist(Some(Twist::Length(PIECE - 4)));
    assert_eq!(outcome.target.0[(PIECES / 2 + 1) * PIECE - 1], 0);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at our TCP; the kernel has its own")]
fn what_tcp_must_know_it_hears() {
    let checksums = [
        (Twist::Checksum, DropReason::TcpChecksum),
        (Twist::IpChecksum, DropReason::IpChecksum),
    ];
    for (wrong, reason) in checksums {
        let outcome = with_twist(Some(wrong));
        assert_eq!(outcome.drops.of(reason), 1, "{wrong:?}");
        assert!(
            outcome.target.0[PIECES / 2 * PIECE..][..PIECE]
                .iter()
                .all(|octet| *octet == 0)
        );
    }
    assert_eq!(with_twist(Some(Twist::Twice)).tcp[3], 1, "a duplicate");
    // When the end is processed, data behind it do not matter.
    let mut twists = vec![None; PIECES];
    twists[PIECES - 1] = Some(Twist::Flag(Flags::FIN));
    let closed = outcome(&twists, true);
    assert_eq!(
        (written(&closed), closed.end),
        (ROOM, Some(EndReason::Peer))
    );
    for twist in [
        Twist::Lost,
        Twist::Last,
        Twist::Ack,
        Twist::Window,
        Twist::Timestamps,
        Twist::Marked,
        Twist::Unpushed,
        Twist::Flag(Flags::SYN),
        Twist::Flag(Flags::URG),
        Twist::Flag(Flags::ECE),
        Twist::Flag(Flags::CWR),
    ] {
        with_twist(Some(twist));
    }
}

/// Returns the outcome of three messages of four segments, the last of which is shorter. The second
/// goes to this STag, at this offset.
fn messages(at_once: bool, second: impl Fn(&mut Scene) -> (Stag, u64)) -> Outcome {
    let mut scene = Scene::new();
    let second = second(&mut scene);
    let (target, other) = (scene.target.stag, scene.other.stag);
    for (stag, from) in [(target, 0), second, (other, 1000)] {
        for number in 0..4 {
            let (last, at) = (number == 3, from + (number * PIECE) as u64);
            let payload = vec![number as u8 + 1; if last { 101 } else { PIECE }];
            scene.send(tagged(Opcode::Write, stag, at, last), &payload);
        }
    }
    scene.arrive(at_once);
    scene.outcome()
}

const MESSAGE: usize = 3 * PIECE + 101;

/// Messages one behind the other are placed where each belongs.
// rfc: 5041-73a, 5041-73c
#[test]
fn a_run_goes_on_with_the_next_message() {
    for (to_other, from) in [(false, 1000), (true, 3), (false, 5)] {
        let of = |at_once| {
            messages(at_once, |scene| {
                let stags = [scene.target.stag, scene.other.stag];
                (stags[usize::from(to_other)], from)
            })
        };
        let outcome = of(true);
        assert_eq!(outcome, of(false));
        let place = if to_other {
            &outcome.other
        } else {
            &outcome.target
        };
        let begin = from as usize;
        assert_eq!(place.0[begin..][..PIECE], [1; PIECE]);
        assert_eq!(place.0[begin + 3 * PIECE..][..101], [4; 101]);
        assert_eq!(place.0[begin + MESSAGE], 0);
        assert_eq!(outcome.other.0[1000 + 3 * PIECE..][..101], [4; 101]);
        assert_eq!(outcome.rdma.octets_placed, 3 * MESSAGE as u64);
        assert_eq!((outcome.rdma.fpdus_received, outcome.end), (13, None));
    }
}

/// Each message is checked by itself, whatever the one before might do.
// rfc: 5041-77, 5041-83, 5041-88, 5040-90
#[test]
fn a_run_does_not_go_on_with_a_message_that_must_not_be_placed() {
    type Second = fn(&mut Scene) -> (Stag, u64);
    let cases: [Second; 4] = [
        |scene| (Stag(scene.target.stag.0 ^ 1), 0),
        |scene| (scene.target.stag, ROOM as u64),
        |scene| (scene.target.stag, (ROOM - 2 * PIECE) as u64),
        |scene| {
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
            let readable = scene.sim.hosts[0].share(&[0; ROOM], access);
            (readable.stag, 1000)
        },
    ];
    for (case, second) in cases.into_iter().enumerate() {
        let outcome = messages(true, second);
        assert_eq!(outcome, messages(false, second), "{case}");
        let sent = matches!(outcome.end, Some(EndReason::TerminateSent { .. }));
        assert!(sent, "{case}: {:?}", outcome.end);
        let begun = if case == 2 { 2 * PIECE } else { 0 };
        let placed = (MESSAGE + begun) as u64;
        assert_eq!(outcome.rdma.octets_placed, placed, "{case}");
        assert!(outcome.other.0.iter().all(|octet| *octet == 0), "{case}");
    }
}

/// Nothing beyond the window is taken, even where it continues the run.
#[test]
fn a_run_ends_with_the_window() {
    let mut config = EngineConfig::default();
    config.tcp.receive_window = 16 * 1024;
    config.tcp.receive_window_limit = 16 * 1024;
    let mut scene = Scene::new();
    scene.sim = simulation_with(&config, 1);
    scene.raw = accept_raw(&mut scene.sim, &ConnectionOptions::default());
    scene.target = scene.sim.hosts[0].share(&[0; 32 * 1024], all_rights());
    scene.send(nothing(), &[]);
    scene.sim.run_now();
    let offered = scene.sim.raw[scene.raw.peer].offered as usize;
    let before = scene.sim.raw[scene.raw.peer].acknowledged as usize;
    for number in 0..32 * 1024 / PIECE {
        let at = (number * PIECE) as u64;
        let header = tagged(Opcode::Write, scene.target.stag, at, false);
        scene.send(header, &[7; PIECE]);
    }
    scene.arrive(true);
    let taken = scene.sim.raw[scene.raw.peer].acknowledged as usize - before;
    assert!(
        taken <= offered && taken > offered / 2,
        "{taken} of {offered}"
    );
    let placed = scene
        .target
        .content()
        .iter()
        .filter(|octet| **octet == 7)
        .count();
    assert!(
        placed <= taken,
        "{placed} octets placed, {taken} acknowledged"
    );
}

/// A message that goes beyond the end of the buffer is refused there.
// rfc: 5041-88
#[test]
fn a_run_ends_with_the_buffer() {
    for at_once in [true, false] {
        let mut scene = Scene::new();
        for number in 0..PIECES + 3 {
            let at = (number * PIECE) as u64;
            let header = tagged(Opcode::Write, scene.target.stag, at, false);
            scene.send(header, &[number as u8 + 1; PIECE]);
        }
        scene.arrive(at_once);
        let outcome = scene.outcome();
        assert_eq!(written(&outcome), ROOM);
        assert_eq!(outcome.rdma.octets_placed, ROOM as u64);
        let end = outcome.end;
        assert!(
            matches!(end, Some(EndReason::TerminateSent { .. })),
            "{end:?}"
        );
    }
}

/// Between two batches the application revokes its memory.
// rfc: 5040-110, 5041-91, 5042-11
#[test]
fn a_run_does_not_go_on_in_memory_that_was_taken_back() {
    let mut scene = Scene::new();
    scene.send_pieces(&[None; 6]);
    scene.arrive(true);
    scene.sim.hosts[0].revoke(scene.target.stag);
    for number in 6..PIECES {
        scene.send_piece(number, None);
    }
    scene.arrive(true);
    let outcome = scene.outcome();
    assert_eq!(written(&outcome), 6 * PIECE);
    assert!(
        outcome.target.0[6 * PIECE..]
            .iter()
            .all(|octet| *octet == 0)
    );
    assert!(matches!(outcome.end, Some(EndReason::TerminateSent { .. })));
}

/// Binds a window on all of the target, for the queue pair.
fn window(scene: &mut Scene, qp: &mut TestQp) -> Stag {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    scene.target = scene.sim.hosts[0].share(&[0; ROOM], access);
    let stag = scene.sim.hosts[0].table().allocate_window(PD).unwrap();
    let binding = Binding {
        stag: stag.0,
        region: scene.target.stag.0,
        length: ROOM as u64,
        access: Access::REMOTE_WRITE.0,
        ..Binding::default()
    };
    let bind = SendWr::bind(1, WrOpcode::BindWindow, &binding);
    scene.sim.hosts[0].post_send(qp, bind);
    scene.sim.run_now();
    assert_eq!(outcomes(qp), [(1, WcOpcode::BindWindow, WcStatus::Success)]);
    stag
}

/// The peer itself closes the window through which its run goes, in the same batch.
// rfc: 5040-110, 5041-91, 5042-11
#[test]
fn a_run_does_not_go_on_through_a_window_that_its_own_stream_closes() {
    let mut scene = Scene::new();
    let mut qp = std::mem::replace(&mut scene.raw.qp, scene.sim.hosts[0].create_qp());
    let stag = window(&mut scene, &mut qp);
    scene.sim.hosts[0].post_recv(&mut qp, empty_recv(2));
    let piece = |number: usize| {
        let at = (number * PIECE) as u64;
        tagged(Opcode::Write, stag, at, number == 5)
    };
    for number in 0..6 {
        scene.send(piece(number), &[number as u8 + 1; PIECE]);
    }
    let mut close = untagged(Opcode::SendInvalidate, QueueNumber::SEND, 1, true);
    close.ulp32 = stag.0;
    scene.send(DdpHeader::Untagged(close), &[]);
    for number in 6..PIECES {
        scene.send(piece(number), &[number as u8 + 1; PIECE]);
    }
    scene.arrive(true);
    assert!(!scene.sim.hosts[0].is_valid(stag));
    scene.raw.qp = qp;
    let outcome = scene.outcome();
    assert_eq!(written(&outcome), 6 * PIECE);
    assert!(
        outcome.target.0[6 * PIECE..]
            .iter()
            .all(|octet| *octet == 0)
    );
    assert!(matches!(outcome.end, Some(EndReason::TerminateSent { .. })));
}
