//! Every frame that is dropped has a reason, which is counted once: each is reached by a frame of
//! its own.

mod common;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use common::*;
use rnic_core::connection::{ConnectionOptions, Refusals};
use rnic_core::counters::{DropCounters, DropReason};
use rnic_core::engine::{Command, EngineConfig, Peers};
use rnic_core::ids::ListenerId;
use rnic_core::testing::raw_peer::frame;
use rnic_core::testing::simulation::Simulation;
use rnic_core::wire::checksum::sum;
use rnic_core::wire::ethernet;
use rnic_core::wire::tcp::{Flags, TcpHeader, TcpOptions, Timestamps};

/// The last timestamp of a [`Scene`]'s peer.
const CLOCK: u32 = 1000;

/// A port that only some peers may connect to.
const LIMITED_PORT: u16 = 4421;

/// Where TCP begins in an IPv4 frame.
const TCP_AT: usize = ethernet::HEADER_LEN + 20;

/// A host with a connection whose peer sends timestamps. Tests can send any segment as this peer.
struct Scene {
    sim: Simulation,
    reached: BTreeSet<&'static str>,
}

impl Scene {
    fn new(config: &EngineConfig) -> Self {
        let mut sim = simulation_with(config, 1);
        // The peer's segments are wrong on purpose.
        sim.tap = None;
        sim.hosts[0].listen(RAW_PORT);
        sim.add_raw_peer(0, RAW_PORT);
        let reached = BTreeSet::new();
        Self { sim, reached }
    }

    fn connected() -> Self {
        let mut scene = Self::new(&EngineConfig::default());
        scene.sim.raw[0].connect();
        scene.sim.raw[0].outbox().clear();
        let syn = scene.syn();
        scene.handles(syn);
        scene.sim.raw[0].skip(1);
        let ack = scene.next();
        scene.handles(scene.segment(&ack, &[]));
        scene
    }

    fn drops(&mut self) -> DropCounters {
        self.sim.hosts[0].snapshot(self.sim.now).drops
    }

    /// The host receives a frame. Returns for which reasons frames were dropped meanwhile.
    fn receive(&mut self, frame: Vec<u8>) -> Vec<(DropReason, u64)> {
        let before = self.drops();
        self.sim.raw[0].outbox().push(frame);
        self.sim.run_now();
        assert_accounted(&self.sim.hosts[0].snapshot(self.sim.now));
        let after = self.drops().entries();
        let more = after.zip(before.entries());
        more.map(|((reason, after), (_, before))| (reason, after - before))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    #[track_caller]
    fn drops_frame(&mut self, reason: DropReason, frame: Vec<u8>) {
        assert_eq!(self.receive(frame), [(reason, 1)]);
        self.reached.insert(reason.name());
    }

    #[track_caller]
    fn drops_segment(&mut self, reason: DropReason, header: &TcpHeader, payload: &[u8]) {
        self.drops_frame(reason, self.segment(header, payload));
    }

    #[track_caller]
    fn handles(&mut self, frame: Vec<u8>) {
        assert_eq!(self.receive(frame), []);
    }

    fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let peer = &self.sim.raw[0];
        (peer.address(), peer.host_address())
    }

    fn segment(&self, header: &TcpHeader, payload: &[u8]) -> Vec<u8> {
        let (from, to) = self.addresses();
        let header = TcpHeader {
            source_port: from.port(),
            destination_port: to.port(),
            ..*header
        };
        frame(from, to, &header, payload)
    }

    fn syn(&self) -> Vec<u8> {
        let header = TcpHeader {
            seq: self.sim.raw[0].isn,
            flags: Flags::SYN,
            options: timestamp(CLOCK - 1),
            window: 1000,
            ..TcpHeader::default()
        };
        self.segment(&header, &[])
    }

    /// The header of the next segment.
    fn next(&self) -> TcpHeader {
        TcpHeader {
            seq: self.sim.raw[0].isn + 1,
            ack: self.sim.raw[0].rcv_nxt(),
            flags: Flags::ACK,
            window: 1000,
            options: timestamp(CLOCK),
            ..TcpHeader::default()
        }
    }
}

