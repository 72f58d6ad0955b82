//! Functions of the C library that neither std nor nix has, or not so that a thread can be
//! cancelled in them.
#![allow(unsafe_code, reason = "functions of the C library")]

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::libc::{self, ifreq, nfds_t, pollfd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

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

/// Asks the kernel something about a network interface of this thread's network namespace. sysfs
/// may be that of another one.
fn ask_interface(name: &str, request: libc::Ioctl, fill: impl FnOnce(&mut ifreq)) -> Option<ifreq> {
    let octets = name.as_bytes();
    // SAFETY: zeros are a name of no octets and numbers.
    let mut asked: ifreq = unsafe { std::mem::zeroed() };
    // The last octet of a name is zero.
    if octets.len() >= asked.ifr_name.len() {
        return None;
    }
    for (to, octet) in asked.ifr_name.iter_mut().zip(octets) {
        *to = *octet as c_char;
    }
    fill(&mut asked);
    let (family, kind) = (AddressFamily::Inet, SockType::Datagram);
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None).ok()?;
    // SAFETY: the request has room for the answer, and what `fill` points it to lives as long as
    // the caller.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut asked) };
    (done == 0).then_some(asked)
}

/// Returns the MTU of a network interface.
pub(crate) fn interface_mtu(name: &str) -> Option<u32> {
    let answer = ask_interface(name, libc::SIOCGIFMTU, |_| ())?;
    // SAFETY: the request fills in this member.
    u32::try_from(unsafe { answer.ifr_ifru.ifru_mtu }).ok()
}

/// `struct ethtool_cmd` of the kernel.
#[repr(C)]
#[derive(Default)]
struct EthtoolCmd {
    cmd: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    modes: [u8; 6],
    packets: [u32; 2],
    speed_hi: u16,
    mdix: [u8; 2],
    rest: [u32; 3],
}

const _: () = assert!(size_of::<EthtoolCmd>() == 44);

/// Returns the speed of a network interface in megabits per second, if it knows it.
pub(crate) fn interface_speed(name: &str) -> Option<u32> {
    const ETHTOOL_GSET: u32 = 1;
    let mut settings = EthtoolCmd {
        cmd: ETHTOOL_GSET,
        ..EthtoolCmd::default()
    };
    let data = &raw mut settings;
    ask_interface(name, libc::SIOCETHTOOL, |asked| {
        asked.ifr_ifru.ifru_data = data.cast();
    })?;
    match u32::from(settings.speed_hi) << 16 | u32::from(settings.speed) {
        // The driver may say so in 16 bits, or in 32.
        0 | 0xffff | u32::MAX => None,
        speed => Some(speed),
    }
}

/// Registers a function to be called when the process exits.
pub(crate) fn at_exit(what: extern "C" fn()) {
    // SAFETY: the function stays where it is: the library is never unloaded.
    unsafe { libc::atexit(what) };
}
