//! Memory windows, fast registrations, and their end.

use std::sync::Arc;

use rnic_core::memory::table::TableError;
use rnic_verbs::{
    Access, ConnectionOptions, EndReason, Error, HugePages, Mr, PostError, QpCaps, Region,
    RemoteAddress, SendRequest, Stag, WcOpcode, WcStatus,
};

use crate::fixture::{MIXED, SOON, Side, Threads, connected, devices};

/// Memory that only windows open.
fn private(side: &Side) -> Mr {
    let region = Arc::new(Region::allocate_unlocked(1 << 16, HugePages::None).unwrap());
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    side.pd.register(&region, access).unwrap()
}

fn content(mr: &Mr, offset: usize, len: usize) -> Vec<u8> {
    let mut octets = vec![0; len];
    mr.read(offset, &mut octets).unwrap();
    octets
}

/// The STag and offset that a message in the first octets of a side's memory tells.
fn told(side: &Side) -> RemoteAddress {
    let octets = content(&side.mr, 0, 12);
    RemoteAddress {
        stag: Stag(u32::from_be_bytes(octets[..4].try_into().unwrap())),
        offset: u64::from_be_bytes(octets[4..].try_into().unwrap()),
    }
}

fn telling(place: RemoteAddress) -> Vec<u8> {
    [&place.stag.0.to_be_bytes()[..], &place.offset.to_be_bytes()].concat()
}

#[test]
fn a_window_lends_memory_until_the_peer_gives_it_back() {
    for threads in [
        MIXED,
        Threads {
            near: true,
            far: true,
        },
    ] {
        let (mut near, mut far, _listener) = connected(threads);
        // The side that accepted may send once the other has sent.
        let nothing = RemoteAddress {
            stag: Stag(0),
            offset: 0,
        };
        near.qp.post_send(&SendRequest::write(nothing)).unwrap();
        near.done();
        let mr = private(&far);
        let window = far.pd.window().unwrap();
        let mut stags = Vec::new();
        for round in 0..5_u8 {
            let start = usize::from(round) * 1000;
            let open = window.binding(&mr, start..start + 1000, Access::REMOTE_WRITE);
            let open = if round % 2 == 0 { open.base(0) } else { open };
            stags.push(open.stag());
            // The next request tells the peer.
            near.qp.post_recv(1, &[near.mr.sge(0, 12)]).unwrap();
            far.qp.post_recv(2, &[]).unwrap();
            let bind = SendRequest::bind(&open).wr_id(3);
            far.qp.post_send(&bind).unwrap();
            let tell = telling(open.remote(0));
            let tell = SendRequest::send().inline(&tell).unsignaled();
            far.qp.post_send(&tell).unwrap();
            let bound = far.done();
            assert_eq!((bound.wr_id(), bound.opcode()), (3, WcOpcode::BindWindow));
            assert_eq!(near.done().wr_id(), 1);

            let place = told(&near);
            let octets = [round + 1; 64];
            let write = SendRequest::write(place).inline(&octets).unsignaled();
            near.qp.post_send(&write).unwrap();
            let back = SendRequest::send_invalidate(place.stag).solicited();
            near.qp.post_send(&back).unwrap();
            near.done();
            let done = far.done();
            assert_eq!((done.wr_id(), done.invalidated()), (2, Some(open.stag())));
            assert_eq!(window.live(), None);
            assert_eq!(content(&mr, start, 65)[..64], octets);
            assert_eq!(content(&mr, start + 64, 1), [0]);
        }
        // Each had another key, and nothing else changed.
        assert!(stags.iter().all(|stag| stag.index() == stags[0].index()));
        assert!(stags.windows(2).all(|pair| pair[0] != pair[1]));
        // What was given back is of no use.
        near.qp
            .post_send(&SendRequest::write(told(&near)).inline(b"late"))
            .unwrap();
        assert!(matches!(
            near.end(),
            EndReason::TerminateReceived { control, .. }
                if (control.layer, control.error_type, control.code) == (1, 1, 0)
        ));
        assert_eq!(content(&mr, 4000, 4), [5; 4]);
    }
}

