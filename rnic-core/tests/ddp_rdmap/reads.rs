//! Reads, their responses, and how many there may be.

use rnic_core::memory::table::Access;
use rnic_core::rdmap::RdmapError;
use rnic_core::verbs::wr::send_flags::{FENCE, SIGNALED};
use rnic_core::verbs::{SendWr, Sge, WcOpcode, WcStatus, WrOpcode};
use rnic_core::wire::ddp::Stag;
use rnic_core::wire::rdmap::Opcode;

use crate::fixture::{BASE, End, PD, all_rights, pattern, tagged};
use crate::requester::{read, response, send};

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn a_read_completes_with_the_last_octet_of_its_response() {
    // rfc: 5040-48, 5040-77, 5040-79
    let mut end = End::with_markers(0, 1);
    end.post(read(&end, 1, 0, 1200));
    assert_eq!(end.segments().len(), 1);
    let octets = pattern(1, 1200);
    let first = response(&end, false, 0, &octets[..600]);
    let second = response(&end, true, 600, &octets[600..]);
    let mut early = end.lay_out(1, &[first, second]);
    early.place(&mut end, 1);
    assert_eq!(end.memory(0, 1200), [&[0; 600], &octets[600..]].concat());
    assert!(end.sent().is_empty());
    early.deliver(&mut end).unwrap();
    let done = end.sent();
    assert_eq!((done[0].wr_id, done[0].byte_len), (1, 1200));
    assert_eq!(done[0].opcode(), Ok(WcOpcode::Read));
    assert_eq!(end.memory(0, 1200), octets);
}

#[test]
fn a_read_of_nothing_completes_whatever_its_response_names() {
    // rfc: 5041-58
    let mut end = End::new(0, 1);
    end.post(SendWr::new(1, WrOpcode::Read));
    assert_eq!(end.segments().len(), 1);
    let ulpdu = tagged(Opcode::ReadResponse, true, Stag(0x1234), u64::MAX, b"");
    end.receive(&ulpdu).unwrap();
    assert_eq!(end.sent_ids(), [(1, WcStatus::Success)]);
}

