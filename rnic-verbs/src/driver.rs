//! What runs the engines of a device: threads, or the application.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use rnic_core::engine::{SplitTurn, Turn};

use crate::error::Error;
use crate::standby::Standby;

/// Who runs the engine.
pub enum Driver {
    /// A thread that runs already. The box is dropped with the device, which must end the thread.
    Thread(Box<dyn Any + Send + Sync>),
    /// The application: [`Cq::poll`](crate::Cq::poll) and everything that waits run the engine.
    /// Best where cores are few.
    Inline(Box<dyn Turn>),
    /// The application when it polls, and a thread of the device while it does not: see
    /// [`Driving::Standby`](crate::Driving::Standby).
    Standby(Standby),
}

impl Driver {
    /// Starts a thread that drives the engine while the application does not poll. Fails if the
    /// thread cannot be started.
    pub fn standby(turn: Box<dyn SplitTurn>) -> Result<Self, Error> {
        Standby::start(turn).map(Self::Standby)
    }

    /// Starts a thread that busy-polls. It sleeps when it had nothing to do for `idle`. Fails if
    /// the thread cannot be started.
    pub fn spawn(turn: Box<dyn Turn>, idle: Duration) -> Result<Self, Error> {
        Self::spawn_all(vec![turn], idle, &[])
    }

    /// Starts such a thread for each of several engines. Each is pinned to one of `cpus`, in turn.
    /// If `cpus` is empty, the kernel chooses. Fails if one of them is not allowed.
    pub fn spawn_all(
        turns: Vec<Box<dyn Turn>>,
        idle: Duration,
        cpus: &[usize],
    ) -> Result<Self, Error> {
        let end = Arc::new(End {
            stop: AtomicBool::new(false),
            unsettled: AtomicUsize::new(turns.len()),
        });
        let mut running = Running {
            end: end.clone(),
            threads: Vec::new(),
        };
        let mut cpus = cpus.iter().copied().cycle();
        for (number, mut turn) in turns.into_iter().enumerate() {
            let (end, cpu) = (end.clone(), cpus.next());
            let (told, pinned) = channel();
            let thread = std::thread::Builder::new()
                .name(format!("rnic-worker-{number}"))
                .spawn(move || {
                    let done = pin(cpu);
                    let is_pinned = done.is_ok();
                    if told.send(done).is_ok() && is_pinned {
                        run(&mut *turn, idle, &end);
                    }
                })
                .map_err(Error::Thread)?;
            running.threads.push(thread);
            if let (Some(cpu), Ok(Err(errno))) = (cpu, pinned.recv()) {
                let source = errno.into();
                return Err(Error::Pin { cpu, source });
            }
        }
        Ok(Self::Thread(Box::new(running)))
    }
}

/// Pins this thread to a CPU, if one is stated.
fn pin(cpu: Option<usize>) -> nix::Result<()> {
    let Some(cpu) = cpu else {
        return Ok(());
    };
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

/// How threads end together.
struct End {
    stop: AtomicBool,
    /// Threads whose engines still have something to send or to hear from a peer.
    unsettled: AtomicUsize,
}

/// How long a spawned thread sleeps at most. Stopping it takes as long.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

/// Turns without work after which a spinning thread yields its CPU. Where there are more threads
/// than CPUs, the thread that has work may be waiting for it.
const TURNS_PER_YIELD: u32 = 64;

fn run(turn: &mut dyn Turn, idle: Duration, end: &End) {
    let mut busy_at = Instant::now();
    let mut idle_turns = 0u32;
    // Relaxed, as is the count of those unsettled: the threads tell each other no more by them, and
    // the end of a thread is waited for.
    while !end.stop.load(Ordering::Relaxed) {
        if turn.turn() {
            busy_at = Instant::now();
            idle_turns = 0;
            continue;
        }
        idle_turns = idle_turns.wrapping_add(1);
        if busy_at.elapsed() >= idle {
            turn.wait(LONGEST_SLEEP);
        } else if idle_turns.is_multiple_of(TURNS_PER_YIELD) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
    settle(turn, &end.unsettled);
}

/// How long an engine may take for its last messages to peers: a rejection, a Terminate, the FIN
/// and its acknowledgement.
const LONGEST_SETTLING: Duration = Duration::from_secs(2);

/// Lets the engine carry out the last commands and end its connections, because once the device is
/// gone the kernel answers what a peer sends with a RST. Goes on until the other threads have
/// settled too: frames for them may come here.
pub(crate) fn settle(turn: &mut dyn Turn, unsettled: &AtomicUsize) {
    let until = Instant::now() + LONGEST_SETTLING;
    let mut counted = false;
    loop {
        let did = turn.turn();
        if !counted && !did && turn.is_settled() {
            unsettled.fetch_sub(1, Ordering::Relaxed);
            counted = true;
        }
        if unsettled.load(Ordering::Relaxed) == 0 || Instant::now() >= until {
            return;
        }
    }
}

/// Threads that end when this is dropped.
struct Running {
    end: Arc<End>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A worker that panicked has reported it on stderr already.
            let _ = thread.join();
        }
    }
}
