//! An idle send has the outcome of the ordinary way: frames, completions, memory and counters are the same.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::*;

use crate::connection::ConnectionOptions;
use crate::engine::{Command, EngineConfig};
use crate::fast_paths::{FastPath, FastPaths};
use crate::memory::table::Access;
use crate::tcp::EcnMode;
use crate::testing::link::Impairments;
use crate::testing::simulation::{QpSettings, SharedRegion, Simulation, TapPoint, TestQp};
use crate::verbs::{
    sge::Sge,
    wr::{MAX_INLINE, RecvWr, SendWr, WrOpcode, send_flags},
};
use crate::wire::ddp::TaggedOffset;

/// What an application does, or what happens meanwhile.
#[derive(Clone, Debug)]
enum Act {
    /// Host, request, and a doorbell or not yet.
    Post(usize, Ask),
    /// What is under way comes to its end, or little time passes, or much.
    Rest,
    Wait(u64),
    Idle,
    /// The application of this host takes its completions.
    Poll(usize),
    /// It ends in order.
    Finish(usize),
    /// Frames are lost for a while.
    Lose,
}

/// A request.
#[derive(Clone, Debug)]
struct Ask {
    opcode: WrOpcode,
    /// Octets; beyond what a request carries they come from memory.
    len: usize,
    flags: u8,
}

/// What differs between connections.
#[derive(Clone, Debug)]
struct Terms {
    crc: bool,
    markers: bool,
    timestamps: bool,
    ecn: bool,
    signal_all: bool,
    window: u32,
    delay: Duration,
    /// Completions that a queue has room for, and frames that there are to send.
    cq: u32,
    frames: usize,
    completes_checksums: bool,
}

const ROOM: usize = 8192;

fn run(terms: &Terms, acts: &[Act], fast_paths: FastPaths) -> Vec<String> {
    let mut config = EngineConfig {
        fast_paths,
        ..EngineConfig::default()
    };
    config.tcp.timestamps = terms.timestamps;
    config.tcp.receive_window = terms.window;
    config.tcp.receive_window_limit = terms.window;
    if terms.ecn {
        config.tcp.ecn = EcnMode::Ask;
    }
    let link = Impairments {
        delay: terms.delay,
        ..Impairments::default()
    };
    let mut sim = Simulation::new(&config, link, 7);
    let log = Rc::new(RefCell::new(Vec::new()));
    let seen = log.clone();
    sim.tap = Some(Box::new(move |point, frame| {
        if let TapPoint::Sent(host) = point {
            seen.borrow_mut().push(format!("{host} sends {frame:02x?}"));
        }
    }));
    let options = ConnectionOptions {
        crc: terms.crc,
        markers: terms.markers,
        ..ConnectionOptions::default()
    };
    let settings = QpSettings {
        signal_all: terms.signal_all,
        cq: terms.cq,
        ..QpSettings::default()
    };
    let mut qps = [0, 1].map(|host| sim.hosts[host].create_qp_with(settings));
    assert!(sim.connect_pair(&qps[0], &qps[1], &options, &options));
    // Until none of the frames is held that the start took.
    sim.run_for(Duration::from_millis(100));
    sim.hosts[0].set_frames(terms.frames);
    if terms.completes_checksums {
        sim.hosts[0].complete_checksums();
    }
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let regions = [0, 1].map(|host| sim.hosts[host].share(&[host as u8; ROOM], rights));
    for (host, qp) in qps.iter_mut().enumerate() {
        for id in 0..128 {
            let piece = piece(&regions[host], 512);
            sim.hosts[host].post_recv(qp, RecvWr::new(id, &[piece]).unwrap());
        }
    }
    for (id, act) in (0..).zip(acts) {
        log.borrow_mut().push(format!("{act:?} at {:?}", sim.now));
        if let Act::Poll(host) = act {
            let done = qps[*host].poll();
            log.borrow_mut().push(format!("completed {done:?}"));
        }
        carry_out(act, id, &mut sim, &mut qps, &regions, &link);
    }
    sim.run_for(Duration::from_secs(2));
    let now = sim.now;
    for ((host, qp), region) in sim.hosts.iter_mut().zip(&mut qps).zip(&regions) {
        let mut snapshot = host.snapshot(now);
        // How often a lazy timer expires is not part of what is compared.
        snapshot.engine.timers_expired = 0;
        let end = format!("{:?} {snapshot:?} {:?}", qp.poll(), region.content());
        log.borrow_mut().push(end);
    }
    sim.tap = None;
    log.take()
}

