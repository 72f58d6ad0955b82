//! Receiving data: what is offered, and when it is acknowledged.

use core::time::Duration;

use super::script::{OUR_ISN, PEER_ISN, Script, ms, plain};
use crate::tcp::{CoalescedSegments, Due, TcpConfig};
use crate::wire::tcp::{Flags, TcpHeader, TcpSegment};

fn open() -> Script {
    Script::established(&plain(), "mss 1000,sackOK", 60_000)
}

#[test]
fn every_second_segment_is_acknowledged() {
    let mut t = open();
    assert_eq!(t.inject(". 1:1001(1000) ack 1"), Some(0..1000));
    t.expect_nothing();
    assert_eq!(t.inject(". 1001:2001(1000) ack 1"), Some(1000..2000));
    t.expect(". 1:1(0) ack 2001");
    t.inject(". 2001:3001(1000) ack 1");
    t.expect_nothing();
}

#[test]
fn a_single_segment_is_acknowledged_after_40_ms() {
    let mut t = open();
    t.inject(". 1:1001(1000) ack 1");
    t.pass(ms(10));
    t.expect_after(ms(30), ". 1:1(0) ack 1001");
    t.expect_nothing();
    assert_eq!(t.tcp.next_timeout(), None);
}

#[test]
fn a_batch_gets_one_acknowledgment() {
    let mut t = open();
    for start in (0..10_000).step_by(1000) {
        t.inject(&format!(". {}:{}(1000) ack 1", start + 1, start + 1001));
    }
    t.expect(". 1:1(0) ack 10001");
    t.expect_nothing();
}

/// Injects segments of 1000 octets in order, a microsecond apart.
fn inject_segments(t: &mut Script, count: u64) {
    for _ in 0..count {
        t.pass(MICROSECOND);
        let start = t.tcp.receive_offset() + 1;
        t.inject(&format!(". {start}:{}(1000) ack 1", start + 1000));
    }
}

/// Injects segments, of which each second one is acknowledged.
fn inject_pairs(t: &mut Script, segments: u64) {
    for _ in 0..segments / 2 {
        inject_segments(t, 1);
        t.expect_nothing();
        inject_segments(t, 1);
        expect_ack(t);
    }
}

fn expect_ack(t: &mut Script) {
    t.expect(&format!(". 1:1(0) ack {}", t.tcp.receive_offset() + 1));
    t.expect_nothing();
}

const MICROSECOND: Duration = Duration::from_micros(1);

/// Makes a stream that the second of the next segments makes bulk.
fn nearly_bulk() -> Script {
    let mut t = open();
    inject_pairs(&mut t, 62);
    t
}

#[test]
fn one_acknowledgment_stands_for_sixteen_segments_of_a_bulk_stream() {
    let mut t = nearly_bulk();
    for _ in 0..3 {
        inject_segments(&mut t, 15);
        t.expect_nothing();
        inject_segments(&mut t, 1);
        expect_ack(&mut t);
    }
    // A segment with PSH is acknowledged without waiting for more, and so is one that waited while
    // more came.
    inject_segments(&mut t, 3);
    let start = t.tcp.receive_offset() + 1;
    t.inject(&format!("P. {start}:{}(1000) ack 1", start + 1000));
    t.pass(MICROSECOND);
    expect_ack(&mut t);
    inject_segments(&mut t, 16);
    t.pass(100 * MICROSECOND);
    expect_ack(&mut t);
    inject_segments(&mut t, 15);
    t.expect_nothing();
}

#[test]
fn a_sender_that_waits_for_the_acknowledgment_gets_each_second_again_for_longer_each_time() {
    let mut t = nearly_bulk();
    for segments in [128, 256] {
        inject_segments(&mut t, 8);
        t.pass(93 * MICROSECOND);
        t.expect_nothing();
        t.expect_after(
            MICROSECOND,
            &format!(". 1:1(0) ack {}", t.tcp.receive_offset() + 1),
        );
        inject_pairs(&mut t, segments - 2);
    }
    // It is a bulk stream again.
    inject_segments(&mut t, 16);
    expect_ack(&mut t);
    inject_segments(&mut t, 8);
    t.pass(93 * MICROSECOND);
    expect_ack(&mut t);
    inject_pairs(&mut t, 126);
    inject_segments(&mut t, 15);
    t.expect_nothing();
}

#[test]
fn a_hole_ends_the_bulk_stream() {
    let mut t = nearly_bulk();
    inject_segments(&mut t, 16);
    expect_ack(&mut t);
    let at = t.tcp.receive_offset() + 1;
    t.inject(&format!(". {}:{}(1000) ack 1", at + 1000, at + 2000));
    t.expect(&format!(
        ". 1:1(0) ack {at} <sack {}:{}>",
        at + 1000,
        at + 2000
    ));
    t.inject(&format!(". {at}:{}(1000) ack 1", at + 1000));
    t.next();
    inject_pairs(&mut t, 60);
}

