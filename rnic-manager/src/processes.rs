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
use rustix::net::sockopt::{Timeout, set_socket_timeout};
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
///
/// Returns how many sockets had no room for one more that waits. Who listens there is not known.
pub fn inspect_processes(
    what: &str,
    within: Duration,
    wanted: impl Fn(&DeviceProcess) -> bool,
    mut each: impl FnMut(Vec<(DeviceProcess, Inspected)>) -> bool,
) -> usize {
    let until = Instant::now() + ALL_TOGETHER * within;
    let left = || until.saturating_duration_since(Instant::now());
    let list = fs::read(LIST).unwrap_or_default();
    let list = String::from_utf8_lossy(&list);
    let is_wanted = |(process, _): &Reached| may_be_asked(process) && wanted(process);
    let mut names = list.lines().filter_map(listening);
    let mut crowded = Vec::new();
    loop {
        let found = names.by_ref().filter_map(|name| {
            let reached = reach(name, Duration::ZERO);
            if matches!(reached, Err(Crowded)) {
                crowded.push(name);
            }
            reached.ok().flatten()
        });
        let found: Vec<_> = found.filter(is_wanted).take(INSPECTIONS).collect();
        if found.is_empty() {
            break;
        }
        if !each(ask_some(found, what, within.min(left()))) {
            return 0;
        }
    }
    // Those that cannot be reached at once keep none of the others waiting.
    let mut not_reached = 0;
    for (at, name) in crowded.iter().enumerate() {
        let share = left() / (crowded.len() - at).try_into().unwrap_or(u32::MAX);
        let found = match reach(name, within.min(share)) {
            Ok(found) => found.filter(is_wanted),
            Err(Crowded) => {
                not_reached += 1;
                None
            }
        };
        if let Some(found) = found
            && !each(ask_some(vec![found], what, within.min(left())))
        {
            break;
        }
    }
    not_reached
}

/// Asks processes, unless there is no time left.
fn ask_some(found: Vec<Reached>, what: &str, within: Duration) -> Vec<(DeviceProcess, Inspected)> {
    let (processes, sockets): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let said = match within.is_zero() {
        true => processes.iter().map(|_| Inspected::not_asked()).collect(),
        false => {
            sockets.iter().for_each(|socket| ask(socket, what, within));
            inspected::read(sockets, within)
        }
    };
    processes.into_iter().zip(said).collect()
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

/// A process, and the socket at which it is asked.
type Reached = (DeviceProcess, OwnedFd);

/// As many wait for an answer as may.
struct Crowded;

/// Connects, and returns who is there. Nobody is if the process has just ended. Waits for a place
/// among those who wait.
fn reach(name: &str, within: Duration) -> Result<Option<Reached>, Crowded> {
    match connected(name, within) {
        Ok(reached) => Ok(Some(reached)),
        Err(rustix::io::Errno::AGAIN) => Err(Crowded),
        Err(_) => Ok(None),
    }
}

fn connected(name: &str, within: Duration) -> rustix::io::Result<Reached> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let waits = match within.is_zero() {
        true => SocketFlags::NONBLOCK,
        false => SocketFlags::empty(),
    };
    let flags = SocketFlags::CLOEXEC | waits;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    if !within.is_zero() {
        set_socket_timeout(&socket, Timeout::Send, Some(within))?;
    }
    connect(&socket, &address)?;
    let listens = getsockopt(&socket, sockopt::PeerCredentials);
    let listens = listens.map_err(|errno| rustix::io::Errno::from_raw_os_error(errno as i32))?;
    let process = DeviceProcess {
        uid: listens.uid(),
        pid: listens.pid(),
    };
    Ok((process, socket))
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

    /// Returns what this process says, of each of its devices, and how many were not reached.
    fn ask_this(what: &str, within: Duration) -> (Vec<Inspected>, usize) {
        let own = std::process::id() as i32;
        let mut all = Vec::new();
        let this = |process: &DeviceProcess| process.pid == own;
        let not_reached = inspect_processes(what, within, this, |some| {
            let is_own = |(process, _): &(DeviceProcess, _)| process.uid == geteuid().as_raw();
            assert!(some.iter().all(is_own));
            all.extend(some.into_iter().map(|(_, said)| said));
            true
        });
        (all, not_reached)
    }

    /// Longer than anything takes.
    const LONG: Duration = Duration::from_secs(20);

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
            let [said] = <[_; 1]>::try_from(ask_this(what, LONG).0).unwrap();
            assert_eq!(said.said, format!("{what}!").into_bytes());
            assert_eq!(said.end, InspectionEnd::Closed);
        }
        socket.close();
        answers.join().unwrap();
        drop(socket);
        assert_eq!(ask_this("qp", LONG).0, []);
        where_as_many_wait_as_may();
    }

    /// Not a test of its own: that would see the other one's socket.
    fn where_as_many_wait_as_may() {
        let socket = Arc::new(InspectionSocket::listen().unwrap());
        let list = fs::read_to_string(LIST).unwrap();
        let mut crowd = Vec::new();
        for name in list.lines().filter_map(listening) {
            // Those of other processes are left alone.
            while let Ok(Some((process, waits))) = reach(name, Duration::ZERO)
                && process.pid == std::process::id() as i32
            {
                crowd.push(waits);
            }
        }
        // It is not overlooked, though nobody can say whose it is.
        let (said, not_reached) = ask_this("qp", Duration::from_millis(10));
        assert!(said.is_empty() && not_reached > 0, "{said:?}");
        // It is heard once those have gone who were in front.
        let asking = thread::spawn(|| ask_this("qp", LONG));
        let answering = socket.clone();
        let answers = thread::spawn(move || {
            let asked = answering.next().unwrap();
            let mut answer = std::fs::File::from(asked.answer);
            answer.write_all(b"here").unwrap();
        });
        drop(crowd);
        let (said, _) = asking.join().unwrap();
        answers.join().unwrap();
        assert_eq!(said.len(), 1);
        assert_eq!(said[0].said, b"here");
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
