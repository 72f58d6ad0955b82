//! Requests that are posted before the connection is established.

use std::time::Duration;

use rnic_verbs::{
    Completion, ConnectionEvent, ConnectionOptions, EndReason, PostError, QpState, SendRequest,
    WcOpcode, WcStatus,
};

use crate::fixture::{INLINE, Side, devices, settle};

fn inline_send(text: &[u8], wr_id: u64) -> SendRequest<'_> {
    SendRequest::send().inline(text).wr_id(wr_id)
}

/// Removes and returns a completion without driving the device.
fn taken(side: &mut Side) -> Option<Completion> {
    let mut one = [Completion::default()];
    (side.cq.take(&mut one) == 1).then_some(one[0])
}

/// Polls the next receive, and returns its text, which is in the first octets of the side's memory.
fn received(side: &mut Side) -> String {
    let done = taken(side).expect("a message");
    assert_eq!(
        (done.opcode(), done.status()),
        (WcOpcode::Recv, WcStatus::Success)
    );
    let mut text = vec![0; done.byte_len() as usize];
    side.mr.read(64 * done.wr_id() as usize, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn post_receives(side: &mut Side) {
    for wr_id in 0..4 {
        let place = side.mr.sge(64 * wr_id as usize, 64);
        side.qp.post_recv(wr_id, &[place]).unwrap();
    }
}

#[test]
fn requests_posted_early_wait_for_the_connection_on_both_sides() {
    let (near_device, far_device, address) = devices(INLINE);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    post_receives(&mut near);
    post_receives(&mut far);
    near.qp
        .connect(address, None, ConnectionOptions::default())
        .unwrap();
    near.qp.post_send(&inline_send(b"one", 100)).unwrap();
    settle(&[&near_device, &far_device]);
    // More, now that its MPA Request waits for the answer.
    near.qp.post_send(&inline_send(b"two", 101)).unwrap();
    let request = listener.next_request(Duration::ZERO).unwrap().unwrap();
    request
        .accept(&mut far.qp, ConnectionOptions::default())
        .unwrap();
    far.qp.post_send(&inline_send(b"three", 102)).unwrap();
    settle(&[&far_device]);
    // rfc: 5044-77a the first FPDU is the initiator's, so nothing but the Reply has left.
    assert_eq!(far.qp.state(), QpState::Rts);
    assert!(taken(&mut far).is_none() && taken(&mut near).is_none());
    assert_eq!(near.qp.state(), QpState::Connecting);

    settle(&[&near_device, &far_device]);
    assert_eq!(near.qp.state(), QpState::Rts);
    assert_eq!([received(&mut far), received(&mut far)], ["one", "two"]);
    let sent = taken(&mut far).unwrap();
    assert_eq!((sent.wr_id(), sent.status()), (102, WcStatus::Success));
    let mut completed: Vec<_> = std::iter::from_fn(|| taken(&mut near)).collect();
    completed.sort_by_key(|done| done.wr_id());
    assert!(completed.iter().all(|done| done.is_success()));
    // The message of the far side and the two that were sent.
    let completed: Vec<_> = completed.iter().map(|done| done.wr_id()).collect();
    assert_eq!(completed, [0, 100, 101]);
}

#[test]
fn requests_posted_early_outlast_a_connection_that_fails_until_the_queue_pair_does() {
    let (near_device, far_device, address) = devices(INLINE);
    let mut near = Side::new(&near_device);
    let connect = |near: &mut Side| {
        near.qp
            .connect(address, None, ConnectionOptions::default())
            .unwrap();
        near.qp.post_send(&inline_send(b"lost", 7)).unwrap();
        settle(&[&near_device, &far_device]);
        // Nobody listens.
        let event = near.qp.next_event(Duration::ZERO).unwrap();
        assert_eq!(event, Some(ConnectionEvent::Failed(EndReason::Refused)));
    };
    connect(&mut near);
    let refused = near.qp.post_send(&inline_send(b"not at all", 8));
    assert_eq!(refused, Err(PostError::NotConnected(QpState::Init)));
    assert!(near.cq.poll_one().is_none());
    near.qp.fail().unwrap();
    let flushed = near.cq.poll_one().unwrap();
    assert_eq!(
        (flushed.wr_id(), flushed.status()),
        (7, WcStatus::WrFlushed)
    );
    assert_eq!(near.qp.state(), QpState::Error);

    // One that is dropped instead completes nothing.
    let mut near = Side::new(&near_device);
    connect(&mut near);
    drop(near.qp);
    settle(&[&near_device]);
    assert!(near.cq.poll_one().is_none());
    assert!(!near.cq.is_in_use());
}

#[test]
fn what_a_failed_attempt_left_goes_to_the_next_peer() {
    let (near_device, far_device, address) = devices(INLINE);
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    post_receives(&mut far);
    near.qp
        .connect(address, None, ConnectionOptions::default())
        .unwrap();
    near.qp.post_send(&inline_send(b"patient", 7)).unwrap();
    settle(&[&near_device, &far_device]);
    assert_eq!(near.qp.state(), QpState::Init);
    let listener = far_device.listen(address).unwrap();
    near.qp
        .connect(address, None, ConnectionOptions::default())
        .unwrap();
    settle(&[&near_device, &far_device]);
    let request = listener.next_request(Duration::ZERO).unwrap().unwrap();
    request
        .accept(&mut far.qp, ConnectionOptions::default())
        .unwrap();
    settle(&[&far_device, &near_device]);
    assert_eq!(received(&mut far), "patient");
    let ends = near.qp.ends().unwrap();
    assert_eq!((ends.remote, ends.depths.is_some()), (address, true));
}

/// An application that has states of its own decides when requests may be posted.
#[test]
fn requests_to_an_open_queue_wait_for_any_attempt_on_either_side() {
    let (near_device, far_device, address) = devices(INLINE);
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    post_receives(&mut near);
    post_receives(&mut far);
    near.qp.open_sends(true);
    far.qp.open_sends(true);
    near.qp.post_send(&inline_send(b"early", 100)).unwrap();
    far.qp.post_send(&inline_send(b"answer", 200)).unwrap();
    settle(&[&near_device, &far_device]);
    near.qp
        .connect(address, None, ConnectionOptions::default())
        .unwrap();
    settle(&[&near_device, &far_device]);
    assert_eq!(near.qp.state(), QpState::Init, "nobody listens");
    let between = [inline_send(b"between", 101), inline_send(b"two", 102)];
    near.qp.post_sends(between).unwrap();
    let listener = far_device.listen(address).unwrap();
    near.qp
        .connect(address, None, ConnectionOptions::default())
        .unwrap();
    settle(&[&near_device, &far_device]);
    let request = listener.next_request(Duration::ZERO).unwrap().unwrap();
    far.qp.post_send(&inline_send(b"another", 201)).unwrap();
    settle(&[&far_device]);
    request
        .accept(&mut far.qp, ConnectionOptions::default())
        .unwrap();
    settle(&[&far_device, &near_device]);
    let texts = |side: &mut Side| {
        let mut texts = Vec::new();
        while texts.len() < 3
            && let Some(done) = taken(side)
        {
            if done.opcode() == WcOpcode::Recv {
                let mut text = vec![0; done.byte_len() as usize];
                side.mr.read(64 * done.wr_id() as usize, &mut text).unwrap();
                texts.push(String::from_utf8(text).unwrap());
            }
        }
        texts
    };
    assert_eq!(texts(&mut far), ["early", "between", "two"]);
    assert_eq!(texts(&mut near), ["answer", "another"]);
}

#[test]
fn a_closed_queue_takes_no_requests_in_any_state() {
    let (near_device, far_device, address) = devices(INLINE);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    post_receives(&mut far);
    near.qp.open_sends(false);
    let one = |wr_id| inline_send(b"one", wr_id);
    let assert_closed = |near: &mut Side, state| {
        let closed = PostError::NotConnected(state);
        assert_eq!(near.qp.post_send(&one(1)), Err(closed));
        let error = near.qp.post_sends([one(1), one(2)]).unwrap_err();
        assert_eq!((error.posted, error.error), (0, closed));
        let whole = near.qp.post_whole::<PostError, _>(|| [Ok(one(1))]);
        assert_eq!(whole, Err(closed));
        // Not plain.
        let solicited = one(1).solicited();
        let immediate = SendRequest::immediate([0; 8]);
        assert_eq!(near.qp.post_send(&immediate), Err(closed));
        assert_eq!(near.qp.post_send(&solicited), Err(closed));
    };
    assert_closed(&mut near, QpState::Init);
    near.qp
        .connect(address, None, ConnectionOptions::default())
        .unwrap();
    assert_closed(&mut near, QpState::Connecting);
    settle(&[&near_device, &far_device]);
    let request = listener.next_request(Duration::ZERO).unwrap().unwrap();
    request
        .accept(&mut far.qp, ConnectionOptions::default())
        .unwrap();
    settle(&[&near_device, &far_device]);
    assert_closed(&mut near, QpState::Rts);
    near.qp.open_sends(true);
    near.qp.post_send(&one(5)).unwrap();
    near.qp.open_sends(false);
    assert_closed(&mut near, QpState::Rts);
    settle(&[&near_device, &far_device]);
    assert_eq!(received(&mut far), "one");
    assert_eq!(taken(&mut near).map(|done| done.wr_id()), Some(5));
    assert!(taken(&mut far).is_none());
}

/// A peer that never answers: the application decides that it has waited long enough.
#[test]
fn the_oldest_request_tells_why_a_queue_pair_was_failed() {
    for connects in [false, true] {
        let (near_device, _far_device, address) = devices(INLINE);
        let mut near = Side::new(&near_device);
        post_receives(&mut near);
        near.qp.open_sends(true);
        if connects {
            // The far side takes no turn.
            near.qp
                .connect(address, None, ConnectionOptions::default())
                .unwrap();
        }
        for wr_id in [100, 101] {
            near.qp.post_send(&inline_send(b"lost", wr_id)).unwrap();
        }
        settle(&[&near_device]);
        assert!(taken(&mut near).is_none());
        near.qp.fail_as(WcStatus::RetryExceeded).unwrap();
        settle(&[&near_device]);
        let ended: Vec<_> = std::iter::from_fn(|| taken(&mut near))
            .map(|done| (done.wr_id(), done.status()))
            .collect();
        let flushed = [101, 0, 1, 2, 3].map(|wr_id| (wr_id, WcStatus::WrFlushed));
        assert_eq!(ended[0], (100, WcStatus::RetryExceeded));
        assert_eq!(ended[1..], flushed);
        assert_eq!(near.qp.state(), QpState::Error);
        // Once it is over there is nothing to fail.
        near.qp.post_send(&inline_send(b"late", 102)).unwrap();
        near.qp.fail_as(WcStatus::RetryExceeded).unwrap();
        settle(&[&near_device]);
        let late = taken(&mut near).map(|done| (done.wr_id(), done.status()));
        assert_eq!(late, Some((102, WcStatus::WrFlushed)));
    }
}
