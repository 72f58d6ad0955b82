//! Shared receive queues, resized completion queues and asynchronous events.

use std::net::SocketAddr;
use std::time::Duration;

use rnic_verbs::{
    AsyncEvent, AsyncEvents, Completion, ConnectionOptions, Cq, Device, Error, Listener, Mr, Pd,
    PostError, Qp, QpCaps, QpState, SendRequest, Srq, SrqCaps, SrqLimit, WcStatus,
};

use crate::fixture::{MIXED, SOON, Side, Threads, devices, join, register};

const BOTH: Threads = Threads {
    near: true,
    far: true,
};

/// The far side: a shared receive queue, and queue pairs that take their receives from it.
struct Server {
    pd: Pd,
    cq: Cq,
    srq: Srq,
    mr: Mr,
    listener: Listener,
    events: AsyncEvents,
}

impl Server {
    fn new(device: &Device, address: SocketAddr, caps: SrqCaps) -> Self {
        let pd = device.pd();
        Self {
            cq: device.cq(256).unwrap(),
            srq: pd.srq(caps).unwrap(),
            mr: register(&pd, 1 << 16),
            listener: device.listen(address).unwrap(),
            events: device.async_events().unwrap(),
            pd,
        }
    }

    /// Posts receives of 64 octets each.
    fn post(&mut self, wr_ids: impl IntoIterator<Item = u64>) {
        for wr_id in wr_ids {
            let piece = [self.mr.sge(wr_id as usize * 64, 64)];
            self.srq.post_recv(wr_id, &piece).unwrap();
        }
    }

    fn join(&self, near: &mut Side) -> Qp {
        near.qp
            .connect(self.listener.local_address(), None, Default::default())
            .unwrap();
        let request = self.listener.next_request(SOON).unwrap().unwrap();
        let mut qp = self
            .pd
            .qp_with_srq(&self.cq, &self.cq, &self.srq, QpCaps::default())
            .unwrap();
        request
            .accept(&mut qp, ConnectionOptions::default())
            .unwrap();
        near.qp.wait_established(SOON).unwrap();
        qp.wait_established(SOON).unwrap();
        qp
    }

    fn completion(&mut self) -> Completion {
        assert!(self.cq.wait(SOON).unwrap(), "nothing completed");
        self.cq.poll_one().unwrap()
    }

    fn event(&mut self) -> AsyncEvent {
        self.events.next(SOON).unwrap().expect("an event")
    }
}

fn send(side: &mut Side, text: &[u8]) {
    side.qp
        .post_send(&SendRequest::send().inline(text))
        .unwrap();
}

#[test]
fn queue_pairs_share_receives_and_the_limit_is_told() {
    let (near, far, address) = devices(BOTH);
    let mut server = Server::new(&far, address, SrqCaps::default());
    assert_eq!(server.srq.capacity(), 1024);
    server.post(0..6);
    let (mut a, mut b) = (Side::new(&near), Side::new(&near));
    let (qp_a, qp_b) = (server.join(&mut a), server.join(&mut b));
    let limit = SrqLimit {
        left: 4,
        share: None,
    };
    server.srq.arm_limit(limit).unwrap();
    let exchange = |server: &mut Server, side: &mut Side, qp: &Qp, text: &str| {
        send(side, text.as_bytes());
        side.done();
        let done = server.completion();
        let whose = (done.qp(), done.byte_len() as usize);
        assert_eq!(whose, (qp.number(), text.len()));
        let mut got = vec![0; text.len()];
        let at = done.wr_id() as usize * 64;
        server.mr.read(at, &mut got).unwrap();
        assert_eq!(got, text.as_bytes());
    };
    exchange(&mut server, &mut a, &qp_a, "one");
    exchange(&mut server, &mut b, &qp_b, "two");
    exchange(&mut server, &mut a, &qp_a, "three");
    let low = AsyncEvent::SrqLimitReached {
        srq: server.srq.id(),
        left: 3,
        taken: 3,
        greediest: Some((qp_a.number(), 2)),
    };
    assert_eq!((server.event(), server.srq.posted()), (low, 3));
    assert!(low.to_string().starts_with("SRQ_LIMIT_REACHED: "), "{low}");
    // Posted while in use; told once until it is armed anew.
    server.post(6..10);
    send(&mut b, b"four");
    assert_eq!(server.completion().wr_id(), 3);
    assert_eq!(server.events.next(Duration::ZERO).unwrap(), None);
    let limit = SrqLimit { left: 9, ..limit };
    server.srq.arm_limit(limit).unwrap();
    assert!(matches!(
        server.event(),
        AsyncEvent::SrqLimitReached {
            left: 6,
            taken: 0,
            ..
        }
    ));
}

