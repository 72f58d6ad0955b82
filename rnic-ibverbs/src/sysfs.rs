//! Reading sysfs.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::errno::{Errno, fail};

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file without the newline at its end. Returns its length. What does not fit is cut off.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> i32 {
    let [directory, file] =
        [directory, file].map(|name| OsStr::from_bytes(CStr::from_ptr(name).to_bytes()));
    let text = match fs::read(Path::new(directory).join(file)) {
        Ok(text) => text,
        Err(why) => return fail(why.raw_os_error().map_or(Errno::EIO, Errno::from_raw)),
    };
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let length = text.len().min(size);
    std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, length);
    if length < size {
        *buffer.add(length) = 0;
    }
    length as i32
}

/// Devices of this library have no directory.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_read_ibdev_sysfs_file(
    _buffer: *mut c_char,
    _size: usize,
    _device: *mut c_void,
    _format: *const c_char,
) -> i32 {
    fail(Errno::ENOENT)
}
