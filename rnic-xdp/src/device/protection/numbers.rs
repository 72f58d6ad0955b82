//! Sequence numbers in blocks from the kernel's own counter. The kernel's counter is always past
//! ours, so that neither the kernel nor another process nor the next one can ever use a number that
//! this one has: under most ciphers that would give the key away.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::RandomState;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use rnic_core::esp::BLOCK;

use crate::device::directory::make_private;
use crate::device::netlink::{Association, AssociationSocket, Spent};

/// Where the locks are, one for each network namespace. They are root's.
const ROOT: &str = "/run/rnic/esp";

/// Numbers that the kernel may use between our reading of its counter and our writing.
const MARGIN: u64 = 1 << 16;

/// How often to try for the lock, which nobody holds longer than for two calls of the kernel.
const TRIES: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(2);

/// The last number that this process took under each key, by a fingerprint of that. An association
/// may be added again with its key and with the kernel's counter of an earlier time: MOBIKE does so.
/// A fingerprint that two keys have in common costs numbers, and nothing else.
static TAKEN: LazyLock<Mutex<Taken>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Taken {
    hasher: RandomState,
    numbers: HashMap<u64, u64>,
}

impl Taken {
    fn up_to(&mut self, known: &Association) -> &mut u64 {
        let keys = known.usable.as_ref().map(|(_, _, keys)| keys);
        let fingerprint = keys.map_or(0, |keys| keys.fingerprint(&self.hasher));
        self.numbers.entry(fingerprint).or_default()
    }
}

/// Returns the last number that this process took under the key of an association.
pub(super) fn taken(known: &Association) -> u64 {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    *taken.up_to(known)
}

/// Lets one process at a time read and write counters in a network namespace.
#[derive(Debug)]
pub(super) struct NumberLock {
    path: PathBuf,
    file: RefCell<File>,
}

impl NumberLock {
    /// Opens the lock of the network namespace of this thread.
    pub(super) fn open() -> io::Result<Self> {
        let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
        Self::at(Path::new(ROOT).join(namespace.to_string()))
    }

    fn at(path: PathBuf) -> io::Result<Self> {
        let file = RefCell::new(create(&path)?);
        Ok(Self { path, file })
    }

    /// Runs something while nobody else reads or writes counters.
    fn with<T>(&self, body: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        for _ in 0..TRIES {
            let mut file = self.file.borrow_mut();
            match file.try_lock() {
                Ok(()) if is_at(&file, &self.path) => {
                    let result = body();
                    // It ends with the file in any case.
                    let _ = file.unlock();
                    return result;
                }
                // Somebody has removed the file, and others lock a new one.
                Ok(()) => *file = create(&self.path).map_err(|why| why.to_string())?,
                Err(TryLockError::WouldBlock) => sleep(BETWEEN_TRIES),
                Err(TryLockError::Error(why)) => return Err(why.to_string()),
            }
        }
        Err(format!("another process holds the lock in {ROOT}"))
    }

    /// Takes a block of numbers. Returns `None` if there are none left.
    pub(super) fn take(
        &self,
        socket: &mut AssociationSocket,
        known: &Association,
    ) -> Result<Option<Range<u64>>, String> {
        self.with(|| {
            let now = socket.read_again(known).map_err(|why| why.to_string())?;
            let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = taken.up_to(known);
            let Some(block) = block(now.sent.max(*taken), now.extended) else {
                return Ok(None);
            };
            let counters = (block.end - 1, now.received);
            let set = socket.set_counters(&now, counters, None);
            set.map_err(|why| why.to_string())?;
            *taken = block.end - 1;
            Ok(Some(block))
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

/// Opens a file, which is root's.
fn create(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        make_private(directory)?;
    }
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    options.open(path)
}

/// Returns whether a path leads to a file.
fn is_at(file: &File, path: &Path) -> bool {
    let both = fs::metadata(path).and_then(|there| Ok((there, file.metadata()?)));
    both.is_ok_and(|(there, here)| (there.dev(), there.ino()) == (here.dev(), here.ino()))
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

    #[test]
    fn a_lock_excludes_others_though_its_file_was_removed() {
        let name = format!("rnic-numbers-{}", std::process::id());
        let path = std::env::temp_dir().join(name).join("1");
        let one = NumberLock::at(path.clone()).unwrap();
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        let other = NumberLock::at(path.clone()).unwrap();
        let nested = one.with(|| Ok(other.with(|| Ok(())).is_err()));
        assert_eq!(nested, Ok(true));
        let nested = other.with(|| Ok(one.with(|| Ok(())).is_err()));
        assert_eq!(nested, Ok(true));
        assert_eq!(other.with(|| Ok(())), Ok(()));
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
