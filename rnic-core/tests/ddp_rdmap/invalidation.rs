//! Fast registrations, and the end of what an STag means: by a request, by the peer, by the owner.

use rnic_core::connection::ConnectionOptions;
use rnic_core::ddp::DdpError;
use rnic_core::memory::{
    binding::Binding,
    error::TagError,
    table::{Access, BindError, Scope, TableError},
};
use rnic_core::rdmap::RdmapError;
use rnic_core::verbs::{
    SendWr, Sge, WcOpcode, WcStatus,
    wr::{completion_flags, send_flags},
};
use rnic_core::wire::ddp::{QueueNumber, Stag};
use rnic_core::wire::rdmap::Opcode;

use crate::common;
use crate::fixture::{
    BASE, End, MEMORY, OTHER_PD, PD, STREAM, Settings, all_rights, header, payload, tagged, ulp,
    untagged,
};
use crate::requester::{read, send};
use crate::windows::{
    assert_fails, bind, binding, bound, fast_register, read_request, window, write,
};

fn send_invalidate(msn: u32, opcode: Opcode, stag: Stag) -> Vec<u8> {
    let mut ulpdu = untagged(opcode, true, QueueNumber::SEND, msn, 0, b"");
    ulpdu[2..6].copy_from_slice(&stag.0.to_be_bytes());
    ulpdu
}

/// The opcode of a segment that goes out.
fn opcode(ulpdu: &[u8]) -> u8 {
    header(ulpdu).ulp()
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
    end.segments();
    assert!(end.table().is_valid(sink));
    end.receive(&tagged(Opcode::ReadResponse, true, sink, BASE, b"data"))
        .unwrap();
    end.segments();
    assert!(!end.table().is_valid(sink));
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
    end.segments();
    let refused = end.receive(&tagged(Opcode::ReadResponse, true, sink, BASE, b"data"));
    let gone = DdpError::Tagged(TagError::InvalidStag(sink));
    refused.unwrap_err().assert_is(gone);
    assert_eq!(end.memory(0, 4), [0; 4]);
}

#[test]
fn what_cannot_be_registered_or_invalidated_fails_the_request_too() {
    let fast = |end: &End, pd| end.table().allocate_fast(end.region.clone(), pd).unwrap();
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
    assert_fails(&mut end, register(stag, 0, 10, 1), BindError::NotFast(stag));
    let mut end = End::new(4, 4);
    let stag = fast(&end, OTHER_PD);
    assert_fails(&mut end, register(stag, 0, 10, 1), BindError::NotFast(stag));
    for (start, length) in [(size - 5, 6), (size, 1), (u64::MAX, 1)] {
        let mut end = End::new(4, 4);
        let stag = fast(&end, PD);
        let outside = BindError::Range { start, length };
        assert_fails(&mut end, register(stag, start, length, 1), outside);
    }
    let mut end = End::new(4, 4);
    let stag = fast(&end, PD);
    assert_fails(
        &mut end,
        register(stag, 0, 10, 0x40),
        BindError::Rights(0x40),
    );

    // What is no stream's own is ended by its owner alone; what is not valid is not invalidated.
    let mut end = End::new(4, 4);
    let shared = end.stag;
    let theirs = TagError::NotInvalidatable(shared);
    assert_fails(&mut end, SendWr::invalidate(7, shared), theirs);
    let mut end = End::new(4, 4);
    let nothing = TagError::InvalidStag(Stag(0));
    assert_fails(&mut end, SendWr::invalidate(7, Stag(0)), nothing);
    let mut end = End::new(4, 4);
    let (window, _) = bound(&mut end, Access::REMOTE_READ);
    let stale = window.with_key(window.key() ^ 1);
    let unknown = TagError::InvalidStag(stale);
    assert_fails(&mut end, SendWr::invalidate(7, stale), unknown);
    assert!(end.table().is_valid(window));
}

