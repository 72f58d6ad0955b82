//! How connections are established and end.

use std::time::Duration;

use rnic_core::engine::NetError;
use rnic_verbs::{
    ConnectError, ConnectionOptions, EndReason, Error, Peers, Prefix, QpCaps, QpState, SendRequest,
    WcStatus,
};

use crate::fixture::{INLINE, MIXED, SOON, Side, connected, devices, settle};

/// A responder says to its listener that it must be protected; saying so to a request would be too
/// late.
#[test]
fn a_plain_listener_accepts_nothing_that_must_be_protected() {
    let (near_device, far_device, address) = devices(INLINE);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    let connecting = ConnectionOptions::default();
    near.qp.connect(address, None, connecting).unwrap();
    settle(&[&near_device, &far_device]);
    let request = listener.next_request(Duration::ZERO).unwrap().unwrap();
    let options = ConnectionOptions {
        require_protection: true,
        ..ConnectionOptions::default()
    };
    let accepted = request.accept(&mut far.qp, options);
    let Err(Error::Net(NetError::Unprotected { reason, .. })) = accepted else {
        panic!("{accepted:?}");
    };
    assert!(reason.contains("`listen_protected`"), "{reason}");
    settle(&[&near_device, &far_device]);
    let rejected = near.qp.wait_established(Duration::ZERO);
    assert!(
        matches!(rejected, Err(ConnectError::Rejected { .. })),
        "{rejected:?}"
    );
}