/// Whichever segments of a run have PSH.
#[test]
fn a_coalesced_run_is_acknowledged_as_its_segments_are() {
    for (pushed, count) in (0..16_u8).flat_map(|pushed| [(pushed, 2), (pushed, 4)]) {
        compare_coalesced((open(), open()), pushed, count);
        compare_coalesced((nearly_bulk(), nearly_bulk()), pushed, count);
    }
}

/// Compares a run of `count` segments with single ones. Those whose bits are set in `pushed` have
/// PSH.
fn compare_coalesced((mut each, mut run): (Script, Script), pushed: u8, count: usize) {
    let pushed = |at: usize| pushed >> at & 1 == 1;
    let begin = each.tcp.receive_offset() as usize + 1;
    let text = |at: usize| {
        let (flags, start) = (if pushed(at) { "P." } else { "." }, begin + at * 1000);
        format!("{flags} {start}:{}(1000) ack 1", start + 1000)
    };
    assert!(each.inject_next(&text(0)) && run.inject_next(&text(0)));
    let mut segments = CoalescedSegments::eligible(&run.tcp).unwrap();
    for at in 1..count {
        assert!(each.inject_next(&text(at)));
        segments.add(1, 1000, pushed(at));
    }
    let header = TcpHeader {
        window: 60_000,
        ..TcpHeader::default()
    };
    let header = header.of_data().unwrap();
    segments.commit(&mut run.tcp, run.now, &header);
    let acks = |t: &mut Script| {
        let timeout = t.tcp.next_timeout();
        let now = t.next().map(|sent| sent.header.ack);
        (timeout, now, t.next_turn().map(|sent| sent.header.ack))
    };
    assert_eq!(acks(&mut run), acks(&mut each));
    assert_eq!(run.tcp.receive_offset(), each.tcp.receive_offset());
}

#[test]
fn an_answer_goes_the_short_way() {
    let mut t = open();
    let free = t.frames_free();
    t.write(10);
    t.expect("P. 1:11(10) ack 1");
    // A segment that acknowledges octets never sent does not, nor one that is not the next.
    assert!(!t.inject_next("P. 1:11(10) ack 12"));
    assert!(!t.inject_next("P. 11:21(10) ack 11"));
    assert_eq!(t.tcp.acked_offset(), 0);
    assert!(t.inject_next("P. 1:11(10) ack 11"));
    assert_eq!((t.tcp.acked_offset(), t.frames_free()), (10, free));
    assert!(!t.inject_next("P. 11:21(10) ack 1"));
    t.write(10);
    t.expect("P. 11:21(10) ack 11");
    t.expect_nothing();
}

#[test]
fn a_connection_without_anything_to_send_rests() {
    let mut t = open();
    assert_eq!(t.tcp.due(t.now), Due::Nothing);
    // The next turn acknowledges pushed data.
    t.inject("P. 1:11(10) ack 1");
    assert_eq!(t.tcp.due(t.now), Due::Nothing);
    assert!(t.tcp.acks_next_turn());
    let next_turn = t.now + Duration::from_nanos(1);
    assert_eq!(t.tcp.due(next_turn), Due::Acknowledgment);
    t.queue(10);
    assert_eq!(t.tcp.due(t.now), Due::Segment);
    t.expect("P. 1:11(10) ack 11");
    assert_eq!(t.tcp.due(t.now), Due::Nothing);
    assert!(!t.tcp.acks_next_turn());
    // A duplicate gets an ACK of its own.
    t.inject("P. 1:11(10) ack 11");
    assert_eq!(t.tcp.due(t.now), Due::Segment);
    t.expect(". 11:11(0) ack 11 <sack 1:11>");
}

#[test]
fn data_carries_the_acknowledgment() {
    let mut t = open();
    t.inject(". 1:1001(1000) ack 1");
    t.write(10);
    t.expect("P. 1:11(10) ack 1001");
    t.expect_nothing();
    t.inject(". 1001:2001(1000) ack 11");
    t.inject(". 2001:3001(1000) ack 11");
    t.write(10);
    t.expect("P. 11:21(10) ack 3001");
    t.expect_nothing();
    t.inject(". 3001:3001(0) ack 21");
    assert_eq!(t.tcp.next_timeout(), None);
    // The count of segments starts anew as well.
    t.inject(". 3001:4001(1000) ack 21");
    t.expect_nothing();
}

#[test]
fn what_is_pushed_is_acknowledged_in_the_next_turn() {
    let mut t = open();
    t.inject("P. 1:101(100) ack 1");
    t.expect_nothing();
    t.pass(Duration::from_nanos(1));
    t.expect(". 1:1(0) ack 101");
}

