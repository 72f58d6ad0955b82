//! Where the RFCs are silent or can be read in two ways, and other implementations may differ: what
//! was decided. The register (`rnic-core/conformance/`) has the reasons.

use crate::common::*;
use crate::scene::{LEN, Quotes, at, scene};
use rnic_core::connection::ConnectionOptions;
use rnic_core::testing::raw_peer::{ddp, enhanced_startup};
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};
use rnic_core::wire::ddp::{DdpHeader, Stag};
use rnic_core::wire::mpa::{Enhanced, StartupKind};

/// Queue 3 exists (RFC 7306), so the opcode is wrong in it. Where a queue does not exist, the queue
/// is wrong.
#[test]
fn a_send_to_the_queue_of_atomic_responses_is_an_unexpected_opcode() {
    // rfc: 7306-57, 5041-72a
    let astray = |queue| ddp(DdpHeader::Untagged(at(queue, 1, 0)), b"hello");
    scene(1).wrong("queue 3", &astray(3), (0, 2, 6), Quotes::Segment);
    scene(1).wrong("queue 4", &astray(4), (1, 2, 1), Quotes::Segment);
}

/// The sum of the last offset and one octet is 2^64, which 64 bits do not hold.
#[test]
fn an_octet_at_the_last_offset_wraps() {
    // rfc: 5041-73e
    let scene = scene(1);
    let ulpdu = ddp(write_header(scene.open.stag, u64::MAX), &[0xee]);
    scene.wrong("the last offset", &ulpdu, (1, 1, 3), Quotes::Segment);
}

/// A Read with an ORD of 0 is an error that is found while a message is made. The peer gets a
/// Terminate.
#[test]
fn a_read_to_a_peer_that_takes_none_is_a_local_error() {
    // rfc: 5040-87, 5040-88a
    let mut scene = scene(1);
    let options = ConnectionOptions {
        ord: 0,
        ..ConnectionOptions::default()
    };
    let RawConnection { peer, qp } = accept_raw(&mut scene.sim, &options);
    (scene.peer, scene.qp) = (peer, qp);
    scene.sim.raw[peer].send_ddp(nothing(), &[]);
    let sink = scene.sim.hosts[0].share(&[0; LEN], all_rights());
    let wr = read(5, &sink, Stag(0x77), LEN);
    scene.sim.hosts[0].post_send(&mut scene.qp, wr);
    scene.sim.run_now();
    let refused = (5, WcOpcode::Read, WcStatus::LocalQpOperationError);
    assert_eq!(outcomes(&mut scene.qp), [refused]);
    scene.assert_terminated("no Reads", &[], (0, 0, 0), Quotes::Nothing);
    scene.assert_bystanders_unhurt("no Reads");
}

/// Any first message shows that the initiator is ready, which is all that a responder waits for.
#[test]
fn a_responder_takes_any_first_message() {
    // rfc: 5044-77a
    let kinds = [
        (true, false, false),
        (false, true, false),
        (false, false, true),
    ];
    for (rtr_send, rtr_write, rtr_read) in kinds {
        for write_first in [true, false] {
            let name = format!("{rtr_send}, {rtr_write}, {rtr_read}, {write_first}");
            let mut sim = simulation();
            // The decoder, too, knows what was agreed on.
            sim.tap = None;
            let mut qp = sim.hosts[0].create_qp();
            let peer = sim.add_raw_peer(0, RAW_PORT);
            sim.hosts[0].listen(RAW_PORT);
            sim.raw[peer].connect();
            sim.run_now();
            let asked = enhanced_startup(
                StartupKind::Request,
                Enhanced {
                    ird: 4,
                    ord: 4,
                    peer_to_peer: true,
                    rtr_send,
                    rtr_write,
                    rtr_read,
                },
            );
            sim.raw[peer].send(&asked);
            sim.run_now();
            let options = ConnectionOptions {
                peer_to_peer: true,
                ..ConnectionOptions::default()
            };
            sim.hosts[0].accept(last_request(&sim, 0), &qp, &options);
            let target = sim.hosts[0].share(&[0; LEN], all_rights());
            sim.hosts[0].post_recv(&mut qp, recv(1, &target, 8));
            sim.hosts[0].post_send(&mut qp, inline_send(2, b"waits"));
            sim.run_now();
            sim.raw[peer].take_startup().expect("a Reply");
            assert_eq!(sim.raw[peer].take_ddp(), None, "{name}");
            if write_first {
                sim.raw[peer].send_ddp(write_header(target.stag, 8), &[2; 8]);
            }
            sim.raw[peer].send_ddp(send_header(1), &[1; 8]);
            sim.run_now();
            let (_, octets) = sim.raw[peer].take_ddp().expect("what waited");
            assert_eq!(octets, b"waits", "{name}");
            let mut told = outcomes(&mut qp);
            told.sort_by_key(|told| told.0);
            let opcodes = [(1, WcOpcode::Recv), (2, WcOpcode::Send)];
            let done = opcodes.map(|(id, opcode)| (id, opcode, WcStatus::Success));
            assert_eq!(told, done, "{name}");
            let written = if write_first { [2; 8] } else { [0; 8] };
            assert_eq!(target.content()[8..16], written, "{name}");
        }
    }
}
