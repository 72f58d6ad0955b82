//! Records of the rules that processes have installed in a device. They outlive the process: the
//! device keeps rules after their process has ended, and does not record whose they are.
//!
//! A process has a directory for each device, with an empty file for each rule, named by its flow.
//! The file is created before the rule and removed after it. The process holds a lock on the
//! directory, which ends with the process in any case. So the rules in an unlocked directory are
//! left over, and the next process that opens the device removes them.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::mkdtemp;

use crate::device::directory::make_private;
use crate::device::netlink::Link;
use rnic_manager::Maker;

/// The directory of all records. Each device has one in it.
const ROOT: &str = "/run/rnic/rules";

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) remote: SocketAddr,
    pub(super) local: SocketAddr,
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.remote, self.local)
    }
}

impl Flow {
    fn from_name(name: &OsStr) -> Option<Self> {
        let (remote, local) = name.to_str()?.split_once(' ')?;
        Some(Self {
            remote: remote.parse().ok()?,
            local: local.parse().ok()?,
        })
    }
}

/// Returns the directory of a device in the network namespace of this thread.
pub(super) fn directory(link: &Link) -> io::Result<PathBuf> {
    let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
    Ok(Path::new(ROOT).join(format!("{namespace}-{}", link.index)))
}

/// The rules of this process in a device.
#[derive(Debug)]
pub(super) struct Records {
    directory: PathBuf,
    maker: Maker,
    /// The lock, held as long as this exists.
    _lock: File,
}

/// The record of a rule. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct Record(PathBuf, Maker);

impl Records {
    /// Makes a directory for this process in that of a device.
    pub(super) fn open(device: &Path) -> io::Result<Self> {
        // Until it is locked, a sweep would take it for left over.
        let _sweepers = create_locked(device)?;
        let directory = mkdtemp(&device.join("XXXXXX"))?;
        let lock = lock(&directory)?;
        Ok(Self {
            directory,
            maker: Maker::this(),
            _lock: lock,
        })
    }

