//! A progress bar on standard error, for long runs on a terminal.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rnic_verbs::Cq;

use crate::failure::{Doing, Failure, Outcome};
use crate::interrupt::Interrupt;

/// Runs shorter than this show no bar.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a loop checks for Ctrl-C, which must end it within a second.
const TICK: Duration = Duration::from_millis(50);

/// How long a run that Ctrl-C has ended early may take to complete what it has posted.
const LAST_MESSAGES: Duration = Duration::from_secs(5);

/// Shows progress and checks for Ctrl-C; a measuring loop calls it now and then. Ctrl-C stops a run
/// of a number of messages, and ends one that lasts a time.
pub(super) struct Progress {
    interrupt: Interrupt,
    lasts_a_time: bool,
    ended_early: Option<Instant>,
    started: Instant,
    next: Instant,
    wanted: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Begins the progress of a run, which may last a time. `wanted` is false if none is to be
    /// shown.
    pub(super) fn new(interrupt: &Interrupt, lasts_a_time: bool, wanted: bool) -> Self {
        let started = Instant::now();
        let wanted = wanted && stderr().is_terminal();
        Self {
            interrupt: interrupt.clone(),
            lasts_a_time,
            ended_early: None,
            started,
            next: started + TICK,
            wanted,
            bar: None,
        }
    }

    /// Returns whether [`show`](Self::show) is due at `now`.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Returns whether the user has ended the run ahead of its time.
    pub(super) fn has_ended_early(&self) -> bool {
        self.ended_early.is_some()
    }

    /// Shows the progress, from 0 to 1. Fails if the user asked to stop, unless that ends the run
    /// early; then fails if its last messages do not complete, or the user asks again.
    pub(super) fn show(&mut self, now: Instant, share: f64) -> Outcome {
        self.next = now + TICK;
        if self.wanted && now - self.started >= PATIENCE {
            let bar = self.bar.get_or_insert_with(new_bar);
            bar.set_position((share.clamp(0.0, 1.0) * 1000.0) as u64);
        }
        match self.ended_early {
            None if self.lasts_a_time && self.interrupt.take() => {
                self.ended_early = Some(now);
                Ok(())
            }
            Some(at) if now - at > LAST_MESSAGES => Err(Failure::interrupted()),
            _ => self.interrupt.check(),
        }
    }
}

/// Polls without result before a thread sleeps that does not drive the device itself.
const LOOKS: u32 = 1000;
/// How long to poll without a pause when nothing comes. After that something is wrong, perhaps for
/// long.
const STALL: Duration = Duration::from_millis(100);
/// How long to sleep between polls then.
const STALLED_NAP: Duration = Duration::from_millis(10);
/// Polls without result before a thread that drives the device yields its core. If the other side
/// shares the core, nothing would come before the end of the time slice.
pub(super) const LOOKS_TO_YIELD: u32 = 64;

/// What a loop that polls a completion queue does when it is empty: if a thread drives the device,
/// it leaves the core to that thread.
pub(crate) struct Idle {
    spins: bool,
    fruitless: u32,
    stall: Stall,
}

/// How long a loop has found nothing. After a while it sleeps between its polls.
#[derive(Default)]
pub(super) struct Stall(Option<Instant>);

impl Stall {
    /// Notes that something came.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }

    /// Notes that nothing came, and sleeps if that is so for long. It reads the clock, so call it
    /// now and then.
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

    /// Notes how many completions a poll found, and sleeps or yields if there were none for long.
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
    // The template is a constant. If the library does not know it, its own is used.
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
