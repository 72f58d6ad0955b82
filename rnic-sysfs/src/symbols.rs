//! The functions of the C library that take a path. Each calls the next one of its name, with the
//! path that [`tree`](crate::tree) has in the place of the program's.
#![allow(unsafe_code, reason = "C ABI: entry points")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use nix::libc::{self, DIR, FILE, mode_t, size_t, ssize_t};

use crate::next::{Next, forget_errors, set_errno};
use crate::paths::Below;
use crate::tree::{EMPTY, ROOT, exists};

/// What a function returns where it fails.
trait Outcome {
    const FAILED: Self;
}

impl Outcome for c_int {
    const FAILED: Self = -1;
}

impl Outcome for ssize_t {
    const FAILED: Self = -1;
}

impl<T> Outcome for *mut T {
    const FAILED: Self = null_mut();
}

/// Calls a function with the path that it is to have.
///
/// # Safety
/// The path is what the function of the C library takes: a string of C, or NULL.
unsafe fn with_path<T>(path: *const c_char, call: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: it has an octet at least, the zero at its end.
    if path.is_null() || !ROOT.is_set() || unsafe { *path } != b'/' as c_char {
        return call(path);
    }
    // SAFETY: it is a string of C.
    let octets = unsafe { CStr::from_ptr(path) }.to_bytes();
    match Below::of(octets) {
        Some(below) => redirected(below, path, call),
        None => call(path),
    }
}

/// As `with_path`, for a path in the directory: with room for another one on the stack, of which
/// threads and signal handlers may have little.
#[inline(never)]
fn redirected<T>(
    below: Below<'_>,
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> T,
) -> T {
    let mut buffer = EMPTY;
    let ours = ROOT.counterpart(below, &mut buffer, exists);
    call(ours.map_or(path, CStr::as_ptr))
}

/// Declares functions by their names, the arguments before the path and behind it, and what they
/// return.
macro_rules! functions {
    ($($name:ident($($before:ident: $b:ty),*; path $(, $after:ident: $a:ty)*) -> $result:ty;)+) => {
        mod next {
            #![allow(non_upper_case_globals, reason = "named as the functions")]

            use super::*;

            $(pub(super) static $name: Next = Next::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without a zero in it"),
                },
            );)+

            /// All of them.
            pub(super) static ALL: &[&Next] = &[$(&$name),+];
        }

        $(
            /// As the C library's. A variable argument is passed as any other one on these
            /// processors, and so is one that the caller leaves out: nothing looks at it then.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, allow(dead_code))]
            unsafe extern "C-unwind" fn $name(
                $($before: $b,)* path: *const c_char $(, $after: $a)*
            ) -> $result {
                type Function =
                    unsafe extern "C-unwind" fn($($b,)* *const c_char $(, $a)*) -> $result;
                let next = next::$name.find();
                if next.is_null() {
                    set_errno(libc::ENOSYS);
                    return Outcome::FAILED;
                }
                // SAFETY: the C library's function of this name is of this type.
                let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
                // SAFETY: the caller keeps to that function's contract, and another path is a
                // string of C.
                unsafe { with_path(path, |path| next($($before,)* path $(, $after)*)) }
            }
        )+
    };
}

type Filter = Option<unsafe extern "C-unwind" fn(*const c_void) -> c_int>;
type Compare = Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int>;

