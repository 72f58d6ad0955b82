//! A thread that stands by: it drives the engine while no thread of the application polls.
//!
//! Whoever polls takes turns itself, exactly as if it drove the engine inline. The thread must
//! notice when nobody does, and must not get in the way of those who do. It is in one of three
//! modes:
//!
//! - *Watching*: the application polls. The thread looks now and then whether it still does, and
//!   touches nothing else.
//! - *Driving*: nobody polls, and there is or was something to do a moment ago. The thread takes
//!   turns. It leaves the engine to others between them.
//! - *Asleep*: nobody polls, and there is nothing to do. The thread sleeps until a frame arrives, a
//!   timer expires, or it is woken. It does not hold the engine: another thread that comes takes
//!   its turn.
//!
//! The application's polls that found nothing are counted. A few of them between two looks of the
//! thread are not polling: a program polls once more after it has armed a completion queue, and
//! then sleeps. Whoever is about to sleep hands the engine over, and the thread takes it at once.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sched::sched_getcpu;
use nix::sys::prctl::set_timerslack;
use rnic_core::engine::{Sleeper, SplitTurn, WorkerGone};
use rnic_manager::without_signals;

use crate::error::Error;

/// Polls in vain between two looks that are not polling.
const FEW_POLLS: u32 = 8;

/// How long the thread watches before it looks, at first and at most: it doubles while the
/// application polls. So long an application that stops to poll without handing over is not served:
/// about as long as it has polled before.
const WATCH: [Duration; 2] = [Duration::from_micros(50), Duration::from_micros(200)];

/// How long it watches at most where it takes the CPU from the thread that polls: then no CPU is
/// idle. Linux 6.18 lets a group of processes keep a CPU from all others, for seconds, while one of
/// its threads wakes beside another that runs. With two CPUs, and a time slice of 1.4 ms, a pause of
/// 0.7 ms was long enough; slices are longer with more CPUs.
const WATCH_CROWDED: Duration = Duration::from_micros(3200);

/// So often a poll tells on which CPU it is.
const POLLS_PER_CPU: u32 = 16;

/// Stands for no CPU.
const NO_CPU: usize = usize::MAX;

/// How long the thread goes on taking turns when there was nothing to do: a peer's next request
/// mostly follows its last one soon, and waking up takes longer.
const LINGER: Duration = Duration::from_micros(50);

/// A thread that keeps the CPU for so long when it is yielded to it, and is not about to sleep,
/// computes or waits by reading its memory.
const LONG_YIELD: Duration = Duration::from_micros(500);

/// For so long after a long yield the thread does not go on taking turns in vain: it would yield
/// for milliseconds again, and a frame wakes a sleeper at once.
const CROWDED: Duration = Duration::from_millis(100);

/// How long the thread sleeps at most.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// A timer that a poll has set may expire so much earlier than the thread wakes.
const LATE: Duration = Duration::from_micros(20);

/// Turns without work after which the thread yields its CPU.
const TURNS_PER_YIELD: u32 = 8;

const WATCHING: u8 = 0;
const DRIVING: u8 = 1;
const ASLEEP: u8 = 2;

/// A worker with the thread that stands by. The thread ends when this is dropped.
pub struct Standby {
    shared: Arc<Shared>,
    /// None once it was told to end.
    thread: Option<JoinHandle<()>>,
}

/// What the thread and the application share.
struct Shared {
    /// The worker. `None` once it has panicked.
    worker: Mutex<Option<Box<dyn SplitTurn>>>,
    /// The thread has the worker.
    held: AtomicBool,
    /// Polls that found nothing. Several threads that count at once may lose some.
    polls: AtomicU32,
    /// How many there were when the thread looked last, or when somebody handed over.
    seen: AtomicU32,
    /// The CPU of a poll not long ago.
    cpu: AtomicUsize,
    /// Sequentially consistent, so that `hand_over` and the thread do not miss each other.
    mode: AtomicU8,
    /// The application has handed the engine over since the last long yield: it sleeps when it
    /// waits.
    handed_over: AtomicBool,
    /// When the sleep of the thread ends at the latest, in nanoseconds since `started`.
    wakes_at: AtomicU64,
    started: Instant,
    stop: AtomicBool,
}