#[test]
fn a_shared_queue_lives_as_long_as_somebody_uses_it() {
    let (near, far, address) = devices(BOTH);
    let mut server = Server::new(&far, address, SrqCaps::default());
    server.post(0..3);
    let mut side = Side::new(&near);
    let mut qp = server.join(&mut side);
    assert_eq!(qp.post_recv(1, &[]), Err(PostError::SharedQueue));
    let (srq, error) = server.srq.destroy().unwrap_err();
    assert!(matches!(error, Error::SrqInUse(1)), "{error}");
    // Without its handle nothing can be posted, and what was posted is there.
    drop(srq);
    side.qp.post_send(&SendRequest::send()).unwrap();
    assert!(server.cq.wait(SOON).unwrap());
    assert_eq!(server.cq.poll_one().map(|done| done.wr_id()), Some(0));
    drop(qp);
    let (pd, other) = (far.pd(), near.pd().srq(SrqCaps::default()).unwrap());
    let make = |srq: &Srq| pd.qp_with_srq(&server.cq, &server.cq, srq, QpCaps::default());
    assert!(matches!(make(&other), Err(Error::OtherDevice(_))));
    let other = far.pd().srq(SrqCaps::default()).unwrap();
    assert!(matches!(make(&other), Err(Error::OtherDomain(_))));
    other.destroy().unwrap();
}

#[test]
fn a_shared_queue_checks_what_is_posted() {
    let (near, ..) = devices(MIXED);
    let caps = SrqCaps {
        max_wr: 2,
        max_sge: 1,
        max_in_process: 1,
    };
    let pd = near.pd();
    let mut srq = pd.srq(caps).unwrap();
    let piece = register(&pd, 4096).sge(0, 10);
    let many = PostError::TooManyElements { count: 2, max: 1 };
    assert_eq!(srq.post_recv(0, &[piece; 2]), Err(many));
    for _ in 0..2 {
        srq.post_recv(0, &[piece]).unwrap();
    }
    assert_eq!(srq.post_recv(0, &[]), Err(PostError::SharedQueueFull(2)));
}

#[test]
fn the_last_receive_of_a_stream_is_told_after_it_was_flushed() {
    let (near, far, address) = devices(BOTH);
    let mut server = Server::new(&far, address, SrqCaps::default());
    server.post(0..2);
    let mut side = Side::new(&near);
    let mut qp = server.join(&mut side);
    // Too long for its receive: it completes with that, and the other stays.
    let piece = [side.mr.sge(0, 65)];
    side.qp
        .post_send(&SendRequest::send().memory(&piece))
        .unwrap();
    let failed = server.completion();
    assert_eq!(
        (failed.wr_id(), failed.status()),
        (0, WcStatus::LocalLengthError)
    );
    let number = qp.number();
    assert_eq!(server.event(), AsyncEvent::QpRequestError { qp: number });
    assert_eq!(server.event(), AsyncEvent::QpLastWqeReached { qp: number });
    assert_eq!((qp.state(), server.srq.posted()), (QpState::Terminate, 1));
    side.end();
    assert_eq!(side.qp.state(), QpState::Terminate);
    // Even one that was never connected has a last receive: it has none.
    let idle = &mut server
        .pd
        .qp_with_srq(&server.cq, &server.cq, &server.srq, QpCaps::default())
        .unwrap();
    idle.fail().unwrap();
    let last = AsyncEvent::QpLastWqeReached { qp: idle.number() };
    assert_eq!(server.event(), last);
    // A connection that ends in order is no event, except for its last receive.
    let mut side = Side::new(&near);
    qp = server.join(&mut side);
    side.qp.disconnect().unwrap();
    assert_eq!(
        server.event(),
        AsyncEvent::QpLastWqeReached { qp: qp.number() }
    );
    assert_eq!(server.events.next(Duration::ZERO).unwrap(), None);
}

#[test]
fn asynchronous_events_have_one_reader_at_a_time() {
    let (near, ..) = devices(MIXED);
    let mut first = near.async_events().unwrap();
    assert!(matches!(near.async_events(), Err(Error::AsyncEventsTaken)));
    assert_eq!(first.next(Duration::ZERO).unwrap(), None);
    drop(first);
    near.async_events().unwrap();
}

