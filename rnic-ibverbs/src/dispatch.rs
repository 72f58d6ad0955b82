//! Threads of this library: the dispatcher of a device, which hands on what the engine reports.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};

use crate::errno::{Errno, lock};

/// Runs something that starts threads so that none of them takes the program's signals. Signals of
/// a fault stay as they are: a thread gets its own.
pub(crate) fn quietly<T>(run: impl FnOnce() -> T) -> T {
    let mut quiet = SigSet::all();
    for fault in [
        Signal::SIGSEGV,
        Signal::SIGBUS,
        Signal::SIGILL,
        Signal::SIGFPE,
        Signal::SIGTRAP,
    ] {
        quiet.remove(fault);
    }
    let mut before = SigSet::empty();
    let changed = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&quiet), Some(&mut before));
    let done = run();
    if changed.is_ok() {
        // Cannot fail: it was the mask before.
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    }
    done
}

/// Starts a thread that takes none of the program's signals.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let started = quietly(|| thread.spawn(run));
    started
        .map(drop)
        .map_err(|why| why.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw))
}

/// What wakes a dispatcher.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

/// How long a dispatcher without anything to do sleeps at a time.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

impl Bell {
    /// Waits until it is rung, or until this time.
    fn wait(&self, until: Option<Instant>) {
        let mut rung = lock(&self.rung);
        while !std::mem::take(&mut *rung) {
            let left = until.map_or(LONGEST_SLEEP, |at| {
                at.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return;
            }
            let woken = self.changed.wait_timeout(rung, left);
            rung = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !std::mem::replace(&mut *lock(&self.rung), true) {
            self.changed.notify_one();
        }
    }
}

/// Starts a dispatcher: a thread that runs `work` each time after the waker was woken, and at the
/// time that `work` returned last.
pub(crate) fn dispatcher(
    work: impl Fn() -> Option<Instant> + Send + 'static,
) -> Result<Waker, Errno> {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    spawn("rnic-dispatcher", move || {
        let mut until = None;
        loop {
            bell.wait(until);
            until = work();
        }
    })?;
    Ok(waker)
}