fn carry_out(
    act: &Act,
    id: u64,
    sim: &mut Simulation,
    qps: &mut [TestQp; 2],
    regions: &[SharedRegion; 2],
    link: &Impairments,
) {
    match act {
        Act::Post(host, ask) => {
            let wr = request(ask, id, &regions[*host], &regions[1 - host]);
            sim.hosts[*host].post_send(&mut qps[*host], wr);
        }
        Act::Rest | Act::Poll(_) => sim.run_now(),
        Act::Wait(micros) => sim.run_for(Duration::from_micros(*micros)),
        Act::Idle => sim.run_for(Duration::from_millis(700)),
        Act::Finish(host) => {
            let qp = qps[*host].number;
            sim.hosts[*host].command(Command::Disconnect(qp));
        }
        Act::Lose => {
            sim.link.set_impairments(Impairments {
                loss: 1000,
                ..*link
            });
            sim.run_for(Duration::from_micros(300));
            sim.link.set_impairments(*link);
        }
    }
}

fn piece(region: &SharedRegion, len: usize) -> Sge {
    Sge {
        offset: 0,
        length: len as u32,
        lkey: region.stag.0,
    }
}

fn request(ask: &Ask, id: u64, from: &SharedRegion, to: &SharedRegion) -> SendWr {
    let wr = SendWr::new(id, ask.opcode).with_remote(to.stag, TaggedOffset(8 * id % 1024));
    let octets = [id as u8; MAX_INLINE];
    let wr = match octets.get(..ask.len) {
        Some(octets) if ask.opcode != WrOpcode::Read => wr.with_inline(octets),
        _ => wr.with_sges(&[piece(from, ask.len)]),
    };
    wr.expect("no longer than there may be")
        .with_flags(ask.flags)
}

fn terms() -> impl Strategy<Value = Terms> {
    (
        any::<[bool; 4]>(),
        prop::bool::weighted(0.8),
        prop_oneof![4 => Just(512 * 1024), 1 => Just(2000)],
        prop_oneof![4 => Just(20), 1 => Just(400)],
        prop_oneof![4 => Just(512), 1 => Just(2)],
        prop_oneof![4 => Just(256_usize), 1 => Just(34), 1 => Just(20)],
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |(flags, crc, window, delay, cq, frames, completes_checksums)| Terms {
                crc,
                markers: flags[0] && flags[1],
                timestamps: flags[1],
                ecn: flags[2] && !flags[1],
                signal_all: flags[3],
                window,
                delay: Duration::from_micros(delay),
                cq,
                frames,
                completes_checksums,
            },
        )
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let opcode = prop_oneof![
        4 => Just(WrOpcode::Write),
        4 => Just(WrOpcode::Send),
        1 => Just(WrOpcode::Read),
        1 => Just(WrOpcode::WriteImmediate),
    ];
    let len = prop_oneof![6 => 0..=MAX_INLINE, 1 => Just(200_usize), 1 => Just(5000)];
    let flags = prop_oneof![
        2 => Just(send_flags::SIGNALED),
        1 => Just(0),
        1 => Just(send_flags::SIGNALED | send_flags::FENCE),
        1 => Just(send_flags::SOLICITED),
    ];
    let ask = (opcode, len, flags).prop_map(|(opcode, len, flags)| Ask { opcode, len, flags });
    let act = prop_oneof![
        8 => (0..2_usize, ask).prop_map(|(host, ask)| Act::Post(host, ask)),
        6 => Just(Act::Rest),
        4 => (1..200_u64).prop_map(Act::Wait),
        4 => (0..2_usize).prop_map(Act::Poll),
        1 => Just(Act::Idle),
        1 => Just(Act::Lose),
    ];
    let finish = prop::option::of((0..2_usize, any::<prop::sample::Index>()));
    (prop::collection::vec(act, 1..60), finish).prop_map(|(mut acts, finish)| {
        if let Some((host, at)) = finish {
            acts.insert(at.index(acts.len()), Act::Finish(host));
        }
        acts
    })
}

proptest! {
    /// Every frame, every completion, all memory and all that is counted is the same.
    #[test]
    fn a_lone_message_goes_as_any_other(terms in terms(), acts in acts()) {
        let short = run(&terms, &acts, FastPaths::ALL);
        let ordinary = run(&terms, &acts, FastPaths::ALL.without(FastPath::IdleSend));
        for (short, ordinary) in short.iter().zip(&ordinary) {
            prop_assert_eq!(short, ordinary);
        }
        prop_assert_eq!(short.len(), ordinary.len());
    }
}
