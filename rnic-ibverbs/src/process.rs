//! A process that was forked from the one that made an object: its threads are not there, nor its
//! descriptors. Calls on the object do nothing, and say so. The process may open devices of its
//! own.
#![allow(unsafe_code, reason = "handlers of fork")]

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};

use nix::libc;
pub(crate) use rnic_verbs::Process;
use rnic_verbs::take_private;

use crate::errno::Errno;

/// Fails in a process that was forked from this one.
#[inline]
pub(crate) fn check(made_by: &Process) -> Result<(), Errno> {
    match made_by.is_forked() {
        false => Ok(()),
        true => Err(refuse()),
    }
}

/// Reports on stderr, once in a process, that it uses what it has inherited. Returns what its calls
/// fail with.
#[cold]
fn refuse() -> Errno {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        // In one piece, and without the lock of Rust's stderr: another thread may have held it at
        // the fork.
        let text = format!(
            "rnic: process {} uses RDMA objects of the process that it was forked from: they do nothing here (ENODEV); \
             call fork() or daemon() first, and open devices then\n",
            std::process::id()
        );
        // SAFETY: the text is there, and so long.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
    Errno::ENODEV
}

/// Registers the handler that takes from children the descriptors that hold an interface or report
/// events. Calls after the first do nothing.
pub(crate) fn keep_from_children() {
    static KEEPS: AtomicBool = AtomicBool::new(false);
    in_children(&KEEPS, replace_descriptors);
}

/// Registers `what` to be called in each process that is forked from this one from now on, and from
/// those. `named` records whether that was done. In the child, only the thread that has forked
/// exists, and other threads may have held any lock.
pub(crate) fn in_children(named: &AtomicBool, what: extern "C" fn()) {
    unsafe extern "C" {
        fn pthread_atfork(
            prepare: Option<extern "C" fn()>,
            parent: Option<extern "C" fn()>,
            child: Option<extern "C" fn()>,
        ) -> c_int;
    }
    if !named.swap(true, Ordering::AcqRel) {
        // Without memory for it, children keep what they inherit.
        // SAFETY: the function stays where it is: the library is never unloaded.
        unsafe { pthread_atfork(None, None, Some(what)) };
    }
}

/// Puts a readable eventfd in the place of each noted descriptor. The numbers stay taken, a thread
/// that waits for an event wakes up, and the call that is to return the event fails.
extern "C" fn replace_descriptors() {
    // SAFETY: the call takes numbers.
    let readable = unsafe { libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    take_private(|fd: RawFd| {
        match readable {
            // SAFETY: the descriptor is of this library, whose calls use it no more in this
            // process.
            0.. => unsafe { libc::dup3(readable, fd, libc::O_CLOEXEC) },
            // Without a descriptor to spare.
            // SAFETY: as above.
            _ => unsafe { libc::close(fd) },
        };
    });
    if readable >= 0 {
        // SAFETY: it was made above, and nobody has it.
        unsafe { libc::close(readable) };
    }
}

/// Makes a lock of a static new in a child. What was behind it stays where it is: it is the
/// parent's.
///
/// # Safety
/// No other thread exists, and this one does not hold the lock.
pub(crate) unsafe fn renew<T: Default>(lock: &Mutex<T>) {
    // SAFETY: nobody else has the lock, which is all of interior mutability.
    unsafe { std::ptr::from_ref(lock).cast_mut().write(Mutex::default()) };
}

/// Makes a lock of a static new in a child, as [`renew`], and keeps what was behind it, unless
/// another thread was about to change it.
///
/// # Safety
/// No other thread exists, and this one does not hold the lock.
pub(crate) unsafe fn renew_shared<T: Default>(lock: &RwLock<T>) {
    if lock.try_write().is_ok() {
        return;
    }
    let kept = lock.try_read().ok().map(|read| {
        // SAFETY: readers alone held it, so that it is whole. The other one is overwritten below,
        // and never dropped.
        unsafe { std::ptr::from_ref(&*read).read() }
    });
    // SAFETY: as in `renew`.
    unsafe {
        std::ptr::from_ref(lock)
            .cast_mut()
            .write(RwLock::new(kept.unwrap_or_default()))
    };
}
