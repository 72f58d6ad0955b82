//! Atomic operations as an application uses them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rnic_verbs::{
    Access, EndReason, HugePages, Mr, PostError, Region, SendRequest, WcOpcode, WcStatus,
};

use crate::fixture::{MIXED, Side, Threads, connected};

/// Memory of one number that the peer may change.
fn number(side: &Side, value: u64) -> Mr {
    let region = Region::allocate_unlocked(64, HugePages::None).unwrap();
    let mr = side
        .pd
        .register(&Arc::new(region), Access::REMOTE_ATOMIC)
        .unwrap();
    mr.atomic(8).unwrap().store(value, Ordering::Release);
    mr
}

#[test]
fn each_operation_tells_what_it_found() {
    for threads in [
        MIXED,
        Threads {
            near: true,
            far: true,
        },
    ] {
        let (mut near, far, _listener) = connected(threads);
        let mr = number(&far, 100);
        let there = mr.remote(8);
        let steps = [
            (SendRequest::fetch_add(there, 5), 100, 105),
            (SendRequest::cmp_swap(there, 104, 1), 105, 105),
            (SendRequest::cmp_swap(there, 105, 0xfff0), 105, 0xfff0),
            (
                SendRequest::fetch_add_fields(there, 0x1f, 0x80),
                0xfff0,
                0xff0f,
            ),
            (
                SendRequest::cmp_swap_masked(there, (0xf, 0xff), (0, 0xff00)),
                0xff0f,
                0xf,
            ),
        ];
        for (wr_id, (request, found, left)) in (1..).zip(steps) {
            let sink = [near.mr.sge(64, 8)];
            near.qp
                .post_send(&request.memory(&sink).wr_id(wr_id))
                .unwrap();
            let done = near.done();
            let opcode = match wr_id {
                1 | 4 => WcOpcode::FetchAdd,
                _ => WcOpcode::CmpSwap,
            };
            assert_eq!(
                (done.wr_id(), done.opcode(), done.byte_len()),
                (wr_id, opcode, 8)
            );
            let came = near.mr.atomic(64).unwrap().load(Ordering::Acquire);
            assert_eq!(came, found, "step {wr_id}");
            let now = mr.atomic(8).unwrap().load(Ordering::Acquire);
            assert_eq!(now, left, "step {wr_id}");
        }
    }
}

#[test]
fn what_is_no_atomic_is_not_posted() {
    let (mut near, far, _listener) = connected(MIXED);
    let there = number(&far, 0).remote(8);
    let request = SendRequest::fetch_add(there, 1);
    assert_eq!(near.qp.post_send(&request), Err(PostError::AtomicSink));
    let short = [near.mr.sge(0, 4)];
    assert_eq!(
        near.qp.post_send(&request.memory(&short)),
        Err(PostError::AtomicSink)
    );
    assert!(near.mr.atomic(4).is_err(), "no multiple of 8");
    assert!(near.mr.atomic(near.mr.len()).is_err());
    assert!(near.mr.atomic(usize::MAX - 7).is_err());
}

#[test]
fn memory_without_the_right_stays_as_it_is() {
    let (mut near, far, _listener) = connected(MIXED);
    far.mr.write(0, &[7; 8]).unwrap();
    let sink = [near.mr.sge(0, 8)];
    let request = SendRequest::cmp_swap_masked(far.mr.remote(0), (0, 0), (1, 1));
    near.qp.post_send(&request.memory(&sink)).unwrap();
    assert!(matches!(
        near.end(),
        EndReason::TerminateReceived { control, .. }
            if (control.layer, control.error_type, control.code) == (0, 1, 2)
    ));
    assert_eq!(near.completion().status(), WcStatus::RemoteAccessError);
    let mut octets = [0; 8];
    far.mr.read(0, &mut octets).unwrap();
    assert_eq!(octets, [7; 8]);
}

#[test]
fn the_peer_and_the_application_count_together() {
    const ROUNDS: u64 = 3000;
    let (mut near, far, _listener) = connected(Threads {
        near: false,
        far: true,
    });
    let mr = number(&far, 0);
    let there = mr.remote(8);
    let counter = mr.region().clone();
    let application = std::thread::spawn(move || {
        let value = counter.atomic(8).unwrap();
        for _ in 0..ROUNDS * 100 {
            value.fetch_add(1, Ordering::Relaxed);
        }
    });
    let sink = [near.mr.sge(0, 8)];
    let mut done = 0;
    let mut posted = 0;
    let mut last = None;
    while done < ROUNDS {
        while posted < ROUNDS && near.qp.send_room() > 0 {
            let request = SendRequest::fetch_add(there, 1).memory(&sink);
            near.qp.post_send(&request).unwrap();
            posted += 1;
        }
        near.done();
        done += 1;
        let found = Some(near.mr.atomic(0).unwrap().load(Ordering::Acquire));
        assert!(found >= last, "the counter never goes back");
        last = found;
    }
    application.join().unwrap();
    let sum = mr.atomic(8).unwrap().load(Ordering::Acquire);
    assert_eq!(sum, ROUNDS * 101);
}