#[test]
fn read_responses_go_where_a_read_wants_them() {
    let refused = |end: &mut End, ulpdu: &[u8]| end.receive(ulpdu).unwrap_err().numbers;
    let end_with_reads = || {
        let mut end = End::new(0, 4);
        end.post(read(&end, 1, 100, 10));
        end.post(read(&end, 2, 200, 10));
        assert_eq!(end.segments().len(), 2);
        end
    };
    let mut end = End::new(0, 4);
    let ulpdu = response(&end, true, 0, b"unasked");
    assert_eq!(refused(&mut end, &ulpdu), (0, 2, 6));
    assert_eq!(end.memory(0, 1), [0]);

    let mut end = end_with_reads();
    let other = end.register(0, 1000, all_rights(), PD);
    let ulpdu = tagged(Opcode::ReadResponse, true, other, BASE + 100, &[1; 10]);
    assert_eq!(refused(&mut end, &ulpdu), (1, 1, 0));

    assert_eq!(end.memory(100, 10), [0; 10]);

    // Before, behind and past the sink: nothing is placed.
    for (start, len) in [(99, 1), (110, 1), (105, 6), (100, 11), (0, 1)] {
        let mut end = end_with_reads();
        let ulpdu = response(&end, true, start, &vec![1; len]);
        assert_eq!(refused(&mut end, &ulpdu), (1, 1, 1), "{start} {len}");
        assert_eq!(end.memory(0, 300), [0; 300]);
    }
    // In a sink, but not where the response stands; too short; of the wrong Read.
    for (last, start, len) in [
        (false, 101, 1),
        (true, 100, 9),
        (true, 200, 10),
        (true, 100, 0),
    ] {
        let mut end = end_with_reads();
        let ulpdu = response(&end, last, start, &vec![1; len]);
        assert_eq!(refused(&mut end, &ulpdu), (1, 1, 1), "{start} {len}");
        let flushed = [(1, WcStatus::WrFlushed), (2, WcStatus::WrFlushed)];
        assert_eq!(end.sent_ids(), flushed);
    }
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn responses_come_in_the_order_of_the_reads() {
    // rfc: 5040-70
    let mut end = End::with_markers(0, 4);
    let sinks = [0, 1].map(|_| end.register(0, 600, Access::LOCAL_WRITE, PD));
    for sink in sinks {
        let sge = Sge {
            offset: BASE,
            length: 600,
            lkey: sink.0,
        };
        let wr = SendWr::new(1, WrOpcode::Read).with_sges(&[sge]).unwrap();
        end.post(wr);
    }
    assert_eq!(end.segments().len(), 2);
    // An outstanding Read wants it, so that it may be placed early, but it is not the first's.
    let second = tagged(Opcode::ReadResponse, true, sinks[1], BASE, &[1; 600]);
    let mut early = end.lay_out(0, &[second]);
    early.place(&mut end, 0);
    assert_eq!(end.memory(0, 600), [1; 600]);
    let error = early.deliver(&mut end).unwrap_err();
    error.assert_is(RdmapError::SinkStag(sinks[1]));
    let flushed = (1, WcStatus::WrFlushed);
    assert_eq!(end.sent_ids(), [flushed, flushed]);
}

#[test]
fn a_response_that_fits_a_later_read_only_is_refused() {
    for last in [false, true] {
        let mut end = End::new(0, 4);
        end.post(read(&end, 1, 100, 10));
        end.post(read(&end, 2, 100, 20));
        assert_eq!(end.segments().len(), 2);
        let long = response(&end, last, 100, &[1; 20]);
        let error = end.receive(&long).unwrap_err();
        assert_eq!(error.numbers, (1, 1, 1));
    }
}

#[test]
fn a_response_to_a_read_that_was_answered_is_refused() {
    let mut end = End::new(0, 4);
    end.post(read(&end, 1, 100, 10));
    assert_eq!(end.segments().len(), 1);
    let ulpdu = response(&end, true, 100, &[1; 10]);
    end.receive(&ulpdu).unwrap();
    assert_eq!(end.receive(&ulpdu).unwrap_err().numbers, (0, 2, 6));
    assert_eq!(end.sent_ids(), [(1, WcStatus::Success)]);
}

#[test]
fn the_sink_of_a_read_needs_no_remote_right_and_grants_none() {
    let reading = || {
        let mut end = End::new(0, 4);
        let sink = end.register(0, 100, Access::LOCAL_WRITE, PD);
        let sge = Sge {
            offset: BASE,
            length: 10,
            lkey: sink.0,
        };
        end.post(SendWr::new(1, WrOpcode::Read).with_sges(&[sge]).unwrap());
        assert_eq!(end.segments().len(), 1);
        (end, sink)
    };
    let (mut end, sink) = reading();
    let ulpdu = tagged(Opcode::Write, true, sink, BASE, &[1; 10]);
    assert_eq!(end.receive(&ulpdu).unwrap_err().numbers, (1, 1, 0));
    assert_eq!(end.memory(0, 10), [0; 10]);
    let (mut end, sink) = reading();
    let ulpdu = tagged(Opcode::ReadResponse, true, sink, BASE, &[1; 10]);
    end.receive(&ulpdu).unwrap();
    assert_eq!(end.sent_ids(), [(1, WcStatus::Success)]);
}

#[test]
fn no_more_reads_are_outstanding_than_agreed_on() {
    // rfc: 5040-82, 5040-83
    let mut end = End::new(0, 2);
    for wr_id in 0..5 {
        end.post(read(&end, wr_id, wr_id as usize * 10, 10));
    }
    end.post(send(9));
    // The third Read waits, and all behind it.
    assert_eq!(end.segments().len(), 2);
    end.acked_all();
    assert_eq!(end.segments().len(), 0);
    let ulpdu = response(&end, true, 0, &[1; 10]);
    end.receive(&ulpdu).unwrap();
    assert_eq!(end.segments().len(), 1);
    for i in 1..5 {
        let ulpdu = response(&end, true, i * 10, &[1; 10]);
        end.receive(&ulpdu).unwrap();
        end.segments();
    }
    end.acked_all();
    let order: Vec<_> = end.sent_ids().iter().map(|(wr_id, _)| *wr_id).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 9]);
}

#[test]
fn a_read_fails_where_none_are_allowed() {
    let mut end = End::new(4, 0);
    end.post(read(&end, 1, 0, 10));
    end.post(send(2));
    let refused = end.refused().unwrap();
    let (wr_id, status) = (1, WcStatus::LocalQpOperationError);
    refused.assert_is(RdmapError::Request { wr_id, status });
    assert_eq!(end.segments().len(), 1, "the Terminate");
    let ended = [(1, status), (2, WcStatus::WrFlushed)];
    assert_eq!(end.sent_ids(), ended);
}

#[test]
fn a_fence_waits_for_earlier_reads() {
    let mut end = End::new(0, 4);
    end.post(read(&end, 1, 0, 10));
    end.post(read(&end, 2, 10, 10));
    end.post(send(3).with_flags(FENCE | SIGNALED));
    assert_eq!(end.segments().len(), 2);
    let ulpdu = response(&end, true, 0, &[1; 10]);
    end.receive(&ulpdu).unwrap();
    assert_eq!(end.segments().len(), 0);
    let ulpdu = response(&end, true, 10, &[1; 10]);
    end.receive(&ulpdu).unwrap();
    assert_eq!(end.segments().len(), 1);
    // With no Reads outstanding it holds nothing up.
    end.post(send(4).with_flags(FENCE));
    assert_eq!(end.segments().len(), 1);
}
