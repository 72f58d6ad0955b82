//! Peers that do not keep to the rules.

use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::testing::simulation::Simulation;
use rnic_core::wire::ddp::{DdpHeader, MessageOffset, QueueNumber};
use rnic_core::wire::rdmap::{Opcode, Readiness};

use crate::common::*;
use crate::scene::*;

/// Layer, type and code of a Terminate.
type Code = (u8, u8, u8);

/// Returns the Terminate by which host 0 has ended the connection.
pub(crate) fn ended(sim: &Simulation, raw: &RawConnection) -> Option<Code> {
    match sim.hosts[0].end_of(raw.qp.number)? {
        EndReason::TerminateSent { control, .. } => {
            Some((control.layer, control.error_type, control.code))
        }
        _ => None,
    }
}

/// Has a raw peer send Sends of 1,000 octets for as long as the window is open. Returns how many.
fn fill(sim: &mut Simulation, raw: &RawConnection) -> u32 {
    let text = vec![7; 1000];
    let mut messages = 0;
    loop {
        let octets = fpdu(sim, raw, send_header(messages + 1), &text);
        if sim.raw[raw.peer].offered < octets.len() as u32 {
            return messages;
        }
        sim.raw[raw.peer].send(&octets);
        sim.run_now();
        messages += 1;
        assert!(messages < 32_000, "the window never closes");
    }
}

/// It goes on sending for as long as the window is open.
#[test]
fn a_peer_that_ignores_xoff_is_stopped_by_the_window() {
    let (mut sim, mut raw) = raw();
    let messages = fill(&mut sim, &raw);
    let parked = counters(&mut sim, 0).octets_parked_now;
    assert!((1 << 20..19_000_000).contains(&parked), "{parked}");
    assert_eq!(told(&mut sim, &raw), [(Readiness::NotReady, 1)]);
    assert!(sim.hosts[0].end_of(raw.qp.number).is_none());
    // As receives are posted, the window opens again.
    let buffer = sim.hosts[0].share(&[0; 1000], all_rights());
    let mut got = 0;
    while got < messages {
        for _ in 0..250.min(messages - got) {
            sim.hosts[0].post_recv(&mut raw.qp, recv(1, &buffer, 1000));
        }
        sim.run_now();
        let new = raw.qp.poll().len() as u32;
        got += new;
        assert!(new > 0, "{got} of {messages}");
    }
    sim.run_for(SECOND);
    assert!(sim.raw[raw.peer].offered > 100_000);
    assert_nothing_parked(&mut sim, 0);
    assert_eq!(told(&mut sim, &raw), [(Readiness::Ready, 1)]);
}

/// Many streams park no more together: beyond 64 MiB a stream has no share of its own.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at our TCP; the kernel has its own")]
fn streams_that_park_a_lot_together_are_stopped_sooner() {
    let (mut sim, first) = raw();
    let own_window = sim.raw[first.peer].offered as u64;
    fill(&mut sim, &first);
    let mut before = counters(&mut sim, 0).octets_parked_now;
    let alone = before;
    assert!(alone > 1 << 20, "{alone}");
    while before < 64 << 20 {
        let next = more(&mut sim);
        fill(&mut sim, &next);
        let now = counters(&mut sim, 0).octets_parked_now;
        assert!(now > before);
        before = now;
    }
    // It has the window that it began with, and no more.
    let last = more(&mut sim);
    fill(&mut sim, &last);
    let parked = counters(&mut sim, 0).octets_parked_now - before;
    assert!(
        parked < own_window * 2 && parked < alone / 2,
        "{parked} of {alone}"
    );
}

