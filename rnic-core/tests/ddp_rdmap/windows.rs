//! Memory windows: what requests without a message bind, in which order, and what peers reach
//! through it.

use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::ddp::DdpError;
use rnic_core::memory::{
    binding::Binding,
    error::TagError,
    table::{Access, BindError, TableError},
};
use rnic_core::rdmap::RdmapError;
use rnic_core::verbs::{SendWr, Sge, WcOpcode, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{DdpHeader, QueueNumber, Stag, TaggedOffset};
use rnic_core::wire::rdmap::{Opcode, ReadRequest};

use crate::common;
use crate::fixture::{
    BASE, End, OTHER_PD, PD, Settings, Ulpdu, all_rights, header, payload, pump, tagged, untagged,
};
use crate::requester::send;

pub(crate) fn bindable(end: &End, start: usize, len: usize) -> Stag {
    end.register(start, len, all_rights() | Access::MW_BIND, PD)
}

pub(crate) fn window(end: &End) -> Stag {
    end.table().allocate_window(PD).unwrap()
}

/// A binding of `len` octets that begin `start` octets into the memory; zero-based.
pub(crate) fn binding(
    stag: Stag,
    region: Stag,
    start: usize,
    len: usize,
    access: Access,
) -> Binding {
    Binding {
        stag: stag.0,
        region: region.0,
        start: BASE + start as u64,
        length: len as u64,
        base: 0,
        access: access.0,
        ..Binding::default()
    }
}

pub(crate) fn bind(wr_id: u64, binding: &Binding) -> SendWr {
    SendWr::bind(wr_id, WrOpcode::BindWindow, binding)
}

pub(crate) fn fast_register(wr_id: u64, binding: &Binding) -> SendWr {
    SendWr::bind(wr_id, WrOpcode::FastRegister, binding)
}

/// A window over octets 100..300 of the memory, and the region that it opens.
pub(crate) fn bound(end: &mut End, access: Access) -> (Stag, Stag) {
    let (region, window) = (bindable(end, 0, 1000), window(end));
    end.post(bind(1, &binding(window, region, 100, 200, access)));
    assert_eq!(end.next_segment(), None);
    assert_eq!(end.sent_ids(), [(1, WcStatus::Success)]);
    (window, region)
}

pub(crate) fn write(stag: Stag, offset: u64, payload: &[u8]) -> Vec<u8> {
    tagged(Opcode::Write, true, stag, offset, payload)
}

pub(crate) fn read_request(msn: u32, source: Stag, offset: u64, length: u32) -> Vec<u8> {
    let mut octets = [0; ReadRequest::LEN];
    let request = ReadRequest {
        sink_stag: Stag(0x77),
        sink_offset: TaggedOffset(0),
        length,
        source_stag: source,
        source_offset: TaggedOffset(offset),
    };
    request.emit(&mut octets);
    let queue = QueueNumber::READ_REQUEST;
    untagged(Opcode::ReadRequest, true, queue, msn, 0, &octets)
}

/// What sends nothing completes by the same rule as what does.
#[test]
fn unsignalled_bindings_make_no_completion() {
    for (signal_all, done) in [(false, vec![]), (true, vec![(1, WcStatus::Success)])] {
        let mut settings = Settings::new(0, 0);
        settings.qp.signal_all = signal_all;
        let mut end = settings.connect();
        let (region, window) = (bindable(&end, 0, 1000), window(&end));
        let part = binding(window, region, 0, 8, Access::REMOTE_READ);
        end.post(bind(1, &part).with_flags(0));
        assert_eq!(end.next_segment(), None);
        assert!(end.table().is_valid(window));
        assert_eq!(end.sent_ids(), done);
    }
}

// rfc: 5040-107, 5040-108, 5040-109, 5041-79, 5041-80, 5041-82, 5041-88, 5041-89, 5041-90, 5042-10
#[test]
fn a_peer_reaches_through_a_window_what_it_opens_and_no_more() {
    let everything = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let mut end = End::new(4, 4);
    let (window, region) = bound(&mut end, everything);
    // The region itself need not be open to peers.
    end.receive(&write(window, 10, b"through")).unwrap();
    assert_eq!(end.memory(109, 9), b"\0through\0");
    end.receive(&write(window, 193, b"the end")).unwrap();
    end.receive(&read_request(1, window, 10, 7)).unwrap();
    let answer = end.next_segment().unwrap();
    assert_eq!(payload(&answer), b"through");

    for (offset, len) in [(194, 7), (200, 1), (u64::MAX, 1), (BASE + 100, 1)] {
        let mut end = End::new(4, 4);
        let (window, _) = bound(&mut end, everything);
        let refused = end.receive(&write(window, offset, &vec![9; len]));
        let numbers = refused.unwrap_err().numbers;
        assert_eq!((numbers.0, numbers.1), (1, 1));
        assert_eq!(end.memory(0, 1000), [0; 1000]);
    }
    assert_ne!(window.index(), region.index());
}

// rfc: 5040-109, 5041-90
#[test]
fn a_window_gives_the_rights_that_it_was_bound_with() {
    for (access, writes, reads) in [
        (Access::REMOTE_WRITE, true, false),
        (Access::REMOTE_READ, false, true),
        (Access::default(), false, false),
    ] {
        let mut end = End::new(4, 4);
        let (window, _) = bound(&mut end, access);
        assert_eq!(end.receive(&write(window, 0, b"x")).is_ok(), writes);
        let mut end = End::new(4, 4);
        let (window, _) = bound(&mut end, access);
        let request = read_request(1, window, 0, 1);
        assert_eq!(end.receive(&request).is_ok(), reads);
    }
}

/// A window is for the peer. The local side has the region, and its rights to that.
#[test]
fn no_local_request_uses_a_window() {
    for operation in [WrOpcode::Send, WrOpcode::Write, WrOpcode::Read] {
        let mut end = End::new(4, 4);
        let (window, _) = bound(&mut end, Access::REMOTE_READ | Access::REMOTE_WRITE);
        let piece = Sge {
            offset: 0,
            length: 10,
            lkey: window.0,
        };
        end.post(SendWr::new(2, operation).with_sges(&[piece]).unwrap());
        assert_eq!(end.refused().unwrap().numbers, (0, 0, 0));
        assert_eq!(end.sent_ids(), [(2, WcStatus::LocalProtectionError)]);
    }
}

// rfc: 5040-106, 5041-78, 5041-82, 5041-87, 5042-9
#[test]
fn a_window_is_for_the_stream_that_bound_it() {
    let mut end = End::new(4, 4);
    let (window, region) = bound(&mut end, Access::REMOTE_WRITE);
    // A peer of another stream of the same engine and protection domain.
    let options = ConnectionOptions::default();
    let stranger = common::connect_raw(&mut end.sim, &options);
    let raw = &mut end.sim.raw[stranger.peer];
    raw.send_ddp(common::write_header(window, 0), b"x");
    end.sim.run_now();
    let pd = PD;
    let theirs = TagError::NotAssociated { stag: window, pd };
    let told = |end: &End, qp| match end.sim.hosts[0].end_of(qp) {
        Some(EndReason::TerminateSent { error, .. }) => error,
        other => panic!("{other:?}"),
    };
    let expected = DdpError::Tagged(theirs).to_string();
    assert_eq!(told(&end, stranger.qp.number), expected);
    assert_eq!(end.memory(100, 1), [0]);
    // Nor may its owner bind the window, or end the binding.
    let again = binding(window, region, 0, 10, Access::REMOTE_WRITE);
    for (wr, error) in [
        (bind(2, &again), BindError::StillValid(window)),
        (SendWr::invalidate(2, window), theirs.into()),
    ] {
        let mut stranger = common::connect_raw(&mut end.sim, &options);
        end.sim.hosts[0].post_send(&mut stranger.qp, wr);
        end.sim.run_now();
        let failed = RdmapError::Binding { wr_id: 2, error };
        assert_eq!(told(&end, stranger.qp.number), failed.to_string());
        let status = stranger.qp.poll_one().unwrap().status();
        assert_eq!(status, WcStatus::MwBindError);
    }
    end.receive(&write(window, 0, b"x")).unwrap();
    assert_eq!(end.memory(100, 1), *b"x");
}

/// A local request takes effect before anything of a later request is sent, and completes in order.
// rfc: 5040-74
#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn requests_without_a_message_keep_the_order_of_the_queue() {
    // These are more than may be on its way, so that what is behind them waits.
    let long = |end: &End, wr_id, len| send(wr_id).with_sges(&[end.sge(2000, len)]).unwrap();
    let mut end = Settings::new(0, 4).small().connect();
    let (region, window) = (bindable(&end, 0, 1000), window(&end));
    end.post(long(&end, 1, 5000));
    end.post(bind(
        2,
        &binding(window, region, 0, 10, Access::REMOTE_READ),
    ));
    end.post(send(3).with_inline(b"tells the peer").unwrap());
    end.post(long(&end, 4, 20_000));
    end.post(SendWr::invalidate(5, window));
    end.post(send(6));
    // Which Send is under way, and whether the window is bound meanwhile.
    let mut seen = Vec::new();
    loop {
        let segments = end.segments();
        let Some(last) = segments.last() else { break };
        let DdpHeader::Untagged(header) = header(last) else {
            panic!("a Send is untagged");
        };
        let is_bound = end.table().is_valid(window);
        if !header.last {
            seen.push((header.msn.0, is_bound));
        }
        let told = |ulpdu: &Ulpdu| payload(ulpdu) == b"tells the peer";
        assert!(is_bound || !segments.iter().any(told));
        end.acked_all();
    }
    seen.dedup();
    assert_eq!(seen, [(1, false), (3, true)]);
    assert!(!end.table().is_valid(window));
    let done: Vec<_> = end
        .sent()
        .iter()
        .map(|c| (c.wr_id, c.opcode().unwrap()))
        .collect();
    let expected = [
        (1, WcOpcode::Send),
        (2, WcOpcode::BindWindow),
        (3, WcOpcode::Send),
        (4, WcOpcode::Send),
        (5, WcOpcode::LocalInvalidate),
        (6, WcOpcode::Send),
    ];
    assert_eq!(done, expected);
    assert!(end.closes());

    // It completes in order: not before the Send in front of it.
    let mut end = End::new(0, 4);
    let (region, window) = (bindable(&end, 0, 1000), self::window(&end));
    end.post(send(1));
    end.post(bind(
        2,
        &binding(window, region, 0, 10, Access::REMOTE_READ),
    ));
    assert_eq!(end.segments().len(), 1);
    assert!(end.table().is_valid(window));
    assert_eq!(end.sent_ids(), []);
    end.acked_all();
    assert_eq!(end.sent_ids(), [1, 2].map(|id| (id, WcStatus::Success)));
}