fn timestamp(value: u32) -> TcpOptions {
    let timestamps = Some(Timestamps { value, echo: 0 });
    TcpOptions {
        timestamps,
        ..TcpOptions::default()
    }
}

/// Returns a frame with some octets changed, and a right IPv4 checksum.
fn changed(mut frame: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut frame);
    let ip = &mut frame[ethernet::HEADER_LEN..TCP_AT];
    ip[10..12].fill(0);
    let checksum = !sum(ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    frame
}

fn unreadable(scene: &mut Scene) {
    let syn = scene.syn();
    let ip = ethernet::HEADER_LEN;
    scene.drops_frame(DropReason::Truncated, syn[..TCP_AT].to_vec());
    let bad_offset = |frame: &mut [u8]| {
        // What is subtracted from one word is added to another: the checksum stays right.
        let words = u16::from(frame[TCP_AT + 12] >> 4) - 1;
        frame[TCP_AT + 12] = 1 << 4;
        frame[TCP_AT + 18..TCP_AT + 20].copy_from_slice(&(words << 12).to_be_bytes());
    };
    scene.drops_frame(DropReason::Malformed, changed(syn.clone(), bad_offset));
    let arp = changed(syn.clone(), |frame| frame[12..14].copy_from_slice(&[8, 6]));
    scene.drops_frame(DropReason::NotIp, arp);
    let udp = changed(syn.clone(), |frame| frame[ip + 9] = 17);
    scene.drops_frame(DropReason::NotTcp, udp);
    let fragment = changed(syn.clone(), |frame| frame[ip + 6] = 0x20);
    scene.drops_frame(DropReason::Fragment, fragment);
    let group = changed(syn.clone(), |frame| frame[0] |= 1);
    scene.drops_frame(DropReason::NotUnicast, group);
    let mut other = syn.clone();
    other[ip + 8] -= 1;
    scene.drops_frame(DropReason::IpChecksum, other);
    let other = changed(syn, |frame| frame[TCP_AT + 7] ^= 1);
    scene.drops_frame(DropReason::TcpChecksum, other);
}

fn of_no_connection(scene: &mut Scene) {
    let ack = scene.next();
    scene.drops_segment(DropReason::NoConnection, &ack, &[]);
    assert!(scene.sim.raw[0].reset, "it is answered");
    let (from, _) = scene.addresses();
    let prefix = "198.51.100.0/24".parse().unwrap();
    scene.sim.hosts[0].command(Command::Listen {
        listener: ListenerId(2),
        local: scene.sim.hosts[0].socket(LIMITED_PORT),
        peers: Peers::only([prefix]),
        reservation: Arc::new(()),
        refusals: Arc::<Refusals>::default(),
    });
    let syn = TcpHeader {
        source_port: from.port(),
        destination_port: LIMITED_PORT,
        flags: Flags::SYN,
        ..TcpHeader::default()
    };
    let syn = frame(from, scene.sim.hosts[0].socket(LIMITED_PORT), &syn, &[]);
    scene.drops_frame(DropReason::PeerNotAllowed, syn);
}

fn without_room(reached: &mut BTreeSet<&'static str>) {
    let default = EngineConfig::default;
    let rooms = [
        (
            DropReason::TooManyConnections,
            EngineConfig {
                max_connections: 0,
                ..default()
            },
        ),
        (
            DropReason::ListenOverflow,
            EngineConfig {
                backlog: 0,
                ..default()
            },
        ),
        (
            DropReason::StartupOverflow,
            EngineConfig {
                max_half_open: 0,
                ..default()
            },
        ),
    ];
    for (reason, config) in rooms {
        let mut scene = Scene::new(&config);
        let syn = scene.syn();
        scene.drops_frame(reason, syn);
        assert_eq!(
            scene.sim.raw[0].reset,
            reason == DropReason::TooManyConnections
        );
        reached.extend(scene.reached);
    }
}

