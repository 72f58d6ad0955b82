//! The BPF link that holds the program on its device.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;
use rnic_manager::PrivateFd;

use crate::device::netlink::XdpMode;
use rnic_manager::Maker;

/// The attachment of a program to a device. The kernel ends it with the last descriptor, at the
/// latest when the process ends.
#[derive(Debug)]
pub(super) struct Attachment(PrivateFd, Maker);

impl Drop for Attachment {
    fn drop(&mut self) {
        if self.1.is_forked() {
            return;
        }
        // It ends at once, even if a process that was just started still has a copy of the
        // descriptor. It fails only if the device is gone.
        // SAFETY: the call takes a descriptor, which is open, and no pointers.
        let _ = unsafe { libbpf_sys::bpf_link_detach(self.0.as_raw_fd()) };
    }
}

impl Attachment {
    /// Replaces the attached program by another without a gap.
    pub(super) fn replace(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: the call takes two descriptors, which are open, and no options.
        let result = unsafe {
            libbpf_sys::bpf_link_update(self.0.as_raw_fd(), program.as_raw_fd(), std::ptr::null())
        };
        match result {
            0.. => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
        }
    }
}

/// Attaches a program to a device. libbpf-rs attaches with a link too, but lets the kernel choose
/// the mode.
pub(super) fn attach(
    program: BorrowedFd<'_>,
    device: u32,
    mode: XdpMode,
) -> io::Result<Attachment> {
    // SAFETY: all-zero is a valid value of this plain C structure of integers, pointers that may be
    // null, and a union of the same.
    let mut options: libbpf_sys::bpf_link_create_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of_val(&options) as _;
    options.flags = match mode {
        XdpMode::Driver => libbpf_sys::XDP_FLAGS_DRV_MODE,
        XdpMode::Stack => libbpf_sys::XDP_FLAGS_SKB_MODE,
    };
    let device = i32::try_from(device).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the call reads `options`, which lives through it, and keeps no pointer to it.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), device, libbpf_sys::BPF_XDP, &options)
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(fd.saturating_neg()));
    }
    // SAFETY: the kernel has just made this descriptor (close-on-exec), and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(Attachment(fd.into(), Maker::this()))
}