#[test]
fn a_fast_registration_is_the_sink_of_a_read_and_goes_when_it_is_done() {
    let (mut near, far, _listener) = connected(MIXED);
    far.mr.write(0, &[7; 4096]).unwrap();
    let region = Arc::new(Region::allocate_unlocked(1 << 16, HugePages::None).unwrap());
    let fast = near.pd.fast_registration(&region).unwrap();
    for round in 0..4_usize {
        let start = round * 8192;
        let sink = fast.binding(start..start + 4096, Access::LOCAL_WRITE);
        assert_eq!(sink.remote(0).offset, region.base_address() + start as u64);
        near.qp
            .post_send(&SendRequest::bind(&sink).wr_id(1))
            .unwrap();
        let piece = [sink.sge(0, 4096)];
        let read = SendRequest::read(far.mr.remote(0)).memory(&piece).wr_id(2);
        near.qp.post_send(&read).unwrap();
        let gone = SendRequest::invalidate(sink.stag()).fenced().wr_id(3);
        near.qp.post_send(&gone).unwrap();
        let done = [near.done(), near.done(), near.done()].map(|c| (c.wr_id(), c.opcode()));
        let expected = [
            (1, WcOpcode::FastRegister),
            (2, WcOpcode::Read),
            (3, WcOpcode::LocalInvalidate),
        ];
        assert_eq!(done, expected);
        assert_eq!(fast.live(), None);
        assert_eq!(region.load(start + 4095).unwrap(), 7);
        assert_eq!(region.load(start + 4096).unwrap(), 0);
    }
}

/// A part of what was registered by a request is opened by the next.
#[test]
fn a_window_opens_a_part_of_a_fast_registration() {
    let (mut near, mut far, _listener) = connected(MIXED);
    let region = Arc::new(Region::allocate_unlocked(1 << 16, HugePages::None).unwrap());
    let fast = far.pd.fast_registration(&region).unwrap();
    let whole = fast.binding(4096..8192, Access::LOCAL_WRITE | Access::MW_BIND);
    let window = far.pd.window().unwrap();
    let part = window.binding_of_fast(&whole, 100..200, Access::REMOTE_WRITE);
    for (wr_id, binding) in [(1, &whole), (2, &part)] {
        let bind = SendRequest::bind(binding).wr_id(wr_id);
        far.qp.post_send(&bind).unwrap();
    }
    let done = [far.done(), far.done()].map(|done| (done.wr_id(), done.opcode()));
    let expected = [(1, WcOpcode::FastRegister), (2, WcOpcode::BindWindow)];
    assert_eq!(done, expected);
    let write = SendRequest::write(part.remote(0)).inline(&[7; 50]);
    near.qp.post_send(&write).unwrap();
    near.done();
    let mut octets = [1; 52];
    region.read(4096 + 99, &mut octets).unwrap();
    assert_eq!((octets[0], octets[51]), (0, 0));
    assert_eq!(octets[1..51], [7; 50]);
    let behind = SendRequest::write(part.remote(51)).inline(&[8; 50]);
    near.qp.post_send(&behind).unwrap();
    assert!(matches!(near.end(), EndReason::TerminateReceived { .. }));
}

/// The application that accepts tells the STag with its private data, and the client's first
/// message uses it.
#[test]
fn a_window_is_bound_before_the_peers_first_message_comes() {
    let (near_device, far_device, address) = devices(MIXED);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    let mr = private(&far);
    let window = far.pd.window().unwrap();
    let open = window.binding(&mr, 10..20, Access::REMOTE_WRITE).base(0);
    far.qp
        .post_send(&SendRequest::bind(&open).wr_id(1))
        .unwrap();
    near.qp
        .connect(address, None, ConnectionOptions::default())
        .unwrap();
    let request = loop {
        near.qp.next_event(std::time::Duration::ZERO).unwrap();
        let pause = std::time::Duration::from_millis(1);
        if let Some(request) = listener.next_request(pause).unwrap() {
            break request;
        }
    };
    let options = ConnectionOptions {
        private_data: open.stag().0.to_be_bytes().to_vec(),
        ..ConnectionOptions::default()
    };
    request.accept(&mut far.qp, options).unwrap();
    let established = near.qp.wait_established(SOON).unwrap();
    // Nothing was sent to the far side yet.
    assert_eq!(far.done().wr_id(), 1);
    let stag = Stag(u32::from_be_bytes(
        established.private_data[..4].try_into().unwrap(),
    ));
    let place = RemoteAddress { stag, offset: 0 };
    far.qp.post_recv(2, &[]).unwrap();
    near.qp
        .post_send(&SendRequest::write(place).inline(b"first"))
        .unwrap();
    near.qp.post_send(&SendRequest::send()).unwrap();
    near.done();
    near.done();
    assert_eq!(far.done().wr_id(), 2);
    assert_eq!(content(&mr, 10, 5), b"first");
}

