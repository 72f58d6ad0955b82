//! Two engines over a link that loses, reorders, duplicates, damages and re-segments, on virtual
//! time.
//!
//! Whatever the link does: every octet arrives where it belongs, every request completes once and
//! in order, every Send and all Immediate Data are delivered once and in order, every atomic is
//! carried out once and in order.

mod common;

use std::time::Duration;

use common::decoder::Heard;
use common::watched_by;
use fastrand::Rng;
use rnic_core::connection::{ConnectionOptions, EndReason, Event};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::memory::table::Access;
use rnic_core::testing::deep;
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{SharedRegion, Simulation, TestQp};
use rnic_core::verbs::{
    sge::Sge,
    status::WcStatus,
    wr::{Completion, RecvWr, SendWr, WcOpcode, WrOpcode},
};
use rnic_core::wire::ddp::TaggedOffset;
use rnic_core::wire::rdmap::AtomicOperation;

/// Room for each operation.
const SLOT: usize = 24_000;

/// Operations in each direction.
const OPERATIONS: usize = 12;

/// Seeds tried by the long test, and with each use of markers.
const SEEDS: u64 = 1000;
const SEEDS_WITH_MARKERS: u64 = 200;

const USES_OF_MARKERS: [[bool; 2]; 3] = [[true, false], [false, true], [true, true]];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Write,
    Read,
    Send,
    WriteImmediate,
    Atomic,
}

impl Kind {
    /// Returns whether it uses up a receive of the peer's.
    fn is_received(self) -> bool {
        matches!(self, Self::Send | Self::WriteImmediate)
    }
}

/// One host's half of a run.
struct Side {
    qp: TestQp,
    /// Where operations take their data from, slot by slot.
    source: SharedRegion,
    /// What the peer writes to and where its Sends arrive.
    target: SharedRegion,
    /// Where data that was read arrives.
    sink: SharedRegion,
    /// What the peer's atomics work on.
    number: SharedRegion,
    operations: Vec<(Kind, usize)>,
    completions: Vec<Completion>,
}

fn side(sim: &mut Simulation, host: usize, qp: TestQp, rng: &mut Rng) -> Side {
    let len = SLOT * OPERATIONS;
    let noise: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
    let everything = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let kinds = [
        Kind::Write,
        Kind::Read,
        Kind::Send,
        Kind::WriteImmediate,
        Kind::Atomic,
    ];
    let sizes = [0, 1, 64, 1400, 1460, 5000, SLOT];
    Side {
        qp,
        source: sim.hosts[host].share(&noise, everything),
        target: sim.hosts[host].share(&vec![0; len], everything),
        sink: sim.hosts[host].share(&vec![0; len], everything),
        number: sim.hosts[host].share(&[0; 8], Access::REMOTE_ATOMIC),
        operations: (0..OPERATIONS)
            .map(|_| {
                let size = sizes[rng.usize(..sizes.len())];
                let size = if rng.bool() {
                    size
                } else {
                    rng.usize(0..=SLOT)
                };
                match kinds[rng.usize(..kinds.len())] {
                    Kind::Atomic => (Kind::Atomic, 8),
                    kind => (kind, size),
                }
            })
            .collect(),
        completions: Vec::new(),
    }
}

fn sge(region: &SharedRegion, slot: usize, len: usize) -> Sge {
    Sge {
        offset: (slot * SLOT) as u64,
        length: len as u32,
        lkey: region.stag.0,
    }
}

fn post_receives(sim: &Simulation, host: usize, side: &mut Side, peer: &Side) {
    for (slot, (kind, _)) in peer.operations.iter().enumerate() {
        let buffer = [sge(&side.target, slot, SLOT)];
        let wr = match kind {
            Kind::Send => RecvWr::new(slot as u64, &buffer),
            Kind::WriteImmediate => RecvWr::new(slot as u64, &[]),
            Kind::Write | Kind::Read | Kind::Atomic => None,
        };
        if let Some(wr) = wr {
            sim.hosts[host].post_recv(&mut side.qp, wr);
        }
    }
}

