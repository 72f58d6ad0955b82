//! What a process is asked about its device: by rnicd, or, where rnicd knows nothing of the device,
//! at a socket of the process's own.
//!
//! That socket has a name that belongs to the network namespace, and no file: it needs no place to
//! write to, and is gone with the process. Everybody there can connect. An answer get the user of
//! the process, and root.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{self, geteuid};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    shutdown, socket_with,
};
use serde::{Deserialize, Serialize};

use crate::channel::refuse_descriptors;
use crate::peer::shares_user_namespace;
use crate::private::PrivateFd;

/// What the names of these sockets begin with. Behind it are random digits.
pub(crate) const NAMES: &str = "rnic/device/";

/// Those who may wait for an answer.
const BACKLOG: i32 = 64;
/// How long nobody is heard after so many strangers as may wait: those that come again and again take
/// no processor from the program, and keep nobody out who waits behind them.
const REST: Duration = Duration::from_millis(100);
/// How long who asks may take to say what.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest time that an answer is waited for.
const LONGEST: Duration = Duration::from_secs(60);
/// The octets of a question.
const MAX_QUESTION: usize = 256;
/// What the kernel says where a user has no number in this user namespace.
const NOBODY: u32 = 65534;

/// Somebody who may know asks what this process says of itself.
#[derive(Debug)]
pub struct Inspection {
    /// What is wanted. A newer version may ask for what this one does not know.
    pub what: String,
    /// How long the answer is waited for.
    pub within: Duration,
    /// Where to write it: a socket or a pipe, which may block, and whose reader may be gone. An
    /// answer ends when it is closed.
    pub answer: OwnedFd,
}

/// A question, as a line of JSON.
#[derive(Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) what: String,
    /// In milliseconds.
    pub(crate) within: u32,
}

/// Where a process is asked about its device.
#[derive(Debug)]
pub struct InspectionSocket {
    socket: PrivateFd,
    closed: AtomicBool,
    strangers: Strangers,
}

/// How many strangers came since the last rest.
#[derive(Debug, Default)]
struct Strangers(AtomicI32);

impl Strangers {
    /// Returns how long to rest after one more.
    fn rest(&self) -> Duration {
        match self.0.fetch_add(1, Ordering::Relaxed) + 1 < BACKLOG {
            true => Duration::ZERO,
            false => {
                self.0.store(0, Ordering::Relaxed);
                REST
            }
        }
    }
}

impl InspectionSocket {
    /// Listens in the network namespace of this thread.
    pub fn listen() -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random)?;
        let name = format!("{NAMES}{:016x}", u64::from_ne_bytes(random));
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Those that connect inherit it.
        refuse_descriptors(&socket);
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        Ok(Self {
            socket: socket.into(),
            closed: AtomicBool::new(false),
            strangers: Strangers::default(),
        })
    }

    /// Waits for the next question. Returns `None` once the socket is [closed](Self::close).
    pub fn next(&self) -> Option<Inspection> {
        while !self.closed.load(Ordering::Relaxed) {
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(asking) => match may_ask(&asking) {
                    true => match question(asking) {
                        Some(inspection) => return Some(inspection),
                        None => continue,
                    },
                    false => sleep(self.strangers.rest()),
                },
                Err(Errno::INTR | Errno::CONNABORTED | Errno::AGAIN) => {}
                // There is room again when the program closes something.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => sleep(PATIENCE),
                // It was closed, by us or by a program that closes all that it does not know.
                Err(_) => return None,
            }
        }
        None
    }

    /// Ends all calls of [`next`](Self::next).
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // It has no peer: this wakes who waits for one.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// Returns whether the process that has connected may know: if it is this user's, or root's.
fn may_ask(asking: &OwnedFd) -> bool {
    let Ok(peer) = getsockopt(asking, sockopt::PeerCredentials) else {
        return false;
    };
    let own = geteuid().as_raw();
    match peer.uid() {
        0 => true,
        // Those whom another user namespace knows, and this one does not, have this number too.
        NOBODY if own == NOBODY => shares_user_namespace(asking).unwrap_or(false),
        uid => uid == own,
    }
}

/// Reads a question.
fn question(asking: OwnedFd) -> Option<Inspection> {
    let until = Instant::now() + PATIENCE;
    let mut line = [0; MAX_QUESTION];
    let mut octets = 0;
    while !line[..octets].ends_with(b"\n") {
        // A time of zero is none that can be set.
        let left = until.saturating_duration_since(Instant::now());
        set_socket_timeout(&asking, Timeout::Recv, Some(left)).ok()?;
        match unistd::read(asking.as_fd(), &mut line[octets..]) {
            Ok(0) | Err(_) => return None,
            Ok(more) => octets += more,
        }
    }
    let Question { what, within } = serde_json::from_slice(&line[..octets]).ok()?;
    Some(Inspection {
        what,
        within: Duration::from_millis(within.into()).min(LONGEST),
        answer: asking,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn who_asks_octet_by_octet_is_not_heard_to_the_end() {
        let (asking, mut peer) = UnixStream::pair().unwrap();
        let heard = std::thread::spawn(|| question(asking.into()));
        let all = br#"{"what":"qp","within":1}"#.iter().cycle();
        let mut drops = all.take(MAX_QUESTION - 1);
        let is_hung_up = drops.any(|octet| {
            sleep(PATIENCE / 10);
            peer.write_all(&[*octet]).is_err()
        });
        assert!(is_hung_up);
        assert!(heard.join().unwrap().is_none());
    }

    #[test]
    fn as_many_strangers_as_can_wait_are_turned_away_before_a_rest() {
        let strangers = Strangers::default();
        for _ in 0..2 {
            for _ in 1..BACKLOG {
                assert_eq!(strangers.rest(), Duration::ZERO);
            }
            assert_eq!(strangers.rest(), REST);
        }
    }
}
