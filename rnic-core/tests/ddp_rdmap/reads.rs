//! Reads, their responses, and how many there may be.

use rnic_core::memory::table::Access;
use rnic_core::rdmap::RdmapError;
use rnic_core::verbs::wr::send_flags::{FENCE, SIGNALED};
use rnic_core::verbs::{SendWr, Sge, WcOpcode, WcStatus, WrOpcode};
use rnic_core::wire::ddp::Stag;
use rnic_core::wire::rdmap::Opcode;

use crate::fixture::{BASE, End, PD, Refused, all_rights, tagged};
use crate::requester::{read, response, send};

#[test]
fn a_read_completes_with_the_last_octet_of_its_response() {
    // rfc: 5040-48, 5040-77, 5040-79
    let mut end = End::new(0, 1);
    end.post(read(&end, 1, 0, 10));
    end.messages();
    let first = response(&end, false, 0, b"01234");
    let second = response(&end, true, 5, b"56789");
    let early = end.place(&second).unwrap();
    assert_eq!(end.memory(0, 10), b"\0\0\0\0\x0056789");
    end.receive(&first).unwrap();
    assert!(end.sent().is_empty());
    end.deliver(early).unwrap();
    let done = end.sent();
    assert_eq!((done[0].wr_id, done[0].byte_len), (1, 10));
    assert_eq!(done[0].opcode(), Ok(WcOpcode::Read));
    assert_eq!(end.memory(0, 10), b"0123456789");
}

#[test]
fn a_read_of_nothing_completes_whatever_its_response_names() {
    // rfc: 5041-58
    let mut end = End::new(0, 1);
    end.post(SendWr::new(1, WrOpcode::Read));
    end.messages();
    let ulpdu = tagged(Opcode::ReadResponse, true, Stag(0x1234), u64::MAX, b"");
    end.receive(&ulpdu).unwrap();
    assert_eq!(end.sent_ids(), [(1, WcStatus::Success)]);
}

#[test]
fn read_responses_go_where_a_read_wants_them() {
    let refused = |end: &mut End, ulpdu: &[u8]| match end.receive(ulpdu) {
        Err(Refused::Rdmap(error)) => {
            let control = error.control();
            (control.layer, control.error_type, control.code)
        }
        other => panic!("{other:?} is not an error of RDMAP"),
    };
    let end_with_reads = || {
        let mut end = End::new(0, 4);
        end.post(read(&end, 1, 100, 10));
        end.post(read(&end, 2, 200, 10));
        end.messages();
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
        assert!(end.sent().is_empty());
    }
}

#[test]
fn responses_come_in_the_order_of_the_reads() {
    // rfc: 5040-70
    let mut end = End::new(0, 4);
    let sinks = [0, 1].map(|_| end.register(0, 100, Access::LOCAL_WRITE, PD));
    for sink in sinks {
        let sge = Sge {
            offset: BASE,
            length: 10,
            lkey: sink.0,
        };
        let wr = SendWr::new(1, WrOpcode::Read).with_sges(&[sge]).unwrap();
        end.post(wr);
    }
    end.messages();
    // An outstanding Read wants it, so that it may be placed early, but it is not the first's.
    let second = tagged(Opcode::ReadResponse, true, sinks[1], BASE, &[1; 10]);
    let early = end.place(&second).unwrap();
    let error = end.deliver(early).unwrap_err();
    assert_eq!(error, Refused::Rdmap(RdmapError::SinkStag(sinks[1])));
    assert!(end.sent().is_empty());
}

#[test]
fn a_response_that_fits_a_later_read_only_is_refused() {
    for last in [false, true] {
        let mut end = End::new(0, 4);
        end.post(read(&end, 1, 100, 10));
        end.post(read(&end, 2, 100, 20));
        end.messages();
        let long = response(&end, last, 100, &[1; 20]);
        let error = end.receive(&long).unwrap_err();
        assert!(matches!(
            error,
            Refused::Rdmap(RdmapError::SinkBounds { .. })
        ));
    }
}

#[test]
fn a_response_to_a_read_that_was_answered_is_refused() {
    let mut end = End::new(0, 4);
    end.post(read(&end, 1, 100, 10));
    end.messages();
    let ulpdu = response(&end, true, 100, &[1; 10]);
    end.receive(&ulpdu).unwrap();
    assert!(matches!(
        end.receive(&ulpdu),
        Err(Refused::Rdmap(RdmapError::UnexpectedOpcode(_)))
    ));
}

#[test]
fn the_sink_of_a_read_needs_no_remote_right_and_grants_none() {
    let mut end = End::new(0, 4);
    let sink = end.register(0, 100, Access::LOCAL_WRITE, PD);
    let sge = Sge {
        offset: BASE,
        length: 10,
        lkey: sink.0,
    };
    end.post(SendWr::new(1, WrOpcode::Read).with_sges(&[sge]).unwrap());
    end.messages();
    let ulpdu = tagged(Opcode::Write, true, sink, BASE, &[1; 10]);
    assert!(matches!(end.place(&ulpdu), Err(Refused::Ddp(_))));
    let ulpdu = tagged(Opcode::ReadResponse, true, sink, BASE, &[1; 10]);
    end.receive(&ulpdu).unwrap();
}

#[test]
fn no_more_reads_are_outstanding_than_agreed_on() {
    // rfc: 5040-82, 5040-83
    let mut end = End::new(0, 2);
    for wr_id in 0..5 {
        end.post(read(&end, wr_id, wr_id as usize * 10, 10));
    }
    end.post(send(9));
    assert_eq!(end.messages().len(), 2);
    assert_eq!(
        end.messages().len(),
        0,
        "the third Read waits, and all behind it"
    );
    let ulpdu = response(&end, true, 0, &[1; 10]);
    end.receive(&ulpdu).unwrap();
    assert_eq!(end.messages().len(), 1);
    for i in 1..5 {
        let ulpdu = response(&end, true, i * 10, &[1; 10]);
        end.receive(&ulpdu).unwrap();
        end.messages();
    }
    end.acked(end.stream);
    let order: Vec<_> = end.sent_ids().iter().map(|(wr_id, _)| *wr_id).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 9]);
}

#[test]
fn a_read_fails_where_none_are_allowed() {
    let mut end = End::new(4, 0);
    end.post(read(&end, 1, 0, 10));
    let error = end.next_message().unwrap_err();
    let status = WcStatus::LocalQpOperationError;
    assert_eq!(error, RdmapError::Request { wr_id: 1, status });
    end.post(send(2));
    assert_eq!(end.next_message(), Ok(None), "nothing begins behind it");
    end.acked(0);
    assert_eq!(end.sent_ids(), [(1, status)]);
}

#[test]
fn a_fence_waits_for_earlier_reads() {
    let mut end = End::new(0, 4);
    end.post(read(&end, 1, 0, 10));
    end.post(read(&end, 2, 10, 10));
    end.post(send(3).with_flags(FENCE | SIGNALED));
    assert_eq!(end.messages().len(), 2);
    let ulpdu = response(&end, true, 0, &[1; 10]);
    end.receive(&ulpdu).unwrap();
    assert_eq!(end.messages().len(), 0);
    let ulpdu = response(&end, true, 10, &[1; 10]);
    end.receive(&ulpdu).unwrap();
    assert_eq!(end.messages().len(), 1);
    // With no Reads outstanding it holds nothing up.
    end.post(send(4).with_flags(FENCE));
    assert_eq!(end.messages().len(), 1);
}