/// The atomics among some operations: where they stand, what they do, what they find, and what they
/// leave. One in three adds, one swaps, one compares unequal.
fn atomics(operations: &[(Kind, usize)]) -> Vec<(usize, AtomicOperation, u64, u64)> {
    let mut value = 0;
    let slots = operations
        .iter()
        .enumerate()
        .filter(|(_, (kind, _))| *kind == Kind::Atomic);
    slots
        .map(|(slot, _)| {
            let found = value;
            let new = (slot as u64 + 1) << 56 | 0x0102_0304_0506;
            let swap = |compare| AtomicOperation::CmpSwap {
                swap: new,
                swap_mask: u64::MAX,
                compare,
                compare_mask: u64::MAX,
            };
            let operation = match slot % 3 {
                0 => AtomicOperation::FetchAdd { add: new, mask: 0 },
                1 => swap(found),
                _ => swap(!found),
            };
            value = [found.wrapping_add(new), new, found][slot % 3];
            (slot, operation, found, value)
        })
        .collect()
}

fn post_operations(sim: &Simulation, host: usize, side: &mut Side, peer: &Side) {
    let mut atomics = atomics(&side.operations).into_iter();
    for (slot, (kind, len)) in side.operations.iter().enumerate() {
        let offset = TaggedOffset((slot * SLOT) as u64);
        let id = slot as u64;
        let wr = match kind {
            Kind::Write => SendWr::new(id, WrOpcode::Write)
                .with_remote(peer.target.stag, offset)
                .with_sges(&[sge(&side.source, slot, *len)]),
            Kind::Read => SendWr::new(id, WrOpcode::Read)
                .with_remote(peer.source.stag, offset)
                .with_sges(&[sge(&side.sink, slot, *len)]),
            Kind::Send => {
                SendWr::new(id, WrOpcode::Send).with_sges(&[sge(&side.source, slot, *len)])
            }
            Kind::WriteImmediate => SendWr::new(id, WrOpcode::WriteImmediate)
                .with_immediate(id.to_be_bytes())
                .with_remote(peer.target.stag, offset)
                .with_sges(&[sge(&side.source, slot, *len)]),
            Kind::Atomic => atomics.next().map(|(_, operation, ..)| {
                SendWr::atomic(id, operation, sge(&side.sink, slot, 8))
                    .with_remote(peer.number.stag, TaggedOffset(0))
            }),
        };
        sim.hosts[host].post_send(&mut side.qp, wr.unwrap());
    }
}

fn is_receive(completion: &Completion) -> bool {
    matches!(
        completion.opcode(),
        Ok(WcOpcode::Recv | WcOpcode::RecvImmediate)
    )
}

/// Returns how many completions this side gets.
fn expected(side: &Side, peer: &Side) -> usize {
    let receives = peer
        .operations
        .iter()
        .filter(|(kind, _)| kind.is_received())
        .count();
    side.operations.len() + receives
}

