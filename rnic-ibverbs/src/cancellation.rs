//! Cancellation of the program's threads (`pthread_cancel`).
//!
//! A cancelled thread unwinds its stack from the system call where it is, which must not happen in
//! the middle of the engine's work, nor in a function that is `extern "C"`. As the manual pages
//! have it, the functions that wait are cancellation points. Those that do something put a
//! cancellation off until they return.

use std::ffi::c_int;

use crate::system::{put_cancellation_off, set_cancellation};

/// As long as it lives, this thread is not cancelled.
pub(crate) struct PutOff {
    before: c_int,
}

impl PutOff {
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            before: put_cancellation_off(),
        }
    }
}

impl Drop for PutOff {
    #[inline]
    fn drop(&mut self) {
        set_cancellation(self.before);
    }
}
