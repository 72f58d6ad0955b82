//! Idle connections cost no time, and established connections no longer count as embryonic.

mod common;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use common::request;
use rnic_core::engine::{Command, Engine, EngineConfig, Peers};
use rnic_core::ids::ListenerId;
use rnic_core::memory::epoch::Guard;
use rnic_core::memory::table::StagTable;
use rnic_core::testing::VecFrames;
use rnic_core::testing::raw_peer::frame;
use rnic_core::time::Instant;
use rnic_core::wire::packet::{Checksums, parse};
use rnic_core::wire::tcp::{Flags, Seq, TcpHeader, TcpOptions};

const CONNECTIONS: u32 = 10_000;
const HOUR: Duration = Duration::from_secs(3600);

struct Rig<'a> {
    engine: Engine,
    frames: VecFrames,
    guard: Guard<'a>,
    now: Instant,
}

fn local() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 4420)
}

impl<'a> Rig<'a> {
    fn new(max_half_open: usize, guard: Guard<'a>) -> Self {
        let config = EngineConfig {
            max_half_open,
            // Nobody decides on the connection requests.
            backlog: CONNECTIONS as usize + 1,
            ..EngineConfig::default()
        };
        Self {
            engine: Engine::new(config, [7; 32]),
            frames: VecFrames::new(64),
            guard,
            now: Instant::ZERO + HOUR,
        }
    }

    fn listen(&mut self, local: SocketAddr) {
        let listen = Command::Listen {
            listener: ListenerId(1),
            local,
            peers: Peers::all(),
            reservation: Arc::new(()),
            refusals: Arc::default(),
        };
        self.engine.handle_command(self.now, &self.guard, listen);
    }

    /// Hands a frame to the engine. Returns what it sends.
    fn exchange(&mut self, received: &[u8]) -> Vec<Vec<u8>> {
        let Self {
            engine,
            frames,
            guard,
            now,
        } = self;
        let mut received = [(received, Checksums::None)].into_iter();
        engine.handle_frames(*now, guard, &mut received, frames);
        while engine.poll_transmit(*now, guard, frames) > 0 {}
        frames.take_transmitted()
    }

    /// Connects a peer over TCP. Returns the header of its MPA Request.
    fn open(&mut self, peer: SocketAddr, local: SocketAddr) -> TcpHeader {
        let syn = TcpHeader {
            source_port: peer.port(),
            destination_port: local.port(),
            flags: Flags::SYN,
            window: 60_000,
            options: TcpOptions {
                mss: Some(1460),
                ..TcpOptions::default()
            },
            ..TcpHeader::default()
        };
        let answer = self.exchange(&frame(peer, local, &syn, &[]));
        let answer = parse(&answer[0], Checksums::None).unwrap().segment.header;
        TcpHeader {
            seq: Seq(1),
            ack: answer.seq + 1,
            flags: Flags::ACK | Flags::PSH,
            options: TcpOptions::default(),
            ..syn
        }
    }

    /// Connects a peer, which sends its MPA Request.
    fn connect(&mut self, peer: SocketAddr, local: SocketAddr) {
        let asks = self.open(peer, local);
        self.exchange(&frame(peer, local, &asks, &request(1)));
    }

    /// Lets time pass, timer by timer. Returns how many expired.
    fn pass(&mut self, time: Duration) -> u64 {
        let before = self.engine.counters().engine.timers_expired;
        let end = self.now + time;
        let Self {
            engine,
            frames,
            guard,
            now,
        } = self;
        while let Some(at) = engine.next_timeout().filter(|at| *at <= end) {
            *now = (*now).max(at);
            engine.handle_timeouts(*now, guard, frames);
            while engine.poll_transmit(*now, guard, frames) > 0 {}
            frames.take_transmitted();
        }
        *now = end;
        engine.counters().engine.timers_expired - before
    }
}

#[test]
fn ten_thousand_idle_connections_start_no_timer() {
    let table = Arc::new(StagTable::new(16, [1; 32]));
    let worker = table.worker();
    let local = local();
    let mut rig = Rig::new(CONNECTIONS as usize, worker.enter());
    rig.listen(local);
    for number in 0..CONNECTIONS {
        let address = Ipv4Addr::from(0x0a00_0000 + number);
        rig.connect(SocketAddr::new(address.into(), 50_000), local);
    }
    // Start-up has left a timer of each behind, which expires once.
    let left = rig.pass(Duration::from_secs(60));
    assert!(left <= 2 * u64::from(CONNECTIONS), "{left} timers");
    let snapshot = rig.engine.snapshot(rig.now);
    let established = snapshot
        .connections
        .iter()
        .filter(|c| c.state.starts_with("Established"));
    assert_eq!(established.count(), CONNECTIONS as usize);

    assert_eq!(rig.engine.next_timeout(), None);
    assert_eq!(rig.pass(HOUR), 0);
    assert!(!rig.engine.has_backlog());

    // A connection that is used starts its own timers only.
    let again = SocketAddr::new(Ipv4Addr::new(10, 0, 1, 1).into(), 50_001);
    rig.connect(again, local);
    assert!(rig.pass(HOUR) <= 3);
}

/// The segment that ends the handshake may take a fast path, because its frame is like the one
/// before.
#[test]
fn an_established_connection_makes_room_for_another_handshake() {
    let table = Arc::new(StagTable::new(16, [1; 32]));
    let worker = table.worker();
    let mut rig = Rig::new(1, worker.enter());
    let [one, other] = [1, 2].map(|n| SocketAddr::new(Ipv4Addr::new(10, 0, 0, n).into(), 50_000));
    rig.listen(local());
    let asks = rig.open(one, local());
    for wrong in [5, 6, 7] {
        let ack = asks.ack + wrong;
        rig.exchange(&frame(
            one,
            local(),
            &TcpHeader { ack, ..asks },
            &request(1),
        ));
    }
    rig.exchange(&frame(one, local(), &asks, &request(1)));
    rig.connect(other, local());
    assert_eq!(rig.engine.counters().engine.syn_cookies_sent, 0);
    assert_eq!(rig.engine.snapshot(rig.now).connections.len(), 2);
}
