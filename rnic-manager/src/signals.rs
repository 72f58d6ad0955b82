//! Threads of a device beside those of the application.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Starts a thread that gets no signal but those that its own instructions cause: the application's
/// handlers run on its own threads.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut blocked = SigSet::all();
    for own in [
        Signal::SIGSEGV,
        Signal::SIGBUS,
        Signal::SIGFPE,
        Signal::SIGILL,
        Signal::SIGTRAP,
        Signal::SIGSYS,
        Signal::SIGABRT,
    ] {
        blocked.remove(own);
    }
    // Blocking valid signals does not fail.
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let started = start();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    started
}