/// Registered, used from both sides, invalidated, registered elsewhere under another key.
// rfc: 5040-108, 5040-109, 5040-110, 5041-80, 5041-81, 5041-91, 5042-11
#[test]
fn a_fast_registration_serves_both_sides_until_it_is_invalidated() {
    let mut end = End::new(4, 4);
    let first = end.table().allocate_fast(end.region.clone(), PD).unwrap();
    let meaning = |stag: Stag, start| Binding {
        stag: stag.0,
        start,
        length: 100,
        base: 0x5000,
        access: (Access::LOCAL_WRITE | Access::REMOTE_WRITE).0,
        ..Binding::default()
    };
    assert!(!end.table().is_valid(first), "nothing is behind it yet");
    end.post(fast_register(1, &meaning(first, 0)));
    let local = Sge {
        offset: 0x5000,
        length: 5,
        lkey: first.0,
    };
    end.post(send(2).with_sges(&[local]).unwrap());
    end.fill(0, b"local");
    assert_eq!(payload(&end.next_segment().unwrap()), b"local");
    end.acked_all();
    assert_eq!(end.sent()[0].opcode(), Ok(WcOpcode::FastRegister));
    end.receive(&write(first, 0x5000 + 95, b"write")).unwrap();
    assert_eq!(end.memory(95, 5), b"write");

    let second = end.table().new_key(first);
    assert_eq!(
        (second.index(), second.key() == first.key()),
        (first.index(), false)
    );
    end.post(SendWr::invalidate(3, first));
    end.post(fast_register(4, &meaning(second, 1000)));
    assert_eq!(end.next_segment(), None);
    end.receive(&write(second, 0x5000, b"there")).unwrap();
    assert_eq!(end.memory(1000, 5), b"there");
    let stale = end.receive(&write(first, 0x5000, b"stale")).unwrap_err();
    stale.assert_is(DdpError::Tagged(TagError::InvalidStag(first)));
    assert_eq!(end.memory(0, 5), b"local");
}

