//! Sequence numbers in blocks from the kernel's own counter. The kernel's counter is always past
//! ours, so that neither the kernel nor another process nor the next one can ever use a number that
//! this one has: under most ciphers that would give the key away.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use rnic_core::esp::BLOCK;

use crate::device::netlink::{Association, AssociationSocket, Spent};

/// Where the locks are, one for each network namespace. They are root's.
const ROOT: &str = "/run/rnic/esp";

/// Numbers that the kernel may use between our reading of its counter and our writing.
const MARGIN: u64 = 1 << 16;

/// How often to try for the lock, which nobody holds longer than for two calls of the kernel.
const TRIES: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(2);

/// Lets one process at a time read and write counters in a network namespace.
#[derive(Debug)]
pub(super) struct NumberLock(File);

impl NumberLock {
    /// Opens the lock of the network namespace of this thread.
    pub(super) fn open() -> io::Result<Self> {
        let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
        DirBuilder::new().recursive(true).mode(0o700).create(ROOT)?;
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        options
            .open(Path::new(ROOT).join(namespace.to_string()))
            .map(Self)
    }

    /// Runs something while nobody else reads or writes counters.
    fn with<T>(&self, body: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        for _ in 0..TRIES {
            match self.0.try_lock() {
                Ok(()) => {
                    let result = body();
                    // It ends with the file in any case.
                    let _ = self.0.unlock();
                    return result;
                }
                Err(TryLockError::WouldBlock) => sleep(BETWEEN_TRIES),
                Err(TryLockError::Error(why)) => return Err(why.to_string()),
            }
        }
        Err(format!("another process holds the lock in {ROOT}"))
    }

    /// Takes a block of numbers.
    pub(super) fn take(
        &self,
        socket: &mut AssociationSocket,
        known: &Association,
    ) -> Result<Range<u64>, String> {
        self.with(|| {
            let now = socket.read_again(known).map_err(|why| why.to_string())?;
            let block = block(now.sent, now.extended)
                .ok_or("its numbers are used up; it must be replaced")?;
            let counters = (block.end - 1, now.received);
            let set = socket.set_counters(&now, counters, None);
            set.map_err(|why| why.to_string())?;
            Ok(block)
        })
    }

    /// Tells the kernel what an association has done, and what it has received.
    pub(super) fn report(
        &self,
        socket: &mut AssociationSocket,
        known: &Association,
        received: Option<u64>,
        spent: Spent,
    ) -> Result<(), String> {
        self.with(|| {
            let now = socket.read_again(known).map_err(|why| why.to_string())?;
            let received = received.unwrap_or(0).max(now.received);
            let set = socket.set_counters(&now, (now.sent, received), Some(spent));
            set.map_err(|why| why.to_string())
        })
    }
}

/// Returns the block behind the last number that was sent. `None` if there is none left.
fn block(sent: u64, extended: bool) -> Option<Range<u64>> {
    let last = match extended {
        true => u64::MAX - 1,
        false => u32::MAX.into(),
    };
    let start = sent.checked_add(MARGIN)?;
    let end = start.saturating_add(BLOCK).min(last);
    (start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_follow_each_other_and_end_with_the_numbers() {
        let first = block(0, true).unwrap();
        assert_eq!(first, MARGIN..MARGIN + BLOCK);
        let next = block(first.end - 1, true).unwrap();
        assert!(next.start >= first.end + MARGIN - 1);
        assert_eq!(block(u64::MAX, true), None);
        assert_eq!(block(u64::MAX - MARGIN - 1, true), None);
        // Without ESN they end at 2^32, the last of which is not used.
        let end = u64::from(u32::MAX);
        assert_eq!(block(end - MARGIN - 5, false), Some(end - 5..end));
        assert_eq!(block(end - MARGIN, false), None);
    }
}
