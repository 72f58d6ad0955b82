//! Ctrl-C: a flag that every loop checks. A part of the program that has failed stops the others by
//! it too.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::{Failure, Outcome};

/// Whether to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    signalled: Arc<AtomicBool>,
    /// When a part of the program failed.
    failed: Arc<OnceLock<Instant>>,
}

/// How long the other parts go on after one has failed: they may find a better reason themselves.
const GRACE: Duration = Duration::from_secs(1);

impl Interrupt {
    /// Installs the signal handlers: SIGINT, SIGTERM and SIGHUP set the flag, and end the process
    /// where it is set already.
    pub(crate) fn install() -> io::Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_shutdown(signal, 130, interrupt.signalled.clone())?;
            flag::register(signal, interrupt.signalled.clone())?;
        }
        Ok(interrupt)
    }

    /// Runs a part of the program. If it fails or panics, stops the other parts a little later.
    pub(crate) fn guard<T>(&self, part: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        struct Alarm<'a>(Option<&'a Interrupt>);
        impl Drop for Alarm<'_> {
            fn drop(&mut self) {
                if let Some(interrupt) = self.0 {
                    interrupt.failed.get_or_init(Instant::now);
                }
            }
        }
        let mut alarm = Alarm(Some(self));
        let done = part()?;
        alarm.0 = None;
        Ok(done)
    }

    /// Returns whether the user asked to stop. Failures after that are consequences.
    pub(crate) fn is_signalled(&self) -> bool {
        self.signalled.load(Ordering::Relaxed)
    }

    /// Returns whether the user asked to stop, and forgets it: who asks again means it anew.
    pub(crate) fn take(&self) -> bool {
        self.signalled.swap(false, Ordering::Relaxed)
    }

    /// Returns what stops a part of the program that does not heed the user: it ends when the
    /// others have failed.
    pub(crate) fn without_signals(&self) -> Self {
        Self {
            failed: self.failed.clone(),
            ..Self::default()
        }
    }

    /// Fails once the flag is set.
    pub(crate) fn check(&self) -> Outcome {
        if self.is_signalled() {
            return Err(Failure::interrupted());
        }
        match self.failed.get() {
            Some(at) if at.elapsed() >= GRACE => Err(Failure::stopped()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn is_stopped(interrupt: &Interrupt) -> bool {
        let deadline = Instant::now() + 20 * GRACE;
        while Instant::now() < deadline {
            if let Err(failure) = interrupt.check() {
                return failure == Failure::stopped();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    #[test]
    fn a_part_that_fails_or_panics_stops_the_others() {
        let failing = Interrupt::default();
        let outcome = failing.guard(|| Err::<(), _>(Failure::closed_pipe()));
        assert_eq!(outcome, Err(Failure::closed_pipe()));
        assert!(is_stopped(&failing));

        let panicking = Interrupt::default();
        let part = AssertUnwindSafe(|| panicking.guard::<()>(|| panic!("on purpose")));
        assert!(catch_unwind(part).is_err());
        assert!(is_stopped(&panicking));

        let fine = Interrupt::default();
        assert_eq!(fine.guard(|| Ok(7)), Ok(7));
        assert!(fine.failed.get().is_none());
    }
}
