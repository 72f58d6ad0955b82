//! Atomic operations (RFC 7306 section 5) between two ends: FetchAdd and CmpSwap, their order, and
//! what is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rnic_core::memory::region::{HugePages, Region};
use rnic_core::memory::table::Access;
use rnic_core::rdmap::RdmapError;
use rnic_core::testing::raw_peer::fpdu;
use rnic_core::verbs::{SendWr, WcOpcode, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{QueueNumber, Stag, TaggedOffset};
use rnic_core::wire::rdmap::{AtomicOperation, AtomicRequest, AtomicResponse, Opcode};

use crate::fixture::{
    BASE, End, PD, Settings, Ulpdu, all_rights, payload, pump, send, tagged, untagged,
};
use crate::requester::read;
use crate::windows;

pub(crate) const ONE: AtomicOperation = AtomicOperation::FetchAdd { add: 1, mask: 0 };

/// An atomic on octet `at` of the peer's memory, which brings its value to octet `sink` of `end`'s.
pub(crate) fn atomic(
    end: &End,
    wr_id: u64,
    operation: AtomicOperation,
    peer: Stag,
    at: u64,
) -> SendWr {
    let sink = end.sge(wr_id as usize * 8, 8);
    SendWr::atomic(wr_id, operation, sink).with_remote(peer, TaggedOffset(BASE + at))
}

pub(crate) fn swap(swap: u64, compare: u64) -> AtomicOperation {
    AtomicOperation::CmpSwap {
        swap,
        swap_mask: u64::MAX,
        compare,
        compare_mask: u64::MAX,
    }
}

pub(crate) fn request(msn: u32, operation: AtomicOperation, stag: Stag, offset: u64) -> Ulpdu {
    let request = AtomicRequest {
        identifier: 0x0a0b_0c00 + msn,
        stag,
        offset: TaggedOffset(offset),
        operation,
    };
    let mut octets = [0; AtomicRequest::LEN];
    request.emit(&mut octets);
    let queue = QueueNumber::READ_REQUEST;
    untagged(Opcode::AtomicRequest, true, queue, msn, 0, &octets)
}

pub(crate) fn response(msn: u32, identifier: u32, original: u64) -> Ulpdu {
    let mut octets = [0; AtomicResponse::LEN];
    AtomicResponse {
        identifier,
        original,
    }
    .emit(&mut octets);
    let queue = QueueNumber::ATOMIC_RESPONSE;
    untagged(Opcode::AtomicResponse, true, queue, msn, 0, &octets)
}

/// The number at an octet of an end's memory, as its processor reads it.
pub(crate) fn value(end: &End, at: usize) -> u64 {
    u64::from_ne_bytes(end.memory(at, 8).try_into().unwrap())
}

fn set(end: &End, at: usize, value: u64) {
    end.fill(at, &value.to_ne_bytes());
}

/// Returns the numbers of the Terminate with which a request is refused.
pub(crate) fn refusal_of(end: &mut End, ulpdu: &[u8]) -> (u8, u8, u8) {
    end.receive(ulpdu).unwrap_err().numbers
}

/// RFC 7306 appendix A.1.
#[test]
fn the_request_is_that_of_the_figure() {
    // rfc: 7306-2a, 7306-2b, 7306-2c, 7306-15, 7306-19, 7306-20, 7306-25, 7306-26
    let mut end = End::new(0, 1);
    let operation = AtomicOperation::CmpSwap {
        swap: 0x4142_4344_4546_4748,
        swap_mask: 0x5152_5354_5556_5758,
        compare: 0x6162_6364_6566_6768,
        compare_mask: 0x7172_7374_7576_7778,
    };
    let remote = (Stag(0x2122_2324), TaggedOffset(0x3132_3334_3536_3738));
    end.post(SendWr::atomic(1, operation, end.sge(0, 8)).with_remote(remote.0, remote.1));
    #[rustfmt::skip]
    let figure = [
        0x41, 0x4a,
        0, 0, 0, 0,
        0, 0, 0, 1,
        0, 0, 0, 1,
        0, 0, 0, 0,
        0, 0, 0, 2,
        0, 0, 0, 0,
        0x21, 0x22, 0x23, 0x24,
        0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,
        0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
        0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58,
        0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68,
        0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78,
    ];
    assert_eq!(end.next_segment().unwrap(), figure);
    assert_eq!(end.next_segment(), None);
}

/// RFC 7306 appendix A.2. The number that the processor sees stands on the wire with its highest
/// octet first.
#[test]
fn the_response_is_that_of_the_figure() {
    // rfc: 7306-5, 7306-16, 7306-29, 7306-31, 7306-32, 7306-33
    let mut end = End::new(1, 0);
    set(&end, 8, 0x0102_0304_0506_0708);
    end.receive(&request(1, ONE, end.stag, BASE + 8)).unwrap();
    #[rustfmt::skip]
    let figure = [
        0x41, 0x4b,
        0, 0, 0, 0,
        0, 0, 0, 3,
        0, 0, 0, 1,
        0, 0, 0, 0,
        0x0a, 0x0b, 0x0c, 0x01,
        0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,
    ];
    assert_eq!(end.next_segment().unwrap(), figure);
    assert_eq!(end.next_segment(), None);
    assert_eq!(value(&end, 8), 0x0102_0304_0506_0709);
}

#[test]
fn both_operations_change_the_peers_memory_and_bring_back_what_it_held() {
    // rfc: 7306-4, 7306-9, 7306-22, 7306-23, 7306-27, 7306-30, 7306-36
    let (mut a, mut b) = (End::new(0, 8), End::new(8, 0));
    set(&b, 16, 40);
    b.post_receive(7, 100, 100);
    let octets = AtomicOperation::FetchAdd {
        add: 0xff01,
        mask: 0x8080,
    };
    let low_octet = AtomicOperation::CmpSwap {
        swap: 0x7777,
        swap_mask: 0xff,
        compare: 0x9900,
        compare_mask: 0xff00,
    };
    // (operation, what it finds, what it leaves)
    let steps = [
        (ONE, 40, 41),
        (swap(1000, 40), 41, 41),
        (swap(0x9aff, 41), 41, 0x9aff),
        (octets, 0x9aff, 0x9900),
        (low_octet, 0x9900, 0x9977),
        (low_octet, 0x9977, 0x9977),
        (swap(u64::MAX, 0x9977), 0x9977, u64::MAX),
        (ONE, u64::MAX, 0),
    ];
    for (i, (operation, _, _)) in steps.iter().enumerate() {
        a.post(atomic(&a, i as u64, *operation, b.stag, 16));
    }
    pump(&mut a, &mut b);
    assert_eq!((a.refused(), b.refused()), (None, None));
    for (i, (operation, found, _)) in steps.iter().enumerate() {
        assert_eq!(value(&a, i * 8), *found, "{operation:?}");
    }
    assert_eq!(value(&b, 16), 0);
    let done = a.sent();
    assert_eq!(done.len(), 8);
    for (i, (done, (operation, _, left))) in done.iter().zip(steps).enumerate() {
        let opcode = match operation {
            AtomicOperation::FetchAdd { .. } => WcOpcode::FetchAdd,
            AtomicOperation::CmpSwap { .. } => WcOpcode::CmpSwap,
        };
        assert_eq!(done.opcode(), Ok(opcode));
        assert_eq!((done.wr_id, done.byte_len), (i as u64, 8));
        let next = steps.get(i + 1).map_or(0, |(_, found, _)| *found);
        assert_eq!(left, next);
    }
    assert!(
        b.received().is_empty(),
        "the peer's application sees none of it"
    );
    // Its receive is still there for a Send.
    b.receive(&send(1, b"")).unwrap();
    assert_eq!(b.received_ids(), [(7, WcStatus::Success)]);
    assert!(a.closes() && b.closes());
}

#[test]
fn tagged_offsets_may_count_from_anywhere() {
    // rfc: 7306-18
    let mut end = End::new(2, 0);
    let odd = end
        .table()
        .register(
            end.region.clone(),
            5..100,
            TaggedOffset(0),
            all_rights(),
            PD,
        )
        .unwrap();
    end.receive(&request(1, ONE, odd, 3)).unwrap();
    assert_eq!(end.segments().len(), 1);
    assert_eq!(value(&end, 8), 1);
    assert_eq!(refusal_of(&mut end, &request(2, ONE, odd, 8)), (0, 2, 7));
}

/// The window begins at an octet whose address is no multiple of 8, and counts from there.
#[test]
fn a_window_may_let_atomics_through() {
    // rfc: 7306-18
    let mut end = End::new(2, 0);
    let (open, _) = windows::bound(&mut end, Access::REMOTE_ATOMIC);
    end.receive(&request(1, ONE, open, 4)).unwrap();
    assert_eq!(end.segments().len(), 1);
    assert_eq!(value(&end, 104), 1);
    assert_eq!(refusal_of(&mut end, &request(2, ONE, open, 0)), (0, 2, 7));

    let mut end = End::new(1, 0);
    let (closed, _) = windows::bound(&mut end, Access::REMOTE_WRITE);
    assert_eq!(refusal_of(&mut end, &request(1, ONE, closed, 4)), (0, 1, 2));
    assert_eq!(value(&end, 104), 0);
}

#[test]
fn the_right_to_atomics_is_neither_to_read_nor_to_write() {
    let mut end = End::new(1, 0);
    let stag = end.register(0, 100, Access::REMOTE_ATOMIC, PD);
    let ulpdu = tagged(Opcode::Write, true, stag, BASE, b"x");
    assert_eq!(refusal_of(&mut end, &ulpdu), (1, 1, 0));
    let mut end = End::new(1, 0);
    let stag = end.register(0, 100, Access::REMOTE_ATOMIC, PD);
    end.receive(&request(1, ONE, stag, BASE)).unwrap();
    assert_eq!(end.segments().len(), 1);
}

#[test]
fn a_request_in_several_segments_is_one_request() {
    // rfc: 7306-21
    let mut end = End::with_markers(1, 0);
    let whole = request(1, ONE, end.stag, BASE);
    let queue = QueueNumber::READ_REQUEST;
    let part = |last, range: std::ops::Range<usize>| {
        let at = range.start as u32;
        untagged(
            Opcode::AtomicRequest,
            last,
            queue,
            1,
            at,
            &whole[18..][range],
        )
    };
    let mut early = end.lay_out(1, &[part(false, 0..30), part(true, 30..52)]);
    early.place(&mut end, 1);
    assert_eq!(end.next_segment(), None);
    early.deliver(&mut end).unwrap();
    assert_eq!(end.segments().len(), 1);
    assert_eq!(value(&end, 0), 1);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn reads_and_atomics_share_the_depths() {
    // rfc: 7306-21, 7306-34
    let mut end = End::new(0, 2);
    for wr_id in 0..4 {
        end.post(match wr_id % 2 {
            0 => atomic(&end, wr_id, ONE, Stag(9), 0),
            _ => read(&end, wr_id, 800, 8),
        });
    }
    end.post(SendWr::new(9, WrOpcode::Send));
    assert_eq!(end.segments().len(), 2, "an atomic and a Read");
    end.acked_all();
    assert_eq!(end.segments().len(), 0, "all else waits");
    end.receive(&response(1, 0, 5)).unwrap();
    assert_eq!(end.segments().len(), 1, "the second atomic");
    let ulpdu = crate::requester::response(&end, true, 800, &[1; 8]);
    end.receive(&ulpdu).unwrap();
    assert_eq!(end.segments().len(), 2, "the second Read, and the Send");

    let mut end = Settings::new(2, 0).small().connect();
    // Its response is longer than the window.
    let mut read_request = [0; 28];
    read_request[12..16].copy_from_slice(&5000_u32.to_be_bytes());
    read_request[20..28].copy_from_slice(&BASE.to_be_bytes());
    read_request[16..20].copy_from_slice(&end.stag.0.to_be_bytes());
    let queue = QueueNumber::READ_REQUEST;
    end.receive(&untagged(
        Opcode::ReadRequest,
        true,
        queue,
        1,
        0,
        &read_request,
    ))
    .unwrap();
    end.receive(&request(2, ONE, end.stag, BASE)).unwrap();
    let error = end.receive(&request(3, ONE, end.stag, BASE)).unwrap_err();
    error.assert_is(RdmapError::TooManyReads {
        ird: 2,
        request: None,
    });
    assert_eq!(error.numbers, (0, 2, 7));
    assert_eq!(value(&end, 0), 0);
}

#[test]
fn nothing_happens_before_the_request_is_delivered() {
    // rfc: 7306-28, 7306-37, 7306-41, 7306-42, 7306-44, 7306-45
    let mut end = End::with_markers(4, 0);
    end.post_receive(1, 100, 100);
    let (first, second) = (
        request(1, ONE, end.stag, BASE),
        request(2, swap(7, 1), end.stag, BASE),
    );
    let mut early = end.lay_out(1, &[send(1, b"before"), first, second]);
    early.place(&mut end, 2);
    early.place(&mut end, 1);
    assert_eq!(end.next_segment(), None);
    assert_eq!(value(&end, 0), 0);
    early.deliver(&mut end).unwrap();
    let responses: Vec<_> = end
        .segments()
        .iter()
        .map(|message| AtomicResponse::parse(payload(message)).unwrap())
        .map(|response| (response.identifier & 0xff, response.original))
        .collect();
    assert_eq!(responses, [(1, 0), (2, 1)]);
    assert_eq!(value(&end, 0), 7);
}

#[test]
fn nothing_completes_before_the_response_is_delivered() {
    // rfc: 7306-30, 7306-35, 7306-39, 7306-43
    let mut end = End::with_markers(0, 4);
    for wr_id in 0..4 {
        end.post(atomic(&end, wr_id, ONE, Stag(9), 0));
    }
    assert_eq!(end.segments().len(), 4);
    end.acked_all();
    // All of them may arrive ahead of order, and one to no request behind them.
    let responses = [1, 2, 3, 4, 5].map(|msn| response(msn, msn - 1, 99 + u64::from(msn)));
    let mut early = end.lay_out(0, &responses);
    for which in (0..5).rev() {
        early.place(&mut end, which);
    }
    assert!(end.sent().is_empty());
    assert_eq!(end.memory(0, 32), [0; 32]);
    assert!(early.deliver(&mut end).is_err(), "nobody asked for it");
    let done = [0, 1, 2, 3].map(|id| (id, WcStatus::Success));
    assert_eq!(end.sent_ids(), done);
    for i in 0..4 {
        assert_eq!(value(&end, i * 8), 100 + i as u64);
    }

    // One by one.
    let mut end = End::new(0, 4);
    for wr_id in 0..4 {
        end.post(atomic(&end, wr_id, ONE, Stag(9), 0));
    }
    assert_eq!(end.segments().len(), 4);
    end.acked_all();
    for id in 0..4 {
        assert!(end.sent().is_empty());
        end.receive(&response(id + 1, id, 5)).unwrap();
        assert_eq!(end.sent_ids(), [(id.into(), WcStatus::Success)]);
    }
}

#[test]
fn requests_behind_an_atomic_complete_after_it() {
    let (mut a, mut b) = (End::new(0, 1), End::new(1, 0));
    b.post_receive(1, 100, 100);
    a.post(atomic(&a, 1, ONE, b.stag, 0).with_flags(0));
    a.post(SendWr::new(2, WrOpcode::Send));
    let (first, second) = (a.next_segment().unwrap(), a.next_segment().unwrap());
    a.acked_all();
    assert!(a.sent().is_empty(), "the Send waits for the atomic");
    b.receive(&first).unwrap();
    b.receive(&second).unwrap();
    let response = b.next_segment().unwrap();
    a.receive(&response).unwrap();
    assert_eq!(a.sent_ids(), [(2, WcStatus::Success)]);
}

/// Peers of several engines, each on a thread of its own, and the application itself.
#[test]
fn no_addition_is_lost_among_streams_and_the_processor() {
    // rfc: 7306-3, 7306-38, 7306-40
    const STREAMS: usize = 3;
    const ROUNDS: u64 = 4_000;
    /// Requests in one TCP segment.
    const TOGETHER: u64 = 8;
    let counter = Arc::new(Region::allocate_unlocked(4096, HugePages::None).unwrap());
    // A lower field wraps again and again, and what is carried out of it must not reach the upper
    // one.
    let fields = AtomicOperation::FetchAdd {
        add: 1 << 63 | 1 << 32 | 0x4000_0001,
        mask: 1 << 31,
    };
    let engine = || {
        let mut end = End::new(TOGETHER as u16, 0);
        let (range, base) = (0..counter.len(), TaggedOffset(BASE));
        let stag = end
            .table()
            .register(counter.clone(), range, base, all_rights(), PD)
            .unwrap();
        for round in 0..ROUNDS / TOGETHER {
            let requests: Vec<_> = (1..=TOGETHER)
                .map(|at| request((round * TOGETHER + at) as u32, fields, stag, BASE + 64))
                .flat_map(|ulpdu| fpdu(&ulpdu, true))
                .collect();
            end.receive_octets(&requests).unwrap();
            assert_eq!(end.segments().len(), TOGETHER as usize);
            end.acked_all();
        }
    };
    let mut own = 0;
    std::thread::scope(|scope| {
        let engines: Vec<_> = (0..STREAMS).map(|_| scope.spawn(engine)).collect();
        let value = counter.atomic(64).unwrap();
        while !engines.iter().all(|engine| engine.is_finished()) {
            value.fetch_add(1 << 32, Ordering::Relaxed);
            own += 1;
        }
    });
    let peers = STREAMS as u64 * ROUNDS;
    let upper = own + peers + (peers << 31);
    let lower = peers.wrapping_mul(0x4000_0001) & 0xffff_ffff;
    let sum = counter.atomic(64).unwrap().load(Ordering::Relaxed);
    assert_eq!(sum, upper << 32 | lower);
}
