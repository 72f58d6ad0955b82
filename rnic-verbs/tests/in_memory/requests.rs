//! What requests do, and what is refused of them.

use std::sync::Arc;

use rnic_core::in_memory::pair;
use rnic_core::memory::table::TableError;
use rnic_verbs::{
    Access, EndReason, Error, HugePages, MAX_INLINE, MAX_SGE, PostError, PostSendsError, QpCaps,
    QpState, Region, SendRequest, WcOpcode, WcStatus,
};

use crate::fixture::{MIXED, Side, Threads, connected, devices, join, open, register};

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
fn immediate_data_come_behind_what_was_written() {
    let (mut near, mut far, _listener) = connected(MIXED);
    near.mr.write(0, &[7; 50_000]).unwrap();
    far.qp.post_recv(1, &[]).unwrap();
    far.qp.post_recv(2, &[]).unwrap();
    let piece = [near.mr.sge(0, 50_000)];
    let write = SendRequest::write_with_immediate(far.mr.remote(9), *b"all here")
        .memory(&piece)
        .wr_id(3);
    near.qp.post_send(&write).unwrap();
    let alone = SendRequest::immediate(*b"me alone").solicited().wr_id(4);
    near.qp.post_send(&alone).unwrap();

    let done = near.done();
    assert_eq!((done.wr_id(), done.opcode()), (3, WcOpcode::Write));
    assert_eq!((done.byte_len(), done.immediate()), (50_000, None));
    assert_eq!(near.done().wr_id(), 4);
    let told = far.done();
    assert_eq!(
        (told.wr_id(), told.opcode(), told.immediate()),
        (1, WcOpcode::RecvImmediate, Some(*b"all here"))
    );
    assert_eq!((told.byte_len(), told.is_solicited()), (50_000, false));
    let mut back = vec![0; 50_000];
    far.mr.read(9, &mut back).unwrap();
    assert!(back.iter().all(|octet| *octet == 7));
    let told = far.done();
    assert_eq!(
        (told.wr_id(), told.is_solicited(), told.immediate()),
        (2, true, Some(*b"me alone"))
    );
    assert_eq!(told.byte_len(), 0);

    // Without a receive the connection ends.
    near.qp.post_send(&alone).unwrap();
    assert!(matches!(
        near.end(),
        EndReason::TerminateReceived { control, .. }
            if (control.layer, control.error_type, control.code) == (1, 2, 2)
    ));
}

#[test]
fn posting_checks_what_it_can() {
    let (near_device, far_device, address) = devices(MIXED);
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
    for _ in 0..2 {
        side.qp.post_recv(0, &[piece]).unwrap();
    }
    assert_eq!(
        side.qp.post_recv(0, &[]),
        Err(PostError::ReceiveQueueFull(2))
    );
    let listener = far_device.listen(address).unwrap();
    join(&mut side, &mut Side::new(&far_device), &listener);
    // Nobody drives the device.
    for _ in 0..2 {
        side.qp.post_send(&SendRequest::send()).unwrap();
    }
    assert_eq!(side.qp.send_room(), 0);
    assert_eq!(
        side.qp.post_send(&SendRequest::send()),
        Err(PostError::SendQueueFull(2))
    );
}

