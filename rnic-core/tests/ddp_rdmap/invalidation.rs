//! Fast registrations, and the end of what an STag means: by a request, by the peer, by the owner.

use rnic_core::ddp::DdpError;
use rnic_core::memory::place::TagError;
use rnic_core::memory::table::{Access, BindError, Scope, TableError};
use rnic_core::rdmap::RdmapError;
use rnic_core::verbs::wr::{completion_flags, send_flags};
use rnic_core::verbs::{Binding, SendWr, Sge, StreamId, WcOpcode, WcStatus};
use rnic_core::wire::ddp::{DdpSegment, QueueNumber, Stag};
use rnic_core::wire::rdmap::Opcode;

use crate::fixture::{
    BASE, End, MEMORY, OTHER_PD, PD, Refused, STREAM, all_rights, tagged, ulp, untagged,
};
use crate::requester::{read, send};
use crate::windows::{bind, binding, bound, failure, fast_register, read_request, window, write};

fn send_invalidate(msn: u32, opcode: Opcode, stag: Stag) -> Vec<u8> {
    let mut ulpdu = untagged(opcode, true, QueueNumber::SEND, msn, 0, b"");
    ulpdu[2..6].copy_from_slice(&stag.0.to_be_bytes());
    ulpdu
}

/// The opcode of a segment that goes out.
fn opcode(ulpdu: &[u8]) -> u8 {
    DdpSegment::parse(ulpdu).unwrap().header.ulp()
}

/// The sink of a Read may be taken away when the Read is done: that is what the fence is for.
#[test]
fn a_fence_waits_for_reads_that_are_outstanding() {
    let mut end = End::new(0, 4);
    let sink = end.register(0, 100, all_rights(), Scope::Stream(PD, STREAM));
    let piece = Sge {
        offset: BASE,
        length: 4,
        lkey: sink.0,
    };
    let mut wr = read(&end, 1, 0, 4);
    wr = wr.with_sges(&[piece]).unwrap();
    end.post(wr);
    let flags = send_flags::SIGNALED | send_flags::FENCE;
    end.post(SendWr::invalidate(2, sink).with_flags(flags));
    end.messages();
    assert!(end.table.is_valid(sink));
    end.receive(&tagged(Opcode::ReadResponse, true, sink, BASE, b"data"))
        .unwrap();
    end.messages();
    assert!(!end.table.is_valid(sink));
    let all = [(1, WcStatus::Success), (2, WcStatus::Success)];
    assert_eq!(end.sent_ids(), all);

    // Without it, the response finds nothing to go to.
    let mut end = End::new(0, 4);
    let sink = end.register(0, 100, all_rights(), Scope::Stream(PD, STREAM));
    end.post(
        read(&end, 1, 0, 4)
            .with_sges(&[Sge {
                lkey: sink.0,
                ..piece
            }])
            .unwrap(),
    );
    end.post(SendWr::invalidate(2, sink));
    end.messages();
    let refused = end.receive(&tagged(Opcode::ReadResponse, true, sink, BASE, b"data"));
    let gone = Refused::Ddp(DdpError::Tagged(TagError::InvalidStag(sink)));
    assert_eq!(refused, Err(gone));
    assert_eq!(end.memory(0, 4), [0; 4]);
}

#[test]
fn what_cannot_be_registered_or_invalidated_fails_the_request_too() {
    let fast = |end: &End, pd| end.table.allocate_fast(end.region.clone(), pd).unwrap();
    let register = |stag: Stag, start: u64, length: u64, access: u8| {
        let all = Binding {
            stag: stag.0,
            start,
            length,
            access,
            ..Binding::default()
        };
        fast_register(7, &all)
    };
    let size = MEMORY as u64;
    let mut end = End::new(4, 4);
    let stag = window(&end);
    assert_eq!(
        failure(&mut end, register(stag, 0, 10, 1)),
        BindError::NotFast(stag)
    );
    let mut end = End::new(4, 4);
    let stag = fast(&end, OTHER_PD);
    assert_eq!(
        failure(&mut end, register(stag, 0, 10, 1)),
        BindError::NotFast(stag)
    );
    for (start, length) in [(size - 5, 6), (size, 1), (u64::MAX, 1)] {
        let mut end = End::new(4, 4);
        let stag = fast(&end, PD);
        let outside = BindError::Range { start, length };
        assert_eq!(failure(&mut end, register(stag, start, length, 1)), outside);
    }
    let mut end = End::new(4, 4);
    let stag = fast(&end, PD);
    assert_eq!(
        failure(&mut end, register(stag, 0, 10, 0x40)),
        BindError::Rights(0x40)
    );

    // What is no stream's own is ended by its owner alone; what is not valid is not invalidated.
    let mut end = End::new(4, 4);
    let shared = end.stag;
    let theirs = TagError::NotInvalidatable(shared);
    assert_eq!(
        failure(&mut end, SendWr::invalidate(7, shared)),
        theirs.into()
    );
    let mut end = End::new(4, 4);
    let nothing = TagError::InvalidStag(Stag(0));
    assert_eq!(
        failure(&mut end, SendWr::invalidate(7, Stag(0))),
        nothing.into()
    );
    let mut end = End::new(4, 4);
    let (window, _) = bound(&mut end, Access::REMOTE_READ);
    let stale = window.with_key(window.key() ^ 1);
    let unknown = TagError::InvalidStag(stale);
    assert_eq!(
        failure(&mut end, SendWr::invalidate(7, stale)),
        unknown.into()
    );
    assert!(end.table.is_valid(window));
}

