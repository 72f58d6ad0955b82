//! Connections with the semantics of RC.

use std::time::Duration;

use rnic_verbs::{
    AsyncEvent, AsyncEvents, Completion, ConnectionEvent, ConnectionOptions, Device, EndReason,
    Error, PostError, Qp, QpCaps, QpState, SendRequest, Srq, SrqCaps, WcOpcode, WcStatus,
};

use crate::fixture::{INLINE, Side, devices, register, settle};

fn rc() -> ConnectionOptions {
    ConnectionOptions {
        rc: true,
        ..ConnectionOptions::default()
    }
}

/// Two devices that the test drives, and a connection between them. The far queue pair takes its
/// receives from a shared queue.
struct Scene {
    near: Side,
    /// Its own queue pair is not used.
    far: Side,
    qp: Qp,
    srq: Srq,
    events: AsyncEvents,
    devices: [Device; 2],
}

impl Scene {
    fn new(options: &ConnectionOptions) -> Self {
        let (near_device, far_device, address) = devices(INLINE);
        let listener = far_device.listen(address).unwrap();
        let (mut near, far) = (Side::new(&near_device), Side::new(&far_device));
        let srq = far.pd.srq(SrqCaps::default()).unwrap();
        let caps = QpCaps::default();
        let mut qp = far.pd.qp_with_srq(&far.cq, &far.cq, &srq, caps).unwrap();
        let events = far_device.async_events().unwrap();
        near.qp.connect(address, None, options.clone()).unwrap();
        settle(&[&near_device, &far_device]);
        let request = listener.next_request(Duration::ZERO).unwrap().unwrap();
        request.accept(&mut qp, options.clone()).unwrap();
        let mut scene = Self {
            near,
            far,
            qp,
            srq,
            events,
            devices: [near_device, far_device],
        };
        scene.settle();
        // The far side may send once it has received.
        let nothing = SendRequest::write(scene.far.mr.remote(0)).inline(&[]);
        scene.near.qp.post_send(&nothing).unwrap();
        scene.settle();
        assert!(taken(&mut scene.near).unwrap().is_success());
        let established = scene.qp.next_event(Duration::ZERO).unwrap();
        assert!(matches!(established, Some(ConnectionEvent::Established(_))));
        scene
    }

    fn settle(&self) {
        settle(&[&self.devices[0], &self.devices[1]]);
    }

    fn asynchronous(&mut self) -> Option<AsyncEvent> {
        self.events.next(Duration::ZERO).unwrap()
    }
}

/// Removes and returns a completion without driving the device.
fn taken(side: &mut Side) -> Option<Completion> {
    let mut one = [Completion::default()];
    (side.cq.take(&mut one) == 1).then_some(one[0])
}

#[test]
fn a_queue_pair_whose_peer_leaves_stays_as_it_is_until_it_is_failed() {
    let mut scene = Scene::new(&rc());
    scene.srq.post_recv(50, &[]).unwrap();
    scene.near.qp.fail().unwrap();
    scene.settle();
    assert_eq!(scene.qp.state(), QpState::Rts);
    let left = scene.qp.next_event(Duration::ZERO).unwrap();
    assert_eq!(left, Some(ConnectionEvent::PeerLeft(EndReason::Peer)));
    assert_eq!(scene.asynchronous(), None);
    assert!(taken(&mut scene.far).is_none());
    let again = scene.qp.connect("192.0.2.1:9".parse().unwrap(), None, rc());
    assert!(matches!(again, Err(Error::NotIdle(QpState::Rts))));

    for wr_id in [1, 2] {
        let send = SendRequest::send().inline(b"lost").wr_id(wr_id);
        scene.qp.post_send(&send).unwrap();
    }
    scene.settle();
    assert!(taken(&mut scene.far).is_none());
    scene.qp.fail_as(WcStatus::RetryExceeded).unwrap();
    scene.settle();
    let failed = [(); 2].map(|()| taken(&mut scene.far).unwrap());
    let failed = failed.map(|done| (done.wr_id(), done.status()));
    assert_eq!(
        failed,
        [(1, WcStatus::RetryExceeded), (2, WcStatus::WrFlushed)]
    );
    assert!(taken(&mut scene.far).is_none(), "the shared queue keeps it");
    assert_eq!(scene.qp.state(), QpState::Error);
    let ended = scene.qp.next_event(Duration::ZERO).unwrap();
    assert_eq!(ended, Some(ConnectionEvent::Disconnected(EndReason::Peer)));
    let qp = scene.qp.number();
    let last = Some(AsyncEvent::QpLastWqeReached { qp });
    assert_eq!(scene.asynchronous(), last);
    assert_eq!(scene.asynchronous(), None);
}

/// Not even if the peer is reset while a request is outstanding.
#[test]
fn a_peer_that_leaves_is_no_fatal_event() {
    for (options, fatal) in [(rc(), false), (ConnectionOptions::default(), true)] {
        let mut scene = Scene::new(&options);
        // The near side takes no turn any more.
        let send = SendRequest::send().inline(b"lost").wr_id(1);
        scene.qp.post_send(&send).unwrap();
        scene.near.qp.fail().unwrap();
        settle(&[&scene.devices[0]]);
        scene.settle();
        if !fatal {
            assert!(taken(&mut scene.far).is_none());
            scene.qp.fail_as(WcStatus::RetryExceeded).unwrap();
            scene.settle();
        }
        let failed = taken(&mut scene.far).map(|done| done.status());
        let status = if fatal {
            WcStatus::WrFlushed
        } else {
            WcStatus::RetryExceeded
        };
        assert_eq!(failed, Some(status));
        let qp = scene.qp.number();
        let told: Vec<_> = std::iter::from_fn(|| scene.asynchronous()).collect();
        let is_fatal = told.contains(&AsyncEvent::QpFatal { qp });
        assert_eq!(is_fatal, fatal, "{told:?}");
        assert_eq!(scene.qp.state(), QpState::Error);
    }
}

