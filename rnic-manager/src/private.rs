//! Descriptors that are nothing for a process that is forked from this one: those that hold the
//! interface, a port, or what rnicd has given. A child that keeps a copy keeps the interface from
//! the programs that come after its parent.
//!
//! The kernel has no way to close descriptors at a fork. So they are noted here, without a lock,
//! and the library that runs in the child replaces them (`rnic-ibverbs`).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const BITS: usize = u64::BITS as usize;

/// A bit for each descriptor, up to the limit that systems have by default. Those above are not
/// noted.
static NOTED: [AtomicU64; (1 << 20) / BITS] = [const { AtomicU64::new(0) }; (1 << 20) / BITS];

/// Words of `NOTED` that were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// As long as it exists, a descriptor is noted. It goes before the descriptor is closed.
#[derive(Debug)]
pub struct Private(RawFd);

impl Private {
    /// Notes a descriptor.
    pub fn new(fd: &impl AsRawFd) -> Self {
        let fd = fd.as_raw_fd();
        if let Some((at, bit)) = place(fd) {
            NOTED[at].fetch_or(bit, Ordering::Relaxed);
            USED.fetch_max(at + 1, Ordering::Relaxed);
        }
        Self(fd)
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        if let Some((at, bit)) = place(self.0) {
            NOTED[at].fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

fn place(fd: RawFd) -> Option<(usize, u64)> {
    let fd = usize::try_from(fd).ok()?;
    let at = fd / BITS;
    (at < NOTED.len()).then_some((at, 1 << (fd % BITS)))
}

/// Calls `what` for each descriptor that is noted, and notes it no more: in a child its number may
/// soon be that of something else. It takes no lock and allocates nothing, so that a process that
/// was just forked from one of several threads may call it.
pub fn take_private(mut what: impl FnMut(RawFd)) {
    let used = USED.load(Ordering::Relaxed);
    for (at, word) in NOTED.iter().enumerate().take(used) {
        let mut left = word.swap(0, Ordering::Relaxed);
        while left != 0 {
            what((at * BITS) as RawFd + left.trailing_zeros() as RawFd);
            left &= left - 1;
        }
    }
}

/// A descriptor that is noted.
#[derive(Debug)]
pub struct PrivateFd {
    /// Dropped first.
    _noted: Private,
    fd: OwnedFd,
}

impl From<OwnedFd> for PrivateFd {
    fn from(fd: OwnedFd) -> Self {
        Self {
            _noted: Private::new(&fd),
            fd,
        }
    }
}

impl From<PrivateFd> for OwnedFd {
    /// Removes the descriptor from those that are noted. The caller must close it.
    fn from(private: PrivateFd) -> Self {
        private.fd
    }
}

impl AsFd for PrivateFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for PrivateFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all that are noted. They stay so: those of other tests are among them.
    fn all() -> Vec<RawFd> {
        let mut all = Vec::new();
        for (at, word) in NOTED.iter().enumerate() {
            let word = word.load(Ordering::Relaxed);
            let noted = (0..BITS).filter(|bit| word & (1 << bit) != 0);
            all.extend(noted.map(|bit| (at * BITS + bit) as RawFd));
        }
        all
    }

    #[test]
    fn descriptors_are_noted_until_they_are_closed() {
        // Other tests open descriptors of their own: these numbers are not theirs.
        let far = [900_000, 900_063, 900_064, i32::MAX, -1].map(|fd| Private::new(&fd));
        let of_these = || all().into_iter().filter(|fd| *fd >= 900_000);
        assert!(of_these().eq([900_000, 900_063, 900_064]));
        let [first, others @ ..] = far;
        drop(others);
        assert!(of_these().eq([900_000]));
        drop(first);
        assert!(of_these().next().is_none());
    }
}
