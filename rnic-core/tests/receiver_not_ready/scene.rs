//! What these tests share.

use std::time::Duration;

use rnic_core::connection::ConnectionOptions;
use rnic_core::counters::RdmaCounters;
use rnic_core::engine::EngineConfig;
use rnic_core::testing::link::Impairments;
use rnic_core::testing::raw_peer::ddp;
use rnic_core::testing::simulation::{SharedRegion, Simulation, TestQp};
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};
use rnic_core::wire::ddp::{DdpHeader, DdpSegment, QueueNumber};
use rnic_core::wire::rdmap::{Control, FlowControl, Opcode, Readiness};

use crate::common::*;

pub(crate) fn rc() -> ConnectionOptions {
    ConnectionOptions {
        rc: true,
        min_rnr_timer: Duration::from_millis(500),
        private_data: hello(),
        ..ConnectionOptions::default()
    }
}

/// Makes two hosts, and a decoder that knows the Control messages.
pub(crate) fn network(config: &EngineConfig, link: Impairments, seed: u64) -> Simulation {
    let (sim, decoder) = watched_by(config, link, seed);
    decoder.borrow_mut().rc = true;
    sim
}

pub(crate) fn delayed() -> Impairments {
    Impairments {
        delay: Duration::from_micros(50),
        ..Impairments::default()
    }
}

pub(crate) fn quiet() -> Simulation {
    network(&EngineConfig::default(), delayed(), 1)
}

pub(crate) fn connected() -> (Simulation, TestQp, TestQp) {
    let mut sim = quiet();
    let (one, other) = sim.connect(&rc()).unwrap();
    (sim, one, other)
}

pub(crate) fn counters(sim: &mut Simulation, host: usize) -> RdmaCounters {
    let now = sim.now;
    sim.hosts[host].snapshot(now).rdma
}

/// Checks that nothing is parked at a host.
#[track_caller]
pub(crate) fn assert_nothing_parked(sim: &mut Simulation, host: usize) {
    let counters = counters(sim, host);
    let now = (counters.streams_parked_now, counters.octets_parked_now);
    assert_eq!(now, (0, 0));
}

pub(crate) fn sent(wr_id: u64) -> (u64, WcOpcode, WcStatus) {
    (wr_id, WcOpcode::Send, WcStatus::Success)
}

pub(crate) fn received(wr_id: u64) -> (u64, WcOpcode, WcStatus) {
    (wr_id, WcOpcode::Recv, WcStatus::Success)
}

/// Makes two hosts with memory of `len` octets each, the first one's full of a pattern.
pub(crate) fn memory(sim: &Simulation, len: usize) -> [SharedRegion; 2] {
    let source = sim.hosts[0].share(&pattern(len), all_rights());
    let sink = sim.hosts[1].share(&vec![0; len], all_rights());
    [source, sink]
}

/// Connects a raw peer to a new queue pair of host 0, with the semantics of RC.
pub(crate) fn raw() -> (Simulation, RawConnection) {
    let mut sim = quiet();
    let raw = more(&mut sim);
    (sim, raw)
}

/// Connects one more.
pub(crate) fn more(sim: &mut Simulation) -> RawConnection {
    let raw = accept_raw(sim, &rc());
    sim.raw[raw.peer].send_ddp(nothing(), &[]);
    sim.run_now();
    raw
}

/// Sends a segment of a raw peer.
pub(crate) fn say(sim: &mut Simulation, raw: &RawConnection, header: DdpHeader, payload: &[u8]) {
    sim.raw[raw.peer].send_ddp(header, payload);
    sim.run_now();
}

/// Makes the header of a Control message.
pub(crate) fn control_header(msn: u32) -> DdpHeader {
    DdpHeader::Untagged(untagged(
        Opcode::FlowControl,
        QueueNumber::FLOW_CONTROL,
        msn,
        true,
    ))
}

pub(crate) fn control(readiness: Readiness, count: u32) -> Vec<u8> {
    let mut octets = vec![0; FlowControl::LEN];
    let control = FlowControl {
        readiness,
        count,
        min_rnr_timer: Duration::from_millis(500),
    };
    control.emit(&mut octets);
    octets
}

/// Returns the Control messages that a raw peer has got since the last call.
pub(crate) fn told(sim: &mut Simulation, raw: &RawConnection) -> Vec<(Readiness, u32)> {
    let mut told = Vec::new();
    while let Some(ulpdu) = sim.raw[raw.peer].take_ulpdu() {
        let segment = DdpSegment::parse(&ulpdu).unwrap();
        if Control::from(segment.header.ulp()) == Control::new(Opcode::FlowControl) {
            let control = FlowControl::parse(segment.payload).unwrap();
            assert_eq!(control.min_rnr_timer, Duration::from_millis(500));
            told.push((control.readiness, control.count));
        }
    }
    told
}

/// Makes the FPDU of a segment.
pub(crate) fn fpdu(sim: &Simulation, raw: &RawConnection, to: DdpHeader, text: &[u8]) -> Vec<u8> {
    sim.raw[raw.peer].fpdu(&ddp(to, text))
}