#[test]
fn an_answer_to_what_was_pushed_carries_its_acknowledgment() {
    let mut t = open();
    t.inject("P. 1:101(100) ack 1");
    t.expect_nothing();
    t.pass(Duration::from_nanos(1));
    t.write(100);
    t.expect("P. 1:101(100) ack 101");
    t.expect_nothing();
}

/// However many segments the message has.
#[test]
fn an_answer_to_a_long_message_carries_its_acknowledgment() {
    let mut t = open();
    t.inject(". 1:1001(1000) ack 1");
    t.inject(". 1001:2001(1000) ack 1");
    t.inject("P. 2001:2101(100) ack 1");
    t.expect_nothing();
    t.write(100);
    t.expect("P. 1:101(100) ack 2101");
    t.expect_nothing();
    // Without an answer, the next turn acknowledges it; with more data behind it, this one.
    t.inject(". 2101:3101(1000) ack 101");
    t.inject("P. 3101:3201(100) ack 101");
    t.expect_nothing();
    t.pass(Duration::from_nanos(1));
    t.expect(". 101:101(0) ack 3201");
    t.inject("P. 3201:3301(100) ack 101");
    t.inject(". 3301:4301(1000) ack 101");
    t.expect(". 101:101(0) ack 4301");
}

#[test]
fn each_segment_out_of_order_gets_an_acknowledgment_with_its_block_first() {
    let mut t = open();
    assert_eq!(t.inject(". 1001:2001(1000) ack 1"), Some(1000..2000));
    t.expect(". 1:1(0) ack 1 <sack 1001:2001>");
    assert_eq!(t.inject(". 3001:4001(1000) ack 1"), Some(3000..4000));
    t.expect(". 1:1(0) ack 1 <sack 3001:4001 1001:2001>");
    assert_eq!(t.inject(". 5001:6001(1000) ack 1"), Some(5000..6000));
    t.expect(". 1:1(0) ack 1 <sack 5001:6001 3001:4001 1001:2001>");
    // It joins two blocks.
    assert_eq!(t.inject(". 2001:3001(1000) ack 1"), Some(2000..3000));
    t.expect(". 1:1(0) ack 1 <sack 1001:4001 5001:6001>");
    assert_eq!(
        t.tcp.taken_ranges().collect::<Vec<_>>(),
        [1000..4000, 5000..6000]
    );
    // It fills the first hole: it is acknowledged at once, with the other blocks.
    assert_eq!(t.inject(". 1:1001(1000) ack 1"), Some(0..1000));
    t.expect(". 1:1(0) ack 4001 <sack 5001:6001>");
    assert_eq!(t.inject(". 4001:5001(1000) ack 1"), Some(4000..5000));
    t.expect(". 1:1(0) ack 6001");
    t.expect_nothing();
    assert_eq!(t.tcp.receive_offset(), 6000);
}

#[test]
fn four_blocks_at_most_and_three_beside_timestamps() {
    let mut t = open();
    let mut with_timestamps = Script::established(
        &TcpConfig {
            timestamps: true,
            ..plain()
        },
        "mss 1000,sackOK,TS val 1 ecr 0",
        60_000,
    );
    for n in [2, 4, 6, 8, 10_u32] {
        let segment = format!(". {}:{}(10) ack 1", n * 10 + 1, n * 10 + 11);
        t.inject(&segment);
        with_timestamps.inject(&segment);
    }
    t.expect(". 1:1(0) ack 1 <sack 101:111 81:91 61:71 41:51>");
    t.expect_nothing();
    // The fourth does not fit into 40 octets of options.
    let sent = with_timestamps.next().unwrap();
    assert_eq!(sent.header.len(), 60);
}

#[test]
fn with_sack_a_batch_of_segments_out_of_order_gets_one_acknowledgment() {
    let mut t = open();
    for n in 1..8_u32 {
        t.inject(&format!(
            ". {}:{}(1000) ack 1",
            n * 1000 + 1,
            n * 1000 + 1001
        ));
    }
    t.expect(". 1:1(0) ack 1 <sack 1001:8001>");
    t.expect_nothing();
}

#[test]
fn without_sack_duplicates_are_plain_one_for_each_segment() {
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    for start in [1001, 2001, 3001_u32] {
        t.inject(&format!(". {start}:{}(1000) ack 1", start + 1000));
    }
    for _ in 0..3 {
        t.expect(". 1:1(0) ack 1");
    }
    t.expect_nothing();
}

#[test]
fn duplicates_not_sent_yet_are_dropped_when_the_hole_is_filled() {
    // They would otherwise follow an ACK of everything, and look like three duplicates of it.
    let mut t = open();
    for start in [1001, 2001, 3001, 4001, 1_u32] {
        t.inject(&format!(". {start}:{}(1000) ack 1", start + 1000));
    }
    t.expect(". 1:1(0) ack 5001");
    t.expect_nothing();
}

