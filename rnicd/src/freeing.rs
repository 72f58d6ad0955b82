//! Freeing the memory of ports that have ended, each by [a process](crate::freer) that does nothing
//! else. What the port had counts until it is done.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tracing::warn;

use crate::memory::Memory;
use crate::quota::Charge;
use crate::record::Record;

/// The account of memory of which nobody knows whose it was.
const NOBODY: u32 = u32::MAX;
/// How long to wait before what has failed is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// What is left of a port that has ended.
pub(crate) struct Remains {
    /// Whose it was.
    pub(crate) record: Record,
    /// What it has of its user's quota.
    pub(crate) _held: Vec<Charge>,
    /// Its memory.
    pub(crate) memory: Option<Memory>,
}

/// Memory that is being freed.
struct Left {
    what: Leftover,
    /// It was said that it could not be freed at once.
    told: bool,
}

enum Leftover {
    /// That of a port of this device.
    Port(Box<Remains>, String),
    /// That of a port without a record.
    Memory(Memory),
}

impl Left {
    fn memory(&self) -> Option<&Memory> {
        match &self.what {
            Leftover::Port(remains, _) => remains.memory.as_ref(),
            Leftover::Memory(memory) => Some(memory),
        }
    }

    fn account(&self) -> u32 {
        match &self.what {
            Leftover::Port(remains, _) => remains.record.account(),
            Leftover::Memory(_) => NOBODY,
        }
    }
}

/// A process that frees memory.
struct Freer {
    key: u64,
    child: Child,
    /// Readable once it has ended; without it, that is looked for again and again.
    ended: Option<OwnedFd>,
}

/// What is being freed: one port of each account at a time. What holds up one, holds up no other
/// account's.
#[derive(Default)]
pub(crate) struct Freeing {
    /// The command that frees its standard input.
    command: Vec<OsString>,
    /// By the numbers of the ports, which no other port gets until then; those without a record by
    /// higher ones.
    left: BTreeMap<u64, Left>,
    next_key: u64,
    /// By account.
    freers: BTreeMap<u32, Freer>,
    /// Those whose turn comes later, by account.
    later: BTreeMap<u32, VecDeque<u64>>,
    /// When to try again what has failed.
    again_at: Option<Instant>,
}

impl Freeing {
    /// Makes an empty list. `command` is the command that frees its standard input.
    pub(crate) fn by(command: &[OsString]) -> Self {
        Self {
            command: command.to_vec(),
            ..Self::default()
        }
    }

    /// Frees what is left of a port whose socket nobody has any more.
    pub(crate) fn free(&mut self, remains: Remains, netdev: &str) {
        let key = remains.record.port.into();
        self.add(key, Leftover::Port(Box::new(remains), netdev.to_owned()));
    }

    /// Frees the memory of a port without a record.
    pub(crate) fn free_memory(&mut self, memory: Memory) {
        self.next_key += 1;
        let key = u64::from(u32::MAX) + self.next_key;
        self.add(key, Leftover::Memory(memory));
    }

    fn add(&mut self, key: u64, what: Leftover) {
        let left = Left { what, told: false };
        let account = left.account();
        self.left.insert(key, left);
        self.later.entry(account).or_default().push_back(key);
        self.begin(account);
    }

    /// Starts a process for the next of an account, if none runs.
    fn begin(&mut self, account: u32) {
        if self.freers.contains_key(&account) {
            return;
        }
        let Some(queue) = self.later.get_mut(&account) else {
            return;
        };
        let Some(key) = queue.pop_front() else {
            self.later.remove(&account);
            return;
        };
        let memory = self.left.get(&key).and_then(Left::memory);
        let Some(memory) = memory else { return };
        match start(&self.command, key, memory) {
            Ok(freer) => drop(self.freers.insert(account, freer)),
            Err(error) => self.put_off(account, key, &error.to_string()),
        }
    }

    /// Tries again later, before the others of its account.
    fn put_off(&mut self, account: u32, key: u64, why: &str) {
        self.later.entry(account).or_default().push_front(key);
        self.again_at = Some(Instant::now() + AGAIN_AFTER);
        if let Some(left) = self.left.get_mut(&key).filter(|left| !left.told) {
            left.told = true;
            warn!("the memory of a port that has ended (uid {account}) is freed later: {why}");
        }
    }

    /// Forgets what was freed, and goes on. Returns the ports.
    pub(crate) fn poll(&mut self) -> Vec<u32> {
        let freers = self.freers.iter_mut();
        let ended = freers.filter_map(|(account, freer)| match freer.child.try_wait() {
            Ok(None) => None,
            _ => Some(*account),
        });
        let mut gone = Vec::new();
        for account in ended.collect::<Vec<_>>() {
            let Some(mut freer) = self.freers.remove(&account) else {
                continue;
            };
            match freer.child.wait() {
                Ok(status) if status.success() => {
                    self.left.remove(&freer.key);
                    gone.extend(u32::try_from(freer.key).ok());
                    self.begin(account);
                }
                Ok(status) => self.put_off(account, freer.key, &status.to_string()),
                Err(error) => self.put_off(account, freer.key, &error.to_string()),
            }
        }
        if self.again_at.is_some_and(|at| at <= Instant::now()) {
            self.again_at = None;
            for account in self.later.keys().copied().collect::<Vec<_>>() {
                self.begin(account);
            }
        }
        gone
    }

    /// Returns how long to wait before it is polled, whatever is readable.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let blind = self.freers.values().any(|freer| freer.ended.is_none());
        let again = self
            .again_at
            .map(|at| at.saturating_duration_since(Instant::now()));
        again.into_iter().chain(blind.then_some(AGAIN_AFTER)).min()
    }

    /// Returns what is readable when something was freed.
    pub(crate) fn freed(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let freers = self.freers.values();
        freers.filter_map(|freer| Some(freer.ended.as_ref()?.as_fd()))
    }

    /// Returns what is left of each port.
    pub(crate) fn remains(&self) -> impl Iterator<Item = &Remains> {
        self.left.values().filter_map(|left| match &left.what {
            Leftover::Port(remains, _) => Some(&**remains),
            Leftover::Memory(_) => None,
        })
    }

    /// Returns all memory that is being freed.
    pub(crate) fn memories(&self) -> impl Iterator<Item = &Memory> {
        self.left.values().filter_map(Left::memory)
    }

    /// Returns what is left of a port, and the device that it was a port of.
    pub(crate) fn get(&self, number: u32) -> Option<(&Remains, &str)> {
        match &self.left.get(&number.into())?.what {
            Leftover::Port(remains, netdev) => Some((remains, netdev)),
            Leftover::Memory(_) => None,
        }
    }
}

/// Starts a process that frees memory.
fn start(line: &[OsString], key: u64, memory: &Memory) -> io::Result<Freer> {
    let file = memory.kept().as_fd().try_clone_to_owned()?;
    let (program, arguments) = line.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.arg0("rnicd").args(arguments);
    command.stdin(Stdio::from(file)).stdout(Stdio::null());
    command.process_group(0);
    let child = command.spawn()?;
    let pid = child.id().try_into().ok().and_then(Pid::from_raw);
    let ended = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    Ok(Freer { key, child, ended })
}