    /// Records a rule that is about to be installed.
    pub(super) fn add(&self, flow: Flow) -> io::Result<Record> {
        let file = self.directory.join(flow.to_string());
        File::create(&file)?;
        Ok(Record(file, Maker::this()))
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        if !self.maker.is_forked() {
            // If there are rules in it, it is left to the next sweep.
            let _ = fs::remove_dir(&self.directory);
            if let Some(device) = self.directory.parent() {
                remove_empty(device);
            }
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.1.is_forked() {
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// Creates the directory of a device if there is none, and locks it. Another process may remove it
/// meanwhile.
fn create_locked(device: &Path) -> io::Result<Lock> {
    loop {
        let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        match make_private(device) {
            // It was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !device.is_file() => {
                continue;
            }
            Err(error) if gone(&error) => continue,
            created => created?,
        }
        let lock = match lock(device) {
            Err(error) if gone(&error) => continue,
            lock => Lock(lock?),
        };
        if is_at(&lock.0, device)? {
            return Ok(lock);
        }
    }
}

/// Returns whether an open directory still is what has this path: another process may have removed
/// it, and a third may have made another one.
fn is_at(directory: &File, path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(there) => Ok(there.ino() == directory.metadata()?.ino()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the directory of a device if it is empty, unless another process holds its lock.
fn remove_empty(device: &Path) {
    if let Ok(file) = File::open(device)
        && file.try_lock().is_ok()
    {
        let lock = Lock(file);
        // Until it was locked, another process could remove it and a third make a new one, which is
        // not ours to remove.
        if is_at(&lock.0, device).is_ok_and(|same| same) {
            // It stays if it is not empty.
            let _ = fs::remove_dir(device);
        }
    }
}

/// The lock of a device's directory, unlocked when dropped. Closing the file is not enough: a
/// process that another thread has just forked has the file open too, and with it the lock, until
/// it runs its program.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // It cannot fail for a file that is open.
        let _ = self.0.unlock();
    }
}

fn lock(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    file.lock()?;
    Ok(file)
}

/// Returns the flows of the rules in a device whose processes are gone.
pub(super) fn left_behind(device: &Path) -> io::Result<Vec<Flow>> {
    let mut flows = Vec::new();
    each_left_behind(device, |_, left| {
        flows.extend(left);
        Ok(())
    })?;
    Ok(flows)
}

/// Removes the rules in a device whose processes are gone, by `remove`, and the records of those
/// that it removed.
pub(super) fn sweep(
    device: &Path,
    mut remove: impl FnMut(&[Flow]) -> io::Result<()>,
) -> io::Result<()> {
    each_left_behind(device, |directory, flows| {
        if !flows.is_empty() {
            remove(&flows)?;
        }
        fs::remove_dir_all(directory)
    })?;
    remove_empty(device);
    Ok(())
}

fn each_left_behind(
    device: &Path,
    mut visit: impl FnMut(&Path, Vec<Flow>) -> io::Result<()>,
) -> io::Result<()> {
    let directories = match fs::read_dir(device) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        directories => directories?,
    };
    let _sweepers = match lock(device) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        lock => Lock(lock?),
    };
    for directory in directories {
        let directory = directory?.path();
        // What has disappeared was swept by another process.
        let Ok(file) = File::open(&directory) else {
            continue;
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let _lock = Lock(file);
        let files = fs::read_dir(&directory)?;
        let flows = files.filter_map(|file| Flow::from_name(&file.ok()?.file_name()));
        let flows = flows.collect();
        visit(&directory, flows)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// The directory of a device, in one that is gone with this.
    struct Device(PathBuf);

    impl Device {
        fn new() -> Self {
            let template = std::env::temp_dir().join("rnic-rules-XXXXXX");
            Self(mkdtemp(&template).unwrap().join("device"))
        }

        fn directories(&self) -> usize {
            fs::read_dir(&self.0).map_or(0, Iterator::count)
        }

        /// Sweeps; returns what was removed.
        fn sweep(&self) -> Vec<Flow> {
            let mut removed = Vec::new();
            sweep(&self.0, |flows| {
                removed.extend_from_slice(flows);
                Ok(())
            })
            .unwrap();
            removed
        }
    }

    impl Drop for Device {
        fn drop(&mut self) {
            fs::remove_dir_all(self.0.parent().unwrap()).unwrap();
        }
    }

    fn flow(port: u16) -> Flow {
        Flow {
            remote: "192.0.2.1:4420".parse().unwrap(),
            local: ([192, 0, 2, 2], port).into(),
        }
    }

    /// What the kernel does to a process that is killed: its locks end, and its files stay.
    fn kill(records: Records, rules: Vec<Record>) {
        let Records { _lock, .. } = &records;
        _lock.unlock().unwrap();
        std::mem::forget(records);
        std::mem::forget(rules);
    }

    #[test]
    fn flows_have_names() {
        let six = Flow {
            remote: "[2001:db8::1]:1".parse().unwrap(),
            local: "[fe80::1]:65535".parse().unwrap(),
        };
        for flow in [flow(7), six] {
            let name = flow.to_string();
            assert_eq!(Flow::from_name(OsStr::new(&name)), Some(flow));
        }
        assert_eq!(Flow::from_name(OsStr::new("192.0.2.1:4420")), None);
    }

    #[test]
    fn rules_of_a_process_that_was_killed_are_removed_once() {
        let device = Device::new();
        let records = Records::open(&device.0).unwrap();
        let mut rules: Vec<_> = [1, 2, 3]
            .map(|port| records.add(flow(port)).unwrap())
            .into();
        // A rule that its process itself has removed.
        rules.remove(0);
        kill(records, rules);

        let mut left = left_behind(&device.0).unwrap();
        left.sort_by_key(|flow| flow.local.port());
        assert_eq!(left, [flow(2), flow(3)]);
        let mut removed = device.sweep();
        removed.sort_by_key(|flow| flow.local.port());
        assert_eq!(removed, [flow(2), flow(3)]);
        assert!(!device.0.exists(), "nothing is left behind");
        assert_eq!(device.sweep(), []);
    }

    #[test]
    fn programs_that_are_started_meanwhile_hold_no_lock() {
        let device = Device::new();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    Command::new("true").status().unwrap();
                }
            });
            for _ in 0..2000 {
                let records = Records::open(&device.0).unwrap();
                let rule = records.add(flow(1)).unwrap();
                kill(records, vec![rule]);
                let left = (left_behind(&device.0).unwrap(), device.sweep());
                let stays = device.0.exists();
                if (left, stays) != ((vec![flow(1)], vec![flow(1)]), false) {
                    done.store(true, Ordering::Relaxed);
                    panic!("a child holds a lock of its parent");
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn rules_of_a_process_that_lives_stay() {
        let device = Device::new();
        let records = Records::open(&device.0).unwrap();
        let rule = records.add(flow(1)).unwrap();
        assert_eq!(device.sweep(), []);
        assert_eq!(left_behind(&device.0).unwrap(), []);
        assert_eq!(device.directories(), 1);
        let other = Records::open(&device.0).unwrap();
        drop((rule, records));
        assert_eq!(device.directories(), 1);
        drop(other);
        assert!(!device.0.exists(), "nothing is left behind");
    }

    #[test]
    fn the_directory_of_a_device_goes_while_others_come() {
        let device = Device::new();
        std::thread::scope(|scope| {
            for port in 0..4 {
                let device = &device.0;
                scope.spawn(move || {
                    for _ in 0..200 {
                        let records = Records::open(device).unwrap();
                        drop(records.add(flow(port)).unwrap());
                    }
                });
            }
        });
        sweep(&device.0, |_| panic!("there is nothing to remove")).unwrap();
        assert!(!device.0.exists(), "nothing is left behind");
    }

    #[test]
    fn rules_that_could_not_be_removed_are_not_forgotten() {
        let device = Device::new();
        let records = Records::open(&device.0).unwrap();
        let rule = records.add(flow(1)).unwrap();
        kill(records, vec![rule]);
        let refused = || Err(io::ErrorKind::PermissionDenied.into());
        assert!(sweep(&device.0, |_| refused()).is_err());
        assert_eq!(device.sweep(), [flow(1)]);
    }

    #[test]
    fn a_device_without_any_has_nothing_to_sweep() {
        let device = Device::new();
        assert_eq!(left_behind(&device.0).unwrap(), []);
        sweep(&device.0, |_| panic!("there is nothing to remove")).unwrap();
    }
}