#[test]
fn a_rejected_client_hears_why() {
    let (near_device, far_device, address) = devices(MIXED);
    let listener = far_device.listen(address).unwrap();
    let mut near = Side::new(&near_device);
    let server = std::thread::spawn(move || {
        listener
            .next_request(SOON)
            .unwrap()
            .unwrap()
            .reject(b"not today")
            .unwrap();
        // Without an answer a request is rejected too.
        drop(listener.next_request(SOON).unwrap().unwrap());
        listener
    });
    for expected in [&b"not today"[..], b""] {
        match near
            .qp
            .connect_blocking(address, None, ConnectionOptions::default())
        {
            Err(ConnectError::Rejected {
                private_data,
                peer_depths,
            }) => {
                assert_eq!(private_data, expected);
                assert!(peer_depths.is_some());
            }
            other => panic!("{other:?}"),
        }
        // It may try again.
        assert_eq!(near.qp.state(), QpState::Init);
    }
    drop(server.join().unwrap());
    match near
        .qp
        .connect_blocking(address, None, ConnectionOptions::default())
    {
        Err(ConnectError::Failed(EndReason::Refused)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_sent() {
    let (near_device, far_device, address) = devices(MIXED);
    let mut near = Side::new(&near_device);
    for (mpa_revision, max) in [(1, 512), (2, 508)] {
        let options = ConnectionOptions {
            mpa_revision,
            private_data: vec![0; max + 1],
            ..ConnectionOptions::default()
        };
        match near.qp.connect(address, None, options) {
            Err(Error::PrivateData { len, max: limit }) => assert_eq!((len, limit), (max + 1, max)),
            other => panic!("{other:?}"),
        }
    }
    // rfc: 5040-113, 5042-21 applications that do not trust each other share no completion queue
    let foreign = far_device.cq(1).unwrap();
    assert!(matches!(
        near.pd.qp(&near.cq, &foreign, QpCaps::default()),
        Err(Error::OtherDevice(_))
    ));
    let listener = far_device.listen(address).unwrap();
    assert!(matches!(far_device.listen(address), Err(Error::Net(_))));
    drop(listener);
}

#[test]
fn an_abort_is_seen_as_a_reset() {
    let (mut near, mut far, _listener) = connected(MIXED);
    far.qp.post_recv(3, &[]).unwrap();
    near.qp.abort().unwrap();
    assert_eq!(near.end(), EndReason::Local);
    assert_eq!(far.end(), EndReason::Reset);
    let flushed = far.completion();
    assert_eq!(
        (flushed.wr_id(), flushed.status()),
        (3, WcStatus::WrFlushed)
    );
}

#[test]
fn a_wait_for_the_end_tells_it_once() {
    let (mut near, mut far, _listener) = connected(MIXED);
    let an_instant = Duration::from_millis(1);
    // The far side's event that the connection is established, which nobody has read, is not its
    // end.
    assert_eq!(far.qp.wait_ended(an_instant).unwrap(), None);
    assert_eq!(near.cq.next_completion(an_instant).unwrap(), None);
    assert_eq!(near.qp.close(SOON).unwrap(), Some(EndReason::Local));
    assert_eq!(far.end(), EndReason::Peer);
    assert_eq!(far.qp.wait_ended(an_instant).unwrap(), None);
}

#[test]
fn a_failed_request_says_why_its_connection_ended() {
    let (mut near, mut far, _listener) = connected(MIXED);
    far.qp.post_recv(3, &[]).unwrap();
    near.qp.abort().unwrap();
    assert_eq!(near.end(), EndReason::Local);
    let flushed = far.completion();
    let error = far.qp.check(flushed).unwrap_err();
    assert_eq!(error.reason, Some(EndReason::Reset));
    assert_eq!(error.to_string(), "connection reset by the peer");

    let (mut near, far, _listener) = connected(MIXED);
    let there = far.mr.remote(far.mr.len());
    let sink = [near.mr.sge(0, 1)];
    let read = SendRequest::read(there).memory(&sink);
    near.qp.post_send(&read).unwrap();
    let failed = near.completion();
    let error = near.qp.check(failed).unwrap_err();
    let words = error.to_string();
    assert!(words.starts_with("Read failed with "), "{words}");
    assert!(words.contains("the peer sent Terminate"), "{words}");
}

#[test]
fn dropping_a_queue_pair_tells_the_peer() {
    let (near, mut far, _listener) = connected(MIXED);
    // The last handle of the device is dropped too: its last segments are still sent.
    drop(near);
    assert_eq!(far.end(), EndReason::Reset);
}

#[test]
fn only_an_idle_queue_pair_connects() {
    let (mut near, mut far, listener) = connected(MIXED);
    let options = ConnectionOptions::default;
    let address = listener.local_address();
    let again = near.qp.connect(address, None, options());
    assert!(matches!(again, Err(Error::NotIdle(_))));
    assert_eq!(near.qp.state(), QpState::Rts);

    // Another client, whose request is answered with a queue pair that is in use.
    let mut other = near.pd.qp(&near.cq, &near.cq, QpCaps::default()).unwrap();
    other.connect(address, None, options()).unwrap();
    assert!(matches!(
        other.connect(address, None, options()),
        Err(Error::NotIdle(_))
    ));
    let request = loop {
        assert!(other.next_event(Duration::ZERO).unwrap().is_none());
        if let Some(request) = listener.next_request(Duration::from_millis(1)).unwrap() {
            break request;
        }
    };
    let accepted = request.accept(&mut far.qp, options());
    assert!(matches!(accepted, Err(Error::NotIdle(_))));
    assert_eq!(far.qp.state(), QpState::Rts);
    assert!(matches!(
        other.wait_established(SOON),
        Err(ConnectError::Rejected { .. })
    ));

    near.qp.disconnect().unwrap();
    near.end();
    far.end();
    assert!(matches!(
        far.qp.connect(address, None, options()),
        Err(Error::NotIdle(_))
    ));
}

#[test]
fn an_event_of_one_attempt_is_not_taken_for_the_next() {
    let (near, _far, address) = devices(MIXED);
    let mut near = Side::new(&near);
    let options = ConnectionOptions::default;
    for _ in 0..2 {
        near.qp.connect(address, None, options()).unwrap();
        // Nobody listens. The event stays where it is.
        while near.qp.state() != QpState::Init {
            near.cq.poll_one();
        }
    }
    near.qp.connect(address, None, options()).unwrap();
    assert_eq!(near.qp.next_event(Duration::ZERO).unwrap(), None);
    assert_eq!(near.end(), EndReason::Refused);
    assert_eq!(near.qp.next_event(Duration::ZERO).unwrap(), None);
}

#[test]
fn only_a_connection_can_be_disconnected() {
    let (mut near, mut far, _listener) = connected(MIXED);
    let mut idle = near.pd.qp(&near.cq, &near.cq, QpCaps::default()).unwrap();
    assert!(matches!(idle.disconnect(), Err(Error::NotConnected)));
    near.qp.disconnect().unwrap();
    assert_eq!(near.end(), EndReason::Local);
    assert!(matches!(near.qp.disconnect(), Err(Error::NotConnected)));
    // On this side the event has come and was not read yet.
    while far.qp.state() != QpState::Error {
        std::thread::yield_now();
    }
    far.qp.disconnect().unwrap();
    assert_eq!(far.end(), EndReason::Peer);
    assert!(matches!(far.qp.disconnect(), Err(Error::NotConnected)));
}

#[test]
fn a_wait_of_any_length_can_be_asked_for() {
    let (near, _far, address) = devices(MIXED);
    let mut near = Side::new(&near);
    let options = ConnectionOptions {
        connect_timeout: Duration::MAX,
        ..ConnectionOptions::default()
    };
    assert!(matches!(
        near.qp.connect_blocking(address, None, options),
        Err(ConnectError::Failed(EndReason::Refused))
    ));
}

#[test]
fn a_peer_that_may_not_connect_is_refused() {
    let (near_device, far_device, mut address) = devices(MIXED);
    let mut near = Side::new(&near_device);
    let others: Prefix = "203.0.113.0/24".parse().unwrap();
    let _listener = far_device
        .listen_to(address, Peers::only([others]))
        .unwrap();
    let refused = near
        .qp
        .connect_blocking(address, None, ConnectionOptions::default());
    assert!(
        matches!(refused, Err(ConnectError::Failed(EndReason::Refused))),
        "{refused:?}"
    );
    address.set_port(address.port() + 1);
    let all = Prefix::new(address.ip(), 0);
    let listener = far_device
        .listen_to(address, Peers::only([others, all]))
        .unwrap();
    let server = std::thread::spawn(move || {
        let request = listener.next_request(SOON).unwrap().unwrap();
        request.reject(b"heard").unwrap();
    });
    let rejected = near
        .qp
        .connect_blocking(address, None, ConnectionOptions::default());
    assert!(
        matches!(rejected, Err(ConnectError::Rejected { .. })),
        "{rejected:?}"
    );
    server.join().unwrap();
}
