//! Runs of segments of a Read Response.

use rnic_core::wire::ddp::TaggedHeader;
use rnic_core::wire::rdmap::Control;

use super::*;

/// A change of a segment's header. It is given the STag of the other region.
type Change = fn(&mut TaggedHeader, Stag);

/// What arrives: responses to Reads, the first of which goes to the target, the second to the other
/// region, of [`PIECES`] segments each. One segment may differ.
#[derive(Clone, Copy)]
struct Plan {
    /// Octets of each Read.
    asked: &'static [usize],
    change: Option<(usize, Change)>,
    length: Option<(usize, usize)>,
    twist: Option<(usize, Twist)>,
}

impl Plan {
    fn new(asked: &'static [usize]) -> Self {
        Self {
            asked,
            change: None,
            length: None,
            twist: None,
        }
    }

    fn scene(&self) -> Scene {
        let mut scene = Scene::new();
        let sinks = [&scene.target, &scene.other];
        let reads = (1..).zip(self.asked).zip(sinks);
        let reads: Vec<_> = reads
            .map(|((id, len), sink)| read(id, sink, Stag(0x1234), *len))
            .collect();
        for read in reads {
            scene.sim.hosts[0].post_send(&mut scene.raw.qp, read);
        }
        scene.sim.run_now();
        scene
    }

    /// Sends one segment, with its number in all octets.
    fn send(&self, scene: &mut Scene, number: usize) {
        let (response, at) = (number / PIECES, number % PIECES);
        let (target, other) = (scene.target.stag, scene.other.stag);
        let stag = if response == 0 { target } else { other };
        let last = at == PIECES - 1;
        let mut header = tagged(Opcode::ReadResponse, stag, (at * PIECE) as u64, last);
        if let (Some((_, change)), DdpHeader::Tagged(header)) =
            (self.change.filter(|(at, _)| *at == number), &mut header)
        {
            change(header, other);
        }
        let len = self.length.filter(|(at, _)| *at == number);
        let len = len.map_or(PIECE, |(_, len)| len);
        scene.send(header, &vec![number as u8 + 1; len]);
        if let Some((_, twist)) = self.twist.filter(|(at, _)| *at == number) {
            twist.change(scene.sim.raw[scene.raw.peer].outbox());
        }
    }

    fn run(&self, at_once: bool) -> (Outcome, Vec<(u64, WcOpcode, WcStatus)>) {
        let mut scene = self.scene();
        for number in 0..self.asked.len() * PIECES {
            self.send(&mut scene, number);
        }
        scene.arrive(at_once);
        let told = outcomes(&mut scene.raw.qp);
        (scene.outcome(), told)
    }

    /// Returns the outcome, which is the [same either way](same_either_way).
    fn outcome(&self, least_runs: u64) -> (Outcome, Vec<(u64, WcOpcode, WcStatus)>) {
        same_either_way(least_runs, |at_once| self.run(at_once))
    }
}

/// The octets of so many segments, from the first.
fn sent(count: usize) -> Vec<u8> {
    (1..=count as u8).flat_map(|octet| [octet; PIECE]).collect()
}

#[test]
fn read_responses_are_placed_whole() {
    let (outcome, told) = Plan::new(&[ROOM, ROOM]).outcome(2);
    let both = [outcome.target.0, outcome.other.0].concat();
    assert_eq!(both, sent(2 * PIECES));
    assert_eq!(outcome.rdma.octets_placed, 2 * ROOM as u64);
    assert_eq!(outcome.end, None);
    let done = |id| (id, WcOpcode::Read, WcStatus::Success);
    assert_eq!(told, [done(1), done(2)]);
}

/// Checks that the connection ends, that the Read fails, and that only so many octets of the target
/// were written, and none of the other region.
fn refused(plan: &Plan, written: usize) {
    let (outcome, told) = plan.outcome(1);
    let mut target = sent(PIECES);
    target[written..].fill(0);
    assert_eq!(outcome.target.0, target);
    assert!(outcome.other.0.iter().all(|octet| *octet == 0));
    let sent = matches!(outcome.end, Some(EndReason::TerminateSent { .. }));
    assert!(sent, "{:?}", outcome.end);
    assert_eq!(told.len(), plan.asked.len());
    let failed = told.iter().all(|(.., status)| *status != WcStatus::Success);
    assert!(failed, "{told:?}");
}

/// The region has more room than the Read asked for.
// rfc: 5040-90, 5041-73c
#[test]
fn a_read_response_that_is_longer_than_its_read_is_refused_there() {
    refused(&Plan::new(&[7 * PIECE + 9]), 7 * PIECE);
    refused(&Plan::new(&[7 * PIECE]), 7 * PIECE);
}

/// A segment in the middle whose header or length is another.
// rfc: 5040-90, 5041-33, 5041-73c, 5041-73e
#[test]
fn a_segment_of_another_message_or_place_is_not_taken_for_the_next() {
    const MIDDLE: usize = PIECES / 2;
    let changes: [Change; 8] = [
        |header, other| header.stag = other,
        |header, _| header.stag.0 ^= 1,
        |header, _| header.offset.0 += 4,
        |header, _| header.offset.0 = (ROOM - PIECE) as u64 + 1,
        |header, _| header.offset.0 = u64::MAX - 7,
        |header, _| header.ulp = Control::new(Opcode::Write).into(),
        |header, _| header.ulp ^= 0x80,
        |header, _| header.last = true,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        println!("change {number}");
        let mut plan = Plan::new(&[ROOM]);
        plan.change = Some((MIDDLE, change));
        let (outcome, told) = plan.outcome(1);
        assert!(outcome.target.0.starts_with(&sent(MIDDLE)));
        let sent = matches!(outcome.end, Some(EndReason::TerminateSent { .. }));
        assert!(sent, "{:?}", outcome.end);
        assert_ne!(told[0].2, WcStatus::Success);
    }
    for len in [PIECE - 1, PIECE + 1, 1] {
        let mut plan = Plan::new(&[ROOM]);
        plan.length = Some((MIDDLE, len));
        let (outcome, told) = plan.outcome(1);
        assert!(outcome.end.is_some());
        assert_ne!(told[0].2, WcStatus::Success);
    }
}

/// What befalls a frame in the middle.
// rfc: 5044-37
#[test]
fn what_happens_to_frames_of_a_read_has_the_same_outcome() {
    for (twist, ends) in [
        (Twist::Crc, true),
        (Twist::Checksum, false),
        (Twist::Lost, false),
        (Twist::Twice, false),
        (Twist::Marked, false),
        (Twist::Unpushed, false),
        (Twist::Window, false),
        (Twist::Flag(Flags::URG), false),
    ] {
        println!("{twist:?}");
        let mut plan = Plan::new(&[ROOM, ROOM]);
        plan.twist = Some((PIECES / 2, twist));
        let (outcome, _) = plan.outcome(1);
        assert_eq!(outcome.end.is_some(), ends, "{:?}", outcome.end);
    }
}

/// Between two batches the application revokes its memory.
// rfc: 5040-110, 5041-91, 5042-11
#[test]
fn a_read_does_not_go_on_in_memory_that_was_taken_back() {
    let plan = Plan::new(&[ROOM]);
    let mut scene = plan.scene();
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
    let told = outcomes(&mut scene.raw.qp);
    assert_ne!(told[0].2, WcStatus::Success);
    let mut target = sent(PIECES);
    target[6 * PIECE..].fill(0);
    let outcome = scene.outcome();
    assert_eq!(outcome.target.0, target);
    assert!(outcome.end.is_some(), "{:?}", outcome.end);
}
