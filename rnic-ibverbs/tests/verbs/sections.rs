//! What a program does between `ibv_wr_start` and `ibv_wr_complete`, and between `ibv_start_poll`
//! and `ibv_end_poll`; and that a batch is posted in whole or not at all.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use nix::libc;
use nix::unistd::alarm;

use crate::calls::*;
use crate::end::{End, qp_attributes};
use crate::there::{There, connect};

const OPERATIONS: u64 = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND;

/// Ends a process that hangs: a signal that nobody handles.
const LONGEST: u32 = 120;

/// Where what is read back lies.
const BACK: usize = 1 << 15;

unsafe fn write(qp: *mut ibv_qp_ex, end: &End, there: There, (wr_id, at): (u64, usize)) {
    ((*qp).wr_id, (*qp).wr_flags) = (wr_id, IBV_SEND_SIGNALED);
    (*qp).wr_rdma_write.unwrap()(qp, there.rkey, there.address + at as u64);
    let from = end.memory.sge(at, 8);
    (*qp).wr_set_sge.unwrap()(qp, from.lkey, from.addr, from.length);
}

unsafe fn start_poll(cq: *mut ibv_cq_ex) -> i32 {
    let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
    (*cq).start_poll.unwrap()(cq, &mut attr)
}

/// Begins to poll, once there is something.
unsafe fn start_polling(cq: *mut ibv_cq_ex) {
    loop {
        match start_poll(cq) {
            0 => return,
            errno => assert_eq!(errno, libc::ENOENT),
        }
    }
}

unsafe fn create_cq_ex(context: *mut ibv_context) -> *mut ibv_cq_ex {
    let mut attr: ibv_cq_init_attr_ex = std::mem::zeroed();
    (attr.cqe, attr.wc_flags) = (16, IBV_WC_EX_WITH_BYTE_LEN);
    made(operations(context).create_cq_ex.unwrap()(
        context, &mut attr,
    ))
}

/// All that a program may do with other objects, and with the same ones, while a thread is between
/// two calls.
unsafe fn everything(end: &End, another_thread: bool) {
    let context = (*end.id).verbs;
    end.receive(0);
    let (mut now, mut init) = (ibv_qp_attr::default(), qp_attributes(end.send_cq));
    ok(ibv_query_qp(end.qp(), &mut now, IBV_QP_STATE, &mut init));
    assert_eq!(now.qp_state, IBV_QPS_RTS);
    ok(ibv_modify_qp(end.qp(), &mut now, IBV_QP_STATE));
    notify(end.send_cq, false);
    let mut attr = qp_attributes(end.send_cq);
    let other = made(ibv_create_qp(end.pd, &mut attr));
    let mut wr: ibv_recv_wr = std::mem::zeroed();
    ok(post_recv(other, &mut wr));
    ok(ibv_destroy_qp(other));
    let cq = create_cq_ex(context);
    assert_eq!(start_poll(cq), libc::ENOENT);
    assert!(poll(cq.cast()).is_none());
    ok(ibv_destroy_cq(cq.cast()));
    if !another_thread {
        let end = Shared(end);
        // SAFETY: the objects of verbs may be used by any thread.
        thread::scope(|scope| drop(scope.spawn(move || unsafe { everything(end.get(), true) })));
    }
}

/// An end that threads share.
#[derive(Clone, Copy)]
struct Shared<'a>(&'a End);

// SAFETY: the pointers are those of objects of the verbs, which any thread may use.
unsafe impl Send for Shared<'_> {}

impl<'a> Shared<'a> {
    fn get(self) -> &'a End {
        self.0
    }
}

