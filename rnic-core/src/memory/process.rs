//! The process that made something, and those that were forked from it, which have its memory and
//! not its threads.
#![allow(unsafe_code)]

use std::io;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapMut, MmapOptions};
use nix::libc;

/// The process that made something.
///
/// To ask costs a load: the kernel clears a page of memory in each process that is forked, in
/// whatever way. One that shares its parent's memory until it executes a program (`vfork`,
/// `posix_spawn`, `system`) is no other process here.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    mark: &'static AtomicU32,
    number: u32,
}

/// The number of a process that nobody asked for one since it was forked.
const NONE: u32 = 0;

impl Process {
    /// Returns this process.
    pub fn this() -> Self {
        /// A forked process goes on to count where its parent was, so that it gets none of its
        /// ancestors' numbers.
        static LAST: AtomicU32 = AtomicU32::new(NONE);
        let mark = mark();
        // Relaxed: the number is all that is told.
        let mut number = mark.load(Ordering::Relaxed);
        if number == NONE {
            let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            // Another thread may have been first.
            let set = mark.compare_exchange(NONE, new, Ordering::Relaxed, Ordering::Relaxed);
            number = set.map_or_else(|first| first, |_| new);
        }
        Self { mark, number }
    }

    /// Returns whether the calling process is another one, which was forked from this.
    #[inline]
    pub fn is_forked(&self) -> bool {
        // Relaxed: it changes between a fork and all that the child does.
        self.mark.load(Ordering::Relaxed) != self.number
    }
}

/// Returns the word that the kernel clears in a child.
fn mark() -> &'static AtomicU32 {
    static MARK: OnceLock<&AtomicU32> = OnceLock::new();
    MARK.get_or_init(|| match page() {
        Ok(page) => {
            // Never unmapped.
            let mut page = ManuallyDrop::new(page);
            // SAFETY: a page of its own, aligned and zeroed, which nobody else uses, and which
            // stays.
            unsafe { AtomicU32::from_ptr(page.as_mut_ptr().cast()) }
        }
        // Without memory for a page not much else will go. A child is then taken for its parent.
        Err(_) => Box::leak(Box::new(AtomicU32::new(NONE))),
    })
}

fn page() -> io::Result<MmapMut> {
    let mut page = MmapOptions::new().len(size_of::<AtomicU32>()).map_anon()?;
    let (start, octets) = (page.as_mut_ptr().cast(), page.len());
    // SAFETY: it is this mapping, and nothing changes in this process.
    match unsafe { libc::madvise(start, octets, libc::MADV_WIPEONFORK) } {
        0 => Ok(page),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_process_is_another_one_and_a_thread_is_not() {
        let this = Process::this();
        assert!(!this.is_forked());
        assert_eq!(this.number, Process::this().number);
        let in_thread = move || this.is_forked() || Process::this().number != this.number;
        assert!(!std::thread::spawn(in_thread).join().unwrap());

        // SAFETY: the child makes no call but `_exit`, which is safe after a fork whatever other
        // threads hold.
        match unsafe { nix::unistd::fork() }.unwrap() {
            nix::unistd::ForkResult::Child => {
                let is_new = this.is_forked() && Process::this().number != this.number;
                // SAFETY: as above.
                unsafe { libc::_exit(i32::from(!is_new)) }
            }
            nix::unistd::ForkResult::Parent { child } => {
                let status = nix::sys::wait::waitpid(child, None).unwrap();
                assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
            }
        }
        assert!(!this.is_forked());
    }
}
