//! What the kernel knows of the process at the other end of a Unix socket, and of what it has not
//! read.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::fs::MetadataExt;

use nix::errno::Errno;
use nix::libc::{self, c_int, gid_t, socklen_t};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

/// The most groups that are looked at: a process may have 65,536 (`NGROUPS_MAX` of Linux), whose
/// owner makes it hold them for each of its connections.
const MOST: usize = 1024;
/// The request of a pidfd for the user namespace of its process (`PIDFD_GET_USER_NAMESPACE`, Linux
/// 6.11).
const USER_NAMESPACE: libc::Ioctl = 0xff09;

/// Returns the supplementary groups that the process at the other end had when it connected; none
/// if there are too many to look at.
pub(crate) fn groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups: Vec<gid_t> = vec![0; 32];
    loop {
        let mut octets = size_of_val(&groups[..]) as socklen_t;
        // SAFETY: the kernel writes at most `octets` octets to `groups`, which has that many, and
        // any are valid numbers.
        let code = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut octets,
            )
        };
        let count = octets as usize / size_of::<gid_t>();
        match Errno::result(code) {
            Ok(_) => {
                groups.truncate(count);
                return Ok(groups);
            }
            // There are more: the kernel says how many.
            Err(Errno::ERANGE) if count > MOST => return Ok(Vec::new()),
            Err(Errno::ERANGE) if groups.len() < count => groups.resize(count, 0),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns how much of what was sent the other end has not read, in octets of the kernel's memory.
pub(crate) fn unread(socket: impl AsFd) -> io::Result<usize> {
    let mut octets: c_int = 0;
    // SAFETY: the kernel writes one number to `octets`.
    let code = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut octets) };
    Errno::result(code)?;
    Ok(octets.try_into().unwrap_or(0))
}

/// Returns whether the process that connected lives in this process's user namespace. It is an
/// error if that cannot be found out: it has ended, or the kernel does not say.
pub(crate) fn shares_user_namespace(socket: impl AsFd) -> io::Result<bool> {
    let own = identity(&fs::metadata("/proc/self/ns/user")?);
    let pid = getsockopt(&socket, sockopt::PeerCredentials)?.pid();
    let process = match getsockopt(&socket, sockopt::PeerPidfd) {
        Ok(process) => process,
        // Before Linux 6.5. Another process may have that id by now, if this one has ended.
        Err(Errno::ENOPROTOOPT) => pidfd(pid)?,
        Err(error) => return Err(error.into()),
    };
    if let Ok(namespace) = user_namespace(&process) {
        return Ok(identity(&File::from(namespace).metadata()?) == own);
    }
    if pid <= 0 {
        return Err(io::Error::other("its PID namespace is not seen from here"));
    }
    let other = identity(&fs::metadata(format!("/proc/{pid}/ns/user"))?);
    // As long as it lives, the id is its own.
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::ZERO)? {
        0 => Ok(other == own),
        _ => Err(io::Error::other("it has ended")),
    }
}

fn identity(of: &fs::Metadata) -> (u64, u64) {
    (of.st_dev(), of.st_ino())
}

fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers alone.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    owned(fd)
}

fn user_namespace(process: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: the request takes no argument but zero.
    let fd = unsafe { libc::ioctl(process.as_raw_fd(), USER_NAMESPACE, 0) };
    owned(fd.into())
}

/// Takes over a descriptor that the kernel has just made.
fn owned(fd: i64) -> io::Result<OwnedFd> {
    let fd = Errno::result(fd)?;
    // SAFETY: the kernel has made it for this caller alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}
