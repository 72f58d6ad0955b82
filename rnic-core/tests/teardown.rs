//! The ends of a stream (RFC 5041 section 6.2), and changes of the LLP during its life.

mod common;

use common::*;
use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::engine::Command;
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};
use rnic_core::wire::ddp::{DdpHeader, Stag};
use rnic_core::wire::rdmap::Opcode;

/// A request posted after the orderly end was asked for fails, although the stream still works on
/// earlier ones.
#[test]
fn requests_posted_behind_a_disconnect_are_flushed() {
    // rfc: 5041-67
    let mut sim = simulation();
    let mut raw = accept_raw(&mut sim, &ConnectionOptions::default());
    sim.raw[raw.peer].send_ddp(nothing(), &[]);
    let region = sim.hosts[0].share(&[0; 100], all_rights());
    let wr = read(1, &region, Stag(5), 100);
    sim.hosts[0].post_send(&mut raw.qp, wr);
    sim.run_now();
    let number = raw.qp.number;
    sim.hosts[0].command(Command::Disconnect(number));
    sim.run_now();
    assert!(!sim.raw[raw.peer].finished, "the Read is not answered");
    sim.hosts[0].post_send(&mut raw.qp, inline_send(2, b"late"));
    sim.run_now();
    let (request, _) = sim.raw[raw.peer].take_ddp().expect("a Read Request");
    assert!(matches!(request, DdpHeader::Untagged(_)));
    let response = tagged(Opcode::ReadResponse, region.stag, 0, true);
    sim.raw[raw.peer].send_ddp(response, &pattern(100));
    sim.run_now();
    assert_eq!(sim.raw[raw.peer].take_ulpdu(), None, "it was sent");
    assert!(sim.raw[raw.peer].finished);
    sim.raw[raw.peer].close();
    sim.run_now();
    let wanted = [
        (1, WcOpcode::Read, WcStatus::Success),
        (2, WcOpcode::Send, WcStatus::WrFlushed),
    ];
    assert_eq!(outcomes(&mut raw.qp), wanted);
    assert_eq!(sim.hosts[0].end_of(number), Some(EndReason::Local));
    assert_nothing_left(&mut sim);
}

/// Nothing follows the peer's FIN: it ends the stream.
#[test]
fn what_comes_behind_the_peers_fin_is_not_placed() {
    let mut sim = simulation();
    let raw = accept_raw(&mut sim, &ConnectionOptions::default());
    let region = sim.hosts[0].share(&[0; 8], all_rights());
    sim.raw[raw.peer].close();
    sim.raw[raw.peer].send_ddp(write_header(region.stag, 0), &[1; 8]);
    sim.run_now();
    assert_eq!(sim.hosts[0].end_of(raw.qp.number), Some(EndReason::Peer));
    sim.raw[raw.peer].send_ddp(write_header(region.stag, 0), &[2; 8]);
    sim.run_now();
    assert_eq!(region.content(), [0; 8]);
    assert_eq!(ends(&sim, 0, &raw.qp), 1);
    assert_nothing_left(&mut sim);
}

/// When this side has nothing more to send, the peer may still send.
#[test]
fn messages_are_received_until_the_peer_closes_too() {
    // rfc: 5041-s5
    let mut sim = simulation();
    let mut raw = accept_raw(&mut sim, &ConnectionOptions::default());
    let region = sim.hosts[0].share(&[0; 8], all_rights());
    sim.hosts[0].post_recv(&mut raw.qp, recv(1, &region, 8));
    sim.hosts[0].command(Command::Disconnect(raw.qp.number));
    sim.run_now();
    assert!(sim.raw[raw.peer].finished);
    sim.raw[raw.peer].send_ddp(send_header(1), b"farewell");
    sim.run_now();
    let received = (1, WcOpcode::Recv, WcStatus::Success);
    assert_eq!(outcomes(&mut raw.qp), [received]);
    assert_eq!(region.content(), b"farewell");
    sim.raw[raw.peer].close();
    sim.run_now();
    assert_eq!(sim.hosts[0].end_of(raw.qp.number), Some(EndReason::Local));
    assert_nothing_left(&mut sim);
}

/// The MTU of the route shrinks: DDP does not segment again what TCP has, and makes smaller
/// segments from then on.
#[test]
fn segments_follow_a_route_that_takes_less() {
    // rfc: 5041-3, 5041-4, 5044-5, 5044-58
    let mut sim = simulation();
    let mut raw = accept_raw(&mut sim, &ConnectionOptions::default());
    sim.raw[raw.peer].send_ddp(nothing(), &[]);
    let data = pattern(200_000);
    let source = sim.hosts[0].share(&data, all_rights());
    sim.hosts[0].post_send(&mut raw.qp, send(1, &source, data.len()));
    sim.raw[raw.peer].acknowledges = false;
    sim.run_now();
    let peer = sim.raw[raw.peer].address().ip();
    sim.hosts[0].set_route(peer, 700);
    sim.run_now();
    sim.raw[raw.peer].acknowledges = true;
    sim.raw[raw.peer].acknowledge();
    completions(&mut sim, &mut raw.qp, 1, SECOND * 10);
    let (mut octets, mut sizes) = (Vec::new(), Vec::new());
    while let Some((header, payload)) = sim.raw[raw.peer].take_ddp() {
        let DdpHeader::Untagged(header) = header else {
            panic!("a tagged segment");
        };
        assert_eq!(header.offset.0 as usize, octets.len());
        octets.extend_from_slice(&payload);
        sizes.push(payload.len());
    }
    assert!(octets == data);
    let before = sizes.iter().take_while(|len| **len > 700).count();
    assert!(before > 5, "{sizes:?}");
    assert!(sizes[before..].iter().all(|len| *len < 700));
    assert!(sizes.len() - before > 5);
    sim.hosts[0].command(Command::Abort(raw.qp.number));
    assert_nothing_left(&mut sim);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at our TCP; the kernel has its own")]
fn the_window_lets_many_segments_be_on_their_way() {
    // rfc: 5041-s19
    let mut sim = simulation();
    let raw = accept_raw(&mut sim, &ConnectionOptions::default());
    let peer = &mut sim.raw[raw.peer];
    peer.send_ddp(nothing(), &[]);
    sim.run_now();
    assert!(sim.raw[raw.peer].offered > 200 * 1460);
}