/// Its completion tells it: a program may deregister memory and then destroy the queue pair. Nor is
/// there an event at the peer.
#[test]
fn a_request_that_fails_is_no_fatal_event() {
    for (options, fatal) in [(rc(), false), (ConnectionOptions::default(), true)] {
        let mut scene = Scene::new(&options);
        let mut near_events = scene.devices[0].async_events().unwrap();
        let gone = register(&scene.near.pd, 4096);
        let pieces = [gone.sge(0, 64)];
        drop(gone);
        let send = SendRequest::send().memory(&pieces);
        scene.near.qp.post_send(&send).unwrap();
        scene.settle();
        let failed = taken(&mut scene.near).map(|done| done.status());
        assert_eq!(failed, Some(WcStatus::LocalProtectionError));
        for events in [&mut near_events, &mut scene.events] {
            let told = std::iter::from_fn(|| events.next(Duration::ZERO).unwrap());
            let told: Vec<_> = told.map(|event| event.name()).collect();
            assert_eq!(told.contains(&"QP_FATAL"), fatal, "{told:?}");
        }
    }
}

/// Nor if it leaves before the connection is there.
#[test]
fn a_peer_that_gives_up_while_it_connects_is_no_fatal_event() {
    for (options, fatal) in [(rc(), false), (ConnectionOptions::default(), true)] {
        let (near_device, far_device, address) = devices(INLINE);
        let listener = far_device.listen(address).unwrap();
        let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
        let mut events = far_device.async_events().unwrap();
        near.qp.connect(address, None, options.clone()).unwrap();
        settle(&[&near_device, &far_device]);
        let request = listener.next_request(Duration::ZERO).unwrap().unwrap();
        near.qp.fail().unwrap();
        request.accept(&mut far.qp, options).unwrap();
        settle(&[&far_device, &near_device]);
        let event = events.next(Duration::ZERO).unwrap();
        assert_eq!(event.is_some(), fatal, "{event:?}");
        assert_eq!(far.qp.state().is_over(), fatal);
    }
}

#[test]
fn an_orphaned_queue_pair_can_be_disconnected_failed_and_dropped() {
    let orphan = || {
        let mut scene = Scene::new(&rc());
        scene.near.qp.abort().unwrap();
        scene.settle();
        assert_eq!(scene.qp.state(), QpState::Rts);
        scene.qp.next_event(Duration::ZERO).unwrap();
        scene
    };
    type End = fn(&mut Qp) -> Result<(), Error>;
    let ways: [End; 3] = [Qp::disconnect, Qp::fail, Qp::abort];
    for way in ways {
        let mut scene = orphan();
        way(&mut scene.qp).unwrap();
        scene.settle();
        assert_eq!(scene.qp.state(), QpState::Error);
        let ended = scene.qp.wait_ended(Duration::ZERO).unwrap();
        assert_eq!(ended, Some(EndReason::Local));
        let qp = scene.qp.number();
        let last = Some(AsyncEvent::QpLastWqeReached { qp });
        assert_eq!(scene.asynchronous(), last);
    }
    let mut scene = orphan();
    drop(scene.qp);
    settle(&[&scene.devices[1]]);
    assert!(taken(&mut scene.far).is_none());
    assert_eq!(scene.events.next(Duration::ZERO).unwrap(), None);
}

#[test]
fn a_send_brings_immediate_data() {
    let mut scene = Scene::new(&rc());
    let place = [scene.far.mr.sge(0, 64)];
    scene.srq.post_recv(50, &place).unwrap();
    let inline = SendRequest::send_with_immediate(*b"IMMD").inline(b"text");
    scene.near.qp.post_send(&inline).unwrap();
    scene.settle();
    let received = taken(&mut scene.far).unwrap();
    assert_eq!(received.opcode(), WcOpcode::Recv);
    assert_eq!(received.immediate(), Some(*b"IMMD\0\0\0\0"));
    assert_eq!((received.byte_len(), received.is_solicited()), (4, false));
    let place = [scene.near.mr.sge(0, 8)];
    scene.srq.post_recv(51, &[scene.far.mr.sge(0, 64)]).unwrap();
    let from_memory = SendRequest::send_with_immediate(*b"ABCD")
        .memory(&place)
        .solicited();
    scene.near.qp.post_send(&from_memory).unwrap();
    scene.settle();
    let received = taken(&mut scene.far).unwrap();
    assert_eq!(received.immediate(), Some(*b"ABCD\0\0\0\0"));
    assert_eq!((received.byte_len(), received.is_solicited()), (8, true));
    // Where it does not fit it is refused.
    let long = SendRequest::send_with_immediate([0; 4]).inline(&[0; 65]);
    let refused = scene.near.qp.post_send(&long);
    assert!(matches!(refused, Err(PostError::InlineTooLong { .. })));
}
