//! What the ULP of an endpoint is told of errors, and what it can still do (RFC 5041 section 7).

use rnic_core::connection::EndReason;
use rnic_core::ddp::{DdpStreamError, ErrorReport, Teardown};
use rnic_core::engine::Command;
use rnic_core::ids::{PdId, StreamId};
use rnic_core::memory::table::{Access, Scope};
use rnic_core::testing::raw_peer::ddp;
use rnic_core::testing::simulation::PD;
use rnic_core::verbs::RecvWr;
use rnic_core::wire::ddp::{DdpHeader, MessageOffset, Stag, TaggedHeader, TaggedOffset};

use crate::common::*;
use crate::flow::untagged_to;
use crate::parcels::parcel;
use crate::scene::Raw;

fn tagged_to(stag: Stag, offset: u64) -> DdpHeader {
    DdpHeader::Tagged(TaggedHeader {
        last: true,
        ulp: 7,
        stag,
        offset: TaggedOffset(offset),
    })
}

/// Sends a segment that must be refused, checks the report and that later segments are dropped,
/// lets the ULP send one more message, and ends the stream.
fn refuse(mut raw: Raw, ulpdu: &[u8], number: (u8, u8)) {
    let before = raw.layer.take_arrived();
    raw.give(ulpdu);
    let reports = raw.layer.state().reports.clone();
    let [report] = &reports[..] else {
        panic!("{number:?}: {reports:?}");
    };
    assert_eq!(report.fault.number(), number, "{}", report.fault);
    let header_len = if ulpdu[0] & 0x80 == 0 { 18 } else { 14 };
    assert_eq!(
        report.header.as_deref(),
        Some(&ulpdu[..header_len]),
        "{number:?}"
    );
    assert_eq!(report.segment_len, Some(ulpdu.len()), "{number:?}");
    check_what_follows(&mut raw);
    assert_eq!(raw.layer.take_arrived(), [], "{before:?}");
    raw.command(Command::Disconnect(raw.end.number));
    assert!(raw.sim.raw[0].finished, "{number:?}");
    raw.sim.raw[0].close();
    raw.sim.run_now();
    assert_eq!(raw.layer.state().ended, Some(Teardown::Graceful));
    raw.assert_nothing_left();
}

/// Checks that segments behind an error are dropped silently, that the stream stays until the ULP
/// ends it, and that the ULP can send a message.
fn check_what_follows(raw: &mut Raw) {
    raw.give(&ddp(DdpHeader::Untagged(untagged_to(7, 1)), b"good"));
    raw.give(&ddp(DdpHeader::Untagged(untagged_to(8, 1)), b"bad"));
    raw.sim.run_for(SECOND * 600);
    assert_eq!(raw.layer.state().reports.len(), 1);
    assert!(!raw.sim.raw[0].finished && !raw.sim.raw[0].reset);
    assert_eq!(
        (
            raw.layer.state().ended,
            raw.sim.hosts[0].end_of(raw.end.number)
        ),
        (None, None)
    );
    assert!(raw.layer.send(parcel(0x77, 3, 4), b"your error"));
    raw.ring();
    let (header, payload) = raw.sim.raw[0].take_ddp().expect("one more message");
    assert!(matches!(header, DdpHeader::Untagged(header) if header.queue.0 == 0x77));
    assert_eq!(payload, b"your error");
}

/// A ULP that receives in queue 7, where one buffer of 8 octets is posted.
fn ready() -> Raw {
    let raw = Raw::new(&[7]);
    let region = raw.sim.hosts[0].share(&[0; 8], all_rights());
    raw.layer
        .post(7, RecvWr::new(1, &[sge(&region, 8)]).unwrap());
    raw
}

#[test]
fn errors_of_untagged_segments_are_reported_with_header_and_length() {
    // rfc: 5041-66, 5041-70c, 5041-71, 5041-72a, 5041-72b, 5041-72c, 5041-72d, 5041-72e, 5041-74
    // rfc: 5041-75, 5041-76, 5041-s7, 5041-s11, 5041-s12
    let whole = untagged_to(7, 1);
    let beyond = |offset| {
        let mut header = whole;
        header.offset = MessageOffset(offset);
        DdpHeader::Untagged(header)
    };
    let on = |queue, msn| DdpHeader::Untagged(untagged_to(queue, msn));
    let cases = [
        (on(6, 1), 4, (2, 1)),
        (on(7, 2), 4, (2, 3)),
        (on(7, 0), 4, (2, 3)),
        (beyond(9), 1, (2, 4)),
        (beyond(4), 4, (2, 4)),
        (on(7, 1), 9, (2, 5)),
    ];
    for (header, len, number) in cases {
        refuse(ready(), &ddp(header, &pattern(len)), number);
    }
    let no_buffer = Raw::new(&[7]);
    refuse(no_buffer, &ddp(on(7, 1), b"1"), (2, 2));
    let mut version = ddp(on(7, 1), b"1");
    version[0] = version[0] & !3 | 2;
    refuse(ready(), &version, (2, 6));
    version[0] |= 0x80;
    refuse(ready(), &version, (1, 4));
}

