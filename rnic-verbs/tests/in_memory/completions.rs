//! Waiting for completions, and notifications of them.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic_verbs::{Cq, SendRequest};

use crate::fixture::{MIXED, SOON, Threads, connected};

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