impl Standby {
    /// Starts the thread.
    pub(crate) fn start(worker: Box<dyn SplitTurn>) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            worker: Mutex::new(Some(worker)),
            held: AtomicBool::new(false),
            polls: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            cpu: AtomicUsize::new(NO_CPU),
            mode: AtomicU8::new(DRIVING),
            handed_over: AtomicBool::new(false),
            wakes_at: AtomicU64::new(0),
            started: Instant::now(),
            stop: AtomicBool::new(false),
        });
        let thread = thread::Builder::new().name("rnic-standby".into());
        let run = shared.clone();
        let thread = without_signals(|| thread.spawn(move || run.run()));
        Ok(Self {
            shared,
            thread: Some(thread.map_err(Error::Thread)?),
        })
    }

    /// Runs a turn for a thread that polls. Returns whether there was anything to do. Returns
    /// false, too, if another thread has the worker.
    #[inline]
    pub(crate) fn poll(&self) -> Result<bool, WorkerGone> {
        let shared = &*self.shared;
        let polls = shared.polls.load(Ordering::Relaxed);
        shared.polls.store(polls.wrapping_add(1), Ordering::Relaxed);
        if polls.is_multiple_of(POLLS_PER_CPU) {
            shared.cpu.store(current_cpu(), Ordering::Relaxed);
        }
        match shared.try_take()? {
            Some(mut taken) => Ok(shared.turn_beside_sleeper(taken.worker()?)),
            None => {
                if shared.held.load(Ordering::Relaxed) {
                    // The thread may have lost its CPU to this one in the middle of a turn.
                    thread::yield_now();
                }
                Ok(false)
            }
        }
    }

    /// Runs a turn for a thread that found the worker asleep. Returns false if another thread has
    /// the worker: then it has to be woken.
    #[cold]
    pub(crate) fn answer(&self) -> bool {
        let Ok(Some(mut taken)) = self.shared.try_take() else {
            return false;
        };
        let Ok(worker) = taken.worker() else {
            return false;
        };
        self.shared.turn_beside_sleeper(worker);
        true
    }

    /// Leaves the engine to the thread, because the caller is about to sleep.
    pub(crate) fn hand_over(&self) {
        let shared = &*self.shared;
        shared.handed_over.store(true, Ordering::Relaxed);
        shared.look();
        // The thread says that it is awake before it looks for polls, as this looks for it behind
        // them: either it sees that there were none, or this that it is awake.
        fence(Ordering::SeqCst);
        // Asleep, it wakes by itself.
        if shared.mode.load(Ordering::SeqCst) != ASLEEP {
            self.unpark();
        }
    }

    /// Ends the thread and returns the worker, unless that has panicked.
    pub(crate) fn stop(&mut self) -> Option<Box<dyn SplitTurn>> {
        let (shared, thread) = (&self.shared, self.thread.take()?);
        shared.stop.store(true, Ordering::SeqCst);
        if thread.thread().id() == thread::current().id() {
            // A waker dropped the device in the middle of a turn, after which the thread ends.
            return None;
        }
        thread.thread().unpark();
        if let Ok(Some(worker)) = shared.worker.lock().as_deref_mut() {
            worker.sleeper().wake();
        }
        // If it panicked, it has reported that on stderr.
        let _ = thread.join();
        let mut worker = shared.worker.lock().ok()?;
        worker.take()
    }

    fn unpark(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The worker, held for a turn. A panic in the turn drops it, which tells everybody who waits for
/// it.
struct HeldWorker<'a> {
    worker: MutexGuard<'a, Option<Box<dyn SplitTurn>>>,
    /// This thread was panicking already, so a turn is not why.
    panicking: bool,
}

impl HeldWorker<'_> {
    #[inline]
    fn worker(&mut self) -> Result<&mut (dyn SplitTurn + 'static), WorkerGone> {
        self.worker.as_deref_mut().ok_or(WorkerGone)
    }
}

impl Drop for HeldWorker<'_> {
    #[inline]
    fn drop(&mut self) {
        if thread::panicking() && !self.panicking {
            *self.worker = None;
        }
    }
}

/// Returns the CPU that this thread runs on.
fn current_cpu() -> usize {
    sched_getcpu().unwrap_or(NO_CPU)
}