#[test]
fn errors_of_tagged_segments_are_reported_with_header_and_length() {
    // rfc: 5041-73a, 5041-73b, 5041-73d, 5041-73e, 5041-74, 5041-77, 5041-78, 5041-82, 5041-83
    // rfc: 5041-s11
    let share = |raw: &Raw, access, scope: Scope| {
        let region = raw.sim.hosts[0].share_with(&[0; 8], access, scope);
        region.stag
    };
    let open: fn(&Raw) -> Scope = |_| Scope::Domain(PD);
    let mine: fn(&Raw) -> Scope = |raw| Scope::Stream(PD, raw.end.stream);
    let others: fn(&Raw) -> Scope = |_| Scope::Stream(PD, StreamId(99));
    let domain: fn(&Raw) -> Scope = |_| Scope::Domain(PdId(9));
    let cases = [
        (open, Access::LOCAL_WRITE, 0, (1, 0)),
        (open, all_rights(), 7, (1, 1)),
        (mine, all_rights(), u64::MAX, (1, 3)),
        (others, all_rights(), 0, (1, 2)),
        (domain, all_rights(), 0, (1, 2)),
    ];
    for (scope, access, offset, number) in cases {
        let raw = ready();
        let stag = share(&raw, access, scope(&raw));
        refuse(raw, &ddp(tagged_to(stag, offset), b"12"), number);
    }
    let raw = ready();
    let revoked = share(&raw, all_rights(), Scope::Domain(PD));
    raw.sim.hosts[0].revoke(revoked);
    refuse(raw, &ddp(tagged_to(revoked, 0), b"12"), (1, 0));
    let mut raw = ready();
    let own = share(&raw, all_rights(), mine(&raw));
    raw.give(&ddp(tagged_to(own, 6), b"12"));
    assert_eq!(raw.layer.take_arrived().len(), 1);
    raw.command(Command::Abort(raw.end.number));
}

/// Messages are delivered in the order sent, so that none begins before the last segment of
/// another, in any queue.
#[test]
fn no_message_interrupts_another() {
    // rfc: 5041-21, 5041-33, 5041-40, 5041-62, 5041-63
    let begun = |header: DdpHeader| {
        let mut ulpdu = ddp(header, b"12");
        ulpdu[0] &= !0x40;
        ulpdu
    };
    type To = fn(Stag) -> DdpHeader;
    let interrupted = |first: To, second: To, number| {
        let mut raw = Raw::new(&[7, 8]);
        let region = raw.sim.hosts[0].share(&[0; 8], all_rights());
        let other = raw.sim.hosts[0].share(&[0; 8], all_rights());
        for queue in [7, 8] {
            let buffer = RecvWr::new(1, &[sge(&region, 8)]).unwrap();
            raw.layer.post(queue, buffer);
        }
        raw.give(&begun(first(region.stag)));
        assert_eq!(raw.layer.state().reports, []);
        refuse(raw, &ddp(second(other.stag), b"12"), number);
        assert_eq!(other.content(), [0; 8]);
    };
    let to: To = |stag| tagged_to(stag, 0);
    let seven: To = |_| DdpHeader::Untagged(untagged_to(7, 1));
    let eight: To = |_| DdpHeader::Untagged(untagged_to(8, 1));
    interrupted(seven, eight, (2, 3));
    interrupted(seven, to, (1, 0));
    interrupted(to, eight, (2, 3));
    interrupted(to, to, (1, 0));
}

#[test]
fn a_withdrawn_buffer_is_not_filled() {
    let raw = ready();
    assert_eq!(raw.layer.withdraw(7), 1);
    refuse(
        raw,
        &ddp(DdpHeader::Untagged(untagged_to(7, 1)), b"1"),
        (2, 2),
    );
}

#[test]
fn a_layer_may_refuse_what_its_own_octets_say() {
    let mut header = untagged_to(7, 1);
    header.ulp = 0xee;
    refuse(ready(), &ddp(DdpHeader::Untagged(header), b"1"), (0, 0));
}

#[test]
fn errors_of_the_layer_below_are_passed_upward() {
    // rfc: 5041-70b, 5041-s8
    let mut raw = ready();
    // Behind one that is right: before that nothing could be sent.
    raw.give(&ddp(tagged_to(Stag(0), 0), b""));
    let mut fpdu = raw.sim.raw[0].fpdu(&ddp(DdpHeader::Untagged(untagged_to(7, 1)), b"1"));
    let last = fpdu.len() - 1;
    fpdu[last] ^= 1;
    raw.sim.raw[0].send(&fpdu);
    raw.sim.run_now();
    let reports = raw.layer.state().reports.clone();
    let [
        ErrorReport {
            fault: fault @ DdpStreamError::Llp(_),
            ..
        },
    ] = &reports[..]
    else {
        panic!("{reports:?}");
    };
    assert_eq!(fault.number(), (3, 0));
    check_what_follows(&mut raw);
    raw.command(Command::Abort(raw.end.number));
    assert!(raw.sim.raw[0].reset);
    raw.assert_nothing_left();
}

/// The memory of a message is revoked while it is sent: the message is aborted, and the ULP is
/// told.
#[test]
fn a_message_whose_memory_is_gone_is_reported() {
    let mut raw = ready();
    raw.give(&ddp(tagged_to(Stag(0), 0), b""));
    raw.layer.state().source_gone = true;
    raw.layer.send(parcel(1, 2, 3), b"gone");
    raw.ring();
    assert_eq!(raw.sim.raw[0].take_ulpdu(), None);
    assert!(matches!(
        raw.layer.state().reports[0].fault,
        DdpStreamError::Source(_)
    ));
    raw.layer.state().source_gone = false;
    raw.layer.send(parcel(1, 2, 3), b"sorry");
    raw.ring();
    assert!(raw.sim.raw[0].take_ulpdu().is_some());
    raw.command(Command::Abort(raw.end.number));
    assert_eq!(
        raw.sim.hosts[0].end_of(raw.end.number),
        Some(EndReason::Local)
    );
    raw.assert_nothing_left();
}
