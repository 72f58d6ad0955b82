//! Every status with which a request can complete, as an application gets it.

use std::collections::BTreeSet;

use rnic_verbs::{
    Access, Completion, ConnectionEvent, ConnectionOptions, RemoteAddress, SendRequest, Stag,
    WcStatus,
};

use crate::fixture::{MIXED, SOON, Side, connected, devices, join_with};

/// Posts a request and returns the status with which it completes on each side.
fn outcome(near: &mut Side, far: &mut Side, request: &SendRequest<'_>) -> [WcStatus; 2] {
    near.qp.post_send(request).unwrap();
    [near.completion(), far.completion()].map(|completion: Completion| completion.status())
}

/// The status on this side alone.
fn own_outcome(near: &mut Side, request: &SendRequest<'_>) -> WcStatus {
    near.qp.post_send(request).unwrap();
    near.completion().status()
}

#[test]
fn every_status_has_its_cause() {
    use WcStatus::*;
    let mut seen = BTreeSet::new();
    let mut expect = |got: &[WcStatus], expected: &[WcStatus]| {
        assert_eq!(got, expected);
        seen.extend(expected.iter().map(|status| status.name()));
    };
    let text = SendRequest::send().inline(b"hello");

    let (mut near, mut far, _listener) = connected(MIXED);
    far.qp.post_recv(1, &[far.mr.sge(0, 5)]).unwrap();
    expect(&outcome(&mut near, &mut far, &text), &[Success, Success]);
    // The message is longer than its receive.
    far.qp.post_recv(2, &[far.mr.sge(0, 4)]).unwrap();
    let spoilt = outcome(&mut near, &mut far, &text);
    expect(&spoilt, &[RemoteInvalidRequestError, LocalLengthError]);
    // That ended the connection.
    expect(&[own_outcome(&mut near, &text)], &[WrFlushed]);

    // The receive names memory that was deregistered. The Terminate for that names no request of
    // the peer.
    let (mut near, mut far, _listener) = connected(MIXED);
    far.qp.post_recv(1, &[far.mr.sge(0, 5)]).unwrap();
    far.mr.deregister().unwrap();
    let spoilt = outcome(&mut near, &mut far, &text);
    expect(&spoilt, &[WrFlushed, LocalProtectionError]);

    let (mut near, far, _listener) = connected(MIXED);
    let nowhere = RemoteAddress {
        stag: Stag(0),
        ..far.mr.remote(0)
    };
    let write = SendRequest::write(nowhere).inline(b"x");
    expect(&[own_outcome(&mut near, &write)], &[RemoteAccessError]);

    // Memory that is not registered for windows.
    let (mut near, _far, _listener) = connected(MIXED);
    let window = near.pd.window().unwrap();
    let binding = window.binding(&near.mr, 0..10, Access::REMOTE_READ);
    let bind = SendRequest::bind(&binding);
    expect(&[own_outcome(&mut near, &bind)], &[MwBindError]);

    // A Read on a connection that allows none.
    let (near_device, far_device, address) = devices(MIXED);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    let no_reads = ConnectionOptions {
        ord: 0,
        ..ConnectionOptions::default()
    };
    join_with(&mut near, &mut far, &listener, no_reads);
    let sink = [near.mr.sge(0, 1)];
    let read = SendRequest::read(far.mr.remote(0)).memory(&sink);
    expect(&[own_outcome(&mut near, &read)], &[LocalQpOperationError]);

    // The peer is gone, on a connection with the semantics of RC.
    let (near_device, far_device, address) = devices(MIXED);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    let rc = ConnectionOptions {
        rc: true,
        ..ConnectionOptions::default()
    };
    join_with(&mut near, &mut far, &listener, rc);
    drop(far);
    let left = near.qp.next_event(SOON).unwrap();
    assert!(matches!(left, Some(ConnectionEvent::PeerLeft(_))));
    near.qp.fail_as(RetryExceeded).unwrap();
    expect(&[own_outcome(&mut near, &text)], &[RetryExceeded]);

    let all = (0..=u8::MAX).filter_map(|code| WcStatus::try_from(code).ok());
    let mut unseen: Vec<_> = all.map(WcStatus::name).collect();
    unseen.retain(|name| !seen.contains(name));
    // The first is for a peer that failed for a reason of its own, which a test of the engine
    // covers; the second is that of `not_ready`; the last stands for the numbers of later releases.
    let elsewhere = ["REM_OP_ERR", "RNR_RETRY_EXC_ERR", "GENERAL_ERR"];
    assert_eq!(unseen, elsewhere);
}
