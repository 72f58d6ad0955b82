//! Threads that sleep until something changes at a socket.
//!
//! A completion channel wakes those who poll its descriptor, but one of them takes the event, and
//! the others may find the descriptor unreadable when they look. What a connection manager's event
//! changes shows at no descriptor of theirs at all. So each sleeper has an eventfd of its own, and
//! a thread that changes something, takes an event, or notifies the completion channel writes to
//! the eventfds of all that watch the socket. A sleeper has nothing else to wait for, so that it
//! can wait in read(2), which goes on behind a signal whose handler has SA_RESTART, as recv(2) and
//! its like do.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, RawFd};
use std::process;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::libc::pollfd;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::cancellation::PutOff;
use crate::errno::{Errno, lock};
use crate::event_queue::read_now;
use crate::system;

/// What wakes a thread.
#[derive(Debug)]
pub(super) struct Waiter {
    bell: EventFd,
    /// The process that made it. A child has one of its own, or it would take its parent's
    /// wake-ups.
    process: u32,
}

thread_local! {
    static WAITER: RefCell<Option<Arc<Waiter>>> = const { RefCell::new(None) };
}

impl Waiter {
    /// Returns that of this thread.
    pub(super) fn current() -> Result<Arc<Self>, Errno> {
        let process = process::id();
        let make = || {
            let bell = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?;
            Ok(Arc::new(Self { bell, process }))
        };
        let kept = WAITER.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            match &*kept {
                Some(waiter) if waiter.process == process => Ok(waiter.clone()),
                _ => make().inspect(|made| *kept = Some(made.clone())),
            }
        });
        // A thread that is ending has thrown its own away.
        kept.unwrap_or_else(|_| make())
    }

    /// Returns the descriptor that is readable once the thread has been woken.
    pub(super) fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Sleeps until the thread has been woken. Fails with EINTR behind a signal whose handler has
    /// no SA_RESTART.
    pub(super) fn sleep(&self) -> Result<(), Errno> {
        system::read_event(&self.bell)
    }

    fn wake(&self) {
        // A cancellation would unwind from here.
        let _whole = PutOff::new();
        // Fails only if it has been woken 2^64 - 2 times.
        let _ = self.bell.write(1);
    }

    /// Forgets that the thread was woken: it looks at everything now.
    pub(super) fn clear(&self) {
        read_now(&self.bell);
    }
}

/// Who watches a socket.
#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<Vec<Arc<Waiter>>>);

impl Watchers {
    /// Adds a waiter, which is woken until the guard is dropped.
    pub(super) fn add(&self, waiter: &Arc<Waiter>) -> Watch<'_> {
        lock(&self.0).push(waiter.clone());
        Watch {
            watchers: self,
            waiter: waiter.clone(),
        }
    }

    /// Wakes all.
    pub(super) fn wake(&self) {
        lock(&self.0).iter().for_each(|waiter| waiter.wake());
    }

    /// Wakes all but this one.
    pub(super) fn wake_others(&self, than: &Waiter) {
        let watchers = lock(&self.0);
        let others = watchers
            .iter()
            .filter(|waiter| !std::ptr::eq(&***waiter, than));
        others.for_each(|waiter| waiter.wake());
    }
}

/// That somebody watches a socket.
#[derive(Debug)]
pub(super) struct Watch<'watchers> {
    watchers: &'watchers Watchers,
    waiter: Arc<Waiter>,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut watchers = lock(&self.watchers.0);
        if let Some(at) = watchers
            .iter()
            .position(|waiter| Arc::ptr_eq(waiter, &self.waiter))
        {
            watchers.swap_remove(at);
        }
    }
}

/// poll(2). Without a timeout it waits for ever. Fractions of a millisecond count as one.
pub(super) fn poll_fds(fds: &mut [pollfd], timeout: Option<Duration>) -> Result<usize, Errno> {
    let timeout = timeout.map_or(-1, |timeout| {
        timeout
            .as_nanos()
            .div_ceil(1_000_000)
            .try_into()
            .unwrap_or(i32::MAX)
    });
    system::poll_fds(fds, timeout)
}

/// Returns an entry for poll(2).
pub(super) fn entry(fd: RawFd, events: i16) -> pollfd {
    pollfd {
        fd,
        events,
        revents: 0,
    }
}

#[cfg(test)]
mod tests {
    use nix::libc::POLLIN;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn is_woken(waiter: &Waiter) -> bool {
        let mut fds = [entry(waiter.fd(), POLLIN)];
        poll_fds(&mut fds, Some(Duration::ZERO)).unwrap() == 1
    }

    #[test]
    fn those_who_watch_are_woken() {
        let watchers = Watchers::default();
        let mine = Waiter::current().unwrap();
        assert!(Arc::ptr_eq(&mine, &Waiter::current().unwrap()));
        watchers.wake();
        assert!(!is_woken(&mine));

        let other = thread::spawn(|| Waiter::current().unwrap()).join().unwrap();
        let watch = watchers.add(&mine);
        let _others = watchers.add(&other);
        watchers.wake_others(&mine);
        assert!(!is_woken(&mine) && is_woken(&other));
        watchers.wake();
        assert!(is_woken(&mine));
        mine.clear();
        assert!(!is_woken(&mine));
        drop(watch);
        watchers.wake();
        assert!(!is_woken(&mine));
    }

    #[test]
    fn a_sleeper_wakes() {
        let watchers = Arc::new(Watchers::default());
        let (ready, is_ready) = mpsc::channel();
        let sleeper = thread::spawn({
            let watchers = watchers.clone();
            move || {
                let waiter = Waiter::current().unwrap();
                let _watch = watchers.add(&waiter);
                ready.send(()).unwrap();
                poll_fds(&mut [entry(waiter.fd(), POLLIN)], None)
            }
        });
        is_ready.recv().unwrap();
        watchers.wake();
        assert_eq!(sleeper.join().unwrap(), Ok(1));
    }
}
