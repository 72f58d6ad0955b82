//! Connections that move from one engine to another, and frames that are on their way there
//! meanwhile.

use core::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use crate::connection::{ConnectionOptions, Event, NextHop};
use crate::counters::DropReason;
use crate::engine::{Driver, EngineConfig, HostEnd, NextHopRequest, Peers, mailboxes};
use crate::ids::{ListenerId, QpNumber, RequestId, StreamId};
use crate::memory::table::StagTable;
use crate::testing::VecFrames;
use crate::testing::raw_peer::{RawPeer, startup};
use crate::time::Instant;
use crate::wire::ethernet::MacAddr;
use crate::wire::mpa::{Enhanced, StartupFrame, StartupKind};
use crate::wire::packet::parse;

use super::*;

const NOW: Instant = Instant::ZERO;
const LISTENER: ListenerId = ListenerId(1);

/// One of several engines of a device, and the frames that it sends from.
struct One {
    host: HostEnd,
    driver: Driver,
    tx: VecFrames,
}

/// Makes `count` engines of a device, the first of which listens, and a peer.
fn engines(count: usize) -> (Vec<One>, RawPeer) {
    let address = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 4420);
    let table = Arc::new(StagTable::new(16, [1; 32]));
    let wakes = (0..count).map(|_| Waker::noop().clone()).collect();
    let engine = |(host, end)| One {
        host,
        driver: Driver::new(EngineConfig::default(), [1; 32], end),
        tx: VecFrames::new(64),
    };
    let mut engines: Vec<_> = mailboxes(&table, 16, wakes)
        .into_iter()
        .map(engine)
        .collect();
    let listen = Command::Listen {
        listener: LISTENER,
        local: address,
        peers: Peers::all(),
        reservation: Arc::new(()),
        refusals: Arc::default(),
    };
    engines[0].host.send(listen).unwrap();
    engines[0].turn(Vec::new());
    (engines, RawPeer::new(0, 0, address))
}

impl One {
    /// Runs one turn, with these frames from the device.
    fn turn(&mut self, frames: Vec<Vec<u8>>) {
        let mut batch = self.driver.begin(NOW);
        let frames = frames.into_iter().map(|frame| (frame, Checksums::None));
        batch.handle_frames(frames, &mut self.tx);
        batch.finish(&mut self.tx);
        while let Some(request) = self.driver.poll_next_hop_request() {
            let NextHopRequest::Follow(path) = request else {
                continue;
            };
            let mac = MacAddr([2; 6]);
            let hop = NextHop {
                source_mac: mac,
                destination_mac: mac,
                vlan: None,
                mtu: 1500,
                advertised_mss: None,
            };
            self.driver.set_next_hop(path, hop);
        }
    }

    /// Runs turns, with all frames that the peer sends, until it sends no more.
    fn talk(&mut self, peer: &mut RawPeer) {
        loop {
            let frames = peer.take_frames();
            if frames.is_empty() {
                return;
            }
            self.turn(frames);
            for frame in self.tx.take_transmitted() {
                peer.handle_frame(&frame);
            }
        }
    }

    /// Lets the peer connect to this engine, and returns its request.
    fn asked(&mut self, peer: &mut RawPeer) -> RequestId {
        peer.connect();
        self.talk(peer);
        peer.send(&startup(&StartupFrame {
            kind: StartupKind::Request,
            markers: false,
            crc: true,
            reject: false,
            enhanced_bit: true,
            reserved: 0,
            revision: 2,
            enhanced: Some(Enhanced::default()),
            private_data: &[],
        }));
        self.talk(peer);
        let mut events = std::iter::from_fn(|| self.host.events.next());
        let request = events.find_map(|notice| match notice.event {
            Event::ConnectRequest { request, .. } => Some(request),
            _ => None,
        });
        request.expect("the peer asked")
    }

    fn connections(&self) -> usize {
        self.driver.engine().snapshot(NOW).connections.len()
    }

    fn counters(&self) -> crate::counters::EngineCounters {
        self.driver.engine().counters().engine
    }

    fn drops(&self) -> crate::counters::DropCounters {
        self.driver.engine().counters().drops
    }
}