#[test]
fn receives_posted_early_take_what_comes_and_an_idle_queue_pair_sends_nothing() {
    let (near_device, far_device, address) = devices(MIXED);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    let early = SendRequest::send().inline(b"early");
    let refused = near.qp.post_send(&early).unwrap_err();
    assert_eq!(refused, PostError::NotConnected(QpState::Init));
    assert!(refused.to_string().contains("INIT"), "{refused}");
    far.qp.post_recv(1, &[far.mr.sge(0, 5)]).unwrap();
    join(&mut near, &mut far, &listener);
    near.qp.post_send(&early).unwrap();
    near.done();
    assert_eq!(far.done().byte_len(), 5);
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
    let mut mr = mr;
    mr.deregister().unwrap();
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
        EndReason::TerminateReceived { control, .. } => {
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
fn a_registration_reaches_its_own_octets_only() {
    let (near, ..) = devices(MIXED);
    let pd = near.pd();
    let region = Arc::new(Region::allocate_unlocked(4096, HugePages::None).unwrap());
    let mr = pd.registration(&region).range(100..200).register().unwrap();
    mr.write(90, &[7; 10]).unwrap();
    let mut back = [0; 10];
    mr.read(90, &mut back).unwrap();
    assert_eq!((back, region.load(199).unwrap()), ([7; 10], 7));
    assert!(mr.load(99).is_ok() && mr.write(100, &[]).is_ok());
    assert!(mr.load(100).is_err());
    assert!(mr.load(usize::MAX).is_err());
    assert!(mr.write(91, &[1; 10]).is_err());
    assert!(mr.read(91, &mut back).is_err());
    assert_eq!(region.load(200).unwrap(), 0);
    for range in [usize::MAX - 1..usize::MAX, 4096..4097, 5..5] {
        let refused = pd.registration(&region).range(range).register();
        assert!(matches!(refused, Err(Error::Registration(_))));
    }
}

#[test]
fn deregistering_that_failed_inside_a_batch_succeeds_after_it() {
    let (end, _peer) = pair([[1; 32], [2; 32]]);
    let worker = end.host.table.worker();
    let mut mr = register(&open(end, false).pd(), 4096);
    let region = mr.region().clone();
    let batch = worker.enter();
    assert!(matches!(
        mr.deregister(),
        Err(Error::Registration(TableError::InsideBatch(_)))
    ));
    assert!(!mr.is_valid());
    drop(batch);
    let before = Arc::strong_count(&region);
    mr.deregister().unwrap();
    assert_eq!(Arc::strong_count(&region), before - 1);
}

/// Short Writes and Sends and longer ones, many to a list: all arrive, in their order.
#[test]
fn a_list_of_requests_is_carried_out_in_order() {
    for threads in [
        MIXED,
        Threads {
            near: true,
            far: true,
        },
    ] {
        let (mut near, mut far, _listener) = connected(threads);
        let number = |n: usize| (n as u64).to_be_bytes();
        for n in 0..100 {
            near.mr.write(100_000 + 8 * n, &number(n)).unwrap();
        }
        for slot in 0..20 {
            let buffer = [far.mr.sge(200_000 + 8 * slot as usize, 8)];
            far.qp.post_recv(slot, &buffer).unwrap();
        }
        let octets: Vec<[u8; 8]> = (0..100).map(number).collect();
        let pieces: Vec<_> = (0..100)
            .map(|n| [near.mr.sge(100_000 + 8 * n, 8)])
            .collect();
        let to = |at: usize| far.mr.remote(at);
        let requests = (0..100).map(|n| {
            let request = match n % 5 {
                0 => SendRequest::send().inline(&octets[n]),
                // One behind the other, and over what the one before has written.
                1 => SendRequest::write(to(8 * n)).memory(&pieces[n]),
                _ => SendRequest::write(to(8 * n)).inline(&octets[n]),
            };
            request.wr_id(n as u64).signaled(n % 10 == 9)
        });
        near.qp.post_sends(requests).unwrap();
        for n in 0..10 {
            assert_eq!(near.done().wr_id(), 10 * n + 9);
        }
        for slot in 0..20 {
            assert_eq!(far.done().wr_id(), slot);
        }
        let mut back = [0; 8];
        for n in 0..100 {
            let at = match n % 5 {
                0 => 200_000 + 8 * (n / 5),
                _ => 8 * n,
            };
            far.mr.read(at, &mut back).unwrap();
            assert_eq!(back, number(n), "request {n}");
        }
    }
}

#[test]
fn of_a_list_what_comes_before_a_bad_request_is_posted() {
    let (mut near, far, _listener) = connected(MIXED);
    let to = far.mr.remote(0);
    let write = |id: u64| SendRequest::write(to).inline(b"x").wr_id(id);
    let long = SendRequest::write(to).inline(&[0; 65]);
    let refused = near.qp.post_sends([write(1), write(2), long, write(4)]);
    let error = PostError::InlineTooLong { len: 65, max: 64 };
    assert_eq!(refused, Err(PostSendsError { posted: 2, error }));
    assert_eq!([near.done().wr_id(), near.done().wr_id()], [1, 2]);
    // Nothing behind it, and nothing twice.
    near.qp.post_send(&write(5)).unwrap();
    assert_eq!(near.done().wr_id(), 5);
    let refused = near.qp.post_sends([long]);
    assert_eq!(refused, Err(PostSendsError { posted: 0, error }));
    let many = near.qp.post_sends((0..).map(write));
    let capacity = near.qp.send_room();
    let full = PostSendsError {
        posted: 128,
        error: PostError::SendQueueFull(128),
    };
    assert_eq!((many, capacity), (Err(full), 0));
}

/// As many requests wait as programs ask for that use RDMA hardware, each with as many pieces and
/// octets as there may be.
#[test]
fn queues_may_be_long_and_their_requests_large() {
    const LONG: u32 = 16_384;
    let (near_device, far_device, address) = devices(MIXED);
    let caps = QpCaps {
        max_send_wr: LONG,
        max_recv_wr: LONG,
        max_sge: MAX_SGE,
        max_inline: MAX_INLINE,
        signal_all: false,
    };
    let listener = far_device.listen(address).unwrap();
    let mut far = Side::new(&far_device);
    let mut near = Side::with_caps(&near_device, caps);
    near.cq = near_device.cq(4 * LONG).unwrap();
    near.qp = near.pd.qp(&near.cq, &near.cq, caps).unwrap();
    join(&mut near, &mut far, &listener);
    let pieces: Vec<_> = (0..MAX_SGE).map(|n| near.mr.sge(3 * n, 2)).collect();
    for n in 0..LONG {
        near.qp.post_recv(n.into(), &pieces).unwrap();
    }
    let full = PostError::ReceiveQueueFull(LONG);
    assert_eq!(near.qp.post_recv(0, &pieces), Err(full));
    near.mr.write(0, &[5; 3 * MAX_SGE]).unwrap();
    // What the Reads bring, later Writes carry.
    far.mr.write(2000, &[6; 2 * MAX_SGE]).unwrap();
    let data = [7; MAX_INLINE];
    let to = far.mr.remote(0);
    for n in 0..LONG {
        let request = match n % 3 {
            0 => SendRequest::write(to).inline(&data),
            1 => SendRequest::write(far.mr.remote(1000)).memory(&pieces),
            _ => SendRequest::read(far.mr.remote(2000)).memory(&pieces),
        };
        near.qp.post_send(&request.wr_id(n.into())).unwrap();
    }
    let full = PostError::SendQueueFull(LONG);
    assert_eq!(near.qp.post_send(&SendRequest::write(to)), Err(full));
    for n in 0..LONG {
        assert_eq!(near.done().wr_id(), u64::from(n));
    }
    assert_eq!(far.mr.copy(0, MAX_INLINE).unwrap(), data);
    assert_eq!(far.mr.copy(1000, 2 * MAX_SGE).unwrap(), [6; 2 * MAX_SGE]);
    assert_eq!(near.mr.copy(0, 3).unwrap(), [6, 6, 5]);
}