/// While a batch is built, and while a queue is polled, all other calls go on.
pub(crate) unsafe fn sections() {
    alarm::set(LONGEST);
    let (end, there) = connect(OPERATIONS);
    let qp = made(ibv_qp_to_qp_ex(end.qp()));
    (*qp).wr_start.unwrap()(qp);
    write(qp, &end, there, (1001, 0));
    everything(&end, false);
    // A request that is posted meanwhile goes ahead.
    end.say(b"meanwhile");
    write(qp, &end, there, (1002, 8));
    ok((*qp).wr_complete.unwrap()(qp));

    let cq: *mut ibv_cq_ex = end.send_cq.cast();
    start_polling(cq);
    everything(&end, false);
    assert_eq!(start_poll(cq), libc::EBUSY, "this thread polls it");
    // Another queue, and a batch, within.
    let other = create_cq_ex((*end.id).verbs);
    assert_eq!(start_poll(other), libc::ENOENT);
    (*qp).wr_start.unwrap()(qp);
    write(qp, &end, there, (1003, 16));
    ok((*qp).wr_complete.unwrap()(qp));
    assert_eq!((*cq).status, IBV_WC_SUCCESS);
    let mut seen = vec![(*cq).wr_id];
    // The writes complete in order, and the echo comes among them.
    while seen.len() < 4 {
        match (*cq).next_poll.unwrap()(cq) {
            0 => seen.push((*cq).wr_id),
            errno => {
                assert_eq!(errno, libc::ENOENT);
                (*cq).end_poll.unwrap()(cq);
                start_polling(cq);
                seen.push((*cq).wr_id);
            }
        }
        assert_eq!((*cq).status, IBV_WC_SUCCESS);
    }
    (*cq).end_poll.unwrap()(cq);
    let of_writes: Vec<_> = seen.iter().filter(|id| **id > 1000).collect();
    assert_eq!(of_writes, [&1001, &1002, &1003], "{seen:?}");
    ok(ibv_destroy_cq(other.cast()));

    // To begin a batch within the batch is an error, which posts nothing.
    (*qp).wr_start.unwrap()(qp);
    write(qp, &end, there, (4, 0));
    (*qp).wr_start.unwrap()(qp);
    assert_eq!((*qp).wr_complete.unwrap()(qp), libc::EINVAL);
    assert_eq!((*qp).wr_complete.unwrap()(qp), libc::EINVAL);
    assert!(poll(end.send_cq).is_none());
    // An object may be destroyed by the thread that was about to use it.
    (*qp).wr_start.unwrap()(qp);
    end.close();
}

/// Batches of each thread, and Writes of each batch.
const BATCHES: usize = 200;
const WRITES: usize = 3;

/// Threads that build batches on one queue pair have their turns; so have threads that poll one
/// queue by calls. Each also does what may be done within.
pub(crate) unsafe fn sections_of_threads() {
    alarm::set(LONGEST);
    let (end, there) = connect(OPERATIONS);
    let on_their_way = AtomicUsize::new(0);
    let completed = AtomicUsize::new(0);
    let all = 2 * BATCHES * WRITES;
    thread::scope(|scope| {
        for mark in [1, 2] {
            let end = Shared(&end);
            let (on_their_way, completed) = (&on_their_way, &completed);
            scope.spawn(move || post_batches(end.get(), there, mark, on_their_way));
            scope.spawn(move || poll_all(end.get(), on_their_way, completed, all));
        }
    });
    assert_eq!(completed.load(Ordering::Relaxed), all);
    end.close();
}

fn post_batches(end: &End, there: There, mark: usize, on_their_way: &AtomicUsize) {
    for number in 0..BATCHES {
        let room = |taken| (taken + WRITES <= 32).then_some(taken + WRITES);
        while on_their_way
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
            .is_err()
        {
            thread::yield_now();
        }
        // SAFETY: any thread may use the objects, and has octets of its own.
        unsafe {
            let qp = made(ibv_qp_to_qp_ex(end.qp()));
            (*qp).wr_start.unwrap()(qp);
            for write_number in 0..WRITES {
                let wr_id = mark * 1_000_000 + number * WRITES + write_number;
                write(qp, end, there, (wr_id as u64, mark * 8));
                let (mut now, mut init) = (ibv_qp_attr::default(), qp_attributes(end.send_cq));
                ok(ibv_query_qp(end.qp(), &mut now, IBV_QP_STATE, &mut init));
            }
            ok((*qp).wr_complete.unwrap()(qp));
        }
    }
}

