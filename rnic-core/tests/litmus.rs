//! Litmus tests of what threads share without locks, on the processor that runs them: two threads
//! meet, again and again, in the few steps whose order matters. The models (docs/design/tests.md)
//! try every order that Rust's memory model allows; these see the orders that a processor has, such
//! as that a load overtakes a store before it, which x86-64 does too, or that two stores change
//! places, which Arm does.
//!
//! What is handed from thread to thread here goes by relaxed accesses, so that the order is that of
//! the shipping code alone.
//!
//! Seen to fail on x86-64: the tests of doorbells without the fence of `prepare_to_sleep` and with
//! a weaker store there, that of completions without the fence of `Arming::fire`, that of entries
//! with the entry written behind its publication, and that of revocation without its wait. Without
//! the fence of `Worker::enter` it does not fail there, nor does that of registrations with the STag
//! written first: these wait for a processor that orders less.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread;

use rnic_core::ids::{CqId, PdId, QpNumber};
use rnic_core::memory::doorbell::Doorbells;
use rnic_core::memory::region::{HugePages, Region};
use rnic_core::memory::ring::ring;
use rnic_core::memory::table::{Access, StagTable};
use rnic_core::testing::deep;
use rnic_core::verbs::cq::{Arming, CqTable};
use rnic_core::verbs::status::WcStatus;
use rnic_core::verbs::wr::{Completion, WcOpcode};
use rnic_core::wire::ddp::{Stag, TaggedOffset};

/// Meetings of a test.
const MEETINGS: u64 = 100_000;

/// One test at a time: its two threads want a processor each.
static TURN: Mutex<()> = Mutex::new(());
const PD: PdId = PdId(1);
const AT: TaggedOffset = TaggedOffset(0);

/// Where two threads meet.
#[derive(Default)]
struct Meeting {
    came: AtomicU32,
    /// One of them has panicked.
    over: AtomicBool,
}

impl Meeting {
    /// Waits for the other thread, for the time of their meeting number `number`, from 1. Returns
    /// false if it does not come any more.
    fn wait(&self, number: u32) -> bool {
        self.came.fetch_add(1, Ordering::AcqRel);
        let mut turns = 0u32;
        while self.came.load(Ordering::Acquire) < 2 * number {
            if self.over.load(Ordering::Relaxed) {
                return false;
            }
            turns += 1;
            match turns % 256 {
                // The other one may want this processor.
                0 => thread::yield_now(),
                _ => spin_loop(),
            }
        }
        true
    }
}

/// Calls the meetings off when it is dropped.
struct CallOff<'a>([&'a Meeting; 2]);

impl Drop for CallOff<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let over = |meeting: &Meeting| meeting.over.store(true, Ordering::Relaxed);
            self.0.into_iter().for_each(over);
        }
    }
}

/// Has two threads meet, and each then take its steps at the same time as the other: a little
/// earlier, or later. Between two meetings, `check` looks at what both have found.
fn meet<A, B: Send>(
    mut one: impl FnMut(u32) -> A,
    mut other: impl FnMut(u32) -> B + Send,
    mut check: impl FnMut(A, B),
) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let meetings = deep(MEETINGS) as u32;
    let (before, after) = (Meeting::default(), Meeting::default());
    let found = Mutex::new(None);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _off = CallOff([&before, &after]);
            for number in 1..=meetings {
                if !before.wait(number) {
                    return;
                }
                delay(number % 31);
                let mine = other(number);
                *found.lock().unwrap() = Some(mine);
                if !after.wait(number) {
                    return;
                }
            }
        });
        let _off = CallOff([&before, &after]);
        for number in 1..=meetings {
            assert!(before.wait(number), "the other thread has panicked");
            delay(number % 37);
            let mine = one(number);
            assert!(after.wait(number), "the other thread has panicked");
            let others = found.lock().unwrap().take().unwrap();
            check(mine, others);
        }
    });
}

fn delay(turns: u32) {
    for _ in 0..turns {
        spin_loop();
    }
}

/// Store buffering: one posts and rings, the other announces that it sleeps and looks once more.
#[test]
fn a_ring_is_seen_or_wakes_the_sleeper() {
    for count in [1, 200] {
        let bells = Doorbells::new(count);
        let posted = AtomicU32::new(0);
        meet(
            |number| {
                posted.store(number, Ordering::Relaxed);
                bells.ring(count - 1)
            },
            |number| {
                let sleeps = bells.prepare_to_sleep();
                let mut seen = None;
                if !sleeps {
                    bells.take(|_| seen = Some(posted.load(Ordering::Relaxed) == number));
                }
                (sleeps, seen)
            },
            |wakes, (sleeps, seen)| {
                assert!(wakes || !sleeps, "the sleeper is not woken");
                assert_ne!(
                    seen,
                    Some(false),
                    "a bell was heard, and its request not seen"
                );
                bells.take(|_| ());
                bells.awake();
            },
        );
    }
}

/// Store buffering: one announces commands, the other that it sleeps.
#[test]
fn commands_are_seen_or_wake_the_sleeper() {
    let bells = Doorbells::new(1);
    meet(
        |_| bells.ring_commands(),
        |_| bells.prepare_to_sleep(),
        |wakes, sleeps| {
            assert!(wakes || !sleeps, "the sleeper is not woken");
            bells.take_commands();
            bells.awake();
        },
    );
}