fn check(side: &Side, peer: &Side, seed: u64) {
    for completion in &side.completions {
        assert_eq!(
            completion.status(),
            WcStatus::Success,
            "seed {seed}: {completion:?}"
        );
    }
    let sent: Vec<u64> = side
        .completions
        .iter()
        .filter(|c| !is_receive(c))
        .map(|c| c.wr_id)
        .collect();
    assert_eq!(
        sent,
        (0..side.operations.len() as u64).collect::<Vec<_>>(),
        "seed {seed}: order of requests"
    );
    let received: Vec<(u64, u32, [u8; 8])> = side
        .completions
        .iter()
        .filter(|c| is_receive(c))
        .map(|c| (c.wr_id, c.byte_len, c.immediate))
        .collect();
    let sends = peer
        .operations
        .iter()
        .enumerate()
        .filter(|(_, (kind, _))| kind.is_received());
    let wanted: Vec<(u64, u32, [u8; 8])> = sends
        .map(|(slot, (kind, len))| match kind {
            Kind::Send => (slot as u64, *len as u32, [0; 8]),
            _ => (slot as u64, *len as u32, slot.to_be_bytes()),
        })
        .collect();
    assert_eq!(received, wanted, "seed {seed}: Sends delivered");

    let (mine, theirs) = (side.source.content(), peer.source.content());
    let (arrived, read) = (peer.target.content(), side.sink.content());
    let mut left = 0;
    for (slot, operation, found, leaves) in atomics(&side.operations) {
        let came = &read[slot * SLOT..][..8];
        assert_eq!(came, found.to_ne_bytes(), "seed {seed}: {operation:?}");
        left = leaves;
    }
    let number = peer.number.content();
    assert_eq!(number, left.to_ne_bytes(), "seed {seed}: atomics");
    let others = side
        .operations
        .iter()
        .enumerate()
        .filter(|(_, (kind, _))| *kind != Kind::Atomic);
    for (slot, (kind, len)) in others {
        let range = slot * SLOT..slot * SLOT + len;
        let (got, wanted) = match kind {
            Kind::Read => (&read[range.clone()], &theirs[range]),
            _ => (&arrived[range.clone()], &mine[range]),
        };
        assert!(
            got == wanted,
            "seed {seed}: content of {kind:?} {slot}, {len} octets"
        );
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

/// The options of two hosts.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// Whether the first and the second require markers.
    markers: [bool; 2],
    /// Whether they want CRCs; `None`: at random.
    crc: Option<bool>,
    /// Whether the second says nothing to what the first sends. Neither is told which of them
    /// speaks first.
    silent_peer: bool,
}

impl Asked {
    const NOTHING: Self = Self {
        markers: [false; 2],
        crc: None,
        silent_peer: false,
    };

    fn markers(markers: [bool; 2], crc: bool) -> Self {
        Self {
            markers,
            crc: Some(crc),
            ..Self::NOTHING
        }
    }
}

/// Connects two hosts with these options, and runs them. Returns what the decoder has seen, and how
/// many octets each host has placed ahead of order.
fn run(seed: u64, asked: Asked) -> (Heard, [u64; 2]) {
    let mut rng = Rng::with_seed(seed);
    let config = EngineConfig {
        mtu: if seed % 4 == 3 { 9000 } else { 1500 },
        ..EngineConfig::default()
    };
    let (mut sim, decoder) = watched_by(&config, impairments(&mut rng), seed);
    let by_chance = rng.u8(0..4) > 0;
    // One in eight has the semantics of RC.
    let rc = seed % 8 == 5;
    decoder.borrow_mut().rc = rc;
    let options = ConnectionOptions {
        crc: asked.crc.unwrap_or(by_chance),
        mpa_revision: rng.u8(1..=2),
        ord: rng.u16(1..=4),
        rc,
        ..ConnectionOptions::default()
    };
    let options = match asked.silent_peer {
        true => ConnectionOptions {
            mpa_revision: 2,
            peer_to_peer: true,
            first_fpdu_delay: Duration::from_millis(5),
            ..options
        },
        false => options,
    };
    let [ours, theirs] = asked.markers.map(|markers| ConnectionOptions {
        markers,
        ..options.clone()
    });
    let Some((active, passive)) = sim.connect_with(&ours, &theirs) else {
        panic!(
            "seed {seed}: no connection: {:?} {:?}",
            sim.hosts[0].events, sim.hosts[1].events
        );
    };
    let mut first = side(&mut sim, 0, active, &mut rng);
    let mut second = side(&mut sim, 1, passive, &mut rng);
    if asked.silent_peer {
        second.operations.clear();
        let answered = |kind: &Kind| matches!(kind, Kind::Read | Kind::Atomic);
        let operations = first.operations.iter_mut();
        for (kind, _) in operations.filter(|(kind, _)| answered(kind)) {
            *kind = Kind::Write;
        }
    }
    post_receives(&sim, 0, &mut first, &second);
    post_receives(&sim, 1, &mut second, &first);
    post_operations(&sim, 0, &mut first, &second);
    post_operations(&sim, 1, &mut second, &first);
    let done = sim.run_until(Duration::from_secs(300), |_| {
        first.completions.extend(first.qp.poll());
        second.completions.extend(second.qp.poll());
        first.completions.len() >= expected(&first, &second)
            && second.completions.len() >= expected(&second, &first)
    });
    let events = (&sim.hosts[0].events, &sim.hosts[1].events);
    assert!(
        done,
        "seed {seed}: {} and {} completions, {events:?}",
        first.completions.len(),
        second.completions.len()
    );
    check(&first, &second, seed);
    check(&second, &first, seed);
    close(&mut sim, &first, &second, seed);
    let early = [0, 1].map(|host| {
        let snapshot = sim.hosts[host].snapshot(sim.now);
        snapshot.rdma.octets_placed_early
    });
    (decoder.borrow().heard, early)
}

/// Runs many seeds in parallel. Returns how many octets each host has placed ahead of order in all
/// of them.
fn run_all(seeds: u64, asked: Asked) -> [u64; 2] {
    let threads = std::thread::available_parallelism().map_or(2, usize::from) as u64;
    let seeds = deep(seeds);
    let share = move |thread: u64| {
        let seeds = (0..seeds).filter(move |seed| seed % threads == thread);
        seeds.map(|seed| run(seed, asked).1).fold([0; 2], add)
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || share(thread)))
            .collect();
        let results = workers.into_iter().map(|worker| worker.join().unwrap());
        results.fold([0; 2], add)
    })
}

