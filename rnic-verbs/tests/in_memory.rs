//! The verbs over two engines that are joined in memory.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic_core::testing::in_memory::{InMemoryDevice, pair};
use rnic_verbs::{
    Access, Completion, ConnectError, ConnectionEvent, ConnectionOptions, Cq, Device, Driver,
    EndReason, Error, HugePages, Listener, Mr, Pd, PostError, Qp, QpCaps, QpState, Region,
    SendRequest, WcOpcode, WcStatus,
};

const SOON: Duration = Duration::from_secs(10);
const PORT: u16 = 4420;

/// Which devices a thread drives; the others are driven by polling.
#[derive(Clone, Copy)]
struct Threads {
    near: bool,
    far: bool,
}

/// What most tests use: the near side polls, the far side has a thread.
const MIXED: Threads = Threads {
    near: false,
    far: true,
};

fn open(end: InMemoryDevice, thread: bool) -> Device {
    let turn = Box::new(end.worker);
    let driver = if thread {
        Driver::spawn(turn, Duration::from_millis(1)).unwrap()
    } else {
        Driver::Inline(turn)
    };
    Device::new(end.host, end.net, driver)
}

fn devices(threads: Threads) -> (Device, Device, SocketAddr) {
    let (near, far) = pair([[1; 32], [2; 32]]);
    let address = SocketAddr::new(far.address, PORT);
    (open(near, threads.near), open(far, threads.far), address)
}