/// One engine gives a connection away and at once hands a frame of it over, to another engine that
/// has begun its turn. The connection arrives before the frame, however many commands wait there.
#[test]
fn a_frame_does_not_overtake_its_connection() {
    for asked_before in [0, 1000] {
        let (mut engines, mut peer) = engines(2);
        let [first, second] = &mut engines[..] else {
            panic!()
        };
        let request = first.asked(&mut peer);
        let batch = second.driver.begin(NOW);
        for _ in 0..asked_before {
            second.host.send(Command::Abort(QpNumber(9))).unwrap();
        }
        let move_on = Command::AcceptElsewhere {
            engine: 1,
            request,
            qp: QpNumber(1),
            stream: StreamId(1),
            options: ConnectionOptions::default(),
        };
        first.host.send(move_on).unwrap();
        peer.abort();
        first.turn(peer.take_frames());
        assert_eq!((first.connections(), first.counters().handed_over), (0, 1));
        batch.finish(&mut second.tx);
        let counters = second.counters();
        assert_eq!((counters.taken_over, second.drops().total()), (1, 0));
        assert_eq!(second.connections(), 0, "the peer has ended it");
    }
}

/// A connection in TIME-WAIT is replaced by a new one with the same addresses. This engine owns
/// them all the time.
#[test]
fn no_other_engine_gets_in_between_where_a_connection_replaces_another() {
    let (mut engines, mut peer) = engines(2);
    let [first, second] = &mut engines[..] else {
        panic!()
    };
    let request = first.asked(&mut peer);
    let private_data = Vec::new();
    let reject = Command::Reject {
        request,
        private_data,
    };
    first.host.send(reject).unwrap();
    peer.acknowledge();
    first.talk(&mut peer);
    assert!(peer.finished, "the engine closes first");
    peer.close();
    first.talk(&mut peer);
    let owners = first.driver.engine().place.as_ref().unwrap().owners.clone();
    let before = (owners.changes(), first.connections());
    assert_eq!(before.1, 1, "in TIME-WAIT");
    peer.isn += 100_000;
    peer.connect();
    let syn = peer.take_frames();
    first.turn(syn.clone());
    let answered = first.tx.take_transmitted();
    let answer = parse(&answered[0], Checksums::None).unwrap().segment;
    assert!(answer.header.flags.syn() && answer.header.ack == peer.isn + 1);
    assert_eq!((owners.changes(), first.connections()), before);
    second.turn(syn);
    assert_eq!(second.counters().handed_over, 1);
}

/// A frame arrives at an engine before its connection, which is on its way there.
#[test]
fn a_frame_of_a_connection_that_moves_is_dropped() {
    let (mut engines, mut peer) = engines(2);
    let [first, second] = &mut engines[..] else {
        panic!()
    };
    let request = first.asked(&mut peer);
    let mut batch = second.driver.begin(NOW);
    let move_on = Command::AcceptElsewhere {
        engine: 1,
        request,
        qp: QpNumber(1),
        stream: StreamId(1),
        options: ConnectionOptions::default(),
    };
    first.host.send(move_on).unwrap();
    first.turn(Vec::new());
    peer.acknowledge();
    let frames = peer.take_frames().into_iter();
    let frames = frames.map(|frame| (frame, Checksums::None));
    batch.handle_frames(frames, &mut second.tx);
    drop(batch);
    let drops = second.drops();
    assert_eq!((drops.of(DropReason::Moving), drops.total()), (1, 1));
}

/// More frames than fit into all parcels, while the engine that has their connection does not take
/// them.
#[test]
fn frames_that_another_engine_does_not_take_are_dropped() {
    let (mut engines, mut peer) = engines(2);
    let [first, second] = &mut engines[..] else {
        panic!()
    };
    first.asked(&mut peer);
    peer.acknowledge();
    let frame = peer.take_frames().remove(0);
    second.turn(vec![frame; PARCELS * FRAMES + 7]);
    let (counters, drops) = (second.counters(), second.drops());
    assert_eq!(counters.handed_over, (PARCELS * FRAMES) as u64);
    assert_eq!((drops.of(DropReason::HandOverFull), drops.total()), (7, 7));
}
