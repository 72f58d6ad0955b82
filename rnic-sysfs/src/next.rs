//! The functions that calls are passed on to.
#![allow(unsafe_code, reason = "the dynamic linker, and errno")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use nix::libc;

/// The oldest version of symbols of the C library: programs that were linked long ago call
/// functions that have this one alone.
#[cfg(target_arch = "x86_64")]
const OLDEST: &CStr = c"GLIBC_2.2.5";
#[cfg(not(target_arch = "x86_64"))]
const OLDEST: &CStr = c"GLIBC_2.17";

/// A function of the same name in the libraries behind this one.
pub(crate) struct Next {
    pub(crate) name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicPtr::new(null_mut()),
        }
    }

    /// Returns the function, or NULL if there is none. Only the first call looks for it.
    pub(crate) fn find(&self) -> *mut c_void {
        // What it points to was there before this library, so nothing has to be seen besides.
        let found = self.found.load(Ordering::Relaxed);
        match found.is_null() {
            true => self.look_up(),
            false => found,
        }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let before = errno();
        // SAFETY: both names are strings of C.
        let found = unsafe {
            let newest = libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr());
            match newest.is_null() {
                true => libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), OLDEST.as_ptr()),
                false => newest,
            }
        };
        set_errno(before);
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Forgets what the dynamic linker had to say of functions that are not there: the program would
/// take it for its own.
pub(crate) fn forget_errors() {
    // SAFETY: it takes nothing, and what it returns is not used.
    unsafe { libc::dlerror() };
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the C library has one for each thread, as long as that lives.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(number: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = number };
}
