//! A queue of events with a file descriptor that is readable while any waits: what a completion
//! channel, the asynchronous events of a context and an event channel are.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Mutex, OnceLock};

use nix::sys::eventfd::{EfdFlags, EventFd};
use rnic_verbs::Private;

use crate::cancellation::PutOff;
use crate::errno::{Errno, lock};
use crate::process::{self, Process};
use crate::system::{read_event, read_event_now};

/// The queue. The descriptor counts what is in it, and each read takes one.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    pub(crate) process: Process,
    /// Dropped before the descriptor.
    _noted: Private,
    fd: EventFd,
    events: Mutex<VecDeque<T>>,
    watcher: Watcher,
}

/// Who is told of each event besides those who wait at the descriptor.
#[derive(Default)]
struct Watcher(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watcher")
            .field(&self.0.get().is_some())
            .finish()
    }
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Result<Self, Errno> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE;
        process::keep_from_children();
        let fd = EventFd::from_value_and_flags(0, flags)?;
        Ok(Self {
            process: Process::this(),
            _noted: Private::new(&fd),
            fd,
            events: Mutex::default(),
            watcher: Watcher::default(),
        })
    }

    /// Returns the descriptor, for `poll` and for `fcntl` with O_NONBLOCK.
    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Sets the watcher that is called behind each event that is added. Only the first call has an
    /// effect.
    pub(crate) fn watch(&self, watcher: impl Fn() + Send + Sync + 'static) {
        self.watcher.0.get_or_init(|| Box::new(watcher));
    }

    /// Adds an event.
    pub(crate) fn push(&self, event: T) {
        {
            let mut events = lock(&self.events);
            events.push_back(event);
            // Fails only if 2^64 - 2 events wait. Under the lock, so that nobody takes the event
            // before it is counted.
            let _ = self.fd.write(1);
        }
        if let Some(watcher) = self.watcher.0.get() {
            watcher();
        }
    }

    /// Removes and returns the oldest event. Waits for one, unless the program has made the
    /// descriptor non-blocking: then it fails with EAGAIN.
    pub(crate) fn next(&self) -> Result<T, Errno> {
        self.next_counted(|_| ())
    }

    /// Removes and returns the oldest event, as [`next`](Self::next) does. `count` sees it before
    /// [`remove`](Self::remove) can miss it.
    pub(crate) fn next_counted(&self, count: impl Fn(&T)) -> Result<T, Errno> {
        process::check(&self.process)?;
        loop {
            // No lock is held here, where the thread may be cancelled.
            read_event(&self.fd)?;
            // An event that was counted may have been removed since.
            let mut events = lock(&self.events);
            if let Some(event) = events.pop_front() {
                count(&event);
                return Ok(event);
            }
        }
    }

    /// Removes events, and returns how many: those of an object that is being destroyed.
    pub(crate) fn remove(&self, those: impl FnMut(&T) -> bool) -> usize {
        self.extract(those).len()
    }

    /// Removes `those` events from the queue, and returns them in their order.
    pub(crate) fn extract(&self, those: impl FnMut(&T) -> bool) -> VecDeque<T> {
        let mut events = lock(&self.events);
        let (taken, left): (VecDeque<T>, _) =
            std::mem::take(&mut *events).into_iter().partition(those);
        *events = left;
        for _ in 0..taken.len() {
            // Fails if a reader has taken it: that one finds no event, and waits again.
            read_now(&self.fd);
        }
        taken
    }
}

/// Reads an eventfd without waiting, whatever the program has made of the descriptor.
pub(crate) fn read_now(fd: impl AsFd) {
    // A cancellation would unwind from here, although nothing is waited for.
    let _whole = PutOff::new();
    read_event_now(fd);
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    #[test]
    fn events_are_counted_and_come_in_order() {
        let queue = EventQueue::new().unwrap();
        for event in 1..=4 {
            queue.push(event);
        }
        assert_eq!(queue.next(), Ok(1));
        assert_eq!(queue.remove(|event| event % 2 == 0), 2);
        assert_eq!(queue.next(), Ok(3));
        fcntl(&queue.fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        assert_eq!(queue.next(), Err(Errno::EAGAIN));
    }
}
