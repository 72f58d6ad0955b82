//! Directories that one rnicd alone uses, or one `rnicd --unshare`: those of its state and of the
//! pinned maps.
//!
//! The lock is the kernel's (flock) on the directory itself, so that it ends with the process,
//! however that ends, and leaves nothing.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{major, minor};

/// Why a directory cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another process has it.
    #[error(
        "another rnicd{} has {} already; end it first (`systemctl stop rnicd.socket rnicd`)",
        pid.map_or_else(String::new, |pid| format!(" (pid {pid})")),
        path.display()
    )]
    Taken {
        /// The directory.
        path: PathBuf,
        /// The process, unless it is of a PID namespace that is not seen here.
        pid: Option<u32>,
    },
    /// It cannot be made or locked.
    #[error("cannot lock {}: {source}", path.display())]
    System {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A directory that no other rnicd has as long as this exists.
#[derive(Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    directory: Flock<File>,
}

impl Claim {
    /// Claims a directory, which is made if need be.
    pub(crate) fn make(path: &Path) -> Result<Self, ClaimError> {
        let mut builder = DirBuilder::new();
        loop {
            // Whoever may read it could lock it.
            let made = builder.recursive(true).mode(0o700).create(path);
            made.map_err(system(path))?;
            if let Some(claim) = Self::of(path)? {
                return Ok(claim);
            }
        }
    }

    /// Claims a directory. Returns none if it does not exist.
    pub(crate) fn of(path: &Path) -> Result<Option<Self>, ClaimError> {
        loop {
            let directory = match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                opened => opened.map_err(system(path))?,
            };
            let directory = lock(path, directory)?;
            let path = path.to_owned();
            let claim = Self { path, directory };
            // `rnicd --unshare` may have removed it before it was locked.
            if claim.holds() {
                return Ok(Some(claim));
            }
        }
    }

    /// Returns whether the directory of that path is still the one that is locked: one may have
    /// been removed, or mounted over.
    pub(crate) fn holds(&self) -> bool {
        let identity = |of: fs::Metadata| (of.dev(), of.ino());
        let there = fs::metadata(&self.path).map(identity);
        let locked = self.directory.metadata().map(identity);
        there.ok().zip(locked.ok()).is_some_and(|(a, b)| a == b)
    }
}

fn lock(path: &Path, directory: File) -> Result<Flock<File>, ClaimError> {
    let locked = Flock::lock(directory, FlockArg::LockExclusiveNonblock);
    locked.map_err(|(directory, error)| match error {
        Errno::EWOULDBLOCK => ClaimError::Taken {
            path: path.to_owned(),
            pid: holder(&directory),
        },
        error => system(path)(error.into()),
    })
}

fn system(path: &Path) -> impl Fn(io::Error) -> ClaimError {
    move |source| ClaimError::System {
        path: path.to_owned(),
        source,
    }
}

/// Returns the process that has locked a file, if it is seen from here.
fn holder(file: &File) -> Option<u32> {
    let of = file.metadata().ok()?;
    let (major, minor, inode) = (major(of.dev()), minor(of.dev()), of.ino());
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let mut lines = locks.lines().map(|line| line.split_whitespace());
    lines.find_map(|mut words| {
        // "7: FLOCK  ADVISORY  WRITE 1234 00:1a:42 0 EOF"; those who wait have "->" ahead.
        let is_lock = words.nth(1) == Some("FLOCK");
        let pid = words.nth(2)?.parse().ok()?;
        (is_lock && words.next() == Some(&file)).then_some(pid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_a_directory_and_the_error_names_it() {
        let path = std::env::temp_dir().join(format!("rnicd-claim-{}", std::process::id()));
        assert!(Claim::of(&path).unwrap().is_none());
        let claim = Claim::make(&path.join("state")).unwrap();
        let taken = Claim::make(&path.join("state")).unwrap_err().to_string();
        let pid = std::process::id();
        let expected = format!("another rnicd (pid {pid}) has ");
        assert!(taken.starts_with(&expected), "{taken}");
        // One that is removed is not the one that comes in its place.
        assert!(claim.holds());
        fs::remove_dir(path.join("state")).unwrap();
        assert!(!claim.holds());
        let next = Claim::make(&path.join("state")).unwrap();
        drop((claim, next));
        assert!(Claim::of(&path.join("state")).unwrap().is_some());
        fs::remove_dir_all(&path).unwrap();
    }
}