#[test]
fn what_follows_a_duplicate_in_the_same_batch_is_acknowledged_at_once() {
    let mut t = open();
    t.inject("P. 1:1001(1000) ack 1");
    t.next();
    t.inject(". 1:1001(1000) ack 1");
    t.inject(". 1001:2001(1000) ack 1");
    t.expect(". 1:1(0) ack 2001 <sack 1:1001>");
    t.expect_nothing();
}

#[test]
fn duplicate_acknowledgments_carry_no_data() {
    let mut t = open();
    t.inject(". 1001:2001(1000) ack 1");
    t.write(10);
    t.expect(". 1:1(0) ack 1 <sack 1001:2001>");
    t.expect("P. 1:11(10) ack 1");
}

#[test]
fn what_was_taken_is_not_offered_again() {
    // rfc: 5041-14 what was handed up is not handed up again
    let mut t = open();
    t.inject(". 1:1001(1000) ack 1");
    t.inject(". 2001:3001(1000) ack 1");
    t.next();
    assert_eq!(t.inject(". 1:1001(1000) ack 1"), None);
    t.expect(". 1:1(0) ack 1001 <sack 1:1001 2001:3001>");
    assert_eq!(t.inject(". 2001:2501(500) ack 1"), None);
    t.expect(". 1:1(0) ack 1001 <sack 2001:2501 2001:3001>");
    // Cut at both ends.
    assert_eq!(t.inject(". 501:2201(1700) ack 1"), Some(1000..2000));
    t.expect(". 1:1(0) ack 3001 <sack 501:1001>");
    // Cut where the next taken range begins.
    t.inject(". 3501:4001(500) ack 1");
    t.next();
    assert_eq!(t.inject(". 3001:5001(2000) ack 1"), Some(3000..3500));
    t.expect(". 1:1(0) ack 4001 <sack 3501:4001>");
    // Cut at the front by a taken range out of order.
    t.inject(". 5001:5501(500) ack 1");
    t.next();
    assert_eq!(t.inject(". 5201:5801(600) ack 1"), Some(5500..5800));
}

#[test]
fn what_was_not_taken_is_offered_again_and_never_acknowledged() {
    let mut t = open();
    t.take = false;
    assert_eq!(t.inject(". 1:1001(1000) ack 1"), Some(0..1000));
    assert_eq!(t.inject(". 2001:3001(1000) ack 1"), Some(2000..3000));
    t.expect(". 1:1(0) ack 1");
    t.take = true;
    assert_eq!(t.inject(". 1:1001(1000) ack 1"), Some(0..1000));
    assert_eq!(t.inject(". 1001:3001(2000) ack 1"), Some(1000..3000));
    t.expect(". 1:1(0) ack 3001");
}

#[test]
fn a_part_of_a_segment_may_be_taken() {
    let mut t = open();
    t.take = false;
    t.inject(". 1:1001(1000) ack 1");
    t.tcp.mark_received(t.now, 0..400);
    assert_eq!(t.tcp.receive_offset(), 400);
    t.take = true;
    assert_eq!(t.inject(". 1:1001(1000) ack 1"), Some(400..1000));
    t.expect(". 1:1(0) ack 1001 <sack 1:401>");
}

#[test]
fn holes_without_number_are_not_kept_track_of() {
    let mut t = open();
    let mut offered = 0;
    for n in 1..1000_u32 {
        offered += u32::from(
            t.inject(&format!(". {}:{}(1) ack 1", 2 * n + 1, 2 * n + 2))
                .is_some(),
        );
    }
    assert_eq!(offered, 256);
    // A segment that joins a known range is still taken.
    assert_eq!(t.inject(". 4:5(1) ack 1"), Some(3..4));
    assert_eq!(t.inject(". 1:3(2) ack 1"), Some(0..2));
}

#[test]
fn streams_longer_than_4_gib() {
    let mut t = open();
    let mut seq = PEER_ISN + 1;
    for n in 0..90_000_u64 {
        let header = TcpHeader {
            seq,
            ack: OUR_ISN + 1,
            flags: Flags::ACK | Flags::PSH,
            ..TcpHeader::default()
        };
        let segment = TcpSegment {
            header,
            payload: &[0; 50_000],
        };
        let data = t
            .tcp
            .receive(t.now, &segment, false, &mut t.frames)
            .expect("it is taken")
            .expect("new data");
        assert_eq!((data.offset, data.bytes.len()), (n * 50_000, 50_000));
        t.tcp
            .mark_received(t.now, data.offset..data.offset + 50_000);
        seq += 50_000;
        assert_eq!(t.next_turn().expect("an ACK").header.ack, seq);
    }
    assert!(t.tcp.receive_offset() > 1 << 32);
}