impl Shared {
    /// Locks the worker. Returns `None` if another thread has it.
    #[inline]
    fn try_take(&self) -> Result<Option<HeldWorker<'_>>, WorkerGone> {
        match self.worker.try_lock() {
            Ok(worker) => Ok(Some(HeldWorker {
                worker,
                panicking: thread::panicking(),
            })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Poisoned(_)) => Err(WorkerGone),
        }
    }

    /// Runs a turn. If the thread sleeps meanwhile, sees to it that it wakes when it has to.
    #[inline]
    fn turn_beside_sleeper(&self, worker: &mut (dyn SplitTurn + 'static)) -> bool {
        let did = worker.turn();
        // Relaxed: the thread falls asleep while it has the worker, which the lock orders before
        // this. If it has woken already, it is woken once more.
        if self.mode.load(Ordering::Relaxed) == ASLEEP {
            self.settle_sleep(worker, did);
        }
        did
    }

    #[cold]
    fn settle_sleep(&self, worker: &mut dyn SplitTurn, did: bool) {
        let wakes = if self.is_polled() {
            // The next frames are not for it to wake up for.
            true
        } else {
            did && worker.begin_sleep(LONGEST_SLEEP).is_none_or(|sleep| {
                let latest = self.wakes_at.load(Ordering::Relaxed);
                self.after(sleep.saturating_add(LATE)) < latest
            })
        };
        if wakes {
            self.mode.store(DRIVING, Ordering::SeqCst);
            worker.sleeper().wake();
        }
    }

    /// Returns a time from now on, in nanoseconds since the start.
    fn after(&self, time: Duration) -> u64 {
        let at = self.started.elapsed().saturating_add(time);
        at.as_nanos().try_into().unwrap_or(u64::MAX)
    }

    /// Remembers how many polls there were.
    fn look(&self) {
        let polls = self.polls.load(Ordering::Relaxed);
        self.seen.store(polls, Ordering::Relaxed);
    }

    /// Returns whether the application polls: more than a few times since the last look.
    fn is_polled(&self) -> bool {
        // Relaxed, as is all that only says how much is polled: a look that comes too early is made
        // up for by the next, which a time bounds.
        let polls = self.polls.load(Ordering::Relaxed);
        polls.wrapping_sub(self.seen.load(Ordering::Relaxed)) as i32 > FEW_POLLS as i32
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn run(&self) {
        // What the kernel may add to a sleep. If that fails, the thread wakes later.
        let _ = set_timerslack(1);
        let mut crowded_until = Instant::now();
        while !self.stops() && self.drive(&mut crowded_until).is_ok() {
            self.watch();
        }
    }

    /// Watches until the application polls no more.
    fn watch(&self) {
        let [mut period, longest] = WATCH;
        self.mode.store(WATCHING, Ordering::SeqCst);
        loop {
            self.look();
            thread::park_timeout(period);
            if self.stops() || !self.is_polled() {
                break;
            }
            let is_crowded = self.cpu.load(Ordering::Relaxed) == current_cpu();
            period = (period * 2).min(if is_crowded { WATCH_CROWDED } else { longest });
        }
        self.mode.store(DRIVING, Ordering::SeqCst);
    }

    /// Drives the engine until the application polls. Until `crowded_until` it sleeps as soon as
    /// there is nothing to do.
    fn drive(&self, crowded_until: &mut Instant) -> Result<(), WorkerGone> {
        let mut busy_at = Instant::now();
        let mut idle_turns = 0u32;
        self.look();
        while !self.stops() && !self.is_polled() {
            let Some(mut taken) = self.try_take()? else {
                // Somebody takes a turn.
                thread::yield_now();
                continue;
            };
            self.held.store(true, Ordering::Relaxed);
            let worker = taken.worker()?;
            let did = worker.turn();
            let lingers = || {
                busy_at.elapsed() < LINGER
                    && (self.handed_over.load(Ordering::Relaxed)
                        || *crowded_until <= Instant::now())
            };
            let sleep = if did || lingers() {
                None
            } else {
                self.begin_sleep(worker)
            };
            self.held.store(false, Ordering::Relaxed);
            drop(taken);
            if let Some((sleeper, at_most)) = sleep {
                sleeper.sleep(at_most);
                self.mode.store(DRIVING, Ordering::SeqCst);
                // Before it looks for polls: see `hand_over`.
                fence(Ordering::SeqCst);
                busy_at = Instant::now();
            } else if did {
                busy_at = Instant::now();
                idle_turns = 0;
            } else {
                idle_turns = idle_turns.wrapping_add(1);
                if idle_turns.is_multiple_of(TURNS_PER_YIELD) {
                    let before = Instant::now();
                    thread::yield_now();
                    let now = Instant::now();
                    if now - before > LONG_YIELD && !self.handed_over.swap(false, Ordering::Relaxed)
                    {
                        *crowded_until = now + CROWDED;
                    }
                }
            }
        }
        Ok(())
    }

    /// Begins to sleep, unless there is something to do. The worker may be left to others then.
    fn begin_sleep(&self, worker: &mut dyn SplitTurn) -> Option<(Arc<dyn Sleeper>, Duration)> {
        let at_most = worker.begin_sleep(LONGEST_SLEEP)?;
        self.look();
        let wakes_at = self.after(at_most);
        self.wakes_at.store(wakes_at, Ordering::Relaxed);
        // Before others get the worker.
        self.mode.store(ASLEEP, Ordering::SeqCst);
        Some((worker.sleeper(), at_most))
    }
}