#[test]
fn unsignalled_window_bindings_make_no_completion() {
    let mut end = End::new(0, 4);
    let (region, window) = (bindable(&end, 0, 1000), window(&end));
    let wr = bind(1, &binding(window, region, 0, 10, Access::REMOTE_READ));
    end.post(wr.with_flags(0));
    end.post(SendWr::invalidate(2, window));
    assert_eq!(end.next_segment(), None);
    assert_eq!(end.sent_ids(), [(2, WcStatus::Success)]);
    assert!(end.closes());
}

/// How a request that cannot be carried out ends the stream.
#[track_caller]
pub(crate) fn assert_fails(end: &mut End, wr: SendWr, error: impl Into<BindError>) {
    end.post(wr);
    end.post(send(200));
    let refused = end.refused().unwrap();
    let (wr_id, error) = (wr.wr_id, error.into());
    refused.assert_is(RdmapError::Binding { wr_id, error });
    assert_eq!(refused.numbers, (0, 0, 0));
    assert!(end.next_segment().is_some(), "the Terminate");
    assert_eq!(end.next_segment(), None, "and nothing after it");
    let all = [(wr_id, WcStatus::MwBindError), (200, WcStatus::WrFlushed)];
    assert_eq!(end.sent_ids(), all);
}

#[test]
fn what_cannot_be_bound_fails_the_request_and_ends_the_stream() {
    let to_read = Access::REMOTE_READ;
    type Case = fn(&End) -> (Binding, BindError);
    let cases: [Case; 12] = [
        |end| {
            // A region is no window.
            let region = bindable(end, 0, 100);
            let it = binding(region, region, 0, 10, Access::REMOTE_READ);
            (it, BindError::NoWindow(region))
        },
        |end| {
            let theirs = end.table().allocate_window(OTHER_PD).unwrap();
            let it = binding(theirs, bindable(end, 0, 100), 0, 10, Access::REMOTE_READ);
            (it, BindError::NoWindow(theirs))
        },
        |end| {
            let region = end.register(0, 100, all_rights() | Access::MW_BIND, OTHER_PD);
            let it = binding(window(end), region, 0, 10, Access::REMOTE_READ);
            (
                it,
                TagError::NotAssociated {
                    stag: region,
                    pd: PD,
                }
                .into(),
            )
        },
        |end| {
            let region = end.register(0, 100, all_rights(), PD);
            let it = binding(window(end), region, 0, 10, Access::REMOTE_READ);
            let need = Access::MW_BIND;
            (it, TagError::AccessViolation { stag: region, need }.into())
        },
        |end| {
            // Who may not write to it cannot let others.
            let rights = Access::REMOTE_WRITE | Access::MW_BIND;
            let region = end.register(0, 100, rights, PD);
            let it = binding(window(end), region, 0, 10, Access::REMOTE_WRITE);
            let need = Access::MW_BIND | Access::LOCAL_WRITE;
            (it, TagError::AccessViolation { stag: region, need }.into())
        },
        |end| {
            let region = bindable(end, 0, 100);
            end.table().revoke(region).unwrap();
            let it = binding(window(end), region, 0, 10, Access::REMOTE_READ);
            (it, TagError::InvalidStag(region).into())
        },
        |end| {
            let region = bindable(end, 0, 100);
            let it = binding(window(end), region, 95, 10, Access::REMOTE_READ);
            let offset = TaggedOffset(BASE + 95);
            let outside = TagError::BaseOrBounds {
                stag: region,
                offset,
                len: 10,
            };
            (it, outside.into())
        },
        |end| {
            let it = binding(
                window(end),
                bindable(end, 0, 100),
                0,
                0,
                Access::REMOTE_READ,
            );
            (it, BindError::Empty)
        },
        |end| {
            let it = binding(
                window(end),
                bindable(end, 0, 100),
                0,
                10,
                Access::LOCAL_WRITE,
            );
            (it, BindError::Rights(Access::LOCAL_WRITE.0))
        },
        |end| {
            let it = binding(window(end), bindable(end, 0, 100), 0, 10, Access::MW_BIND);
            (it, BindError::Rights(Access::MW_BIND.0))
        },
        |end| {
            let mut it = binding(
                window(end),
                bindable(end, 0, 100),
                0,
                10,
                Access::REMOTE_READ,
            );
            it.base = u64::MAX - 9;
            (
                it,
                BindError::OffsetWrap {
                    base: it.base,
                    length: 10,
                },
            )
        },
        |_| (Binding::default(), BindError::NoWindow(Stag(0))),
    ];
    for case in cases {
        let mut end = End::new(4, 4);
        let (binding, expected) = case(&end);
        assert_fails(&mut end, bind(7, &binding), expected);
    }
    // One that is bound already, and the region of a window that is a window.
    let mut end = End::new(4, 4);
    let (window, region) = bound(&mut end, to_read);
    let again = binding(window.with_key(1), region, 0, 10, to_read);
    let expected = BindError::StillValid(window.with_key(1));
    assert_fails(&mut end, bind(7, &again), expected);
    let mut end = End::new(4, 4);
    let (first, _) = bound(&mut end, to_read);
    let second = end.table().allocate_window(PD).unwrap();
    let onto = Binding {
        start: 0,
        ..binding(second, first, 0, 10, to_read)
    };
    let need = Access::MW_BIND;
    let expected = TagError::AccessViolation { stag: first, need };
    assert_fails(&mut end, bind(7, &onto), expected);
}

