//! RFC 5041 section 5.2: messages are cut into segments, and numbered.

use std::sync::Arc;

use proptest::prelude::*;
use rnic_core::ddp::{BufferSupply, Buffers, Ddp, Delivery, Segmenter};
use rnic_core::memory::place::Destination;
use rnic_core::memory::table::{Access, StagTable};
use rnic_core::rdmap;
use rnic_core::verbs::{RecvWr, SendWr, WrOpcode};
use rnic_core::wire::ddp::{
    DdpHeader, DdpSegment, MessageOffset, Msn, QueueNumber, Stag, TAGGED_LEN, TaggedHeader,
    TaggedOffset, UNTAGGED_LEN, UntaggedHeader,
};

use crate::fixture::{End, PD, STREAM, header, segment};
use crate::requester::{read, response, send};

fn tagged(offset: u64) -> DdpHeader {
    DdpHeader::Tagged(TaggedHeader {
        last: false,
        ulp: 0x40,
        stag: Stag(0xaabb_ccdd),
        offset: TaggedOffset(offset),
    })
}

fn untagged(queue: QueueNumber) -> DdpHeader {
    DdpHeader::Untagged(UntaggedHeader {
        last: false,
        ulp: 0x44,
        ulp32: 0x0102_0304,
        queue,
        msn: Msn::FIRST,
        offset: MessageOffset(0),
    })
}

/// Offset in the header (TO or MO), payload octets, L bit of each segment.
fn cuts(header: DdpHeader, length: u32, mulpdu: usize) -> Vec<(u64, usize, bool)> {
    let mut segmenter = Segmenter::new(header, length);
    std::iter::from_fn(|| segmenter.next(mulpdu))
        .map(|cut| {
            let at = match cut.header {
                DdpHeader::Tagged(header) => header.offset.0,
                DdpHeader::Untagged(header) => header.offset.0.into(),
            };
            assert_eq!(cut.last, cut.header.last());
            (at, cut.len, cut.last)
        })
        .collect()
}

#[test]
fn untagged_example_of_rfc_5041() {
    // rfc: 5041-53, 5044-s4
    let expected = [(0, 1482, false), (1482, 566, true)];
    assert_eq!(cuts(untagged(QueueNumber::SEND), 2048, 1500), expected);
}

#[test]
fn tagged_example_of_rfc_5041() {
    // rfc: 5041-55
    let expected = [(16384, 1486, false), (17870, 562, true)];
    assert_eq!(cuts(tagged(16384), 2048, 1500), expected);
}

#[test]
fn a_message_without_payload_is_one_segment() {
    // rfc: 5041-56
    assert_eq!(cuts(tagged(5), 0, 1500), [(5, 0, true)]);
    assert_eq!(cuts(tagged(5), 0, TAGGED_LEN), [(5, 0, true)]);
    assert_eq!(
        cuts(untagged(QueueNumber::SEND), 0, UNTAGGED_LEN),
        [(0, 0, true)]
    );
}

#[test]
fn a_message_that_fits_exactly_has_no_empty_last_segment() {
    assert_eq!(cuts(tagged(0), 86, 100), [(0, 86, true)]);
    assert_eq!(cuts(tagged(0), 172, 100), [(0, 86, false), (86, 86, true)]);
}

#[test]
fn a_series_is_what_would_be_cut_one_by_one() {
    // rfc: 5041-17, 5041-18
    const MULPDU: usize = 60;
    for header in [tagged(u64::MAX - 100), untagged(QueueNumber::SEND)] {
        for (length, before) in (0..300).flat_map(|length| [(length, 0), (length, 2)]) {
            let mut singly = Segmenter::new(header, length);
            for _ in 0..before {
                singly.next(MULPDU);
            }
            let mut together = singly;
            if let Some(mut full) = together.full_segments(MULPDU) {
                let count = full.octets() / full.payload_len();
                for _ in 0..count {
                    let cut = singly.next(MULPDU).unwrap();
                    assert_eq!(cut.len, full.payload_len());
                    assert_eq!(together.next_full(&mut full), cut.header);
                }
            }
            // The last segment, if that was not cut before, is no part of it, and nothing else is
            // left.
            let last = singly.next(MULPDU);
            assert!(last.is_none_or(|cut| cut.last), "{length} octets");
            assert_eq!(together.next(MULPDU), last);
        }
    }
    assert_eq!(
        Segmenter::new(tagged(0), 100).full_segments(TAGGED_LEN),
        None
    );
}

