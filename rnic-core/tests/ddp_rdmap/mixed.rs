//! Operations of several kinds on one stream: invalidation among them, large Reads, depths that
//! hold back, and nothing to carry.

use rnic_core::memory::table::{Access, Scope};
use rnic_core::verbs::wr::send_flags::{FENCE, SIGNALED};
use rnic_core::verbs::{RecvWr, SendWr, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{Stag, TaggedOffset};
use rnic_core::wire::rdmap::{AtomicOperation, Opcode};

use crate::fixture::{
    BASE, End, PD, STREAM, Settings, Ulpdu, all_rights, pattern, pump, send, tagged,
};
use crate::requester::response;

/// Where in the requester's memory Writes take from, Reads go to, and the values of atomics.
const SOURCE: usize = 10_000;
const SINK: usize = 40_000;
const VALUE: usize = 30_000;

fn write(end: &End, wr_id: u64, to: Stag, len: usize) -> SendWr {
    SendWr::new(wr_id, WrOpcode::Write)
        .with_sges(&[end.sge(SOURCE, len)])
        .unwrap()
        .with_remote(to, TaggedOffset(BASE))
}

fn read(end: &End, wr_id: u64, from: Stag, len: usize) -> SendWr {
    SendWr::new(wr_id, WrOpcode::Read)
        .with_sges(&[end.sge(SINK, len)])
        .unwrap()
        .with_remote(from, TaggedOffset(BASE))
}

fn invalidate(wr_id: u64, stag: Stag) -> SendWr {
    let mut wr = SendWr::new(wr_id, WrOpcode::SendInvalidate);
    wr.invalidate_stag = stag.0;
    wr
}

/// Two ends, and memory of the second that the first may do anything with, and invalidate.
fn with_lent_memory() -> (End, End, Stag) {
    let (a, mut b) = (End::new(0, 4), End::with_markers(4, 0));
    let stag = b.register(0, 30_000, all_rights(), Scope::Stream(PD, STREAM));
    b.post_receive(7, 50_000, 100);
    (a, b, stag)
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn an_stag_is_invalid_when_the_send_that_asks_for_it_is_told_and_not_before() {
    // rfc: 5040-60b
    let (mut a, mut b, stag) = with_lent_memory();
    a.fill(SOURCE, &pattern(1, 3000));
    a.post(write(&a, 1, stag, 3000));
    a.post(invalidate(2, stag));
    let segments = a.segments();
    let last = segments.len() - 1;
    // The Send comes first; the Write before it in the stream still finds its memory.
    let mut early = b.lay_out(0, &segments);
    for which in (0..=last).rev() {
        early.place(&mut b, which);
        assert!(b.table().is_valid(stag));
    }
    assert_eq!(b.memory(0, 3000), pattern(1, 3000));
    assert!(b.received().is_empty());
    early.deliver(&mut b).unwrap();
    assert!(!b.table().is_valid(stag));
    assert_eq!(b.received_ids(), [(7, WcStatus::Success)]);
    assert_eq!(b.memory(0, 3000), pattern(1, 3000));
}

#[test]
fn nothing_behind_an_invalidation_reaches_the_memory() {
    for is_read in [false, true] {
        let (mut a, mut b, stag) = with_lent_memory();
        a.post(invalidate(1, stag));
        let request = if is_read { read } else { write };
        a.post(request(&a, 2, stag, 100));
        pump(&mut a, &mut b);
        assert!(b.refused().is_some());
        assert_eq!(b.received_ids(), [(7, WcStatus::Success)]);
        assert_eq!(b.memory(0, 100), [0; 100]);
        // Rule 9: that a Write is complete here says nothing of the peer's memory.
        let acknowledged = a.sent_ids();
        let wrong = if is_read {
            WcStatus::RemoteAccessError
        } else {
            WcStatus::Success
        };
        assert_eq!(acknowledged, [(1, WcStatus::Success), (2, wrong)]);
    }
}

/// A Send may be told before an earlier Read is answered (rule 18), and then takes the Read's
/// memory away: who does not want that fences it.
#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn a_read_before_an_invalidation_needs_a_fence() {
    // More than may be on its way at first.
    const LONG: usize = 20_000;
    for fence in [FENCE, 0] {
        let (mut a, mut b, stag) = with_lent_memory();
        b.fill(0, &pattern(2, LONG));
        a.post(read(&a, 1, stag, LONG));
        a.post(invalidate(2, stag).with_flags(SIGNALED | fence));
        if fence == 0 {
            let both = a.segments();
            assert_eq!(both.len(), 2);
            for ulpdu in &both {
                b.receive(ulpdu).unwrap();
            }
            assert_eq!(b.received_ids(), [(7, WcStatus::Success)]);
            b.acked_all();
            assert_eq!(b.refused().unwrap().numbers, (0, 1, 0));
            continue;
        }
        pump(&mut a, &mut b);
        assert_eq!((a.refused(), b.refused()), (None, None));
        assert_eq!(a.memory(SINK, LONG), pattern(2, LONG));
        let done = [(1, WcStatus::Success), (2, WcStatus::Success)];
        assert_eq!(a.sent_ids(), done);
        assert!(!b.table().is_valid(stag));
    }
}

/// Messages of both sides take turns; within a direction each is whole before the next (RFC 5041
/// section 5.3).
#[test]
fn large_reads_both_ways_with_sends_between_them() {
    const LARGE: usize = 200_000;
    let (mut a, mut b) = (End::new(2, 2), End::new(2, 2));
    let (from_a, from_b) = (pattern(3, LARGE), pattern(4, LARGE));
    for (end, source) in [(&mut a, &from_a), (&mut b, &from_b)] {
        end.fill(0, source);
        for i in 0..3 {
            end.post_receive(i, 900_000 + i as usize * 100, 100);
        }
    }
    let stags = [b.stag, a.stag];
    for (end, peer) in [&mut a, &mut b].into_iter().zip(stags) {
        for i in 0..3 {
            let half = LARGE / 2;
            let sink = end.sge(300_000 + i % 2 * half, half);
            let wr = SendWr::new(i as u64, WrOpcode::Read)
                .with_sges(&[sink])
                .unwrap()
                .with_remote(peer, TaggedOffset(BASE + (i % 2 * half) as u64));
            end.post(wr);
            end.post(SendWr::new(10 + i as u64, WrOpcode::Send));
        }
    }
    pump(&mut a, &mut b);
    for (end, theirs) in [(&mut a, &from_b), (&mut b, &from_a)] {
        assert_eq!(end.refused(), None);
        assert!(end.memory(300_000, LARGE) == *theirs);
        let done: Vec<_> = end.sent_ids().iter().map(|(wr_id, _)| *wr_id).collect();
        assert_eq!(done, [0, 10, 1, 11, 2, 12]);
        assert_eq!(end.received().len(), 3);
        assert!(end.closes());
    }
}

/// A message is delivered behind all of those before it: one between the segments of a Read
/// Response has no turn.
#[test]
fn a_read_response_with_other_messages_between_its_segments() {
    // rfc: 5041-62, 5041-63
    let mut end = End::new(0, 1);
    let octets = pattern(5, 300);
    end.post(
        SendWr::new(1, WrOpcode::Read)
            .with_sges(&[end.sge(0, 300)])
            .unwrap(),
    );
    assert_eq!(end.segments().len(), 1);
    end.post_receive(7, 1000, 100);
    let part = |i: usize| response(&end, i == 2, i * 100, &octets[i * 100..][..100]);
    let parts = [part(0), part(1)];
    end.receive(&parts[0]).unwrap();
    end.receive(&parts[1]).unwrap();
    let refused = end.receive(&send(1, b"hello")).unwrap_err();
    assert_eq!(refused.numbers, (0, 2, 6));
    assert_eq!(end.sent_ids(), [(1, WcStatus::WrFlushed)]);
    assert_eq!(end.received_ids(), [(7, WcStatus::WrFlushed)]);
}

/// Depths that do not fit the load hold requests back; they never fail them (RFC 5040 section 6.1).
#[test]
fn a_queue_full_of_reads_and_atomics_flows_through_a_depth_of_one() {
    // rfc: 5040-82, 5040-83
    for (ird, ord) in [(1, 1), (2, 2), (5, 3)] {
        let (mut a, mut b) = (End::new(0, ord), Settings::new(ird, 0).small().connect());
        b.fill(0, &pattern(6, 1000));
        for i in 0..60 {
            a.post(match i % 3 {
                0 => read(&a, i, b.stag, 1000),
                1 => read(&a, i, b.stag, 0),
                _ => {
                    let one = AtomicOperation::FetchAdd { add: 1, mask: 0 };
                    SendWr::atomic(i, one, a.sge(VALUE, 8))
                        .with_remote(b.stag, TaggedOffset(BASE + 2000))
                }
            });
        }
        pump(&mut a, &mut b);
        assert_eq!((a.refused(), b.refused()), (None, None));
        let done: Vec<_> = (0..60).map(|i| (i, WcStatus::Success)).collect();
        assert_eq!(a.sent_ids(), done);
        let last = a.memory(VALUE, 8).try_into().unwrap();
        assert_eq!(u64::from_ne_bytes(last), 19);
    }
}

/// Operations without octets name no memory, and still have their place in every order.
#[test]
fn operations_without_octets_keep_their_places() {
    // rfc: 5040-43, 5040-44, 5041-57, 5041-58
    let (mut a, mut b) = (End::new(0, 1), End::new(1, 0));
    b.post_receive_wr(RecvWr::new(7, &[]).unwrap());
    b.post_receive_wr(RecvWr::new(8, &[]).unwrap());
    let nowhere = Stag(0x0bad_0bad);
    let far = TaggedOffset(u64::MAX);
    for (wr_id, opcode) in [
        (0, WrOpcode::Read),
        (1, WrOpcode::Write),
        (2, WrOpcode::Send),
        (3, WrOpcode::Read),
        (4, WrOpcode::Send),
    ] {
        a.post(SendWr::new(wr_id, opcode).with_remote(nowhere, far));
    }
    // The Read waits until the depth has room, and all behind it waits with it.
    let sent = a.segments();
    assert_eq!(sent.len(), 3);
    let answers: Vec<Ulpdu> = sent
        .iter()
        .flat_map(|ulpdu| {
            b.receive(ulpdu).unwrap();
            b.segments()
        })
        .collect();
    a.acked_all();
    assert!(a.sent().is_empty());
    for ulpdu in &answers {
        a.receive(ulpdu).unwrap();
    }
    pump(&mut a, &mut b);
    assert_eq!((a.refused(), b.refused()), (None, None));
    let done: Vec<_> = (0..5).map(|i| (i, WcStatus::Success)).collect();
    assert_eq!(a.sent_ids(), done);
    let lengths: Vec<_> = b
        .received()
        .iter()
        .map(|done| (done.wr_id, done.byte_len))
        .collect();
    assert_eq!(lengths, [(7, 0), (8, 0)]);
}

/// The right to write does not outlast its revocation, whatever is on its way.
#[test]
fn a_read_whose_sink_is_gone_ends_the_stream() {
    let mut end = End::new(0, 1);
    let sink = end.register(0, 100, Access::LOCAL_WRITE, PD);
    let mut sge = end.sge(0, 100);
    sge.lkey = sink.0;
    end.post(SendWr::new(1, WrOpcode::Read).with_sges(&[sge]).unwrap());
    end.segments();
    end.table().revoke(sink).unwrap();
    let ulpdu = tagged(Opcode::ReadResponse, true, sink, BASE, &[1; 100]);
    assert_eq!(end.receive(&ulpdu).unwrap_err().numbers, (1, 1, 0));
    assert_eq!(end.memory(0, 100), [0; 100]);
}
