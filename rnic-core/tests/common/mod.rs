//! What tests of the engine share: requests, connections to raw peers, and the check that nothing
//! is left over.

#![allow(dead_code)] // each test file uses some of it

#[path = "../support/decoder/mod.rs"]
pub(crate) mod decoder;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use decoder::Decoder;
use rnic_core::connection::{ConnectionOptions, Event};
use rnic_core::engine::{EngineConfig, Snapshot};
use rnic_core::ids::RequestId;
use rnic_core::memory::table::Access;
use rnic_core::testing::link::Impairments;
use rnic_core::testing::raw_peer::{enhanced_startup, enhanced_startup_with};
use rnic_core::testing::simulation::{SharedRegion, Simulation, TapPoint, TestQp};
use rnic_core::verbs::{
    sge::Sge,
    status::WcStatus,
    wr::{Completion, RecvWr, SendWr, WcOpcode, WrOpcode, send_flags},
};
use rnic_core::wire::ddp::{
    DdpHeader, MessageOffset, Msn, QueueNumber, Stag, TaggedHeader, TaggedOffset, UntaggedHeader,
};
use rnic_core::wire::hello::{Hello, Kind, Receipts};
use rnic_core::wire::mpa::{Enhanced, StartupKind};
use rnic_core::wire::rdmap::{Control, Opcode};

/// All access rights.
pub(crate) fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

/// A link that only delays frames.
pub(crate) fn simulation() -> Simulation {
    simulation_with(&EngineConfig::default(), 1)
}

pub(crate) fn simulation_with(config: &EngineConfig, seed: u64) -> Simulation {
    let link = Impairments {
        delay: Duration::from_micros(50),
        ..Impairments::default()
    };
    watched(config, link, seed)
}

/// Makes two hosts, and a decoder that checks all that they send.
pub(crate) fn watched(config: &EngineConfig, link: Impairments, seed: u64) -> Simulation {
    watched_by(config, link, seed).0
}

/// Makes two hosts, and returns the decoder that checks all that they send.
pub(crate) fn watched_by(
    config: &EngineConfig,
    link: Impairments,
    seed: u64,
) -> (Simulation, Rc<RefCell<Decoder>>) {
    let mut sim = Simulation::new(config, link, seed);
    let mut decoder = Decoder::default();
    // A kernel cuts the stream where it likes.
    decoder.unaligned = cfg!(carrier_sockets);
    let decoder = Rc::new(RefCell::new(decoder));
    let listening = decoder.clone();
    sim.tap = Some(Box::new(move |point, frame| {
        let mut decoder = listening.borrow_mut();
        match point {
            TapPoint::Sent(_) => decoder.insist(true, frame),
            TapPoint::SentRaw(_) => decoder.insist(false, frame),
            TapPoint::Arrived(_) => decoder.arrive(frame),
        }
    }));
    (sim, decoder)
}