/// Segments of a message whose lines are kept whole.
fn lines(header: DdpHeader, length: u32, mulpdu: usize) -> Vec<(u64, usize, bool)> {
    let mut segmenter = Segmenter::new(header, length);
    segmenter.keep_lines(true);
    let cuts = std::iter::from_fn(|| segmenter.next(mulpdu));
    cuts.map(|cut| (place(&cut.header), cut.len, cut.last))
        .collect()
}

fn place(header: &DdpHeader) -> u64 {
    match header {
        DdpHeader::Tagged(header) => header.offset.0,
        DdpHeader::Untagged(header) => header.offset.0.into(),
    }
}

#[test]
fn where_lines_are_kept_whole_segments_end_between_two() {
    // 200 octets of payload.
    let mulpdu = 200 + TAGGED_LEN;
    let from_a_line = [(0, 192, false), (192, 192, false), (384, 116, true)];
    assert_eq!(lines(tagged(0), 500, mulpdu), from_a_line);
    let from_within = [(60, 196, false), (256, 192, false), (448, 112, true)];
    assert_eq!(lines(tagged(60), 500, mulpdu), from_within);
    // The last is as long as it can be.
    assert_eq!(lines(tagged(0), 200, mulpdu), [(0, 200, true)]);
    assert_eq!(
        lines(tagged(0), 201, mulpdu),
        [(0, 192, false), (192, 9, true)]
    );
    let wraps = [(u64::MAX - 99, 164, false)];
    assert_eq!(lines(tagged(u64::MAX - 99), 500, mulpdu)[..1], wraps);
    // Where no line fits, they are not kept.
    let small = 40 + TAGGED_LEN;
    let torn = [(0, 40, false), (40, 24, false), (64, 36, true)];
    assert_eq!(lines(tagged(0), 100, small), torn);
    let sends = [(0, 200, false), (200, 200, false), (400, 100, true)];
    let queue = untagged(QueueNumber::SEND);
    assert_eq!(lines(queue, 500, 200 + UNTAGGED_LEN), sends);
}