// rfc: 5040-60b, 5040-93, 5040-94
#[test]
fn a_peer_invalidates_the_windows_and_fast_registrations_of_its_stream() {
    for opcode in [Opcode::SendInvalidate, Opcode::SendSolicitedInvalidate] {
        let mut end = End::new(4, 4);
        let (window, region) = bound(&mut end, Access::REMOTE_WRITE);
        let fast = end.table().allocate_fast(end.region.clone(), PD).unwrap();
        let all = Binding {
            stag: fast.0,
            length: 10,
            access: 4,
            ..Binding::default()
        };
        end.post(fast_register(2, &all));
        assert_eq!(end.next_segment(), None);
        let bound = TableError::WindowsBound {
            stag: region,
            windows: 1,
        };
        assert_eq!(end.table().revoke(region), Err(bound));
        for (msn, stag) in [(1, window), (2, fast)] {
            end.post_receive(u64::from(msn), 5000, 10);
            end.receive(&send_invalidate(msn, opcode, stag)).unwrap();
            let done = end.received()[0];
            assert_eq!(done.invalidated_stag, stag.0);
            assert!(done.flags & completion_flags::WITH_INVALIDATE != 0);
            let solicited = done.flags & completion_flags::SOLICITED != 0;
            assert_eq!(solicited, opcode == Opcode::SendSolicitedInvalidate);
            assert!(!end.table().is_valid(stag));
        }
        assert_eq!(
            end.table().revoke(region),
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
            end.post(SendWr::invalidate(2, window));
            assert_eq!(end.sent_ids(), [(2, WcStatus::Success)]);
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
            assert_eq!(end.next_segment(), None);
            (own, TagError::WindowsBound(own))
        },
    ];
    for case in cases {
        let mut end = End::new(4, 4);
        let (stag, error) = case(&mut end);
        let was_valid = end.table().is_valid(stag);
        end.post_receive(1, 5000, 10);
        let refused = end.receive(&send_invalidate(1, Opcode::SendInvalidate, stag));
        let refused = refused.unwrap_err();
        refused.assert_is(RdmapError::CannotInvalidate(error));
        assert_eq!(refused.numbers, (0, 1, 9));
        assert_eq!(end.table().is_valid(stag), was_valid);
        let status = WcStatus::RemoteInvalidRequestError;
        assert_eq!(end.received_ids(), [(1, status)], "the Send is not told");
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
    assert_eq!(end.next_segment(), None);
    assert_eq!(end.sent_ids(), [(2, WcStatus::Success)]);
    // It is the application's alone now.
    let refused = end.receive(&tagged(Opcode::Write, true, window, 5, b"never"));
    let gone = DdpError::Tagged(TagError::InvalidStag(window));
    refused.unwrap_err().assert_is(gone);
    assert_eq!(end.memory(100, 10), b"begun\0\0\0\0\0");
}

/// A Read Response is under way, and the window that it comes from is taken away.
// rfc: 5040-110
#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn a_read_is_stopped_in_the_middle_by_an_invalidation() {
    for by_the_peer in [false, true] {
        let mut end = Settings::new(4, 4).small().connect();
        let (region, window) = (
            end.register(0, 8000, all_rights() | Access::MW_BIND, PD),
            window(&end),
        );
        let whole = binding(window, region, 0, 8000, Access::REMOTE_READ);
        end.post(bind(1, &whole));
        end.receive(&read_request(1, window, 0, 8000)).unwrap();
        let first = end.segments();
        assert!(!first.is_empty());
        for ulpdu in &first {
            assert_eq!(opcode(ulpdu), self::ulp(Opcode::ReadResponse));
        }
        assert!(!header(first.last().unwrap()).last());
        if by_the_peer {
            end.post_receive(1, 50_000, 10);
            end.receive(&send_invalidate(1, Opcode::SendInvalidate, window))
                .unwrap();
        } else {
            // Requests without a message do not wait for the response.
            end.post(SendWr::invalidate(2, window));
            end.work();
        }
        assert!(!end.table().is_valid(window));
        end.acked_all();
        let refused = end.refused().unwrap();
        assert_eq!(refused.numbers, (0, 1, 0));
        assert!(
            refused
                .why
                .contains(&TagError::InvalidStag(window).to_string())
        );
        let [terminate] = &end.segments()[..] else {
            panic!("a Terminate, and nothing else");
        };
        assert_eq!(opcode(terminate), self::ulp(Opcode::Terminate));
    }
}

/// The end of the stream: what was posted is flushed, and what was bound is its owner's to recall.
#[test]
fn a_window_that_outlives_its_stream_is_recalled_by_its_owner() {
    let mut end = End::new(4, 4);
    let (window, region) = bound(&mut end, Access::REMOTE_WRITE);
    assert!(end.closes());
    end.raw().close();
    end.post(SendWr::invalidate(2, window));
    assert_eq!(end.next_segment(), None);
    assert_eq!(end.sent_ids(), [(2, WcStatus::WrFlushed)]);
    assert_eq!(end.table().live(window), Some(window));
    end.table().recall(window).unwrap();
    assert_eq!(end.table().live(window), None);
    // Another stream has it.
    let again = end.table().new_key(window);
    let onto = binding(again, region, 0, 10, Access::REMOTE_READ);
    let options = ConnectionOptions::default();
    let mut other = common::connect_raw(&mut end.sim, &options);
    end.sim.hosts[0].post_send(&mut other.qp, bind(3, &onto));
    end.sim.run_now();
    assert_eq!(other.qp.poll_one().unwrap().status(), WcStatus::Success);
    assert_eq!(end.table().live(window), Some(again));
}

#[test]
fn a_read_response_into_a_fast_registration_arrives() {
    let mut end = End::new(0, 4);
    let fast = end.table().allocate_fast(end.region.clone(), PD).unwrap();
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
    end.segments();
    end.receive(&tagged(Opcode::ReadResponse, true, fast, 0, b"sunk"))
        .unwrap();
    assert_eq!(end.memory(10, 4), b"sunk");
    assert_eq!(
        end.sent_ids(),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
}
