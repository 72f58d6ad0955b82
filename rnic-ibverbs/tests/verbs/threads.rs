//! Any thread uses any object at any time.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;

use crate::calls::*;
use crate::end::{End, Memory};
use crate::there::{There, connect};

/// Threads that post, and poll for all of them.
const POSTING: usize = 4;
/// Requests of each.
const REQUESTS: usize = 500;
/// Requests on their way at once: half of what the queue pair has room for, so that no post is
/// refused.
const ON_THEIR_WAY: usize = 32;
/// Messages that are sent and come back meanwhile.
const ECHOES: u32 = 200;
/// Octets of each Write.
const PIECE: usize = 8;

/// An end that threads share.
struct Shared(End);

// SAFETY: the pointers are those of objects of the verbs, which any thread may use. Each thread has
// octets of its own in the memory.
unsafe impl Sync for Shared {}

/// What is on its way, and what completed.
struct Progress {
    on_their_way: AtomicUsize,
    completed: Vec<AtomicU32>,
}

impl Progress {
    fn all_completed(&self) -> bool {
        let completed = |count: &AtomicU32| count.load(Ordering::Relaxed) != 0;
        self.completed.iter().all(completed)
    }

    /// Reserves room for one more request, and returns whether there was any.
    fn take_room(&self) -> bool {
        let room = |taken| (taken < ON_THEIR_WAY).then_some(taken + 1);
        let took = self
            .on_their_way
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        took.is_ok()
    }

    /// Polls a completion, whosever it is.
    unsafe fn poll(&self, end: &End) {
        if let Some(wc) = poll(end.send_cq) {
            assert_eq!((wc.status, wc.opcode), (IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE));
            self.completed[wc.wr_id as usize].fetch_add(1, Ordering::Relaxed);
            self.on_their_way.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Writes of several threads on one queue pair complete once each, in one queue that all of them
/// poll, while other threads send and receive there and make and destroy objects of the same
/// device.
pub(crate) unsafe fn threads() {
    let (mut end, there) = connect(0);
    let octets: Vec<u8> = (0..POSTING * PIECE).map(|at| at as u8 + 1).collect();
    end.memory.write(0, &octets);
    let end = Shared(end);
    let progress = Progress {
        on_their_way: AtomicUsize::new(0),
        completed: (0..POSTING * REQUESTS).map(|_| AtomicU32::new(0)).collect(),
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (end, progress, over) = (&end, &progress, &over);
        let made = scope.spawn(move || while_not(over, || make_and_destroy(end)));
        let posting: Vec<_> = (0..POSTING)
            .map(|thread| scope.spawn(move || post_all(&end.0, there, thread, progress)))
            .collect();
        scope.spawn(move || echo_all(&end.0)).join().unwrap();
        for thread in posting {
            thread.join().unwrap();
        }
        over.store(true, Ordering::Relaxed);
        assert!(made.join().unwrap() > 0);
    });
    for count in &progress.completed {
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
    let Shared(end) = end;
    let mut piece = [end.memory.sge(octets.len(), octets.len())];
    let wc = end.carry_out(IBV_WR_RDMA_READ, &mut piece, there.at(0));
    assert_eq!(wc.status, IBV_WC_SUCCESS);
    assert_eq!(end.memory.read(octets.len(), octets.len()), octets);
    end.close();
}

/// Does something until it is over. Returns how many times.
fn while_not(over: &AtomicBool, mut something: impl FnMut()) -> usize {
    let mut times = 0;
    while !over.load(Ordering::Relaxed) {
        something();
        times += 1;
    }
    times
}

fn post_all(end: &End, there: There, thread: usize, progress: &Progress) {
    for number in 0..REQUESTS {
        // SAFETY: as `Shared` says; the piece and the request live until they are posted.
        unsafe {
            while !progress.take_room() {
                progress.poll(end);
            }
            let mut piece = end.memory.sge(thread * PIECE, PIECE);
            let mut wr: ibv_send_wr = std::mem::zeroed();
            wr.wr_id = (thread * REQUESTS + number) as u64;
            wr.opcode = IBV_WR_RDMA_WRITE;
            wr.send_flags = IBV_SEND_SIGNALED;
            wr.sg_list = &mut piece;
            wr.num_sge = 1;
            there.at((thread * PIECE) as u64)(&mut wr);
            ok(post_send(end.qp(), &mut wr));
        }
    }
    while !progress.all_completed() {
        // SAFETY: as `Shared` says.
        unsafe { progress.poll(end) };
    }
}

fn echo_all(end: &End) {
    for number in 0..ECHOES {
        let octets = number.to_ne_bytes();
        // SAFETY: as `Shared` says; no other thread receives.
        unsafe {
            end.say(&octets);
            assert_eq!(end.message().1, octets);
        }
    }
}

fn make_and_destroy(end: &Shared) {
    // SAFETY: as `Shared` says; what is made here is used here alone.
    unsafe {
        let context = (*end.0.id).verbs;
        let memory = Memory::new(end.0.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
        let cq = made(ibv_create_cq(context, 16, null_mut(), null_mut(), 0));
        assert!(poll(cq).is_none());
        ok(ibv_destroy_cq(cq));
        drop(memory);
    }
}