/// Store buffering: one completes and looks whether the queue is armed, the other arms it and looks
/// whether there is a completion.
#[test]
fn a_completion_is_seen_or_notifies() {
    const CQ: CqId = CqId(0);
    struct Notified(AtomicU32);
    impl std::task::Wake for Notified {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (producer, mut consumer) = ring(4).unwrap();
    let (arming, notified) = (Arc::new(Arming::new()), Arc::new(Notified(0.into())));
    let waker = Waker::from(notified.clone());
    let mut table = CqTable::new();
    table.add(CQ, producer, waker, arming.clone()).unwrap();
    let consumer = Mutex::new(&mut consumer);
    meet(
        |number| {
            let done = Completion::new(
                u64::from(number),
                QpNumber(1),
                WcOpcode::Recv,
                WcStatus::Success,
                0,
            );
            table.complete(CQ, done, false);
            table.notify_all();
        },
        |_| {
            let mut consumer = consumer.lock().unwrap();
            arming.arm(false);
            consumer.pop().is_some()
        },
        |(), seen| {
            let notifies = notified.0.swap(0, Ordering::Relaxed) > 0;
            assert!(seen || notifies, "the application sleeps for ever");
            arming.disarm();
            consumer.lock().unwrap().pop();
        },
    );
}

/// Message passing: an entry is written and then shown, and taken and then given back.
#[test]
fn an_entry_of_a_ring_is_whole() {
    let (mut producer, mut consumer) = ring(4).unwrap();
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let entries = deep(10 * MEETINGS);
    let entry = |number: u64| {
        let (qp, octets) = (QpNumber(number as u32), number as u32);
        Completion::new(number, qp, WcOpcode::Recv, WcStatus::Success, octets)
    };
    let whole = thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..entries {
                while producer.push(entry(number)).is_err() {
                    thread::yield_now();
                }
            }
        });
        let mut whole = true;
        for number in 0..entries {
            let popped = loop {
                match consumer.pop() {
                    Some(popped) => break popped,
                    None => thread::yield_now(),
                }
            };
            whole &= popped == entry(number);
        }
        whole
    });
    assert!(whole, "an entry was popped that was not as it was pushed");
}

/// Store buffering, and message passing behind it: one begins a batch, looks a STag up and writes;
/// the other revokes it, and then has the memory for itself.
#[test]
fn revoked_memory_is_not_written() {
    let table = Arc::new(StagTable::new(64, [1; 32]));
    let region = Arc::new(Region::allocate_unlocked(4096, HugePages::None).unwrap());
    let register = || {
        table
            .register(region.clone(), 0..64, AT, Access::REMOTE_WRITE, PD)
            .unwrap()
    };
    let name = AtomicU32::new(register().0);
    let worker = table.worker();
    meet(
        |number| {
            let stag = Stag(name.load(Ordering::Relaxed));
            let guard = worker.enter();
            let placement = guard.for_placement(stag, AT, 64, PD, Access::REMOTE_WRITE);
            if let Ok(placement) = placement {
                // Late, for one that does not wait.
                delay(number % 17);
                placement.write(&[number as u8 | 1; 64]).unwrap();
            }
        },
        |_| {
            table.revoke(Stag(name.load(Ordering::Relaxed))).unwrap();
            region.fill(0, 64, 0).unwrap();
        },
        |(), ()| {
            let mut now = [1; 64];
            region.read(0, &mut now).unwrap();
            assert_eq!(now, [0; 64], "written after revocation");
            name.store(register().0, Ordering::Relaxed);
        },
    );
}

/// Message passing: a registration that is found is found with all that it was made with.
#[test]
fn a_valid_stag_has_all_that_it_was_registered_with() {
    let table = Arc::new(StagTable::new(64, [1; 32]));
    let region = Arc::new(Region::allocate_unlocked(8192, HugePages::None).unwrap());
    let name = AtomicU64::new(0);
    let worker = table.worker();
    let ranges = [0..64, 4096..4096 + 128];
    meet(
        |_| {
            let guard = worker.enter();
            let before = name.load(Ordering::Relaxed);
            let mut found = None;
            for _ in 0..64 {
                let now = name.load(Ordering::Relaxed);
                if now != before {
                    let (stag, end) = (Stag(now as u32), (now >> 32) as usize);
                    let at = TaggedOffset(1 << 20);
                    let whole = guard.for_placement(stag, at, end, PD, Access::REMOTE_WRITE);
                    let beyond = guard.for_placement(stag, at, end + 1, PD, Access::REMOTE_WRITE);
                    found = Some((whole.is_ok(), beyond.is_err()));
                    break;
                }
                spin_loop();
            }
            found
        },
        |number| {
            let range = ranges[number as usize % 2].clone();
            let at = TaggedOffset(1 << 20);
            let stag = table
                .register(region.clone(), range.clone(), at, Access::REMOTE_WRITE, PD)
                .unwrap();
            name.store(
                u64::from(stag.0) | (range.len() as u64) << 32,
                Ordering::Relaxed,
            );
            stag
        },
        |found, stag| {
            // A STag that is not valid yet is refused, and so is what is not of it.
            if let Some((_, beyond)) = found {
                assert!(beyond, "found with the length of another registration");
            }
            table.revoke(stag).unwrap();
        },
    );
}