/// TCP rounds the window up where it scales it: to a peer that sends a few octets at a time it
/// never closes.
#[test]
#[cfg_attr(not(carrier_sockets), ignore = "slow: ci/test runs it")]
#[cfg_attr(carrier_sockets, ignore = "looks at our TCP; the kernel has its own")]
fn a_peer_that_creeps_through_the_window_is_cut_off() {
    let (mut sim, raw) = raw();
    let mut messages = 0;
    while sim.hosts[0].end_of(raw.qp.number).is_none() {
        let mut room = sim.raw[raw.peer].offered as usize;
        loop {
            let octets = fpdu(&sim, &raw, send_header(messages + 1), &[]);
            let Some(left) = room.checked_sub(octets.len()) else {
                break;
            };
            (room, messages) = (left, messages + 1);
            sim.raw[raw.peer].send(&octets);
        }
        sim.run_now();
        assert!(messages < 2_000_000, "what is parked grows without end");
    }
    assert_eq!(ended(&sim, &raw), Some((1, 2, 2)));
    let parked = counters(&mut sim, 0).octets_parked_most;
    assert!(parked < 33 << 20, "{parked}");
    assert_nothing_parked(&mut sim, 0);
}

/// Half an FPDU is no reason to let more in.
#[test]
fn half_an_fpdu_opens_no_closed_window() {
    let (mut sim, raw) = raw();
    let text = vec![7; 1400];
    let mut msn = 1;
    let whole = loop {
        let whole = fpdu(&sim, &raw, send_header(msn), &text);
        if (sim.raw[raw.peer].offered as usize) < whole.len() {
            break whole;
        }
        sim.raw[raw.peer].send(&whole);
        sim.run_now();
        msn += 1;
    };
    let room = sim.raw[raw.peer].offered as usize;
    assert!(room > 2, "there is room for a part");
    sim.raw[raw.peer].send(&whole[..room]);
    sim.run_for(SECOND);
    assert_eq!(sim.raw[raw.peer].offered, 0);
    // With receives there is room again, for the rest at least.
    let mut qp = raw.qp;
    let buffer = sim.hosts[0].share(&[0; 1400], all_rights());
    for id in 0..200 {
        sim.hosts[0].post_recv(&mut qp, recv(id, &buffer, 1400));
    }
    sim.run_for(SECOND);
    assert!(sim.raw[raw.peer].offered as usize > whole.len() - room);
}

#[test]
fn nonsense_in_the_queue_of_control_messages_ends_the_connection() {
    let xoff = control(Readiness::NotReady, 1);
    let mut unknown = xoff.clone();
    unknown[0] = 3;
    let cases: [(&[u8], Code); 4] = [
        (&unknown, (0, 2, 0xff)),
        (&xoff[..15], (0, 2, 0xff)),
        (&[], (0, 2, 0xff)),
        (&[1; 17], (1, 2, 5)),
    ];
    for (octets, code) in cases {
        for parked in [false, true] {
            let (mut sim, raw) = raw();
            if parked {
                say(&mut sim, &raw, send_header(1), b"parked");
            }
            say(&mut sim, &raw, control_header(1), octets);
            assert_eq!(ended(&sim, &raw), Some(code), "{octets:?}");
            assert_nothing_parked(&mut sim, 0);
        }
    }
    // Other messages have no place in it, and Control messages none elsewhere.
    for (opcode, queue) in [
        (Opcode::Send, QueueNumber::FLOW_CONTROL),
        (Opcode::Immediate, QueueNumber::FLOW_CONTROL),
        (Opcode::FlowControl, QueueNumber::SEND),
        (Opcode::FlowControl, QueueNumber::READ_REQUEST),
        (Opcode::FlowControl, QueueNumber(5)),
    ] {
        let (mut sim, mut raw) = raw();
        let buffer = sim.hosts[0].share(&[0; 100], all_rights());
        sim.hosts[0].post_recv(&mut raw.qp, recv(7, &buffer, 100));
        let header = DdpHeader::Untagged(untagged(opcode, queue, 1, true));
        say(&mut sim, &raw, header, &xoff);
        assert_eq!(ended(&sim, &raw), Some((0, 2, 6)), "{opcode:?} {queue}");
    }
    let (mut sim, raw) = raw();
    say(
        &mut sim,
        &raw,
        tagged(Opcode::FlowControl, rnic_core::wire::ddp::Stag(0), 0, true),
        &xoff,
    );
    assert_eq!(ended(&sim, &raw), Some((0, 2, 6)));
}

