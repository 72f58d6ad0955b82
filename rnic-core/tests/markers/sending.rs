//! Markers for a peer that requires them.

use crate::common::*;
use crate::stream::read;
use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::Command;
use rnic_core::testing::simulation::Simulation;
use rnic_core::wire::ddp::DdpSegment;

/// A raw peer that requires markers, with host 0 as initiator or responder, and where FPDUs begin
/// in what it received.
fn connect(sim: &mut Simulation, initiator: bool) -> (RawConnection, usize) {
    let qp = sim.hosts[0].create_qp();
    let requiring = |mut frame: Vec<u8>| {
        frame[16] |= 0x80;
        frame
    };
    let options = ConnectionOptions::default();
    let peer;
    if initiator {
        peer = sim.add_raw_peer(0, 0);
        let address = sim.raw[peer].address();
        sim.hosts[0].connect(&qp, 41_000, address, &options);
        sim.run_now();
        sim.raw[peer].send(&requiring(reply(4)));
    } else {
        sim.hosts[0].listen(4420);
        peer = sim.add_raw_peer(0, 4420);
        sim.raw[peer].connect();
        sim.run_now();
        sim.raw[peer].send(&requiring(request(4)));
        sim.run_now();
        let asked = last_request(sim, 0);
        sim.hosts[0].accept(asked, &qp, &options);
        sim.hosts[0].unlisten(4420);
        sim.run_now();
        sim.raw[peer].send_ddp(nothing(), &[]);
    }
    sim.run_now();
    assert!(sim.hosts[0].is_established(qp.number));
    let start = sim.raw[peer].received.len();
    assert_eq!(sim.raw[peer].received[16] & 0x80, 0, "we ask for none");
    (RawConnection { peer, qp }, start)
}

#[test]
fn a_peer_that_requires_markers_gets_them() {
    // rfc: 5044-14, 5044-17, 5044-18, 5044-19, 5044-21, 5044-23, 5044-24, 5044-25, 5044-39, 5044-59
    for initiator in [true, false] {
        let mut sim = simulation();
        let (mut raw, start) = connect(&mut sim, initiator);
        let content = pattern(50_000);
        let source = sim.hosts[0].share(&content, all_rights());
        let lengths = [50_000, 1, 480, 481, 482, 483, 484, 3001];
        for (id, length) in (0..).zip(lengths) {
            sim.hosts[0].post_send(&mut raw.qp, send(id, &source, length));
        }
        completions(&mut sim, &mut raw.qp, lengths.len(), SECOND * 10);
        let found = read(&sim.raw[raw.peer].received[start..]);
        let mut messages = vec![Vec::<u8>::new()];
        for (_, ulpdu) in &found {
            let segment = DdpSegment::parse(ulpdu).unwrap();
            messages.last_mut().unwrap().extend(segment.payload);
            if segment.header.last() {
                messages.push(Vec::new());
            }
        }
        messages.pop();
        let wanted = lengths.map(|length| content[..length].to_vec());
        assert_eq!(messages, wanted);
        // A segment of 1460 octets has room for three markers.
        assert_eq!(found[0].1.len(), 1442);

        // The Terminate has them as well.
        let bad = rnic_core::testing::raw_peer::ddp(send_header(9), b"nobody waits");
        let fpdu = sim.raw[raw.peer].fpdu(&bad);
        sim.raw[raw.peer].send(&fpdu);
        sim.run_now();
        let all = read(&sim.raw[raw.peer].received[start..]);
        assert_eq!(all.len(), found.len() + 1);
        sim.hosts[0].command(Command::Abort(raw.qp.number));
        sim.raw[raw.peer].close();
        assert_nothing_left(&mut sim);
    }
}
