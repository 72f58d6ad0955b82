//! Errors as programs get them: errno.

use std::io;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use nix::errno::Errno;
use rnic_verbs::{Error, OpenError, PostError};

/// Sets errno, and returns what a function that failed returns.
pub(crate) fn fail(errno: Errno) -> i32 {
    errno.set();
    -1
}

/// Sets errno, and returns NULL.
pub(crate) fn fail_ptr<T>(errno: Errno) -> *mut T {
    errno.set();
    null_mut()
}

/// Returns 0, or sets errno and returns it: what most verbs return.
pub(crate) fn result(done: Result<(), Errno>) -> i32 {
    match done {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            errno as i32
        }
    }
}

/// Returns the pointer, or sets errno and returns NULL.
pub(crate) fn pointer<T>(made: Result<*mut T, Errno>) -> *mut T {
    made.unwrap_or_else(fail_ptr)
}

/// Locks a mutex. What is behind one is consistent after every statement, so a thread that was
/// cancelled with it spoils nothing.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Errors that have an errno.
pub(crate) trait ToErrno {
    fn errno(&self) -> Errno;
}

impl ToErrno for Error {
    fn errno(&self) -> Errno {
        match self {
            Error::WorkerGone(_) | Error::DeviceGone => Errno::ENODEV,
            Error::ListenerEnded(_) => Errno::ENODEV,
            Error::Queue(_) | Error::NoQueuePair(_) => Errno::ENOMEM,
            Error::NoCompletionQueue(_) | Error::NoSharedReceiveQueue(_) => Errno::ENOMEM,
            Error::Region(_) | Error::Registration(_) => Errno::EINVAL,
            Error::Net(_) => Errno::EADDRNOTAVAIL,
            Error::OtherDevice(_) | Error::OtherDomain(_) => Errno::EINVAL,
            Error::SrqInUse(_) | Error::AsyncEventsTaken => Errno::EBUSY,
            Error::CqHolds { .. } | Error::NotIdle(_) => Errno::EINVAL,
            Error::NotConnected => Errno::ENOTCONN,
            Error::Channel(why) | Error::Thread(why) => {
                why.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw)
            }
            _ => Errno::EINVAL,
        }
    }
}

impl ToErrno for OpenError {
    fn errno(&self) -> Errno {
        match self {
            OpenError::Unprivileged { .. } => Errno::EPERM,
            OpenError::Config { .. } | OpenError::NoEspBySockets => Errno::EINVAL,
            OpenError::Threads(why) => why.errno(),
            OpenError::Memory(_) => Errno::ENOMEM,
            OpenError::Bell(why) | OpenError::Random(why) => {
                why.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw)
            }
            why => shortage(why).unwrap_or(Errno::ENODEV),
        }
    }
}

/// Returns what this process or the system has too little of, if that is what an error comes from.
fn shortage(why: &OpenError) -> Option<Errno> {
    let mut causes = std::iter::successors(Some(why as &dyn std::error::Error), |why| why.source());
    let errno = causes.find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error());
    errno
        .map(Errno::from_raw)
        .filter(|errno| matches!(errno, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM))
}

impl ToErrno for PostError {
    fn errno(&self) -> Errno {
        match self {
            PostError::SendQueueFull(_)
            | PostError::ReceiveQueueFull(_)
            | PostError::SharedQueueFull(_) => Errno::ENOMEM,
            _ => Errno::EINVAL,
        }
    }
}
