//! Asking processes about devices of which rnicd knows nothing: those over sockets of the kernel,
//! and those that a process has for itself.
//!
//! Anybody can listen under such a name and say anything. What is certain is what the kernel says of
//! who listens: user and process.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{Pid, geteuid};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};

use crate::inspected::{self, ALL_TOGETHER, INSPECTIONS, Inspected};
use crate::inspection::{NAMES, Question};

/// The sockets of this thread's network namespace.
const LIST: &str = "/proc/thread-self/net/unix";
/// The flag of a socket that listens (`__SO_ACCEPTCON`), in that list.
const LISTENS: u32 = 1 << 16;

/// A process that has a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProcess {
    /// Its user, when it opened the device.
    pub uid: u32,
    /// Its id, as this process sees it: 0 if it cannot.
    pub pid: i32,
}

impl DeviceProcess {
    /// Returns whether it has ended, as far as can be seen from here.
    pub fn has_ended(&self) -> bool {
        // It may be another user's.
        self.pid > 0 && kill(Pid::from_raw(self.pid), None) == Err(Errno::ESRCH)
    }
}

/// Asks the processes of this network namespace that have devices without rnicd: all if this
/// process is root's, or else those of its own user, and of these those that are `wanted`. Passes
/// on what they say, some at a time, until `each` wants no more. A process is waited for as long as
/// stated, and all together eight times as long. What they say is theirs, and may be anything.
pub fn inspect_processes(
    what: &str,
    within: Duration,
    wanted: impl Fn(&DeviceProcess) -> bool,
    mut each: impl FnMut(Vec<(DeviceProcess, Inspected)>) -> bool,
) {
    let until = Instant::now() + ALL_TOGETHER * within;
    let list = fs::read(LIST).unwrap_or_default();
    let list = String::from_utf8_lossy(&list);
    let mut names = list.lines().filter_map(listening);
    loop {
        let found = names.by_ref().filter_map(reach);
        let found = found.filter(|(process, _)| may_be_asked(process) && wanted(process));
        let (processes, sockets): (Vec<_>, Vec<_>) = found.take(INSPECTIONS).unzip();
        if processes.is_empty() {
            return;
        }
        let within = within.min(until.saturating_duration_since(Instant::now()));
        let said = match within.is_zero() {
            true => processes.iter().map(|_| Inspected::not_asked()).collect(),
            false => {
                sockets.iter().for_each(|socket| ask(socket, what, within));
                inspected::read(sockets, within)
            }
        };
        if !each(processes.into_iter().zip(said).collect()) {
            return;
        }
    }
}

/// Returns the name in a line of the list, if a process is asked there.
fn listening(line: &str) -> Option<&str> {
    // Num RefCount Protocol Flags Type St Inode Path
    let mut columns = line.split_ascii_whitespace().skip(3);
    let flags = u32::from_str_radix(columns.next()?, 16).ok()?;
    let name = columns.nth(3)?.strip_prefix('@')?;
    let digits = name.strip_prefix(NAMES)?;
    let is_one = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    (is_one && flags & LISTENS != 0).then_some(name)
}

/// Connects, and returns who is there. Nobody is if the process has just ended.
fn reach(name: &str) -> Option<(DeviceProcess, OwnedFd)> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
    // It does not wait where too many wait already.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    connect(&socket, &address).ok()?;
    let listens = getsockopt(&socket, sockopt::PeerCredentials).ok()?;
    let process = DeviceProcess {
        uid: listens.uid(),
        pid: listens.pid(),
    };
    Some((process, socket))
}

fn may_be_asked(process: &DeviceProcess) -> bool {
    let own = geteuid();
    own.is_root() || own.as_raw() == process.uid
}

/// Asks. Whoever has gone meanwhile does not answer.
fn ask(socket: &OwnedFd, what: &str, within: Duration) {
    let question = Question {
        what: what.to_owned(),
        within: within.as_millis().try_into().unwrap_or(u32::MAX).max(1),
    };
    let Ok(mut line) = serde_json::to_vec(&question) else {
        return;
    };
    line.push(b'\n');
    // It is the first that is sent there, so there is room for it.
    let _ = send(socket, &line, SendFlags::NOSIGNAL);
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::inspected::InspectionEnd;
    use crate::inspection::{Inspection, InspectionSocket};

    /// Returns what this process says, of each of its devices.
    fn ask_this(what: &str) -> Vec<Inspected> {
        let own = std::process::id() as i32;
        let (mut all, within) = (Vec::new(), Duration::from_secs(20));
        let this = |process: &DeviceProcess| process.pid == own;
        inspect_processes(what, within, this, |some| {
            let is_own = |(process, _): &(DeviceProcess, _)| process.uid == geteuid().as_raw();
            assert!(some.iter().all(is_own));
            all.extend(some.into_iter().map(|(_, said)| said));
            true
        });
        all
    }

    #[test]
    fn a_process_is_asked_until_its_device_is_closed() {
        let socket = Arc::new(InspectionSocket::listen().unwrap());
        let answering = socket.clone();
        let answers = thread::spawn(move || {
            while let Some(Inspection { what, answer, .. }) = answering.next() {
                let mut answer = std::fs::File::from(answer);
                write!(answer, "{what}!").unwrap();
            }
        });
        for what in ["qp", "connection"] {
            let [said] = <[_; 1]>::try_from(ask_this(what)).unwrap();
            assert_eq!(said.said, format!("{what}!").into_bytes());
            assert_eq!(said.end, InspectionEnd::Closed);
        }
        socket.close();
        answers.join().unwrap();
        drop(socket);
        assert_eq!(ask_this("qp"), []);
    }

    #[test]
    fn only_what_listens_under_such_a_name_is_asked() {
        let line = |flags: &str, path: &str| {
            format!("0000000000000000: 00000002 00000000 {flags} 0001 01 4711{path}")
        };
        let name = "rnic/device/0123456789abcdef";
        let whole = format!(" @{name}");
        assert_eq!(listening(&line("00010000", &whole)), Some(name));
        for (flags, path) in [
            // One that has connected has the same name.
            ("00000000", whole.as_str()),
            ("00010000", ""),
            ("00010000", " @rnic/device/0123"),
            ("00010000", " @rnic/device/0123456789abcdeg"),
            ("00010000", " /rnic/device/0123456789abcdef"),
        ] {
            assert_eq!(listening(&line(flags, path)), None, "{flags}{path}");
        }
        let header = "Num       RefCount Protocol Flags    Type St Inode Path";
        assert_eq!(listening(header), None);
    }
}