fn add(one: [u64; 2], other: [u64; 2]) -> [u64; 2] {
    [one[0] + other[0], one[1] + other[1]]
}

/// The decoder sees all kinds of messages in these runs.
#[test]
fn the_decoder_hears_all_of_it() {
    let asked = [
        Asked::NOTHING,
        Asked::markers([true; 2], true),
        Asked::markers([true; 2], false),
        Asked::markers([true, false], true),
        Asked::markers([false, true], false),
    ];
    let mut retransmitted_octets = 0;
    for asked in asked {
        for seed in 0..20 {
            let (heard, _) = run(seed, asked);
            retransmitted_octets += heard.retransmitted_octets;
            assert_eq!(heard.startups, 2);
            assert!(heard.messages >= 2 * OPERATIONS as u64, "{heard:?}");
            assert!(heard.fpdus >= heard.messages, "{heard:?}");
            assert!(heard.crcs == heard.fpdus || heard.crcs == 0, "{heard:?}");
            if let Some(crc) = asked.crc {
                assert_eq!(heard.crcs > 0, crc, "{asked:?}: {heard:?}");
            }
            let markers = asked.markers != [false; 2];
            assert_eq!(heard.markers > 0, markers, "{asked:?}: {heard:?}");
        }
    }
    assert!(retransmitted_octets > 1000);
}

/// An initiator says again that it is ready, amid its messages, as long as its peer is silent.
#[test]
fn openings_are_repeated_amid_messages() {
    let asked = Asked {
        silent_peer: true,
        ..Asked::NOTHING
    };
    run_all(SEEDS, asked);
}

/// An orderly end reaches both sides.
fn close(sim: &mut Simulation, first: &Side, second: &Side, seed: u64) {
    sim.hosts[0].command(Command::Disconnect(first.qp.number));
    let numbers = [first.qp.number, second.qp.number];
    let over = sim.run_until(Duration::from_secs(120), |sim| {
        (0..2).all(|host| {
            let told = |event: &Event| match event {
                Event::Disconnected { qp, .. } => *qp == numbers[host],
                // With the semantics of RC nothing ends for the other side.
                Event::PeerLeft { qp, .. } => host == 1 && *qp == numbers[host],
                _ => false,
            };
            sim.hosts[host].events.iter().any(told)
        })
    });
    assert!(
        over,
        "seed {seed}: {:?} {:?}",
        sim.hosts[0].events, sim.hosts[1].events
    );
    let reason = sim.hosts[1].events.iter().find_map(|event| match event {
        Event::Disconnected { reason, .. } | Event::PeerLeft { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(reason, Some(EndReason::Peer), "seed {seed}");
}

#[test]
fn every_octet_arrives_once_and_in_order_whatever_the_link_does() {
    // rfc: 5041-5, 5044-12
    assert_eq!(run_all(SEEDS, Asked::NOTHING), [0; 2], "placed early");
}

/// On links that lose, reorder and cut segments, what comes ahead of order is placed at once where
/// markers show it, and only there.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn markers_required_by_either_side_or_both() {
    // rfc: 5044-17, 5044-43, 5044-46a, 5044-46b, 5044-47, 5044-59
    for markers in USES_OF_MARKERS {
        let early = run_all(SEEDS_WITH_MARKERS, Asked::markers(markers, true));
        assert_eq!(early.map(|octets| octets > 0), markers, "{early:?}");
    }
}

/// Without CRCs nothing verifies an FPDU that a marker shows: everything is placed in order.
#[test]
fn markers_without_crcs() {
    // rfc: 5044-62
    for markers in USES_OF_MARKERS {
        let early = run_all(SEEDS_WITH_MARKERS, Asked::markers(markers, false));
        assert_eq!(early, [0; 2], "{markers:?}");
    }
}