/// A request that asks for anything is refused, and that is all.
#[test]
fn any_octets_are_a_request_that_fails_or_not() {
    let mut end = End::new(4, 4);
    let mut wr = bind(1, &Binding::default());
    wr.payload = [0xff; 256];
    assert_fails(&mut end, wr, BindError::NoWindow(Stag(u32::MAX)));
    let mut end = End::new(4, 4);
    wr.opcode = WrOpcode::FastRegister as u8;
    assert_fails(&mut end, wr, BindError::NotFast(Stag(u32::MAX)));
    let mut end = End::new(4, 4);
    let fast = end.table().allocate_fast(end.region.clone(), PD).unwrap();
    wr.payload[..4].copy_from_slice(&fast.0.to_ne_bytes());
    wr.payload[32] = 0;
    let huge = BindError::OffsetWrap {
        base: u64::MAX,
        length: u64::MAX,
    };
    assert_fails(&mut end, wr, huge);
}

/// A region that a fast registration made can have windows of its own, and goes with them.
#[test]
fn windows_open_fast_registrations_too() {
    let (mut end, mut peer) = (End::new(4, 4), End::new(4, 4));
    let fast = end.table().allocate_fast(end.region.clone(), PD).unwrap();
    let stag = end.table().new_key(fast);
    let access = (Access::LOCAL_WRITE | Access::MW_BIND).0;
    let all = Binding {
        stag: stag.0,
        length: 100,
        access,
        ..Binding::default()
    };
    end.post(fast_register(1, &all));
    let window = window(&end);
    let onto = Binding {
        start: 50,
        ..binding(window, stag, 0, 10, Access::REMOTE_WRITE)
    };
    end.post(bind(2, &onto));
    end.post(SendWr::invalidate(3, window));
    end.post(bind(4, &onto));
    pump(&mut end, &mut peer);
    assert_eq!(
        end.sent_ids(),
        [1, 2, 3, 4].map(|id| (id, WcStatus::Success))
    );
    end.receive(&write(window, 0, b"inside")).unwrap();
    assert_eq!(end.memory(50, 6), b"inside");
    let bound = TableError::WindowsBound {
        stag: fast,
        windows: 1,
    };
    assert_eq!(end.table().recall(fast), Err(bound));
    end.table().revoke_with_windows(fast).unwrap();
    assert!(!end.table().is_valid(window) && !end.table().is_valid(stag));
    let refused = end.receive(&write(window, 0, b"no")).unwrap_err();
    refused.assert_is(DdpError::Tagged(TagError::InvalidStag(window)));
    end.table().revoke(window).unwrap();
}
