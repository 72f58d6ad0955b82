//! The processes that have a socket.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Ends all processes of a user that have a socket, by SIGKILL. It is known by the number of its
/// inode, because processes may pass sockets on, and start others that have them too. No other
/// user's process is ended: somebody could have passed the socket to it.
pub(super) fn end_holders(inode: u64, uid: u32) -> io::Result<()> {
    let socket = format!("socket:[{inode}]");
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let Some(pid) = number.and_then(Pid::from_raw) else {
            continue;
        };
        // From here on the number stands for one process. What has ended meanwhile has nothing any
        // more.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        let directory = Path::new("/proc").join(&name);
        if is_of(&directory, uid) && has(&directory, &socket) {
            // It may just have ended.
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
    }
    Ok(())
}

/// Returns whether a process is one of a user.
fn is_of(process: &Path, uid: u32) -> bool {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let mut lines = status.lines().filter_map(|line| line.strip_prefix("Uid:"));
    let real = lines.next().and_then(|uids| uids.split_whitespace().next());
    real.and_then(|real| real.parse().ok()) == Some(uid)
}

/// Returns whether a thread of a process has a socket: threads may have descriptors of their own.
fn has(process: &Path, socket: &str) -> bool {
    let threads = fs::read_dir(process.join("task")).into_iter().flatten();
    threads.flatten().any(|thread| {
        let files = fs::read_dir(thread.path().join("fd")).into_iter().flatten();
        let mut targets = files
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok());
        targets.any(|target| target.as_os_str() == socket)
    })
}