#[test]
fn without_rc_a_control_message_is_an_unknown_opcode() {
    for queue in [QueueNumber::FLOW_CONTROL, QueueNumber::SEND] {
        let mut sim = simulation();
        let raw = accept_raw(&mut sim, &ConnectionOptions::default());
        sim.raw[raw.peer].send_ddp(nothing(), &[]);
        sim.run_now();
        let header = untagged(Opcode::FlowControl, queue, 1, true);
        let xoff = control(Readiness::NotReady, 1);
        say(&mut sim, &raw, DdpHeader::Untagged(header), &xoff);
        assert_eq!(ended(&sim, &raw), Some((0, 2, 6)));
        assert_eq!(counters(&mut sim, 0).xoffs_received, 0);
    }
}

#[test]
fn a_control_message_may_come_in_pieces() {
    let (mut sim, mut raw) = raw();
    let xoff = control(Readiness::NotReady, 1);
    for piece in [0..5, 5..11, 11..16] {
        let queue = QueueNumber::FLOW_CONTROL;
        let mut header = untagged(Opcode::FlowControl, queue, 1, piece.end == 16);
        header.offset = MessageOffset(piece.start as u32);
        say(&mut sim, &raw, DdpHeader::Untagged(header), &xoff[piece]);
    }
    assert_eq!(counters(&mut sim, 0).xoffs_received, 1);
    sim.hosts[0].post_send(&mut raw.qp, inline_send(1, b"waits"));
    sim.run_for(SECOND);
    assert_eq!(outcomes(&mut raw.qp), []);
    say(
        &mut sim,
        &raw,
        control_header(2),
        &control(Readiness::Ready, 1),
    );
    assert_eq!(outcomes(&mut raw.qp), [sent(1)]);
}

#[test]
fn floods_of_control_messages_change_nothing_but_the_pause() {
    let (mut sim, mut raw) = raw();
    let mut msn = 0;
    let mut hear = |sim: &mut Simulation, raw: &RawConnection, readiness, count| {
        msn += 1;
        say(sim, raw, control_header(msn), &control(readiness, count));
    };
    for count in 1..2000 {
        hear(&mut sim, &raw, Readiness::NotReady, count);
        hear(&mut sim, &raw, Readiness::NotReady, count);
        hear(&mut sim, &raw, Readiness::Ready, count + 1);
    }
    sim.hosts[0].post_send(&mut raw.qp, inline_send(1, b"waits"));
    sim.run_for(SECOND);
    assert_eq!(outcomes(&mut raw.qp), []);
    for _ in 0..100 {
        hear(&mut sim, &raw, Readiness::Ready, 1999);
    }
    assert_eq!(outcomes(&mut raw.qp), [sent(1)]);
    assert_eq!(counters(&mut sim, 0).xoffs_received, 1999);
    // The host has sent no Control message of its own.
    assert_eq!(told(&mut sim, &raw), []);
}

/// A peer that lets a request begin within a Response: both are received, or the stream ends, but
/// nothing is mixed up.
#[test]
fn a_request_within_a_response_is_no_harm() {
    let (mut sim, mut raw) = raw();
    let sink = sim.hosts[0].share(&[0; 3000], all_rights());
    let buffer = sim.hosts[0].share(&[0; 100], all_rights());
    sim.hosts[0].post_send(&mut raw.qp, read(1, &sink, sink.stag, 2000));
    sim.run_now();
    say(&mut sim, &raw, send_header(1), b"parked");
    let response = |offset, last| tagged(Opcode::ReadResponse, sink.stag, offset, last);
    say(&mut sim, &raw, response(0, false), &[5; 1000]);
    let mut half = untagged(Opcode::Send, QueueNumber::SEND, 2, false);
    say(&mut sim, &raw, DdpHeader::Untagged(half), b"ha");
    for id in [7, 8, 9] {
        sim.hosts[0].post_recv(&mut raw.qp, recv(id, &buffer, 100));
        sim.run_now();
    }
    say(&mut sim, &raw, response(1000, true), &[5; 1000]);
    half.offset = MessageOffset(2);
    half.last = true;
    say(&mut sim, &raw, DdpHeader::Untagged(half), b"lf");
    sim.hosts[0].post_recv(&mut raw.qp, recv(10, &buffer, 100));
    sim.run_for(SECOND);
    let done: Vec<u64> = raw.qp.poll().iter().map(|done| done.wr_id).collect();
    assert_eq!(done, [7, 1, 8]);
}
