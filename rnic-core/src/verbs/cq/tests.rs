use std::sync::atomic::{AtomicU32, AtomicU64};
use std::task::Wake;
use std::thread;

use crate::ids::QpNumber;
use crate::memory::ring::{Consumer, ring};
use crate::verbs::wr::WcOpcode;

use super::*;

#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Setup {
    table: CqTable,
    consumer: Consumer<Completion>,
    arming: Arc<Arming>,
    wakes: Arc<Count>,
}

const CQ: CqId = CqId(5);

fn setup(capacity: u32) -> Setup {
    let (producer, consumer) = ring(capacity).unwrap();
    let (arming, wakes) = (Arc::new(Arming::new()), Arc::new(Count::default()));
    let mut table = CqTable::new();
    table
        .add(CQ, producer, wakes.clone().into(), arming.clone())
        .unwrap();
    Setup {
        table,
        consumer,
        arming,
        wakes,
    }
}

fn done(wr_id: u64) -> Completion {
    Completion::new(wr_id, QpNumber(1), WcOpcode::Recv, WcStatus::Success, 0)
}

impl Setup {
    /// Completes, ends the batch, and says how often the application was notified in all.
    fn complete(&mut self, completion: Completion, solicited: bool) -> u32 {
        self.table.complete(CQ, completion, solicited);
        self.table.notify_all();
        self.wakes.0.load(Ordering::SeqCst)
    }
}

#[test]
fn notifies_once_per_arming_and_only_for_what_was_asked() {
    let mut s = setup(64);
    assert_eq!(s.complete(done(1), true), 0);
    s.arm_check(false, &[(false, 1), (true, 1)]);
    s.arm_check(true, &[(false, 1), (true, 2), (true, 2)]);
    // The wider wish counts, in either order.
    s.arming.arm(true);
    s.arm_check(false, &[(false, 3)]);
    s.arming.arm(false);
    s.arm_check(true, &[(false, 4)]);
    // A failure counts as solicited.
    s.arming.arm(true);
    let failed = Completion {
        status: WcStatus::WrFlushed as u8,
        ..done(2)
    };
    assert_eq!(s.complete(failed, false), 5);
    s.arming.arm(false);
    s.arming.disarm();
    assert_eq!(s.complete(done(3), true), 5);
}

impl Setup {
    fn arm_check(&mut self, solicited_only: bool, steps: &[(bool, u32)]) {
        self.arming.arm(solicited_only);
        for &(solicited, wakes) in steps {
            assert_eq!(self.complete(done(0), solicited), wakes);
        }
    }
}

#[test]
fn one_solicited_completion_of_a_batch_is_enough() {
    let mut s = setup(64);
    s.arming.arm(true);
    for solicited in [false, true, false] {
        s.table.complete(CQ, done(0), solicited);
    }
    assert_eq!(s.complete(done(0), false), 1);
    // The next batch is another.
    s.arming.arm(true);
    assert_eq!(s.complete(done(0), false), 1);
}

#[test]
fn one_notification_per_batch() {
    let mut s = setup(64);
    for _ in 0..5 {
        s.arming.arm(false);
        s.table.complete(CQ, done(0), false);
    }
    assert_eq!(s.wakes.0.load(Ordering::SeqCst), 0);
    s.table.notify_all();
    s.table.notify_all();
    assert_eq!(s.wakes.0.load(Ordering::SeqCst), 1);
}

#[test]
fn a_full_queue_keeps_the_order_and_notifies_when_it_delivers() {
    let mut s = setup(4);
    for n in 0..10 {
        s.table.complete(CQ, done(n), false);
    }
    assert!(s.table.has_backlog(CQ) && s.table.has_backlogs());
    assert_eq!(s.table.backlog(CQ), 6);
    let mut got = Vec::new();
    for n in 10..12 {
        got.extend(s.consumer.pop().map(|c| c.wr_id));
        // Room is for those that wait, not for the newest.
        s.table.complete(CQ, done(n), false);
        s.table.flush();
    }
    got.extend(std::iter::from_fn(|| s.consumer.pop()).map(|c| c.wr_id));
    s.table.notify_all();
    s.arming.arm(false);
    s.table.notify_all();
    assert_eq!(s.wakes.0.load(Ordering::SeqCst), 0);
    while s.table.has_backlogs() {
        s.table.flush();
        s.table.notify_all();
        got.extend(std::iter::from_fn(|| s.consumer.pop()).map(|c| c.wr_id));
    }
    assert_eq!(s.wakes.0.load(Ordering::SeqCst), 1);
    assert_eq!(got, (0..12).collect::<Vec<_>>());
    assert!(!s.table.has_backlog(CQ));
}

