//! What is refused of atomic operations (RFC 7306 sections 5 and 8), and how it is reported.

use rnic_core::memory::table::Access;
use rnic_core::rdmap::RdmapError;
use rnic_core::verbs::wr::send_flags::{INLINE, SIGNALED};
use rnic_core::verbs::{SendWr, Sge, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{QueueNumber, Stag};
use rnic_core::wire::rdmap::{Opcode, Terminate, TerminateControl};

use crate::atomic::{ONE, atomic, refusal_of, request, response, swap, value};
use crate::fixture::{BASE, End, OTHER_PD, PD, Ulpdu, all_rights, payload, pump, tagged, untagged};
use crate::requester::read;

#[test]
fn a_number_elsewhere_than_at_a_multiple_of_8_is_refused() {
    // rfc: 7306-6, 7306-7, 7306-8, 7306-10, 7306-11, 7306-12, 7306-13, 7306-14, 7306-60, 7306-61
    for operation in [ONE, swap(5, 0)] {
        for at in 1..8 {
            let (mut a, mut b) = (End::new(0, 1), End::new(1, 0));
            a.post(atomic(&a, 0, operation, b.stag, at));
            let ulpdu = a.next_segment().unwrap();
            assert_eq!(refusal_of(&mut b, &ulpdu), (0, 2, 7));
            let terminate = b.next_segment().unwrap();
            assert_eq!(b.memory(0, 24), [0; 24]);
            let terminate = Terminate::parse(payload(&terminate)).unwrap();
            let control = TerminateControl {
                layer: 0,
                error_type: 2,
                code: 7,
            };
            assert_eq!(terminate.control, control);
            // RFC 7306 section 8.1: the DDP header goes along, the RDMA header does not.
            assert_eq!(terminate.ddp_header, Some(&ulpdu[..18]));
            assert_eq!(terminate.ddp_segment_length, Some(18 + 52));
            assert_eq!(terminate.rdma_header, None);
        }
    }
}

#[test]
fn memory_that_the_peer_may_not_change_so_is_refused() {
    // rfc: 7306-54b, 7306-56
    type Case = (fn(&End) -> Stag, u64, (u8, u8, u8));
    let cases: [Case; 6] = [
        (|_| Stag(0x1234_5678), BASE, (0, 1, 0)),
        (|end| end.stag, BASE - 8, (0, 1, 1)),
        (
            |end| end.register(0, 100, all_rights(), PD),
            BASE + 96,
            (0, 1, 1),
        ),
        (|end| end.register(0, 100, Access(7), PD), BASE, (0, 1, 2)),
        (
            |end| end.register(0, 100, all_rights(), OTHER_PD),
            BASE,
            (0, 1, 3),
        ),
        (|end| end.stag, u64::MAX - 7, (0, 1, 4)),
    ];
    for (case, (stag, offset, code)) in cases.iter().enumerate() {
        for operation in [ONE, swap(1, 0)] {
            let mut end = End::new(1, 0);
            let ulpdu = request(1, operation, stag(&end), *offset);
            assert_eq!(refusal_of(&mut end, &ulpdu), *code, "case {case}");
            let terminate = end.next_segment().unwrap();
            let terminate = Terminate::parse(payload(&terminate)).unwrap();
            assert_eq!(terminate.ddp_header, Some(&ulpdu[..18]));
            assert_eq!(terminate.rdma_header, None, "RFC 7306 section 8.1");
            assert_eq!(end.memory(0, 200), [0; 200]);
        }
    }
}

#[test]
fn operations_that_are_not_known_are_refused() {
    // rfc: 7306-24
    for code in (0..16).filter(|code| ![0, 2].contains(code)) {
        let mut end = End::new(1, 0);
        let mut ulpdu = request(1, ONE, end.stag, BASE);
        ulpdu[18 + 3] = code;
        assert_eq!(refusal_of(&mut end, &ulpdu), (0, 2, 6));
        assert_eq!(value(&end, 0), 0);
    }
}

#[test]
fn atomic_messages_of_a_wrong_length_are_refused() {
    // rfc: 7306-54b
    let queue = QueueNumber::READ_REQUEST;
    for len in [0, 28, 51] {
        let mut end = End::new(1, 0);
        let ulpdu = untagged(Opcode::AtomicRequest, true, queue, 1, 0, &vec![0; len]);
        assert_eq!(refusal_of(&mut end, &ulpdu), (0, 2, 0xff));
    }
    let queue = QueueNumber::ATOMIC_RESPONSE;
    for (len, is_rdmaps) in [(0, true), (11, true), (13, false)] {
        let mut end = End::new(0, 1);
        end.post(atomic(&end, 0, ONE, Stag(9), 0));
        end.segments();
        let ulpdu = untagged(Opcode::AtomicResponse, true, queue, 1, 0, &vec![0; len]);
        let numbers = if is_rdmaps { (0, 2, 0xff) } else { (1, 2, 5) };
        assert_eq!(refusal_of(&mut end, &ulpdu), numbers);
        assert_eq!(value(&end, 0), 0);
        assert_eq!(end.sent_ids(), [(0, WcStatus::WrFlushed)]);
    }
}

#[test]
fn opcodes_and_queues_that_do_not_go_together_are_refused() {
    // rfc: 7306-57
    let refused = |ulpdu: &Ulpdu| {
        let mut end = End::new(4, 4);
        end.post_receive(1, 0, 100);
        end.post(atomic(&end, 0, ONE, Stag(9), 0));
        end.segments();
        refusal_of(&mut end, ulpdu)
    };
    let misplaced = [
        (Opcode::AtomicRequest, [0, 2, 3]),
        (Opcode::AtomicResponse, [0, 1, 2]),
    ];
    for (opcode, queues) in misplaced {
        for queue in queues {
            let ulpdu = untagged(opcode, true, QueueNumber(queue), 1, 0, &[0; 12]);
            assert_eq!(refused(&ulpdu), (0, 2, 6), "{opcode:?} in queue {queue}");
        }
        let ulpdu = tagged(opcode, true, Stag(1), BASE, &[0; 12]);
        assert_eq!(refused(&ulpdu), (0, 2, 6), "{opcode:?} to an STag");
    }
    for opcode in [Opcode::Send, Opcode::ReadRequest, Opcode::Terminate] {
        let queue = QueueNumber::ATOMIC_RESPONSE;
        let ulpdu = untagged(opcode, true, queue, 1, 0, &[0; 12]);
        assert_eq!(refused(&ulpdu), (0, 2, 6), "{opcode:?} in queue 3");
    }
}

#[test]
fn responses_are_to_the_oldest_request() {
    // rfc: 7306-54b
    let refused = |requests: &[WrOpcode], ulpdu: &dyn Fn(&End) -> Ulpdu| {
        let mut end = End::new(0, 4);
        for (wr_id, opcode) in requests.iter().enumerate() {
            match opcode {
                WrOpcode::Read => end.post(read(&end, wr_id as u64, 800, 8)),
                _ => end.post(atomic(&end, wr_id as u64, ONE, Stag(9), 0)),
            }
        }
        end.segments();
        let ulpdu = ulpdu(&end);
        let code = refusal_of(&mut end, &ulpdu);
        assert_eq!(end.memory(0, 64), [0; 64]);
        let all = end.sent_ids();
        assert_eq!(all.len(), requests.len());
        assert!(all.iter().all(|(_, status)| *status == WcStatus::WrFlushed));
        code
    };
    use WrOpcode::{FetchAdd, Read};
    let atomic_response = |identifier| move |_: &End| response(1, identifier, 5);
    let read_response = |end: &End| crate::requester::response(end, true, 800, &[1; 8]);
    assert_eq!(refused(&[], &atomic_response(0)), (0, 2, 6));
    assert_eq!(refused(&[Read], &atomic_response(0)), (0, 2, 6));
    assert_eq!(refused(&[Read, FetchAdd], &atomic_response(1)), (0, 2, 6));
    assert_eq!(
        refused(&[FetchAdd, FetchAdd], &atomic_response(1)),
        (0, 2, 0xff)
    );
    assert_eq!(
        refused(&[FetchAdd], &atomic_response(u32::MAX)),
        (0, 2, 0xff)
    );
    assert_eq!(refused(&[FetchAdd], &read_response), (0, 2, 6));
    assert_eq!(refused(&[FetchAdd, Read], &read_response), (0, 2, 6));
}

#[test]
fn requests_that_cannot_be_carried_out_fail_here() {
    // rfc: 7306-54a
    let end = End::new(0, 1);
    let good = atomic(&end, 1, ONE, Stag(9), 0);
    let read_only = end.register(0, 100, Access::LOCAL_READ, PD);
    let (whole, stag) = (end.sge(0, 8), end.stag);
    drop(end);
    let with_sges = |sges: &[Sge]| SendWr {
        opcode: WrOpcode::FetchAdd as u8,
        ..good.with_sges(sges).unwrap()
    };
    use WcStatus::{LocalLengthError, LocalProtectionError, LocalQpOperationError};
    let short = Sge { length: 7, ..whole };
    let long = Sge { length: 9, ..whole };
    let half = Sge { length: 4, ..whole };
    let foreign = Sge {
        lkey: stag.0 ^ 0x100,
        ..whole
    };
    let only_read = Sge {
        lkey: read_only.0,
        ..whole
    };
    let cases = [
        (with_sges(&[]), 1, LocalQpOperationError),
        (with_sges(&[short]), 1, LocalLengthError),
        (with_sges(&[long]), 1, LocalLengthError),
        (with_sges(&[half, half]), 1, LocalQpOperationError),
        (SendWr { length: 9, ..good }, 1, LocalLengthError),
        (good.with_inline(&[0; 8]).unwrap(), 1, LocalQpOperationError),
        (
            SendWr {
                flags: INLINE,
                ..good
            },
            1,
            LocalQpOperationError,
        ),
        (with_sges(&[foreign]), 1, LocalProtectionError),
        (with_sges(&[only_read]), 1, LocalProtectionError),
        (good, 0, LocalQpOperationError),
    ];
    for (case, (wr, ord, status)) in cases.into_iter().enumerate() {
        let mut end = End::new(0, ord);
        assert_eq!(end.register(0, 100, Access::LOCAL_READ, PD), read_only);
        end.post(wr);
        end.post(SendWr::new(2, WrOpcode::Send));
        let refused = end.refused().unwrap();
        refused.assert_is(RdmapError::Request { wr_id: 1, status });
        assert_eq!(refused.numbers, (0, 0, 0));
        let ended = [(1, status), (2, WcStatus::WrFlushed)];
        assert_eq!(end.sent_ids(), ended, "case {case}");
    }
}

#[test]
fn a_refused_atomic_completes_as_the_peer_says() {
    let (mut a, mut b) = (End::new(0, 4), End::new(4, 0));
    let stag = b.register(0, 8, all_rights(), PD);
    a.post(atomic(&a, 1, ONE, stag, 0));
    a.post(atomic(&a, 2, ONE, stag, 8));
    a.post(atomic(&a, 3, ONE, stag, 0));
    pump(&mut a, &mut b);
    let ends = [
        (1, WcStatus::Success),
        (2, WcStatus::RemoteAccessError),
        (3, WcStatus::WrFlushed),
    ];
    assert_eq!(a.sent_ids(), ends);
    assert_eq!(value(&b, 0), 1, "nothing is done behind an error");
}

#[test]
fn a_value_whose_buffer_is_gone_ends_the_stream() {
    let mut end = End::new(0, 1);
    let sink = end.register(0, 8, Access::LOCAL_WRITE, PD);
    let sge = Sge {
        lkey: sink.0,
        ..end.sge(0, 8)
    };
    end.post(SendWr::atomic(1, ONE, sge).with_flags(SIGNALED));
    end.segments();
    end.table().revoke(sink).unwrap();
    let status = WcStatus::LocalProtectionError;
    let error = end.receive(&response(1, 0, 5)).unwrap_err();
    error.assert_is(RdmapError::Request { wr_id: 1, status });
    assert_eq!(end.memory(0, 8), [0; 8]);
    assert_eq!(end.sent_ids(), [(1, status)]);
}
