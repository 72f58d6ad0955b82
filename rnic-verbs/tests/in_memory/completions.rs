//! Waiting for completions, and notifications of them.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic_verbs::{Cq, Device, EndReason, QpCaps, QpState, SendRequest, WcStatus};

use crate::fixture::{MIXED, SOON, Side, Threads, connected, devices, join};

#[test]
fn a_notification_comes_once_and_for_what_was_asked() {
    let (mut near, mut far, _listener) = connected(Threads {
        near: true,
        far: true,
    });
    let readable = |cq: &Cq, timeout: u16| {
        let mut fds = [PollFd::new(cq.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(timeout)).unwrap() == 1
    };
    for _ in 0..3 {
        far.qp.post_recv(0, &[]).unwrap();
    }
    far.cq.arm(true);
    near.qp.post_send(&SendRequest::send()).unwrap();
    near.done();
    assert!(
        !far.cq.wait_notified(Duration::from_millis(50)).unwrap(),
        "it was not solicited"
    );
    near.qp.post_send(&SendRequest::send().solicited()).unwrap();
    assert!(readable(&far.cq, 10_000));
    // By file descriptor alone: poll, then acknowledge.
    assert!(far.cq.acknowledge());
    assert!(!readable(&far.cq, 0));
    assert!(far.done().byte_len() == 0 && far.done().is_solicited());
    // Not armed any more.
    near.done();
    near.qp.post_send(&SendRequest::send().solicited()).unwrap();
    near.done();
    assert!(!readable(&far.cq, 50));
    far.done();
}

#[test]
fn what_waits_fires_only_if_it_was_asked_for() {
    let (mut near, mut far, _listener) = connected(Threads {
        near: true,
        far: true,
    });
    for _ in 0..2 {
        far.qp.post_recv(0, &[]).unwrap();
    }
    near.qp.post_send(&SendRequest::send()).unwrap();
    near.done();
    far.cq.arm(true);
    assert!(!far.cq.fires_now(true), "it was not solicited");
    assert!(far.cq.fires_now(false));
    assert!(!far.cq.fires_now(false), "it was taken back");
    near.qp.post_send(&SendRequest::send().solicited()).unwrap();
    near.done();
    far.cq.arm(true);
    assert!(far.cq.fires_now(true));
}

#[test]
fn a_success_waits_until_it_is_polled() {
    let (mut near, mut far, _listener) = connected(Threads {
        near: true,
        far: true,
    });
    let (number, other) = (far.qp.number(), rnic_verbs::QpNumber(far.qp.number().0 + 1));
    for _ in 0..2 {
        far.qp.post_recv(0, &[]).unwrap();
    }
    assert!(!far.cq.holds_success_of(number));
    near.qp.post_send(&SendRequest::send()).unwrap();
    near.done();
    assert!(far.cq.holds_success_of(number) && !far.cq.holds_success_of(other));
    far.done();
    assert!(!far.cq.holds_success_of(number));
    // What is flushed is none.
    far.qp.fail().unwrap();
    assert!(far.cq.wait(SOON).unwrap());
    assert!(!far.cq.holds_success_of(number));
}

#[test]
fn waiting_ends_in_time() {
    for threads in [
        MIXED,
        Threads {
            near: true,
            far: true,
        },
    ] {
        let (near, far, _listener) = connected(threads);
        for side in [&near, &far] {
            let began = Instant::now();
            assert!(!side.cq.wait(Duration::from_millis(60)).unwrap());
            assert!(
                (50..2000).contains(&began.elapsed().as_millis()),
                "{:?}",
                began.elapsed()
            );
        }
    }
}

#[test]
fn a_stale_notification_does_not_end_a_wait() {
    let (mut near, mut far, _listener) = connected(Threads {
        near: true,
        far: true,
    });
    for _ in 0..2 {
        far.qp.post_recv(0, &[]).unwrap();
    }
    far.cq.arm(false);
    near.qp.post_send(&SendRequest::send()).unwrap();
    assert!(far.cq.wait_notified(SOON).unwrap());
    // Notified of it again, and polled before anybody waits.
    far.done();
    far.cq.arm(false);
    near.qp.post_send(&SendRequest::send()).unwrap();
    while far.cq.poll_one().is_none() {}
    let timeout = Duration::from_millis(60);
    let began = Instant::now();
    assert!(!far.cq.wait(timeout).unwrap());
    assert!(began.elapsed() >= timeout, "{:?}", began.elapsed());

    // Nothing is left armed.
    while far.cq.acknowledge() {}
    far.qp.post_recv(0, &[]).unwrap();
    near.qp.post_send(&SendRequest::send()).unwrap();
    while far.cq.poll_one().is_none() {}
    assert!(!far.cq.wait_notified(Duration::from_millis(50)).unwrap());
}

/// A side whose completion queue holds 4 and whose receive queue 8.
fn small(device: &Device) -> Side {
    let caps = QpCaps {
        max_recv_wr: 8,
        ..QpCaps::default()
    };
    let mut side = Side::new(device);
    side.cq = device.cq(4).unwrap();
    side.qp = side.pd.qp(&side.cq, &side.cq, caps).unwrap();
    side
}

#[test]
fn receives_that_nobody_polls_end_the_connection() {
    let (near_device, far_device, address) = devices(MIXED);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), small(&far_device));
    join(&mut near, &mut far, &listener);
    let mut posted = 0;
    let refused = loop {
        assert!(posted < 100);
        far.qp.post_recv(posted, &[]).unwrap();
        posted += 1;
        near.qp.post_send(&SendRequest::send()).unwrap();
        near.completion();
        if near.qp.state() != QpState::Rts {
            break near.end();
        }
        // The far side has taken the message when it has acknowledged this.
        let sink = [near.mr.sge(0, 1)];
        let read = SendRequest::read(far.mr.remote(0)).memory(&sink);
        near.qp.post_send(&read).unwrap();
        if near.completion().status() != WcStatus::Success {
            break near.end();
        }
    };
    match refused {
        EndReason::TerminateReceived { control, .. } => {
            assert_eq!((control.layer, control.error_type, control.code), (0, 0, 0));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(posted, 4 + 8 + 1);
    // No completion is lost, and the one that did not fit was flushed.
    for wr_id in 0..posted {
        let completion = far.completion();
        assert_eq!(completion.wr_id(), wr_id);
        assert_eq!(completion.is_success(), wr_id < 12);
    }
}

#[test]
fn flushed_requests_that_nobody_polls_stay_in_their_queue() {
    let (near_device, far_device, address) = devices(MIXED);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (small(&near_device), Side::new(&far_device));
    join(&mut near, &mut far, &listener);
    near.qp.disconnect().unwrap();
    near.end();
    let mut posted = 0;
    for _ in 0..1000 {
        posted += u64::from(near.qp.post_recv(posted, &[]).is_ok());
        while near_device.drive() {}
    }
    assert!(posted <= 4 + 8 + 8, "{posted}");
    for wr_id in 0..posted {
        assert_eq!(near.completion().wr_id(), wr_id);
    }
}

#[test]
fn completions_of_a_queue_pair_that_was_dropped_can_be_forgotten() {
    let (device, ..) = devices(MIXED);
    let pd = device.pd();
    for dropped in [0, 1] {
        // Some wait in the engine for room.
        let mut cq = device.cq(4).unwrap();
        let mut qps: Vec<_> = (0..2)
            .map(|_| pd.qp(&cq, &cq, QpCaps::default()).unwrap())
            .collect();
        for (n, qp) in qps.iter_mut().enumerate() {
            for wr_id in 0..3 {
                qp.post_recv(10 * n as u64 + wr_id, &[]).unwrap();
            }
            qp.fail().unwrap();
        }
        assert!(device.barrier(SOON).unwrap());
        let number = qps[dropped].number();
        drop(qps.remove(dropped));
        assert!(device.barrier(SOON).unwrap());
        cq.forget(number).unwrap();
        let kept = 10 * (1 - dropped as u64);
        for expected in kept..kept + 3 {
            let completion = cq.next_completion(SOON).unwrap().unwrap();
            assert_eq!(completion.wr_id(), expected);
        }
        assert_eq!(cq.next_completion(Duration::ZERO).unwrap(), None);
        // What comes later comes behind.
        qps[0].post_recv(99, &[]).unwrap();
        assert_eq!(
            cq.next_completion(SOON).unwrap().map(|done| done.wr_id()),
            Some(99)
        );
    }
}
