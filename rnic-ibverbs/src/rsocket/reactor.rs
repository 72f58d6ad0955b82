//! The event channels of all sockets, as one thing to wait for.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::libc;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::errno::{Errno, lock};

/// Descriptors that are reported at once.
const BATCH: usize = 32;
/// What stands for the bell in place of a descriptor.
const BELL: u64 = u64::MAX;

/// The reactor of a process.
#[derive(Debug)]
pub(super) struct Reactor {
    epoll: Epoll,
    bell: EventFd,
    process: u32,
    running: AtomicBool,
}

static REACTOR: Mutex<Option<&'static Reactor>> = Mutex::new(None);

/// Returns the lock of the reactor, which a child makes new.
pub(super) fn renewed() -> &'static Mutex<impl Default> {
    &REACTOR
}

impl Reactor {
    /// Returns that of this process. A forked child makes its own, because the thread of its
    /// parent's is not there.
    pub(super) fn get() -> Result<&'static Self, Errno> {
        let process = process::id();
        let mut kept = lock(&REACTOR);
        if let Some(reactor) = kept.filter(|reactor| reactor.process == process) {
            return Ok(reactor);
        }
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let bell =
            EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        let reactor = Box::leak(Box::new(Self {
            epoll,
            bell,
            process,
            running: AtomicBool::new(false),
        }));
        *kept = Some(reactor);
        Ok(reactor)
    }

    /// Returns whether nobody runs it yet, and the caller is to.
    pub(super) fn claim(&self) -> bool {
        !self.running.swap(true, Ordering::Relaxed)
    }

    /// Withdraws the claim.
    pub(super) fn disclaim(&self) {
        self.running.store(false, Ordering::Relaxed);
    }

    /// Reports a descriptor whenever it is readable.
    pub(super) fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, fd.as_raw_fd() as u64);
        self.epoll.add(fd, event)
    }

    /// Reports a descriptor no more.
    pub(super) fn unwatch(&self, fd: BorrowedFd<'_>) {
        let _ = self.epoll.delete(fd);
    }

    /// Ends a wait before anything has happened.
    pub(super) fn ring(&self) {
        // Fails only if it has been rung 2^64 - 2 times.
        let _ = self.bell.write(1);
    }

    /// Waits, and returns the descriptors that are readable.
    pub(super) fn wait(&self, most: Option<Duration>) -> impl Iterator<Item = RawFd> {
        let mut events = [EpollEvent::empty(); BATCH];
        let timeout = most.map_or(EpollTimeout::NONE, |most| {
            let milliseconds = most.as_nanos().div_ceil(1_000_000);
            EpollTimeout::try_from(milliseconds.min(i32::MAX as u128) as i32)
                .unwrap_or(EpollTimeout::MAX)
        });
        // Without events after a signal.
        let count = self.epoll.wait(&mut events, timeout).unwrap_or(0);
        let fds = events.into_iter().take(count).map(|event| event.data());
        fds.inspect(|&data| {
            if data == BELL {
                let _ = self.bell.read();
            }
        })
        .filter(|&data| data != BELL)
        .map(|data| data as libc::c_int)
    }
}