functions! {
    open(; path, flags: c_int, mode: mode_t) -> c_int;
    open64(; path, flags: c_int, mode: mode_t) -> c_int;
    __open_2(; path, flags: c_int) -> c_int;
    __open64_2(; path, flags: c_int) -> c_int;
    openat(at: c_int; path, flags: c_int, mode: mode_t) -> c_int;
    openat64(at: c_int; path, flags: c_int, mode: mode_t) -> c_int;
    __openat_2(at: c_int; path, flags: c_int) -> c_int;
    __openat64_2(at: c_int; path, flags: c_int) -> c_int;
    fopen(; path, mode: *const c_char) -> *mut FILE;
    fopen64(; path, mode: *const c_char) -> *mut FILE;

    opendir(; path) -> *mut DIR;
    scandir(; path, list: *mut c_void, filter: Filter, compare: Compare) -> c_int;
    scandir64(; path, list: *mut c_void, filter: Filter, compare: Compare) -> c_int;

    stat(; path, status: *mut c_void) -> c_int;
    stat64(; path, status: *mut c_void) -> c_int;
    lstat(; path, status: *mut c_void) -> c_int;
    lstat64(; path, status: *mut c_void) -> c_int;
    fstatat(at: c_int; path, status: *mut c_void, flags: c_int) -> c_int;
    fstatat64(at: c_int; path, status: *mut c_void, flags: c_int) -> c_int;
    statx(at: c_int; path, flags: c_int, mask: c_uint, status: *mut c_void) -> c_int;
    __xstat(version: c_int; path, status: *mut c_void) -> c_int;
    __xstat64(version: c_int; path, status: *mut c_void) -> c_int;
    __lxstat(version: c_int; path, status: *mut c_void) -> c_int;
    __lxstat64(version: c_int; path, status: *mut c_void) -> c_int;
    __fxstatat(version: c_int, at: c_int; path, status: *mut c_void, flags: c_int) -> c_int;
    __fxstatat64(version: c_int, at: c_int; path, status: *mut c_void, flags: c_int) -> c_int;

    access(; path, mode: c_int) -> c_int;
    eaccess(; path, mode: c_int) -> c_int;
    euidaccess(; path, mode: c_int) -> c_int;
    faccessat(at: c_int; path, mode: c_int, flags: c_int) -> c_int;

    getxattr(; path, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t;
    lgetxattr(; path, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t;
    listxattr(; path, list: *mut c_char, size: size_t) -> ssize_t;
    llistxattr(; path, list: *mut c_char, size: size_t) -> ssize_t;

    readlink(; path, buffer: *mut c_char, size: size_t) -> ssize_t;
    __readlink_chk(; path, buffer: *mut c_char, size: size_t, room: size_t) -> ssize_t;
    readlinkat(at: c_int; path, buffer: *mut c_char, size: size_t) -> ssize_t;
    __readlinkat_chk(at: c_int; path, buffer: *mut c_char, size: size_t, room: size_t) -> ssize_t;
    realpath(; path, resolved: *mut c_char) -> *mut c_char;
    __realpath_chk(; path, resolved: *mut c_char, room: size_t) -> *mut c_char;
    canonicalize_file_name(; path) -> *mut c_char;
}

/// Called when the library is loaded, which is before `main`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn rnic_sysfs_start() {
    ROOT.read_environment();
    // A later call may come from a signal handler, where the dynamic linker is not to be asked.
    for next in next::ALL {
        next.find();
    }
    forget_errors();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_has_all_functions() {
        for next in next::ALL {
            assert!(!next.find().is_null(), "{:?}", next.name);
        }
    }

    #[test]
    fn null_and_other_paths_reach_the_next_function() {
        rnic_sysfs_start();
        let mut resolved = [0; libc::PATH_MAX as usize];
        // SAFETY: strings of C, and room for a path.
        let (null, file, path) = unsafe {
            (
                access(std::ptr::null(), libc::F_OK),
                open(c"/dev/null".as_ptr(), libc::O_RDONLY, 0),
                realpath(c"/proc/../dev/null".as_ptr(), resolved.as_mut_ptr()),
            )
        };
        assert_eq!(null, -1);
        assert!(file >= 0);
        // SAFETY: the descriptor is this test's own.
        unsafe { libc::close(file) };
        // SAFETY: it is NULL, or a string of C in `resolved`.
        let path = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
        assert_eq!(path, Some(c"/dev/null"));
    }
}