/// Registered, used from both sides, invalidated, registered elsewhere under another key.
// rfc: 5040-108, 5040-109, 5040-110, 5041-80, 5041-81, 5041-91, 5042-11
#[test]
fn a_fast_registration_serves_both_sides_until_it_is_invalidated() {
    let mut end = End::new(4, 4);
    let first = end.table.allocate_fast(end.region.clone(), PD).unwrap();
    let meaning = |stag: Stag, start| Binding {
        stag: stag.0,
        start,
        length: 100,
        base: 0x5000,
        access: (Access::LOCAL_WRITE | Access::REMOTE_WRITE).0,
        ..Binding::default()
    };
    assert!(!end.table.is_valid(first), "nothing is behind it yet");
    end.post(fast_register(1, &meaning(first, 0)));
    let local = Sge {
        offset: 0x5000,
        length: 5,
        lkey: first.0,
    };
    end.post(send(2).with_sges(&[local]).unwrap());
    let message = end.next_message().unwrap().unwrap();
    end.fill(0, b"local");
    assert_eq!(end.octets(&message), b"local");
    end.rdmap.sent(message.token, 50);
    end.acked(50);
    assert_eq!(end.sent()[0].opcode(), Ok(WcOpcode::FastRegister));
    end.receive(&write(first, 0x5000 + 95, b"write")).unwrap();
    assert_eq!(end.memory(95, 5), b"write");

    let second = end.table.new_key(first);
    assert_eq!(
        (second.index(), second.key() == first.key()),
        (first.index(), false)
    );
    end.post(SendWr::invalidate(3, first));
    end.post(fast_register(4, &meaning(second, 1000)));
    assert_eq!(end.next_message(), Ok(None));
    end.receive(&write(second, 0x5000, b"there")).unwrap();
    assert_eq!(end.memory(1000, 5), b"there");
    let stale = end.receive(&write(first, 0x5000, b"stale"));
    let gone = Refused::Ddp(DdpError::Tagged(TagError::InvalidStag(first)));
    assert_eq!(stale, Err(gone));
    assert_eq!(end.memory(0, 5), b"local");
}

// rfc: 5040-60b, 5040-93, 5040-94
#[test]
fn a_peer_invalidates_the_windows_and_fast_registrations_of_its_stream() {
    for opcode in [Opcode::SendInvalidate, Opcode::SendSolicitedInvalidate] {
        let mut end = End::new(4, 4);
        let (window, region) = bound(&mut end, Access::REMOTE_WRITE);
        let fast = end.table.allocate_fast(end.region.clone(), PD).unwrap();
        let all = Binding {
            stag: fast.0,
            length: 10,
            access: 4,
            ..Binding::default()
        };
        end.post(fast_register(2, &all));
        assert_eq!(end.next_message(), Ok(None));
        let bound = TableError::WindowsBound {
            stag: region,
            windows: 1,
        };
        assert_eq!(end.table.revoke(region), Err(bound));
        for (msn, stag) in [(1, window), (2, fast)] {
            end.post_receive(u64::from(msn), 5000, 10);
            end.receive(&send_invalidate(msn, opcode, stag)).unwrap();
            let done = end.received()[0];
            assert_eq!(done.invalidated_stag, stag.0);
            assert!(done.flags & completion_flags::WITH_INVALIDATE != 0);
            let solicited = done.flags & completion_flags::SOLICITED != 0;
            assert_eq!(solicited, opcode == Opcode::SendSolicitedInvalidate);
            assert!(!end.table.is_valid(stag));
        }
        assert_eq!(
            end.table.revoke(region),
            Ok(()),
            "no window is bound to it any more"
        );
        assert!(end.receive(&write(window, 0, b"x")).is_err());
        assert_eq!(end.memory(0, 1000), [0; 1000]);
    }
}