#[test]
fn memory_stays_while_windows_are_bound_to_it_unless_it_is_dropped() {
    let (mut near, mut far, _listener) = connected(MIXED);
    let mut mr = private(&far);
    let region = mr.region().clone();
    let window = far.pd.window().unwrap();
    let open = window.binding(&mr, 0..1000, Access::REMOTE_WRITE).base(0);
    far.qp.post_send(&SendRequest::bind(&open)).unwrap();
    far.done();
    let Err(Error::Registration(error)) = mr.deregister() else {
        panic!("a window is bound to it");
    };
    let stag = mr.stag();
    assert_eq!(error, TableError::WindowsBound { stag, windows: 1 });
    assert!(mr.is_valid());
    // It still works, until the region goes with all that leads to it.
    far.qp.post_recv(2, &[]).unwrap();
    near.qp
        .post_send(&SendRequest::write(open.remote(0)).inline(b"works"))
        .unwrap();
    near.qp.post_send(&SendRequest::send()).unwrap();
    near.done();
    near.done();
    far.done();
    let mut octets = [0; 5];
    region.read(0, &mut octets).unwrap();
    assert_eq!(&octets, b"works");
    drop(mr);
    assert_eq!(window.live(), None);
    assert_eq!(Arc::strong_count(&region), 1);
    near.qp
        .post_send(&SendRequest::write(open.remote(0)).inline(b"never"))
        .unwrap();
    near.end();
    assert!(matches!(far.end(), EndReason::TerminateSent { control, .. }
        if (control.layer, control.error_type, control.code) == (1, 1, 0)));
    region.read(0, &mut octets).unwrap();
    assert_eq!(&octets, b"works");
}

#[test]
fn a_window_outlives_its_connection_and_serves_another() {
    let (mut near, mut far, _listener) = connected(MIXED);
    let mr = private(&far);
    let window = far.pd.window().unwrap();
    let open = window.binding(&mr, 0..10, Access::REMOTE_READ);
    far.qp.post_send(&SendRequest::bind(&open)).unwrap();
    far.done();
    near.qp.disconnect().unwrap();
    near.end();
    far.end();
    assert_eq!(window.live(), Some(open.stag()));
    window.recall().unwrap();
    assert_eq!(window.live(), None);
    // Requests of a connection that is over do nothing.
    let again = window.binding(&mr, 0..10, Access::REMOTE_READ);
    far.qp.post_send(&SendRequest::bind(&again)).unwrap();
    assert_eq!(far.completion().status(), WcStatus::WrFlushed);
    assert_eq!(window.live(), None);
    let mut window = window;
    window.deallocate().unwrap();
    window.deallocate().unwrap();
}

#[test]
fn what_cannot_be_done_says_why_and_ends_the_connection() {
    let (mut near, far, _listener) = connected(MIXED);
    // Registered without the right to bind windows to it.
    let window = near.pd.window().unwrap();
    let wrong = window.binding(&near.mr, 0..10, Access::REMOTE_READ);
    near.qp
        .post_send(&SendRequest::bind(&wrong).wr_id(5))
        .unwrap();
    near.qp.post_send(&SendRequest::send().wr_id(6)).unwrap();
    let failed = [near.completion(), near.completion()].map(|c| (c.wr_id(), c.status()));
    let expected = [(5, WcStatus::MwBindError), (6, WcStatus::WrFlushed)];
    assert_eq!(failed, expected);
    let EndReason::TerminateSent { control, error } = near.end() else {
        panic!("this side found an error");
    };
    assert_eq!((control.layer, control.error_type, control.code), (0, 0, 0));
    assert!(error.contains("binding of windows"), "{error}");
    assert!(error.contains(&near.mr.stag().to_string()), "{error}");
    assert_eq!(window.live(), None);
    drop(far);
}

#[test]
fn posting_checks_what_it_can() {
    let (device, ..) = devices(MIXED);
    let caps = QpCaps::default();
    let mut side = Side::with_caps(&device, caps);
    let window = side.pd.window().unwrap();
    let open = window.binding(&side.mr, 0..10, Access::REMOTE_READ);
    let with_data = SendRequest::bind(&open).inline(b"x");
    assert_eq!(side.qp.post_send(&with_data), Err(PostError::NoData));
    assert_eq!(open.key(7).stag(), open.stag().with_key(7));
    assert_eq!(open.base(9).remote(1).offset, 10);
    assert_eq!(open.remote(0).offset, side.mr.base());
}
