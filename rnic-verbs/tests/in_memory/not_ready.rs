//! Peers without receives, on connections with the semantics of RC.

use rnic_verbs::{ConnectionOptions, EndReason, QpCaps, SendRequest, SrqCaps, WcStatus};

use crate::fixture::{MIXED, SOON, Side, Threads, devices};

fn rc() -> ConnectionOptions {
    ConnectionOptions {
        rc: true,
        ..ConnectionOptions::default()
    }
}

fn send(side: &mut Side, text: &[u8]) {
    let request = SendRequest::send().inline(text);
    side.qp.post_send(&request).unwrap();
}

#[test]
fn a_message_waits_for_its_receive_and_its_sender_no_longer_than_it_wants() {
    let (near_device, far_device, address) = devices(MIXED);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    near.qp.set_rnr_retry(7).unwrap();
    near.qp
        .connect(listener.local_address(), None, rc())
        .unwrap();
    let request = loop {
        // Nobody else drives the near side.
        near.qp.next_event(std::time::Duration::ZERO).unwrap();
        let soon = std::time::Duration::from_millis(1);
        if let Some(request) = listener.next_request(soon).unwrap() {
            break request;
        }
    };
    request.accept(&mut far.qp, rc()).unwrap();
    near.qp.wait_established(SOON).unwrap();
    send(&mut near, b"early");
    near.done();
    far.qp.post_recv(1, &[far.mr.sge(0, 10)]).unwrap();
    assert_eq!(far.done().wr_id(), 1);
    assert_eq!(far.mr.copy(0, 5).unwrap(), b"early");
    // The next one waits in vain.
    near.qp.set_rnr_retry(0).unwrap();
    send(&mut near, b"parked");
    near.done();
    send(&mut near, b"too late");
    // It may leave before the peer says that it is not ready: then a later one fails.
    let failed = loop {
        let completion = near.completion();
        if !completion.is_success() {
            break completion.status();
        }
        send(&mut near, b"later");
    };
    assert_eq!(failed, WcStatus::RnrRetryExceeded);
    assert_eq!(near.end(), EndReason::ReceiverNotReady);
    // What was parked is received nevertheless.
    far.qp.post_recv(2, &[far.mr.sge(0, 10)]).unwrap();
    assert_eq!(far.done().wr_id(), 2);
    assert_eq!(far.mr.copy(0, 6).unwrap(), b"parked");
}

#[test]
fn a_post_to_a_dry_shared_queue_is_noticed() {
    let both = Threads {
        near: true,
        far: true,
    };
    let (near_device, far_device, address) = devices(both);
    let listener = far_device.listen(address).unwrap();
    let far = Side::new(&far_device);
    let mut srq = far.pd.srq(SrqCaps::default()).unwrap();
    let mut near = Side::new(&near_device);
    near.qp
        .connect(listener.local_address(), None, rc())
        .unwrap();
    let request = listener.next_request(SOON).unwrap().unwrap();
    let mut cq = far_device.cq(64).unwrap();
    let caps = QpCaps::default();
    let mut qp = far.pd.qp_with_srq(&cq, &cq, &srq, caps).unwrap();
    request.accept(&mut qp, rc()).unwrap();
    near.qp.wait_established(SOON).unwrap();
    // Posts race with messages: each message gets one, whichever comes first.
    for id in 0..200 {
        send(&mut near, b"hello");
        srq.post_recv(id, &[far.mr.sge(0, 10)]).unwrap();
        let done = cq.next_completion(SOON).unwrap().expect("it is received");
        assert_eq!((done.wr_id(), done.status()), (id, WcStatus::Success));
        near.done();
    }
}