/// One side of a connection, with a page of memory that the other may read and write.
struct Side {
    pd: Pd,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl Side {
    fn new(device: &Device) -> Self {
        Self::with_caps(device, QpCaps::default())
    }

    fn with_caps(device: &Device, caps: QpCaps) -> Self {
        let pd = device.pd();
        let cq = device.cq(256).unwrap();
        let qp = pd.qp(&cq, &cq, caps).unwrap();
        let mr = register(&pd, 1 << 20);
        Self { pd, cq, qp, mr }
    }

    /// The next completion, which may be a failed one.
    fn completion(&mut self) -> Completion {
        let until = Instant::now() + SOON;
        while Instant::now() < until {
            if let Some(completion) = self.cq.poll_one() {
                return completion;
            }
            self.cq.wait(Duration::from_millis(20)).unwrap();
        }
        panic!("nothing completed");
    }

    fn done(&mut self) -> Completion {
        let completion = self.completion();
        assert_eq!(completion.status(), WcStatus::Success, "{completion:?}");
        completion
    }

    fn end(&mut self) -> EndReason {
        loop {
            match self.qp.next_event(SOON).unwrap() {
                Some(ConnectionEvent::Disconnected(reason) | ConnectionEvent::Failed(reason)) => {
                    return reason;
                }
                Some(_) => {}
                None => panic!("the connection does not end"),
            }
        }
    }
}

fn register(pd: &Pd, len: usize) -> Mr {
    let region = Region::allocate_unlocked(len, HugePages::None).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    pd.register(&Arc::new(region), access).unwrap()
}

fn join(near: &mut Side, far: &mut Side, listener: &Listener) {
    let options = ConnectionOptions {
        private_data: b"ping".to_vec(),
        ..ConnectionOptions::default()
    };
    near.qp
        .connect(listener.local_address(), None, options)
        .unwrap();
    let request = loop {
        // Nobody else drives the near side yet.
        near.qp.next_event(Duration::ZERO).unwrap();
        if let Some(request) = listener.next_request(Duration::from_millis(1)).unwrap() {
            break request;
        }
    };
    assert_eq!(request.private_data(), b"ping");
    let options = ConnectionOptions {
        private_data: b"pong".to_vec(),
        ..ConnectionOptions::default()
    };
    request.accept(&mut far.qp, options).unwrap();
    let established = near.qp.wait_established(SOON).unwrap();
    assert_eq!(established.private_data, b"pong");
    assert_eq!(near.qp.state(), QpState::Connected);
}

fn connected(threads: Threads) -> (Side, Side, Listener) {
    let (near_device, far_device, address) = devices(threads);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    join(&mut near, &mut far, &listener);
    (near, far, listener)
}

#[test]
fn every_operation_moves_its_data() {
    for threads in [
        MIXED,
        Threads {
            near: true,
            far: true,
        },
    ] {
        let (mut near, mut far, _listener) = connected(threads);
        let text: Vec<u8> = (0..100_000_u32).map(|i| (i * 7) as u8).collect();
        near.mr.write(0, &text).unwrap();

        // Write, in two pieces.
        let pieces = [near.mr.sge(0, 60_000), near.mr.sge(60_000, 40_000)];
        near.qp
            .post_send(
                &SendRequest::write(far.mr.remote(5))
                    .memory(&pieces)
                    .wr_id(1),
            )
            .unwrap();
        let done = near.done();
        assert_eq!(
            (done.wr_id(), done.opcode(), done.qp()),
            (1, WcOpcode::Write, near.qp.number())
        );
        let mut back = vec![0; text.len()];
        far.mr.read(5, &mut back).unwrap();
        assert!(back == text);

        // Read it back to another place.
        let sink = [near.mr.sge(500_000, 100_000)];
        near.qp
            .post_send(&SendRequest::read(far.mr.remote(5)).memory(&sink).wr_id(2))
            .unwrap();
        let done = near.done();
        assert_eq!(
            (done.wr_id(), done.opcode(), done.byte_len()),
            (2, WcOpcode::Read, 100_000)
        );
        near.mr.read(500_000, &mut back).unwrap();
        assert!(back == text);

        // Send, from memory and inline, into two posted buffers.
        let buffers = [far.mr.sge(200_000, 60_000), far.mr.sge(300_000, 60_000)];
        far.qp.post_recv(7, &buffers).unwrap();
        far.qp.post_recv(8, &buffers).unwrap();
        near.qp
            .post_send(
                &SendRequest::send()
                    .memory(&[near.mr.sge(0, 100_000)])
                    .unsignaled(),
            )
            .unwrap();
        near.qp
            .post_send(&SendRequest::send().inline(b"hello").solicited().wr_id(4))
            .unwrap();
        assert_eq!(near.done().wr_id(), 4);
        let done = far.done();
        assert_eq!(
            (done.wr_id(), done.opcode(), done.byte_len()),
            (7, WcOpcode::Recv, 100_000)
        );
        assert!(!done.is_solicited());
        let done = far.done();
        assert_eq!(
            (done.wr_id(), done.byte_len(), done.is_solicited()),
            (8, 5, true)
        );
        let mut hello = [0; 5];
        far.mr.read(200_000, &mut hello).unwrap();
        assert_eq!(&hello, b"hello");
        far.mr.read(300_000, &mut back[..40_000]).unwrap();
        assert!(back[..40_000] == text[60_000..]);

        near.qp.disconnect().unwrap();
        assert_eq!(near.end(), EndReason::Local);
        assert_eq!(far.end(), EndReason::Peer);
        assert_eq!(near.qp.state(), QpState::Error);
    }
}

#[test]
fn posting_checks_what_it_can() {
    let (near_device, ..) = devices(MIXED);
    let caps = QpCaps {
        max_send_wr: 2,
        max_recv_wr: 2,
        max_sge: 2,
        max_inline: 16,
        signal_all: false,
    };
    let mut side = Side::with_caps(&near_device, caps);
    let piece = side.mr.sge(0, 10);
    let long = PostError::InlineTooLong { len: 17, max: 16 };
    assert_eq!(
        side.qp.post_send(&SendRequest::send().inline(&[0; 17])),
        Err(long)
    );
    let many = PostError::TooManyElements { count: 3, max: 2 };
    assert_eq!(side.qp.post_recv(0, &[piece; 3]), Err(many));
    // Before the connection stands, requests wait.
    for _ in 0..2 {
        side.qp.post_send(&SendRequest::send()).unwrap();
        side.qp.post_recv(0, &[piece]).unwrap();
    }
    assert_eq!(side.qp.send_room(), 0);
    assert_eq!(
        side.qp.post_send(&SendRequest::send()),
        Err(PostError::SendQueueFull(2))
    );
    assert_eq!(
        side.qp.post_recv(0, &[]),
        Err(PostError::ReceiveQueueFull(2))
    );
    assert_eq!(side.qp.state(), QpState::Idle);
}

#[test]
fn requests_posted_early_flow_once_connected() {
    let (near_device, far_device, address) = devices(MIXED);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    near.qp
        .post_send(&SendRequest::send().inline(b"early"))
        .unwrap();
    far.qp.post_recv(1, &[far.mr.sge(0, 5)]).unwrap();
    join(&mut near, &mut far, &listener);
    near.done();
    assert_eq!(far.done().byte_len(), 5);
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
            Err(ConnectError::Rejected { private_data }) => assert_eq!(private_data, expected),
            other => panic!("{other:?}"),
        }
        // It may try again.
        assert_eq!(near.qp.state(), QpState::Idle);
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
fn deregistered_memory_is_out_of_reach() {
    let (mut near, far, _listener) = connected(MIXED);
    let Side {
        mr,
        qp: far_qp,
        pd: _pd,
        cq: far_cq,
    } = far;
    let (remote, region) = (mr.remote(0), mr.region().clone());
    mr.deregister().unwrap();
    near.qp
        .post_send(&SendRequest::write(remote).inline(b"x").wr_id(1))
        .unwrap();
    near.qp
        .post_send(
            &SendRequest::read(remote)
                .memory(&[near.mr.sge(0, 1)])
                .wr_id(2),
        )
        .unwrap();
    match near.end() {
        EndReason::TerminateReceived { control } => {
            assert_eq!((control.layer, control.error_type), (1, 1))
        }
        other => panic!("{other:?}"),
    }
    // No request is lost: each completes, and those after the end are flushed.
    let failed = [near.completion(), near.completion()];
    assert_eq!(failed.map(|completion| completion.wr_id()), [1, 2]);
    assert_ne!(failed[1].status(), WcStatus::Success);
    near.qp.post_send(&SendRequest::send().wr_id(3)).unwrap();
    near.qp.post_recv(4, &[]).unwrap();
    let mut flushed = [near.completion(), near.completion()]
        .map(|completion| (completion.wr_id(), completion.status()));
    flushed.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(
        flushed,
        [(3, WcStatus::WrFlushed), (4, WcStatus::WrFlushed)]
    );
    assert_eq!(region.load(0).unwrap(), 0);
    drop((far_qp, far_cq));
}

#[test]
fn a_peer_invalidates_what_was_meant_for_it() {
    let (mut near, mut far, _listener) = connected(MIXED);
    let region = Arc::new(Region::allocate_unlocked(4096, HugePages::None).unwrap());
    let lent = far
        .pd
        .registration(&region)
        .access(Access::REMOTE_READ)
        .base(0)
        .only_for(&far.qp)
        .register()
        .unwrap();
    assert!(lent.is_valid() && lent.base() == 0);
    far.qp.post_recv(1, &[]).unwrap();
    near.qp
        .post_send(&SendRequest::send_invalidate(lent.stag()))
        .unwrap();
    near.done();
    assert_eq!(far.done().invalidated(), Some(lent.stag()));
    assert!(!lent.is_valid());
}

#[test]
fn local_memory_is_checked_too() {
    let (mut near, _far, _listener) = connected(MIXED);
    let outside = near.mr.sge(near.mr.len(), 1);
    near.qp
        .post_send(&SendRequest::send().memory(&[outside]).wr_id(5))
        .unwrap();
    let failed = near.completion();
    assert_eq!(
        (failed.wr_id(), failed.status()),
        (5, WcStatus::LocalProtectionError)
    );
}

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
fn dropping_a_queue_pair_tells_the_peer() {
    let (near, mut far, _listener) = connected(MIXED);
    // The last handle of the device too: what it has to say still goes out.
    drop(near);
    assert_eq!(far.end(), EndReason::Reset);
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