// rfc: 5040-114, 5042-20 a completion queue that overflows harms only the streams that use it
#[test]
fn an_overflow_leaves_other_queues_alone() {
    let mut s = setup(1);
    let (producer, mut other) = ring(4).unwrap();
    s.table
        .add(CqId(0), producer, Waker::noop().clone(), Arc::default())
        .unwrap();
    for n in 0..100 {
        s.table.complete(CQ, done(n), false);
    }
    s.table.complete(CqId(0), done(7), false);
    assert_eq!(other.pop().map(|c| c.wr_id), Some(7));
    assert!(s.table.has_backlog(CQ) && !s.table.has_backlog(CqId(0)));
    s.table.remove(CQ);
    assert!(!s.table.has_backlogs() && !s.table.contains(CQ));
    s.table.complete(CQ, done(0), false);
    s.table.flush();
    s.table.notify_all();
}

#[test]
fn numbers_are_checked() {
    let mut s = setup(1);
    let mut add = |id| {
        s.table.add(
            id,
            ring(1).unwrap().0,
            Waker::noop().clone(),
            Arc::default(),
        )
    };
    assert_eq!(add(CQ), Err(CqError::Exists(CQ)));
    assert_eq!(add(CqId(u32::MAX)), Err(CqError::Number(CqId(u32::MAX))));
    assert_eq!(add(CqId(MAX_CQS - 1)), Ok(()));
}

/// The application polls, arms, polls once more and sleeps. If a completion could slip in between
/// unnoticed, it would sleep for ever.
#[test]
fn no_completion_slips_in_between_arming_and_sleeping() {
    const COUNT: u64 = if cfg!(miri) { 200 } else { 50_000 };
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let (producer, mut consumer) = ring(16).unwrap();
    let arming = Arc::new(Arming::new());
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let taken = Arc::new(AtomicU64::new(0));
    let engine = thread::spawn({
        let (arming, taken) = (arming.clone(), taken.clone());
        move || {
            let mut table = CqTable::new();
            table.add(CQ, producer, waker, arming).unwrap();
            for n in 0..COUNT {
                table.complete(CQ, done(n), false);
                table.notify_all();
                // At times only go on when the application has caught up, and so is about to sleep.
                while n % 4 == 0 && taken.load(Ordering::Relaxed) <= n {
                    std::hint::spin_loop();
                    thread::yield_now();
                    table.flush();
                    table.notify_all();
                }
            }
            while table.has_backlogs() {
                table.flush();
                table.notify_all();
                thread::yield_now();
            }
        }
    });
    let mut next = 0;
    let mut poll = |next: &mut u64| {
        let before = *next;
        while let Some(completion) = consumer.pop() {
            assert_eq!(completion.wr_id, *next);
            *next += 1;
            taken.store(*next, Ordering::Relaxed);
        }
        *next != before
    };
    while next < COUNT {
        if !poll(&mut next) {
            arming.arm(false);
            if !poll(&mut next) && next < COUNT {
                thread::park();
            }
        }
    }
    engine.join().unwrap();
}

#[test]
fn a_queue_goes_on_in_another_ring_with_all_that_it_holds() {
    let mut s = setup(2);
    for n in 0..5 {
        s.table.complete(CQ, done(n), false);
    }
    let too_small = CqError::Holds {
        cq: CQ,
        held: 5,
        capacity: 4,
    };
    let (small, _) = ring(4).unwrap();
    assert_eq!(s.table.resize(CQ, small, 0), Err(too_small));
    let (large, mut newer) = ring(8).unwrap();
    let (equal, _) = ring(8).unwrap();
    assert!(s.table.resize(CQ, equal, 4).is_err(), "4 and 5 are 9");
    assert_eq!(s.table.resize(CQ, large, 0), Ok(()));
    s.table.complete(CQ, done(5), false);
    assert!(s.table.flush() && !s.table.has_backlog(CQ));
    s.table.complete(CQ, done(6), false);
    let ids = |ring: &mut Consumer<Completion>| -> Vec<u64> {
        std::iter::from_fn(|| ring.pop()).map(|c| c.wr_id).collect()
    };
    assert_eq!(ids(&mut s.consumer), [0, 1]);
    assert_eq!(ids(&mut newer), [2, 3, 4, 5, 6]);
    let unknown = s.table.resize(CqId(9), ring(1).unwrap().0, 0);
    assert_eq!(unknown, Err(CqError::Unknown(CqId(9))));
}
