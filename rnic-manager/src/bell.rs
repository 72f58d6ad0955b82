//! Wakes a sleeping worker: an eventfd behind a [`Waker`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// The worker's end. Its file descriptor is readable once the bell was rung.
#[derive(Clone, Debug)]
pub struct Bell(Arc<Ringer>);

#[derive(Debug)]
struct Ringer(EventFd);

impl Wake for Ringer {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // It fails only after 2^64 - 2 rings without a read: then the descriptor is readable
        // anyway.
        let _ = self.0.write(1);
    }
}

/// Returns a bell, and the waker that rings it: for [`rnic_core::engine::mailbox`].
pub fn bell() -> io::Result<(Bell, Waker)> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let ringer = Arc::new(Ringer(EventFd::from_value_and_flags(0, flags)?));
    Ok((Bell(ringer.clone()), Waker::from(ringer)))
}

impl Bell {
    /// Returns another waker that rings it.
    pub fn waker(&self) -> Waker {
        Waker::from(self.0.clone())
    }

    /// Rings it.
    pub fn ring(&self) {
        self.0.wake_by_ref();
    }

    /// Clears it: the file descriptor is not readable until the next ring.
    pub fn silence(&self) {
        // It fails if the bell was not rung.
        let _ = self.0.0.read();
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}