fn of_a_connection(scene: &mut Scene) {
    let next = scene.next();
    let with_flags = |flags| TcpHeader { flags, ..next };
    let ahead = |octets: u32| TcpHeader {
        seq: next.seq + octets,
        ..next
    };
    scene.drops_segment(DropReason::TcpNoAck, &with_flags(Flags(0)), b"MPA");
    scene.drops_segment(DropReason::TcpInvalidSyn, &with_flags(Flags::SYN), &[]);
    let reset = TcpHeader {
        flags: Flags::RST,
        ..ahead(100)
    };
    scene.drops_segment(DropReason::TcpInvalidReset, &reset, &[]);
    let old = TcpHeader {
        options: timestamp(CLOCK - 1),
        ..next
    };
    scene.drops_segment(DropReason::TcpPaws, &old, b"MPA");
    scene.drops_segment(DropReason::TcpOutOfWindow, &ahead(100_000_000), b"MPA");
    let acks = |ack| TcpHeader { ack, ..next };
    scene.drops_segment(DropReason::TcpInvalidAck, &acks(next.ack + 1), b"MPA");
    scene.drops_segment(DropReason::TcpOldAck, &acks(next.ack - 100_000_000), b"MPA");
    scene.drops_segment(DropReason::StartupOutOfOrder, &ahead(5000), b"MPA");
    // One gap more than can be tracked.
    for gap in 0..256 {
        scene.handles(scene.segment(&ahead(2 * gap + 1), b"P"));
    }
    scene.drops_segment(DropReason::TcpOutOfOrderFull, &ahead(2 * 256 + 1), &[0]);
    scene.drops_segment(DropReason::TcpOldData, &ahead(3), &[0]);
    // The connection still works.
    scene.handles(scene.segment(&next, b"M"));
    assert_eq!(scene.sim.raw[0].acknowledged, 2);
    // It ends, and its RST finds no room in the device.
    scene.sim.hosts[0].device().set_queue_len(0);
    scene.sim.hosts[0].unlisten(RAW_PORT);
    scene.sim.run_now();
    scene.drops_segment(DropReason::TcpClosed, &ahead(2), b"P");
    scene.sim.hosts[0].device().set_queue_len(usize::MAX);
}

fn of_a_connection_being_opened(scene: &mut Scene) {
    let qp = scene.sim.hosts[0].create_qp();
    let silent: SocketAddr = "192.0.2.250:4420".parse().unwrap();
    let options = ConnectionOptions::default();
    scene.sim.hosts[0].connect(&qp, 40_000, silent, &options);
    scene.sim.run_now();
    let header = TcpHeader {
        source_port: silent.port(),
        destination_port: 40_000,
        ..TcpHeader::default()
    };
    let data = frame(silent, scene.sim.hosts[0].socket(40_000), &header, b"MPA");
    scene.drops_frame(DropReason::TcpNoSyn, data);
    assert_eq!(scene.sim.hosts[0].failure_of(qp.number), None);
}

#[test]
fn each_reason_is_reached_by_a_frame_of_its_own() {
    let mut reached = BTreeSet::new();
    for run in [unreadable, of_no_connection, of_a_connection_being_opened] {
        let mut scene = Scene::new(&EngineConfig::default());
        run(&mut scene);
        reached.extend(scene.reached);
    }
    without_room(&mut reached);
    let mut scene = Scene::connected();
    of_a_connection(&mut scene);
    reached.extend(scene.reached);
    // What happens between the engines of a device has its tests beside them:
    // engine/owners/moving.rs.
    reached.extend([DropReason::HandOverFull, DropReason::Moving].map(DropReason::name));
    // So has what is protected, or had to be: esp/tests/.
    let of_esp = [
        DropReason::Unprotected,
        DropReason::EspUnknown,
        DropReason::EspReplayed,
        DropReason::EspForged,
        DropReason::EspMalformed,
        DropReason::EspOutside,
    ];
    reached.extend(of_esp.map(DropReason::name));
    let all: BTreeSet<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
    assert_eq!(reached, all);
}

#[test]
fn each_reason_has_a_name_and_a_sentence_of_its_own() {
    let texts: BTreeSet<_> = DropReason::ALL.iter().map(|reason| reason.text()).collect();
    let names: BTreeSet<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
    assert_eq!(
        (texts.len(), names.len()),
        (DropReason::ALL.len(), DropReason::ALL.len())
    );
}
