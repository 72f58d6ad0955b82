//! Functions of the C library that neither std nor nix has, or not so that a thread can be
//! cancelled in them.
#![allow(unsafe_code, reason = "functions of the C library")]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::libc::{self, nfds_t, pollfd};

use crate::errno::Errno;

/// `PTHREAD_CANCEL_DISABLE` of Linux.
const DISABLE: c_int = 1;

// The libc crate does not have it.
unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, before: &mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    /// A thread that waits here can be cancelled, which unwinds.
    fn read(fd: RawFd, buffer: *mut c_void, count: usize) -> isize;
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
}

/// Keeps this thread from being cancelled. Returns what [`set_cancellation`] restores.
#[inline]
pub(crate) fn put_cancellation_off() -> c_int {
    let mut before = 0;
    // It fails for a state that does not exist.
    pthread_setcancelstate(DISABLE, &mut before);
    before
}

/// Restores what [`put_cancellation_off`] has returned.
#[inline]
pub(crate) fn set_cancellation(state: c_int) {
    pthread_setcancelstate(state, &mut 0);
}

/// Reads an eventfd. Waits until it is readable, unless it is non-blocking. The thread can be
/// cancelled meanwhile.
pub(crate) fn read_event(fd: impl AsFd) -> Result<(), Errno> {
    let mut count = 0u64;
    let buffer = (&raw mut count).cast();
    // SAFETY: 8 octets can be written there, which are this thread's own.
    let got = unsafe { read(fd.as_fd().as_raw_fd(), buffer, size_of::<u64>()) };
    match got == size_of::<u64>() as isize {
        true => Ok(()),
        false => Err(Errno::last()),
    }
}

/// Reads an eventfd without waiting, whatever the program has made of the descriptor.
pub(crate) fn read_event_now(fd: impl AsFd) {
    let mut count = 0u64;
    let piece = libc::iovec {
        iov_base: (&raw mut count).cast(),
        iov_len: size_of::<u64>(),
    };
    // SAFETY: one piece of memory, in which 8 octets can be written.
    let _ = unsafe { libc::preadv2(fd.as_fd().as_raw_fd(), &piece, 1, -1, libc::RWF_NOWAIT) };
}

/// poll(2) with a timeout in milliseconds. The thread can be cancelled meanwhile.
pub(crate) fn poll_fds(fds: &mut [pollfd], timeout: c_int) -> Result<usize, Errno> {
    // SAFETY: the slice has so many entries, and poll(2) writes to those alone.
    let ready = unsafe { poll(fds.as_mut_ptr(), fds.len() as nfds_t, timeout) };
    usize::try_from(ready).map_err(|_| Errno::last())
}

/// Duplicates a descriptor. The new one has the smallest number that is free, which std's may not
/// have, and is closed on exec.
pub(crate) fn duplicate(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    // SAFETY: the command takes and returns numbers.
    let new = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) };
    if new < 0 {
        return Err(Errno::last());
    }
    // SAFETY: the descriptor was made just now, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}

/// Registers a function to be called when the process exits.
pub(crate) fn at_exit(what: extern "C" fn()) {
    // SAFETY: the function stays where it is: the library is never unloaded.
    unsafe { libc::atexit(what) };
}