#[test]
fn a_completion_queue_grows_and_shrinks_with_what_it_holds() {
    for threads in [MIXED, BOTH] {
        let (near, far, address) = devices(threads);
        let listener = far.listen(address).unwrap();
        let (mut near, mut far) = (Side::new(&near), Side::new(&far));
        far.cq = far.pd.device().cq(4).unwrap();
        far.qp = far.pd.qp(&far.cq, &far.cq, QpCaps::default()).unwrap();
        join(&mut near, &mut far, &listener);
        let mut posted = 0;
        let mut sent = |near: &mut Side, far: &mut Side, count| {
            for _ in 0..count {
                far.qp.post_recv(posted, &[]).unwrap();
                posted += 1;
                send(near, b"");
                near.done();
            }
            // It has taken all when it has answered this.
            let sink = [near.mr.sge(0, 1)];
            let read = SendRequest::read(far.mr.remote(0)).memory(&sink);
            near.qp.post_send(&read).unwrap();
            near.done();
        };
        sent(&mut near, &mut far, 6);
        // Four stand in the ring, two wait for room.
        let refused = far.cq.resize(4).unwrap_err();
        assert!(
            matches!(
                refused,
                Error::CqHolds {
                    held: 6,
                    capacity: 4
                }
            ),
            "{refused}"
        );
        far.cq.resize(7).unwrap();
        assert_eq!(far.cq.capacity(), 8);
        sent(&mut near, &mut far, 2);
        far.cq.resize(8).unwrap();
        assert!(matches!(
            far.cq.resize(4),
            Err(Error::CqHolds { held: 8, .. })
        ));
        sent(&mut near, &mut far, 1);
        for wr_id in 0..7 {
            assert_eq!(far.done().wr_id(), wr_id);
        }
        far.cq.resize(2).unwrap();
        assert_eq!(far.cq.capacity(), 2);
        sent(&mut near, &mut far, 2);
        for wr_id in 7..11 {
            assert_eq!(far.done().wr_id(), wr_id);
        }
        assert!(far.cq.poll_one().is_none());
        // Who notes up to which it was told tells none from another after all this.
        assert_eq!(far.cq.written(), 11);
    }
}

#[test]
fn a_queue_pair_is_in_the_state_that_its_connection_says() {
    let (near_device, far_device, address) = devices(MIXED);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    near.qp.post_recv(1, &[]).unwrap();
    near.qp.connect(address, None, Default::default()).unwrap();
    assert_eq!(near.qp.state(), QpState::Connecting);
    near.qp.abort().unwrap();
    near.end();
    assert_eq!(near.qp.state(), QpState::Init);
    // From there it can connect, or be done with.
    join(&mut near, &mut far, &listener);
    assert_eq!(near.qp.state(), QpState::Rts);
    near.qp.disconnect().unwrap();
    assert_eq!(near.qp.state(), QpState::Sqd);
    // From here on nothing is begun.
    near_device.drive();
    near.qp.post_send(&SendRequest::send().wr_id(2)).unwrap();
    near.end();
    assert_eq!(near.qp.state(), QpState::Error);
    assert!(near.qp.state().is_over());
    near.qp.post_send(&SendRequest::send().wr_id(3)).unwrap();
    let mut flushed = [near.completion(), near.completion(), near.completion()]
        .map(|completion| (completion.wr_id(), completion.status()));
    flushed.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(flushed, [1, 2, 3].map(|wr_id| (wr_id, WcStatus::WrFlushed)));
}

#[test]
fn a_queue_pair_can_be_failed_in_every_state() {
    let (near_device, far_device, address) = devices(BOTH);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    let mut idle = Side::new(&near_device);
    for side in [&mut idle, &mut near] {
        side.qp.post_recv(5, &[]).unwrap();
    }
    join(&mut near, &mut far, &listener);
    for side in [&mut idle, &mut near] {
        side.qp.fail().unwrap();
        let flushed = side.completion();
        assert_eq!(
            (flushed.wr_id(), flushed.status()),
            (5, WcStatus::WrFlushed)
        );
        side.end();
        assert_eq!(side.qp.state(), QpState::Error);
        let again = side.qp.connect(address, None, Default::default());
        assert!(matches!(again, Err(Error::NotIdle(QpState::Error))));
    }
    far.end();
}