#[test]
fn a_series_that_keeps_lines_is_what_would_be_cut_one_by_one() {
    for mulpdu in [60, 77, 78, 100, 154, 300] {
        for (length, start) in (0..900).flat_map(|length| [(length, 0), (length, 33)]) {
            let mut singly = Segmenter::new(tagged(start), length);
            singly.keep_lines(true);
            loop {
                let mut together = singly;
                if let Some(mut full) = together.full_segments(mulpdu) {
                    for _ in 0..full.octets() / full.payload_len() {
                        let cut = singly.next(mulpdu).unwrap();
                        assert_eq!(cut.len, full.payload_len());
                        assert_eq!(together.next_full(&mut full), cut.header);
                    }
                    assert!(singly.next(mulpdu).unwrap().last, "{length} octets");
                }
                if singly.next(mulpdu).is_none() {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_mulpdu_without_room_cuts_nothing_until_it_grows() {
    let mut segmenter = Segmenter::new(untagged(QueueNumber::SEND), 10);
    assert_eq!(segmenter.next(UNTAGGED_LEN - 1), None);
    assert_eq!(segmenter.next(UNTAGGED_LEN), None);
    assert!(!segmenter.is_finished());
    assert_eq!(segmenter.next(UNTAGGED_LEN + 4).unwrap().len, 4);
    assert_eq!(segmenter.next(1500).unwrap().len, 6);
    assert!(segmenter.is_finished());
    assert_eq!(segmenter.next(1500), None);
}

#[test]
fn the_largest_message_is_cut_to_its_last_octet() {
    // rfc: 5041-50
    let mut segmenter = Segmenter::new(tagged(u64::from(u32::MAX)), u32::MAX);
    let mut sum = 0u64;
    while let Some(cut) = segmenter.next(65535) {
        assert_eq!(u64::from(cut.offset), sum);
        sum += cut.len as u64;
        assert_eq!(cut.last, sum == u64::from(u32::MAX));
    }
    assert_eq!(sum, u64::from(u32::MAX));
}

#[test]
fn a_tagged_message_that_passes_the_last_offset_wraps_and_does_not_panic() {
    let mut segmenter = Segmenter::new(tagged(u64::MAX - 50), 200);
    while segmenter.next(100).is_some() {}
    assert!(segmenter.is_finished());
}

#[test]
fn messages_are_numbered_from_one_in_each_queue() {
    // rfc: 5041-42, 5041-43
    let mut end = End::new(0, 4);
    end.post(send(1));
    end.post(send(2));
    end.post(read(&end, 3, 0, 4));
    end.post(send(4));
    end.post(read(&end, 5, 0, 4));
    // It cannot be carried out.
    end.post(SendWr::new(6, WrOpcode::LocalInvalidate));
    let mut segments = end.segments();
    // So the stream ends, once what is in front of it is done.
    end.acked_all();
    end.receive(&response(&end, true, 0, b"read")).unwrap();
    end.receive(&response(&end, true, 0, b"read")).unwrap_err();
    segments.extend(end.segments());
    let numbers: Vec<_> = segments
        .iter()
        .map(|ulpdu| match header(ulpdu) {
            DdpHeader::Untagged(header) => (header.queue, header.msn.0),
            DdpHeader::Tagged(_) => panic!("tagged"),
        })
        .collect();
    let (sends, reads) = (QueueNumber::SEND, QueueNumber::READ_REQUEST);
    let expected = [
        (sends, 1),
        (sends, 2),
        (reads, 1),
        (sends, 3),
        (reads, 2),
        (QueueNumber::TERMINATE, 1),
    ];
    assert_eq!(numbers, expected);
}

/// DDP with one queue for Sends, and one whose buffers it keeps, which have come to message `msn`.
fn ddp_at(msn: u32) -> Ddp {
    let mut ddp = Ddp::new((PD, STREAM).into());
    let kept = BufferSupply::Internal { count: 4, size: 8 };
    ddp.open_at(QueueNumber::SEND, BufferSupply::Posted, Msn(msn));
    ddp.open_at(QueueNumber::READ_REQUEST, kept, Msn(msn));
    ddp
}

#[test]
fn message_numbers_wrap_to_zero() {
    // rfc: 5041-44
    let mut ddp = ddp_at(u32::MAX);
    let mut msn = || match ddp.start_message(untagged(QueueNumber::SEND), 0).next(100) {
        Some(cut) => match cut.header {
            DdpHeader::Untagged(header) => header.msn.0,
            DdpHeader::Tagged(_) => panic!("tagged"),
        },
        None => panic!("no segment"),
    };
    assert_eq!([msn(), msn(), msn()], [u32::MAX, 0, 1]);
}

/// No receives are posted.
struct Nothing;

impl Buffers for Nothing {
    fn buffer(&mut self, _: QueueNumber, _: u32) -> Option<RecvWr> {
        None
    }
}

/// Those that DDP keeps lie side by side; a buffer is free again when its message was delivered.
#[test]
fn messages_whose_numbers_wrap_are_taken_in_their_order() {
    // rfc: 5040-32, 5041-44
    let worker = Arc::new(StagTable::new(4, [0; 32])).worker();
    let guard = worker.enter();
    let mut ddp = ddp_at(u32::MAX - 1);
    let place = |ddp: &mut Ddp, msn| {
        let header = UntaggedHeader {
            last: true,
            msn: Msn(msn),
            ..match untagged(QueueNumber::READ_REQUEST) {
                DdpHeader::Untagged(header) => header,
                DdpHeader::Tagged(_) => unreachable!(),
            }
        };
        let ulpdu = segment(DdpHeader::Untagged(header), &msn.to_be_bytes());
        let segment = DdpSegment::parse(&ulpdu).unwrap();
        let destination = Destination::Buffer(Access::default());
        ddp.place(&segment, destination, &mut Nothing, &guard)
    };
    let all = [u32::MAX - 1, u32::MAX, 0, 1, 2, 3, 4, 5, 6, 7];
    for together in all.chunks(4) {
        // The last ones first.
        let mut placed: Vec<_> = together
            .iter()
            .rev()
            .map(|msn| place(&mut ddp, *msn).unwrap())
            .collect();
        for msn in together {
            let placed = placed.pop().unwrap();
            let Some(Delivery::Untagged { octets, .. }) = ddp.deliver(placed).unwrap() else {
                panic!("message {msn} is whole");
            };
            assert_eq!(octets, msn.to_be_bytes());
        }
    }
    for stale in [u32::MAX, 0, 7] {
        assert_eq!(place(&mut ddp, stale).unwrap_err().number(), (2, 3));
    }
}

/// One more Request than agreed on, which RDMAP is to see, and one Terminate.
#[test]
fn every_message_agreed_on_has_a_buffer() {
    // rfc: 5040-47, 5040-65, 7306-34, 7306-35
    let queues = [
        (QueueNumber::READ_REQUEST, 5, 52),
        (QueueNumber::TERMINATE, 1, 52),
        (QueueNumber::ATOMIC_RESPONSE, 3, 12),
    ];
    assert_eq!(rdmap::rdmap_queues(4, 3), queues);
}

proptest! {
    // rfc: 5041-17, 5041-18, 5041-19, 5041-20, 5041-28, 5041-29, 5041-33, 5041-34, 5041-38, 5041-40
    // rfc: 5041-41, 5041-45, 5041-46, 5041-49, 5041-51, 5041-s1, 5044-s1
    #[test]
    fn segments_fit_cover_the_message_and_share_their_fields(
        length in 0u32..200_000,
        mulpdus in prop::collection::vec(UNTAGGED_LEN + 1..9000, 1..10),
        offset: u64,
        is_tagged: bool,
    ) {
        let header = if is_tagged { tagged(offset) } else { untagged(QueueNumber::SEND) };
        let mut segmenter = Segmenter::new(header, length);
        let mut expected = 0;
        let mut sizes = mulpdus.iter().cycle();
        loop {
            let mulpdu = *sizes.next().unwrap();
            let Some(cut) = segmenter.next(mulpdu) else { break };
            prop_assert!(cut.header.len() + cut.len <= mulpdu);
            prop_assert_eq!(cut.offset, expected);
            prop_assert_eq!(cut.last, cut.offset + cut.len as u32 == length);
            // Without the fields of the segment itself, all headers are the same.
            match (cut.header, header) {
                (DdpHeader::Tagged(is), DdpHeader::Tagged(was)) => {
                    let at = was.offset.0.wrapping_add(cut.offset.into());
                    prop_assert_eq!(is, TaggedHeader { last: cut.last, offset: TaggedOffset(at), ..was });
                }
                (DdpHeader::Untagged(is), DdpHeader::Untagged(was)) => {
                    let at = MessageOffset(cut.offset);
                    prop_assert_eq!(is, UntaggedHeader { last: cut.last, offset: at, ..was });
                }
                _ => prop_assert!(false, "the kind changed"),
            }
            expected += cut.len as u32;
        }
        prop_assert_eq!(expected, length);
        prop_assert!(segmenter.is_finished());
    }
}
