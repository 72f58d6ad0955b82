//! Devices, their threads and the numbers of their objects.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rnic_core::engine::Turn;
use rnic_core::in_memory::{InMemoryWorker, pair};
use rnic_verbs::{
    ConnectionOptions, Device, Driver, EndReason, Error, QpCaps, SendRequest, WcOpcode,
};

use crate::fixture::{MIXED, PORT, SOON, Side, Threads, connected, devices};

#[test]
fn many_threads_share_a_device() {
    const PEERS: u16 = 8;
    for threads in [
        Threads {
            near: true,
            far: true,
        },
        Threads {
            near: false,
            far: true,
        },
    ] {
        let (near, far, address) = devices(threads);
        std::thread::scope(|scope| {
            for number in 0..PEERS {
                let address = SocketAddr::new(address.ip(), PORT + number);
                let listener = far.listen(address).unwrap();
                let (near, far) = (&near, &far);
                scope.spawn(move || {
                    let mut side = Side::new(far);
                    side.qp.post_recv(0, &[side.mr.sge(0, 64)]).unwrap();
                    let request = listener.next_request(SOON).unwrap().unwrap();
                    request
                        .accept(&mut side.qp, ConnectionOptions::default())
                        .unwrap();
                    for _ in 0..50 {
                        let len = side.done().byte_len();
                        side.qp.post_recv(0, &[side.mr.sge(0, 64)]).unwrap();
                        side.qp
                            .post_send(
                                &SendRequest::send()
                                    .memory(&[side.mr.sge(0, len)])
                                    .unsignaled(),
                            )
                            .unwrap();
                    }
                    assert_eq!(side.end(), EndReason::Peer);
                });
                scope.spawn(move || {
                    let mut side = Side::new(near);
                    side.qp
                        .connect_blocking(address, None, ConnectionOptions::default())
                        .unwrap();
                    for round in 0..50_u8 {
                        let sent = [round, number as u8];
                        side.qp.post_recv(1, &[side.mr.sge(0, 64)]).unwrap();
                        side.qp
                            .post_send(&SendRequest::send().inline(&sent).unsignaled())
                            .unwrap();
                        assert_eq!(side.done().opcode(), WcOpcode::Recv);
                        let mut back = [0; 2];
                        side.mr.read(0, &mut back).unwrap();
                        assert_eq!(back, sent);
                    }
                    side.qp.disconnect().unwrap();
                    assert_eq!(side.end(), EndReason::Local);
                });
            }
        });
    }
}

#[test]
fn numbers_of_objects_are_used_again() {
    let (near, ..) = devices(MIXED);
    let mut qps = Vec::new();
    let (pd, cq) = (near.pd(), near.cq(1).unwrap());
    let caps = QpCaps {
        max_send_wr: 1,
        max_recv_wr: 1,
        ..QpCaps::default()
    };
    let limit = loop {
        match pd.qp(&cq, &cq, caps) {
            Ok(qp) => qps.push(qp),
            Err(Error::NoQueuePair(limit)) => break limit,
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(qps.len(), limit as usize);
    let number = qps.pop().unwrap().number();
    assert_eq!(pd.qp(&cq, &cq, caps).unwrap().number(), number);
}

#[test]
fn the_state_of_the_engine_can_be_seen() {
    for threads in [
        MIXED,
        Threads {
            near: true,
            far: true,
        },
    ] {
        let (near, _far, _listener) = connected(threads);
        let snapshot = near.pd.device().snapshot(SOON).unwrap().unwrap();
        assert_eq!(snapshot.connections.len(), 1);
        assert!(snapshot.engine.frames_sent > 0);
    }
}

/// A worker that panics on request.
struct Doomed {
    worker: InMemoryWorker,
    now: Arc<AtomicBool>,
}

impl Turn for Doomed {
    fn turn(&mut self) -> bool {
        assert!(!self.now.load(Ordering::Relaxed), "as the test wants it");
        self.worker.turn()
    }

    fn is_settled(&self) -> bool {
        self.worker.is_settled()
    }

    fn wait(&mut self, at_most: Duration) {
        self.worker.wait(at_most);
    }
}

/// A device whose worker panics once the flag is set, and objects that it knows.
fn doomed(inline: bool) -> (Device, Side, Arc<AtomicBool>) {
    let (end, _peer) = pair([[1; 32], [2; 32]]);
    let now = Arc::new(AtomicBool::new(false));
    let turn = Box::new(Doomed {
        worker: end.worker,
        now: now.clone(),
    });
    let driver = if inline {
        Driver::Inline(turn)
    } else {
        Driver::spawn(turn, Duration::from_millis(1)).unwrap()
    };
    let device = Device::new(end.host, end.net, driver);
    let side = Side::new(&device);
    // Takes up the commands so far.
    assert!(device.barrier(SOON).unwrap());
    (device, side, now)
}

fn is_gone<T>(outcome: Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::WorkerGone(_)))
}

#[test]
fn nothing_waits_for_a_worker_that_has_died() {
    let (device, side, now) = doomed(false);
    let Side { mut qp, cq, .. } = side;
    let events = std::thread::spawn(move || qp.next_event(SOON));
    let completions = std::thread::spawn(move || [cq.wait(SOON), cq.wait(SOON)]);
    now.store(true, Ordering::Relaxed);
    assert!(is_gone(device.snapshot(Duration::MAX)));
    assert!(is_gone(device.barrier(Duration::MAX)));
    assert!(is_gone(events.join().unwrap()));
    assert!(completions.join().unwrap().into_iter().all(is_gone));
}

#[test]
fn nothing_drives_a_worker_that_has_died() {
    let (device, side, now) = doomed(true);
    let Side { mut qp, cq, .. } = side;
    now.store(true, Ordering::Relaxed);
    let other = device.clone();
    assert!(std::thread::spawn(move || other.drive()).join().is_err());
    assert!(is_gone(cq.wait(SOON)));
    assert!(is_gone(cq.wait_notified(SOON)));
    assert!(is_gone(qp.next_event(SOON)));
    assert!(is_gone(device.snapshot(Duration::MAX)));
    assert!(is_gone(device.barrier(Duration::MAX)));
    assert!(!device.drive());
}
