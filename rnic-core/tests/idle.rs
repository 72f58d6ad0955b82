//! Connections that have nothing to do cost nothing.

mod common;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use common::request;
use rnic_core::engine::{Command, Engine, EngineConfig, ListenerId};
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

impl Rig<'_> {
    fn listen(&mut self, local: SocketAddr) {
        let listen = Command::Listen {
            listener: ListenerId(1),
            local,
            lease: Arc::new(()),
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
        engine.handle_frames(*now, guard, [(received, Checksums::Verify)], frames);
        while engine.poll_transmit(*now, guard, frames) {}
        frames.take_transmitted()
    }

    /// A peer connects and asks for a stream.
    fn connect(&mut self, peer: SocketAddr, local: SocketAddr) {
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
        let answer = parse(&answer[0], Checksums::Verify).unwrap().segment.header;
        let asks = TcpHeader {
            seq: Seq(1),
            ack: answer.seq + 1,
            flags: Flags::ACK | Flags::PSH,
            options: TcpOptions::default(),
            ..syn
        };
        self.exchange(&frame(peer, local, &asks, &request(1)));
    }

    /// Lets time pass, alarm by alarm. Returns how many went off.
    fn pass(&mut self, time: Duration) -> u64 {
        let before = self.engine.counters().engine.alarms;
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
            while engine.poll_transmit(*now, guard, frames) {}
            frames.take_transmitted();
        }
        *now = end;
        engine.counters().engine.alarms - before
    }
}

#[test]
fn ten_thousand_idle_connections_set_off_no_alarm() {
    let table = Arc::new(StagTable::new(16, [1; 32]));
    let worker = table.worker();
    let config = EngineConfig {
        max_half_open: CONNECTIONS as usize,
        ..EngineConfig::default()
    };
    let mut rig = Rig {
        engine: Engine::new(config, [7; 32]),
        frames: VecFrames::new(64),
        guard: worker.enter(),
        now: Instant::ZERO + HOUR,
    };
    let local = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 4420);
    rig.listen(local);
    for number in 0..CONNECTIONS {
        let address = Ipv4Addr::from(0x0a00_0000 + number);
        rig.connect(SocketAddr::new(address.into(), 50_000), local);
    }
    // Start-up has left an alarm of each behind; they go off once.
    let left = rig.pass(Duration::from_secs(60));
    assert!(left <= 2 * u64::from(CONNECTIONS), "{left} alarms");
    let snapshot = rig.engine.snapshot(rig.now);
    let established = snapshot
        .connections
        .iter()
        .filter(|c| c.state.starts_with("Established"));
    assert_eq!(established.count(), CONNECTIONS as usize);

    assert_eq!(rig.engine.next_timeout(), None);
    assert_eq!(rig.pass(HOUR), 0);
    assert!(!rig.engine.has_backlog());

    // One that speaks sets off its own alarms, and nobody else's.
    let again = SocketAddr::new(Ipv4Addr::new(10, 0, 1, 1).into(), 50_001);
    rig.connect(again, local);
    assert!(rig.pass(HOUR) <= 3);
}
