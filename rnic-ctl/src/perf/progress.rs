//! A progress bar on standard error, for runs that take long and people who watch.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rnic_verbs::Cq;

use crate::failure::{Doing, Outcome};
use crate::interrupt::Interrupt;

/// Runs shorter than this show no bar.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a loop looks up from its work: half of the second within which Ctrl-C has to end it is plenty.
const TICK: Duration = Duration::from_millis(50);

/// What a measuring loop calls now and then.
pub(super) struct Progress {
    interrupt: Interrupt,
    started: Instant,
    next: Instant,
    wanted: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Of a run that begins now. `wanted` is false where nobody shall see it.
    pub(super) fn new(interrupt: &Interrupt, wanted: bool) -> Self {
        let started = Instant::now();
        let wanted = wanted && stderr().is_terminal();
        Self {
            interrupt: interrupt.clone(),
            started,
            next: started + TICK,
            wanted,
            bar: None,
        }
    }

    /// Whether it is time to look up from work, at `now`.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Shows how far the run is, as a share of 1. Fails if the user wants to stop.
    pub(super) fn show(&mut self, now: Instant, share: f64) -> Outcome {
        self.next = now + TICK;
        if self.wanted && now - self.started >= PATIENCE {
            let bar = self.bar.get_or_insert_with(new_bar);
            bar.set_position((share.clamp(0.0, 1.0) * 1000.0) as u64);
        }
        self.interrupt.check()
    }
}

/// Fruitless looks at a completion queue before a thread sleeps that does not drive the device itself.
const LOOKS: u32 = 1000;
/// How long to look in vain without a pause: then something is wrong, and may be so for long.
const STALL: Duration = Duration::from_millis(100);
/// How long to sleep at a time while it is.
const STALLED_NAP: Duration = Duration::from_millis(10);
/// Fruitless looks before a thread that drives the device offers its core to others: should the other side share the
/// core, nothing would come before the end of a time slice.
pub(super) const LOOKS_TO_YIELD: u32 = 64;

/// What a loop that polls a completion queue does when there is nothing: where a thread drives the device, it leaves
/// the core to that thread.
pub(crate) struct Idle {
    spins: bool,
    fruitless: u32,
    stall: Stall,
}

/// A loop that finds nothing for long sleeps between its looks.
#[derive(Default)]
pub(super) struct Stall(Option<Instant>);

impl Stall {
    /// Something was found.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }

    /// Nothing was, once more: now and then, for it takes the time.
    pub(super) fn go_on(&mut self, cq: &Cq) -> Outcome {
        if self.0.get_or_insert_with(Instant::now).elapsed() >= STALL {
            cq.wait(STALLED_NAP).doing("wait for completions")?;
        }
        Ok(())
    }
}

impl Idle {
    pub(crate) fn new(cq: &Cq) -> Self {
        Self {
            spins: cq.device().is_inline(),
            fruitless: 0,
            stall: Stall::default(),
        }
    }

    /// After a look that found so many completions.
    pub(crate) fn after(&mut self, found: usize, cq: &Cq) -> Outcome {
        if found > 0 {
            self.fruitless = 0;
            self.stall.end();
            return Ok(());
        }
        self.fruitless = self.fruitless.saturating_add(1);
        if self.spins {
            if self.fruitless >= LOOKS_TO_YIELD {
                self.fruitless = 0;
                std::thread::yield_now();
                self.stall.go_on(cq)?;
            }
        } else if self.fruitless >= LOOKS {
            cq.wait(Duration::from_millis(1))
                .doing("wait for completions")?;
        }
        Ok(())
    }
}

fn new_bar() -> ProgressBar {
    let bar = ProgressBar::new(1000);
    // The template is a constant; should this release of the library not know it, its own will do.
    if let Ok(style) =
        ProgressStyle::with_template(" {elapsed} [{bar:50}] {percent}% (about {eta} left)")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
