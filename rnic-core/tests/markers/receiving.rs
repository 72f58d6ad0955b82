//! Markers that this side requires, in order.

use crate::common::*;
use crate::stream::Writer;
use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::engine::Command;
use rnic_core::testing::raw_peer::ddp;
use rnic_core::testing::simulation::Simulation;
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};
use rnic_core::wire::rdmap::{Terminate, TerminateControl};

pub(crate) fn requiring() -> ConnectionOptions {
    ConnectionOptions {
        markers: true,
        ..ConnectionOptions::default()
    }
}

/// A raw peer from which host 0, as initiator or responder, requires markers, and the stream that
/// it writes.
pub(crate) fn connect(
    sim: &mut Simulation,
    initiator: bool,
    options: &ConnectionOptions,
) -> (RawConnection, Writer) {
    let mut writer = Writer::new(true);
    let qp = sim.hosts[0].create_qp();
    let peer;
    if initiator {
        peer = sim.add_raw_peer(0, 0);
        let address = sim.raw[peer].address();
        sim.hosts[0].connect(&qp, 41_000 + peer as u16, address, options);
        sim.run_now();
        sim.raw[peer].send(&reply(16));
    } else {
        sim.hosts[0].listen(4420);
        peer = sim.add_raw_peer(0, 4420);
        sim.raw[peer].connect();
        sim.run_now();
        sim.raw[peer].send(&request(16));
        sim.run_now();
        let asked = last_request(sim, 0);
        sim.hosts[0].accept(asked, &qp, options);
        sim.hosts[0].unlisten(4420);
        sim.run_now();
        let first = writer.fpdu(&ddp(nothing(), &[]));
        sim.raw[peer].send(&first);
    }
    sim.run_now();
    assert!(sim.hosts[0].is_established(qp.number));
    let asks = sim.raw[peer].received[16] & 0x80 != 0;
    assert_eq!(asks, options.markers, "M");
    sim.raw[peer].take_startup().unwrap();
    (RawConnection { peer, qp }, writer)
}

/// The Terminate that a raw peer received last, and nothing but that.
pub(crate) fn terminate(sim: &mut Simulation, peer: usize) -> Option<(u8, u8, u8)> {
    let (_, payload) = sim.raw[peer].take_ddp()?;
    let TerminateControl {
        layer,
        error_type,
        code,
    } = Terminate::parse(&payload).unwrap().control;
    assert_eq!(sim.raw[peer].take_ddp(), None);
    Some((layer, error_type, code))
}

#[test]
fn a_peer_sends_markers_where_they_are_required() {
    // rfc: 5044-18, 5044-21, 5044-43, 5044-56, 5044-57
    for initiator in [true, false] {
        for piece in [1460, 1000, 333, 1] {
            let mut sim = simulation();
            let (mut raw, mut writer) = connect(&mut sim, initiator, &requiring());
            let lengths = [3000, 0, 1, 480, 481, 482, 483, 484, 485, 486, 8000];
            let sink = sim.hosts[0].share(&[0; 8000], all_rights());
            let mut octets = Vec::new();
            for (msn, len) in (1..).zip(lengths) {
                let receive = recv(msn.into(), &sink, 8000);
                sim.hosts[0].post_recv(&mut raw.qp, receive);
                octets.extend(writer.fpdu(&ddp(send_header(msn), &pattern(len))));
            }
            for piece in octets.chunks(piece) {
                sim.raw[raw.peer].send(piece);
                sim.run_now();
            }
            let done = completions(&mut sim, &mut raw.qp, lengths.len(), SECOND);
            let got = done.iter().map(|done| (done.status(), done.byte_len));
            let wanted = lengths.map(|len| (WcStatus::Success, len as u32));
            assert!(got.eq(wanted));
            assert_eq!(sink.content(), pattern(8000));
            // The other direction has none.
            sim.hosts[0].post_send(&mut raw.qp, inline_send(99, b"plain"));
            sim.run_now();
            let (_, payload) = sim.raw[raw.peer].take_ddp().unwrap();
            assert_eq!(payload, b"plain");
            sim.hosts[0].command(Command::Disconnect(raw.qp.number));
            sim.run_now();
            sim.raw[raw.peer].close();
            assert_nothing_left(&mut sim);
        }
    }
}

/// Nothing of an FPDU with a wrong marker is placed, and nothing behind it is delivered.
#[test]
fn a_wrong_marker_is_told_by_its_code() {
    // rfc: 5044-85c, 5044-87, 5044-88, 5044-s17, 5044-s18
    for crc_too in [false, true] {
        let mut sim = simulation();
        let (mut raw, mut writer) = connect(&mut sim, true, &requiring());
        let sink = sim.hosts[0].share(&[0; 2000], all_rights());
        for id in 1..3 {
            sim.hosts[0].post_recv(&mut raw.qp, recv(id, &sink, 2000));
        }
        let ulpdu = ddp(send_header(1), &pattern(1000));
        let mut bad = writer.fpdu_with(&ulpdu, |at, distance| {
            distance + if at == 512 { 4 } else { 0 }
        });
        let behind = writer.fpdu(&ddp(send_header(2), &pattern(10)));
        if crc_too {
            bad[600] ^= 1;
        }
        sim.raw[raw.peer].send(&bad);
        sim.raw[raw.peer].send(&behind);
        sim.run_now();
        let code = if crc_too { 2 } else { 3 };
        assert_eq!(terminate(&mut sim, raw.peer), Some((2, 0, code)));
        assert_eq!(sink.content(), [0; 2000]);
        let flushed = |id| (id, WcOpcode::Recv, WcStatus::WrFlushed);
        assert_eq!(outcomes(&mut raw.qp), [flushed(1), flushed(2)]);
        let Some(EndReason::TerminateSent { error, .. }) = sim.hosts[0].end_of(raw.qp.number)
        else {
            panic!("{:?}", sim.hosts[0].events);
        };
        assert_eq!(error.contains("marker"), !crc_too, "{error}");
        sim.raw[raw.peer].close();
        assert_nothing_left(&mut sim);
    }
}

/// A peer that does not send the markers that were required.
#[test]
fn a_peer_that_leaves_out_the_markers() {
    for crc in [true, false] {
        let mut sim = simulation();
        let options = ConnectionOptions { crc, ..requiring() };
        let qp = sim.hosts[0].create_qp();
        let peer = sim.add_raw_peer(0, 0);
        let address = sim.raw[peer].address();
        sim.hosts[0].connect(&qp, 41_000, address, &options);
        sim.run_now();
        let mut answer = reply(4);
        if !crc {
            answer[16] &= !0x40;
        }
        sim.raw[peer].take_startup().unwrap();
        sim.raw[peer].crc = crc;
        sim.raw[peer].send(&answer);
        for msn in 1..3 {
            let fpdu = sim.raw[peer].fpdu(&ddp(send_header(msn), &[0; 1400]));
            sim.raw[peer].send(&fpdu);
        }
        sim.run_now();
        let code = if crc { 2 } else { 3 };
        assert_eq!(terminate(&mut sim, peer), Some((2, 0, code)));
        sim.raw[peer].close();
        assert_nothing_left(&mut sim);
    }
}
