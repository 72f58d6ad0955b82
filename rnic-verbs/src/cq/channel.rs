//! How the engine notifies the application.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::Error;

/// How the engine notifies the application, and flags that are read without a system call.
#[derive(Debug)]
pub(super) struct Channel {
    way: Wakeup,
    pub(super) fired: AtomicBool,
    /// The engine is gone: no more notifications come.
    closed: AtomicBool,
    /// The application has dropped the queue and wants none.
    pub(super) dropped: AtomicBool,
}

/// What a notification does.
#[derive(Debug)]
pub(super) enum Wakeup {
    /// It makes this eventfd readable.
    Descriptor(EventFd),
    /// It wakes this waker of the application's.
    Waker(Waker),
}

impl Wakeup {
    pub(super) fn descriptor() -> Result<Self, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        EventFd::from_value_and_flags(0, flags)
            .map(Self::Descriptor)
            .map_err(|errno| Error::Channel(errno.into()))
    }
}

impl Channel {
    pub(super) fn new(way: Wakeup) -> Self {
        Self {
            way,
            fired: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
        }
    }

    fn tell(&self) {
        match &self.way {
            // Fails only if 2^64 - 2 notifications are pending.
            Wakeup::Descriptor(fd) => drop(fd.write(1)),
            Wakeup::Waker(_) if self.dropped.load(Ordering::Acquire) => {}
            Wakeup::Waker(waker) => waker.wake_by_ref(),
        }
    }

    /// Notifies the application.
    pub(super) fn notify(&self) {
        self.tell();
        self.fired.store(true, Ordering::Release);
    }

    pub(super) fn fd(&self) -> Option<&EventFd> {
        match &self.way {
            Wakeup::Descriptor(fd) => Some(fd),
            Wakeup::Waker(_) => None,
        }
    }

    /// Consumes a notification, and returns whether there was one. One that comes at the same time
    /// may be seen twice, but is never missed.
    pub(super) fn take(&self) -> bool {
        // Without a notification there is no system call.
        self.fired.load(Ordering::Relaxed) && self.acknowledge()
    }

    /// Consumes a notification that the file descriptor announced, which happens before the flag is
    /// set. Returns whether there was one.
    pub(super) fn acknowledge(&self) -> bool {
        let announced = self.fd().is_some_and(|fd| fd.read().is_ok());
        self.fired.swap(false, Ordering::AcqRel) || announced
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// The engine's end of a channel.
pub(super) struct Notifier(pub(super) Arc<Channel>);

impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify();
    }
}

impl Drop for Notifier {
    /// Closes the channel. As long as the application has the queue, only the end of the engine (a
    /// panic, say) does this.
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between the engine's write to the file descriptor and its setting of the flag.
    #[test]
    fn what_the_file_descriptor_announced_can_be_acknowledged() {
        let channel = Channel::new(Wakeup::descriptor().unwrap());
        channel.fd().unwrap().write(1).unwrap();
        assert!(channel.acknowledge());
        assert!(!channel.acknowledge() && !channel.take());
    }
}
