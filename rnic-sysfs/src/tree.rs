//! The directory that has the files, and what lies there in the place of a path.
#![allow(unsafe_code, reason = "the environment, and a system call")]

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use nix::libc;

use crate::next::{errno, set_errno};
use crate::paths::Below;

/// Names the directory.
const VARIABLE: &CStr = c"RNIC_SYSFS";

/// Where the kernel has the devices.
const CLASS: &[u8] = b"/sys/class/infiniband";

// The libc crate does not have it.
unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// The longest path that the kernel takes, with the zero at its end.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Room for a path.
type Buffer = [u8; PATH_MAX];

pub(crate) const EMPTY: Buffer = [0; PATH_MAX];

/// The path of a directory. It is a copy: programs overwrite what the environment points to.
pub(crate) struct Root {
    octets: [AtomicU8; Self::MOST],
    /// 0 as long as there is none.
    length: AtomicUsize,
}

/// The one of this process.
pub(crate) static ROOT: Root = Root::new();

impl Root {
    const MOST: usize = 1024;

    const fn new() -> Self {
        Self {
            octets: [const { AtomicU8::new(0) }; Self::MOST],
            length: AtomicUsize::new(0),
        }
    }

    /// Takes it from the environment, but not in a program that has more rights than its user.
    pub(crate) fn read_environment(&self) {
        // SAFETY: both are strings of C, and no other thread changes the environment before `main`.
        let named = unsafe {
            let named = secure_getenv(VARIABLE.as_ptr());
            (!named.is_null()).then(|| CStr::from_ptr(named))
        };
        self.set(named.map_or(b"", CStr::to_bytes));
    }

    /// A path that is relative, or too long, is none.
    fn set(&self, path: &[u8]) {
        if path.len() > Self::MOST || path.first() != Some(&b'/') {
            return;
        }
        for (place, octet) in self.octets.iter().zip(path) {
            place.store(*octet, Ordering::Relaxed);
        }
        // With the octets.
        self.length.store(path.len(), Ordering::Release);
    }

    /// Returns whether there is one.
    pub(crate) fn is_set(&self) -> bool {
        self.length.load(Ordering::Relaxed) != 0
    }

    /// Returns what lies in the tree in the place of a path, if anything does.
    pub(crate) fn counterpart<'b>(
        &self,
        below: Below<'_>,
        buffer: &'b mut Buffer,
        exists: impl Fn(&CStr) -> bool,
    ) -> Option<&'b CStr> {
        if let Some(entry) = below.entry {
            let kernels = CLASS.iter().chain(b"/").chain(entry).copied();
            // It has a device of this name itself.
            if exists(write(buffer, kernels)?) {
                return None;
            }
        }
        // With the octets.
        let length = self.length.load(Ordering::Acquire);
        let root = self.octets.iter().take(length);
        let root = root.map(|octet| octet.load(Ordering::Relaxed));
        let class = CLASS.strip_prefix(b"/sys").unwrap_or_default();
        let path = root.chain(class.iter().chain(below.rest).copied());
        let ours = write(buffer, path)?;
        exists(ours).then_some(ours)
    }
}

/// Writes a string of C, if it fits.
fn write(buffer: &mut Buffer, octets: impl Iterator<Item = u8>) -> Option<&CStr> {
    let mut places = buffer.iter_mut();
    for octet in octets {
        *places.next()? = octet;
    }
    *places.next()? = 0;
    CStr::from_bytes_until_nul(buffer).ok()
}

/// Returns whether a file exists. It asks the kernel itself: the functions of the C library are
/// those of [`symbols`](crate::symbols).
pub(crate) fn exists(path: &CStr) -> bool {
    let before = errno();
    // SAFETY: the path is a string of C.
    let found = unsafe {
        libc::syscall(
            libc::SYS_faccessat,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::F_OK,
        )
    };
    set_errno(before);
    found == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the counterpart of a path below `root`, where these files exist.
    fn counterpart(root: &str, path: &str, files: &[&str]) -> Option<String> {
        let tree = Root::new();
        tree.set(root.as_bytes());
        let mut buffer = EMPTY;
        let exists = |path: &CStr| files.contains(&path.to_str().unwrap());
        let found = tree.counterpart(Below::of(path.as_bytes())?, &mut buffer, exists)?;
        Some(found.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_path_leads_to_what_exists_in_the_tree() {
        let files = ["/t/class/infiniband/a", "/t/class/infiniband//a/"];
        for (path, found) in [
            ("/sys/class/infiniband/a", Some(files[0])),
            ("/sys//class/infiniband//a/", Some(files[1])),
            ("/sys/class/infiniband/b", None),
            ("/sys/class/infiniband", None),
            ("/sys/class/net", None),
        ] {
            assert_eq!(counterpart("/t", path, &files).as_deref(), found, "{path}");
        }
    }

    #[test]
    fn a_device_of_the_kernel_comes_first() {
        let files = [
            "/t/class/infiniband",
            "/t/class/infiniband/a/ports",
            "/t/class/infiniband/b/ports",
            "/sys/class/infiniband",
            "/sys/class/infiniband/a",
        ];
        for (path, found) in [
            ("/sys/class/infiniband/a/ports", None),
            ("/sys/class/infiniband/b/ports", Some(files[2])),
            // The list of all is that of the tree.
            ("/sys/class/infiniband", Some(files[0])),
        ] {
            assert_eq!(counterpart("/t", path, &files).as_deref(), found, "{path}");
        }
    }

    #[test]
    fn what_does_not_fit_is_left_alone() {
        let root = format!("/{}", "r".repeat(Root::MOST - 1));
        let room = PATH_MAX - 1 - root.len() - "/class/infiniband/".len();
        for (name, fits) in [("n".repeat(room), true), ("n".repeat(room + 1), false)] {
            let path = format!("/sys/class/infiniband/{name}");
            let ours = format!("{root}/class/infiniband/{name}");
            let found = counterpart(&root, &path, &[&ours]);
            assert_eq!(found, fits.then_some(ours));
        }
        let long = format!("/sys/class/infiniband/{}", "n".repeat(3 * PATH_MAX));
        assert_eq!(counterpart("/t", &long, &[]), None);
    }

    #[test]
    fn only_an_absolute_path_is_a_directory() {
        for (path, is_set) in [
            ("", false),
            ("t", false),
            ("./t", false),
            ("/", true),
            ("/t", true),
        ] {
            let tree = Root::new();
            tree.set(path.as_bytes());
            assert_eq!(tree.is_set(), is_set, "{path}");
        }
        let tree = Root::new();
        tree.set(&[b'/'; Root::MOST + 1]);
        assert!(!tree.is_set());
    }

    #[test]
    fn errno_stays() {
        set_errno(libc::EPROTO);
        assert!(!exists(c"/nowhere/at/all"));
        assert!(exists(c"/"));
        assert_eq!(errno(), libc::EPROTO);
    }
}