fn poll_all(end: &End, on_their_way: &AtomicUsize, completed: &AtomicUsize, all: usize) {
    let cq: *mut ibv_cq_ex = end.send_cq.cast();
    while completed.load(Ordering::Relaxed) < all {
        // SAFETY: any thread may use the objects.
        unsafe {
            if start_poll(cq) != 0 {
                thread::yield_now();
                continue;
            }
            loop {
                let status = (*cq).status;
                assert_eq!(status, IBV_WC_SUCCESS);
                let is_write = (*cq).read_opcode.unwrap()(cq) == IBV_WC_RDMA_WRITE;
                notify(end.send_cq, false);
                if is_write {
                    on_their_way.fetch_sub(1, Ordering::Relaxed);
                    completed.fetch_add(1, Ordering::Relaxed);
                }
                if (*cq).next_poll.unwrap()(cq) != 0 {
                    break;
                }
            }
            (*cq).end_poll.unwrap()(cq);
        }
    }
}

/// What is wrong keeps the rest of its batch from being posted, wherever it stands. A list goes up
/// to what is wrong, and says so.
pub(crate) unsafe fn whole() {
    alarm::set(LONGEST);
    let (mut end, there) = connect(OPERATIONS);
    let qp = made(ibv_qp_to_qp_ex(end.qp()));
    end.memory.write(0, b"a ghost.");
    let octets = end.memory.address(0) as *mut _;
    let from = end.memory.sge(0, 8);
    let inline_read = || {
        (*qp).wr_rdma_read.unwrap()(qp, there.rkey, there.address);
        (*qp).wr_set_inline_data.unwrap()(qp, octets, 8);
    };
    let many_pieces = || {
        (*qp).wr_send.unwrap()(qp);
        let pieces = [from; 200];
        (*qp).wr_set_sge_list.unwrap()(qp, pieces.len(), pieces.as_ptr());
    };
    let too_long = || {
        (*qp).wr_send.unwrap()(qp);
        let pieces = [ibv_sge {
            length: u32::MAX,
            ..from
        }; 2];
        (*qp).wr_set_sge_list.unwrap()(qp, pieces.len(), pieces.as_ptr());
    };
    let wrongs: [&dyn Fn(); 3] = [&inline_read, &many_pieces, &too_long];
    for wrong in wrongs {
        (*qp).wr_start.unwrap()(qp);
        write(qp, &end, there, (1, 0));
        wrong();
        write(qp, &end, there, (2, 0));
        assert_eq!((*qp).wr_complete.unwrap()(qp), libc::EINVAL);
    }
    // More than there is room for.
    (*qp).wr_start.unwrap()(qp);
    for wr_id in 0..100 {
        write(qp, &end, there, (wr_id, 0));
    }
    assert_eq!((*qp).wr_complete.unwrap()(qp), libc::ENOMEM);
    // A Read comes behind all that was posted: nothing is there, and nothing completed.
    let mut back = [end.memory.sge(BACK, 8)];
    let wc = end.carry_out(IBV_WR_RDMA_READ, &mut back, there.at(0));
    assert_eq!(wc.status, IBV_WC_SUCCESS);
    assert_eq!(end.memory.read(BACK, 8), [0; 8]);

    let mut sges = [from; 3];
    let mut list: [ibv_send_wr; 3] = std::mem::zeroed();
    for (wr, sge) in list.iter_mut().zip(&mut sges) {
        (wr.opcode, wr.send_flags) = (IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
        (wr.sg_list, wr.num_sge) = (sge, 1);
        there.at(0)(wr);
    }
    list[1].opcode = IBV_WR_RDMA_READ;
    list[1].send_flags |= IBV_SEND_INLINE;
    list[0].next = &raw mut list[1];
    list[1].next = &raw mut list[2];
    let mut bad = null_mut();
    let post = (*(*end.qp()).context).ops.post_send.unwrap();
    assert_eq!(post(end.qp(), &mut list[0], &mut bad), libc::EINVAL);
    assert_eq!(bad, &raw mut list[1]);
    assert_eq!(completion(end.send_cq).status, IBV_WC_SUCCESS);
    let wc = end.carry_out(IBV_WR_RDMA_READ, &mut back, there.at(0));
    assert_eq!(wc.status, IBV_WC_SUCCESS);
    assert_eq!(end.memory.read(BACK, 8), b"a ghost.");
    end.close();
}