// rfc: 5040-60a, 5040-60c, 5040-93, 5040-94, 5040-111
#[test]
fn a_peer_that_invalidates_what_it_must_not_is_told_so() {
    type Case = fn(&mut End) -> (Stag, TagError);
    let cases: [Case; 4] = [
        |end| {
            // Twice.
            let (window, _) = bound(end, Access::REMOTE_WRITE);
            end.worker
                .enter()
                .invalidate(window, end.qp.origin())
                .unwrap();
            (window, TagError::InvalidStag(window))
        },
        |end| {
            let never = window(end);
            (never, TagError::InvalidStag(never))
        },
        |end| {
            // The region of the window, which every stream may use.
            let (_, region) = bound(end, Access::REMOTE_WRITE);
            (region, TagError::NotInvalidatable(region))
        },
        |end| {
            // A region of this stream, while a window is bound to it.
            let rights = all_rights() | Access::MW_BIND;
            let own = end.register(0, 100, rights, Scope::Stream(PD, STREAM));
            let onto = binding(window(end), own, 0, 10, Access::REMOTE_READ);
            end.post(bind(1, &onto));
            assert_eq!(end.next_message(), Ok(None));
            (own, TagError::WindowsBound(own))
        },
    ];
    for case in cases {
        let mut end = End::new(4, 4);
        let (stag, error) = case(&mut end);
        let was_valid = end.table.is_valid(stag);
        end.post_receive(1, 5000, 10);
        let refused = end.receive(&send_invalidate(1, Opcode::SendInvalidate, stag));
        let expected = RdmapError::CannotInvalidate(error);
        assert_eq!(refused, Err(Refused::Rdmap(expected)));
        let control = expected.control();
        assert_eq!((control.layer, control.error_type, control.code), (0, 1, 9));
        assert_eq!(end.table.is_valid(stag), was_valid);
        assert!(end.received().is_empty(), "the Send is not told");
    }
}

/// The first segments of a Write were placed, and then the memory is taken away.
// rfc: 5040-110, 5041-91, 5042-11
#[test]
fn a_write_is_stopped_in_the_middle_by_an_invalidation() {
    let mut end = End::new(4, 4);
    let (window, _) = bound(&mut end, Access::REMOTE_WRITE);
    end.receive(&tagged(Opcode::Write, false, window, 0, b"begun"))
        .unwrap();
    end.post(SendWr::invalidate(2, window));
    assert_eq!(end.next_message(), Ok(None));
    assert_eq!(end.sent_ids(), [(2, WcStatus::Success)]);
    // It is the application's alone now.
    let refused = end.receive(&tagged(Opcode::Write, true, window, 5, b"never"));
    let gone = Refused::Ddp(DdpError::Tagged(TagError::InvalidStag(window)));
    assert_eq!(refused, Err(gone));
    assert_eq!(end.memory(100, 10), b"begun\0\0\0\0\0");
}

/// A Read Response is under way, and the window that it comes from is taken away.
// rfc: 5040-110
#[test]
fn a_read_is_stopped_in_the_middle_by_an_invalidation() {
    for by_the_peer in [false, true] {
        let mut end = End::new(4, 4);
        let (window, _) = bound(&mut end, Access::REMOTE_READ);
        end.receive(&read_request(1, window, 0, 150)).unwrap();
        let first = end.next_segment(60).unwrap();
        assert_eq!(opcode(&first), ulp(Opcode::ReadResponse));
        if by_the_peer {
            end.post_receive(1, 5000, 10);
            end.receive(&send_invalidate(1, Opcode::SendInvalidate, window))
                .unwrap();
        } else {
            // Requests wait for the message that is being sent; the owner does not.
            end.worker
                .enter()
                .invalidate(window, end.qp.origin())
                .unwrap();
        }
        let next = end.next_segment(60).unwrap();
        assert_eq!(opcode(&next), ulp(Opcode::Terminate));
        let error = TagError::InvalidStag(window);
        assert!(
            matches!(end.refused, Some(Refused::Rdmap(RdmapError::ReadSource { error: why, .. }))
                if why == error)
        );
        assert_eq!(end.next_segment(60), None);
    }
}

/// The end of the stream: what was posted is flushed, and what was bound is its owner's to recall.
#[test]
fn what_outlives_its_stream_is_recalled_by_its_owner() {
    let mut end = End::new(4, 4);
    let (window, region) = bound(&mut end, Access::REMOTE_WRITE);
    end.rdmap.finish(&end.qp);
    end.post(SendWr::invalidate(2, window));
    assert_eq!(end.next_message(), Ok(None));
    end.flush();
    assert_eq!(end.sent_ids(), [(2, WcStatus::WrFlushed)]);
    assert_eq!(end.table.live(window), Some(window));
    end.table.recall(window).unwrap();
    assert_eq!(end.table.live(window), None);
    let guard = end.worker.enter();
    let stream = StreamId(STREAM.0 + 1);
    let again = end.table.new_key(window);
    let onto = binding(again, region, 0, 10, Access::REMOTE_READ);
    guard.bind_window(&onto, PD, stream).unwrap();
    assert_eq!(end.table.live(window), Some(again));
}

#[test]
fn a_read_response_into_a_fast_registration_arrives() {
    let mut end = End::new(0, 4);
    let fast = end.table.allocate_fast(end.region.clone(), PD).unwrap();
    let access = Access::LOCAL_WRITE.0;
    let all = Binding {
        stag: fast.0,
        start: 10,
        length: 10,
        access,
        ..Binding::default()
    };
    end.post(fast_register(1, &all));
    let sink = Sge {
        offset: 0,
        length: 4,
        lkey: fast.0,
    };
    end.post(read(&end, 2, 0, 4).with_sges(&[sink]).unwrap());
    end.messages();
    end.receive(&tagged(Opcode::ReadResponse, true, fast, 0, b"sunk"))
        .unwrap();
    assert_eq!(end.memory(10, 4), b"sunk");
    assert_eq!(
        end.sent_ids(),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
}
