//! Cancellation of the program's threads (`pthread_cancel`).
//!
//! A cancelled thread unwinds its stack from the system call where it is, which must not happen in
//! the middle of the engine's work, nor in a function that is `extern "C"`. As the manual pages
//! have it, the functions that wait are cancellation points. Those that do something put a
//! cancellation off until they return.

use std::ffi::c_int;

/// `PTHREAD_CANCEL_DISABLE` of Linux.
const DISABLE: c_int = 1;

// The libc crate does not have it.
unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, before: &mut c_int) -> c_int;
}

/// As long as it lives, this thread is not cancelled.
pub(crate) struct PutOff {
    before: c_int,
}

impl PutOff {
    #[inline]
    pub(crate) fn new() -> Self {
        let mut before = 0;
        // It fails for a state that does not exist.
        pthread_setcancelstate(DISABLE, &mut before);
        Self { before }
    }
}

impl Drop for PutOff {
    #[inline]
    fn drop(&mut self) {
        pthread_setcancelstate(self.before, &mut 0);
    }
}