/// A link that loses every frame.
pub(crate) fn cut_link() -> Impairments {
    Impairments {
        loss: 1000,
        ..Impairments::default()
    }
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Returns the first `len` octets of a region.
pub(crate) fn sge(region: &SharedRegion, len: usize) -> Sge {
    Sge {
        offset: 0,
        length: len as u32,
        lkey: region.stag.0,
    }
}

pub(crate) fn send(id: u64, from: &SharedRegion, len: usize) -> SendWr {
    let wr = SendWr::new(id, WrOpcode::Send);
    wr.with_sges(&[sge(from, len)]).unwrap()
}

pub(crate) fn inline_send(id: u64, octets: &[u8]) -> SendWr {
    SendWr::new(id, WrOpcode::Send).with_inline(octets).unwrap()
}

pub(crate) fn invalidate(id: u64, stag: Stag) -> SendWr {
    SendWr {
        invalidate_stag: stag.0,
        ..SendWr::new(id, WrOpcode::SendInvalidate)
    }
}

pub(crate) fn solicited(wr: SendWr) -> SendWr {
    wr.with_flags(send_flags::SIGNALED | send_flags::SOLICITED)
}

pub(crate) fn write(id: u64, from: &SharedRegion, to: Stag, len: usize) -> SendWr {
    SendWr::new(id, WrOpcode::Write)
        .with_remote(to, TaggedOffset(0))
        .with_sges(&[sge(from, len)])
        .unwrap()
}

pub(crate) fn read(id: u64, into: &SharedRegion, from: Stag, len: usize) -> SendWr {
    SendWr::new(id, WrOpcode::Read)
        .with_remote(from, TaggedOffset(0))
        .with_sges(&[sge(into, len)])
        .unwrap()
}

pub(crate) fn recv(id: u64, into: &SharedRegion, len: usize) -> RecvWr {
    RecvWr::new(id, &[sge(into, len)]).unwrap()
}

/// Makes a receive for a message without payload.
pub(crate) fn empty_recv(id: u64) -> RecvWr {
    RecvWr::new(id, &[]).unwrap()
}

/// Returns the id, operation and status of a completion.
pub(crate) fn outcome(completion: &Completion) -> (u64, WcOpcode, WcStatus) {
    (
        completion.wr_id,
        completion.opcode().unwrap(),
        completion.status(),
    )
}

pub(crate) fn outcomes(qp: &mut TestQp) -> Vec<(u64, WcOpcode, WcStatus)> {
    qp.poll().iter().map(outcome).collect()
}

/// Runs until a queue pair has `count` completions, and returns them.
pub(crate) fn completions(
    sim: &mut Simulation,
    qp: &mut TestQp,
    count: usize,
    limit: Duration,
) -> Vec<Completion> {
    let mut all = Vec::new();
    let done = sim.run_until(limit, |_| {
        all.extend(qp.poll());
        all.len() >= count
    });
    let events = (&sim.hosts[0].events, &sim.hosts[1].events);
    assert!(done, "{} of {count} completions: {events:?}", all.len());
    all
}

/// Checks that each frame that an engine received is counted once: as one for a connection, a
/// cookie or another engine, or under the reason why it was dropped.
#[track_caller]
pub(crate) fn assert_accounted(snapshot: &Snapshot) {
    if cfg!(carrier_sockets) {
        // The frames are the kernel's.
        return assert_eq!(snapshot.engine.frames_received, 0, "{snapshot:?}");
    }
    let (engine, drops) = (&snapshot.engine, &snapshot.drops);
    let of_connections = drops
        .entries()
        .filter(|(reason, _)| reason.is_of_connection());
    let dropped_by_tcp: u64 = of_connections.map(|(_, count)| count).sum();
    let handled = snapshot.tcp.segments_received - dropped_by_tcp;
    assert_eq!(
        handled + engine.syn_cookies_sent + engine.handed_over + drops.total(),
        engine.frames_received,
        "{snapshot:?}"
    );
}

/// Runs until all connections must have ended, and checks that nothing of them is left.
pub(crate) fn assert_nothing_left(sim: &mut Simulation) {
    sim.run_for(SECOND * 600);
    for host in 0..2 {
        let snapshot = sim.hosts[host].snapshot(sim.now);
        assert_accounted(&snapshot);
        assert!(
            snapshot.connections.is_empty(),
            "host {host}: {:?}",
            snapshot.connections
        );
        assert_eq!(sim.hosts[host].frames_in_use(), 0, "frames of host {host}");
        assert_eq!(
            sim.hosts[host].reservations(),
            0,
            "reservations of host {host}"
        );
        assert!(!sim.hosts[host].driver().has_backlog(), "host {host}");
    }
}

/// A queue pair of host 0 that is connected to a raw peer.
pub(crate) struct RawConnection {
    pub(crate) peer: usize,
    pub(crate) qp: TestQp,
}

/// Makes the MPA Request of a raw peer.
pub(crate) fn request(depth: u16) -> Vec<u8> {
    enhanced_startup(
        StartupKind::Request,
        Enhanced {
            ird: depth,
            ord: depth,
            ..Enhanced::default()
        },
    )
}

/// Makes the MPA Reply of a raw peer.
pub(crate) fn reply(depth: u16) -> Vec<u8> {
    let mut octets = request(depth);
    octets[7..10].copy_from_slice(b"Rep");
    octets
}

/// Makes an MPA start-up frame of a raw peer with private data.
pub(crate) fn startup_with(kind: StartupKind, private_data: &[u8]) -> Vec<u8> {
    let enhanced = Enhanced {
        ird: 16,
        ord: 16,
        ..Enhanced::default()
    };
    enhanced_startup_with(kind, enhanced, private_data)
}

/// Returns private data by which sides agree on receipts: over sockets they send them.
pub(crate) fn hello() -> Vec<u8> {
    let sent = cfg!(carrier_sockets);
    hello_of(if sent {
        Receipts::Sent
    } else {
        Receipts::Known
    })
}

pub(crate) fn hello_of(receipts: Receipts) -> Vec<u8> {
    let hello = Hello {
        kind: Kind::QueuePairs,
        // Both sides send this: each is the answer to the other.
        own: 1,
        peer: 1,
        rq_psn: 0,
        sq_psn: None,
        gid: [0; 16],
        receipts,
    };
    hello.octets(None).to_vec()
}

/// Returns the last connection request that a host has received.
pub(crate) fn last_request(sim: &Simulation, host: usize) -> RequestId {
    sim.hosts[host]
        .connect_requests()
        .last()
        .expect("a peer has asked to connect")
}

/// Connects a raw peer to a new queue pair of host 0.
pub(crate) fn accept_raw(sim: &mut Simulation, options: &ConnectionOptions) -> RawConnection {
    let qp = sim.hosts[0].create_qp();
    let peer = accept_raw_with(sim, &qp, options);
    RawConnection { peer, qp }
}

/// Connects a raw peer to a queue pair of host 0.
pub(crate) fn accept_raw_with(
    sim: &mut Simulation,
    qp: &TestQp,
    options: &ConnectionOptions,
) -> usize {
    let peer = sim.add_raw_peer(0, RAW_PORT);
    accept_peer(sim, peer, qp, options);
    peer
}

/// The port of host 0 that raw peers connect to.
pub(crate) const RAW_PORT: u16 = 4420;

/// Connects this raw peer to a queue pair of host 0.
pub(crate) fn accept_peer(
    sim: &mut Simulation,
    peer: usize,
    qp: &TestQp,
    options: &ConnectionOptions,
) {
    accept_request(sim, peer, qp, options, &request(16));
}

/// Connects this raw peer to a queue pair of host 0, with an MPA Request of its own.
pub(crate) fn accept_request(
    sim: &mut Simulation,
    peer: usize,
    qp: &TestQp,
    options: &ConnectionOptions,
    request: &[u8],
) {
    sim.hosts[0].listen(RAW_PORT);
    sim.raw[peer].connect();
    sim.run_now();
    sim.raw[peer].send(request);
    sim.run_now();
    let request = last_request(sim, 0);
    sim.hosts[0].accept(request, qp, options);
    sim.hosts[0].unlisten(RAW_PORT);
    sim.run_now();
    let (kind, reply) = sim.raw[peer].take_startup().expect("the host replies");
    assert_eq!((kind, reply.reject), (StartupKind::Reply, false));
    assert!(sim.hosts[0].is_established(qp.number));
}

/// Connects a queue pair of host 0 to a raw peer, which accepts.
pub(crate) fn connect_raw(sim: &mut Simulation, options: &ConnectionOptions) -> RawConnection {
    let qp = sim.hosts[0].create_qp();
    let peer = sim.add_raw_peer(0, 0);
    let address = sim.raw[peer].address();
    let port = 41_000 + qp.number.0 as u16;
    sim.hosts[0].connect(&qp, port, address, options);
    sim.run_now();
    let (kind, _) = sim.raw[peer].take_startup().expect("the host asks");
    assert_eq!(kind, StartupKind::Request);
    sim.raw[peer].send(&reply(16));
    sim.run_now();
    assert!(sim.hosts[0].is_established(qp.number));
    RawConnection { peer, qp }
}

/// Makes the header of a segment to a queue.
pub(crate) fn untagged(opcode: Opcode, queue: QueueNumber, msn: u32, last: bool) -> UntaggedHeader {
    UntaggedHeader {
        last,
        ulp: Control::new(opcode).into(),
        ulp32: 0,
        queue,
        msn: Msn(msn),
        offset: MessageOffset(0),
    }
}

/// Makes the header of a Send of one segment.
pub(crate) fn send_header(msn: u32) -> DdpHeader {
    DdpHeader::Untagged(untagged(Opcode::Send, QueueNumber::SEND, msn, true))
}

/// Makes the header of a segment to a tagged buffer.
pub(crate) fn tagged(opcode: Opcode, stag: Stag, offset: u64, last: bool) -> DdpHeader {
    DdpHeader::Tagged(TaggedHeader {
        last,
        ulp: Control::new(opcode).into(),
        stag,
        offset: TaggedOffset(offset),
    })
}

/// Makes the header of a Write of one segment.
pub(crate) fn write_header(stag: Stag, offset: u64) -> DdpHeader {
    tagged(Opcode::Write, stag, offset, true)
}

/// Makes a segment that changes nothing: a Write without payload. A responder may send once it was
/// received.
pub(crate) fn nothing() -> DdpHeader {
    write_header(Stag(0), 0)
}

/// Counts the events at a host that a queue pair's connection has ended.
pub(crate) fn ends(sim: &Simulation, host: usize, qp: &TestQp) -> usize {
    let number = qp.number;
    sim.hosts[host]
        .events
        .iter()
        .filter(|event| matches!(event, Event::Disconnected { qp, .. } if *qp == number))
        .count()
}

/// Makes octets that differ from one another.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}
