//! What clients say of themselves, read with limits: a client may say anything, anything much, or
//! nothing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::unistd;

use crate::channel::refuse_descriptors;
use crate::protocol::Refused;

/// The most octets that a client may say: tens of thousands of objects.
pub const MAX_SAID: usize = 16 << 20;

/// Inspections at a time: each takes a descriptor, and memory for what the client says.
pub(crate) const INSPECTIONS: usize = 16;
/// How many times as long as for one client all are waited for.
pub(crate) const ALL_TOGETHER: u32 = 8;

/// What a client says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// What it says: anything.
    pub said: Vec<u8>,
    /// How it ended.
    pub end: InspectionEnd,
}

/// How what a client says has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InspectionEnd {
    /// By the client.
    Closed,
    /// It went on for too long, or there was nothing at all.
    TimedOut,
    /// It was longer than [`MAX_SAID`].
    TooLong,
    /// rnicd did not ask the client.
    Refused(Refused),
    /// It was not asked: others took all the time.
    NotAsked,
}

impl Inspected {
    /// One who says nothing.
    pub(crate) fn silent(end: InspectionEnd) -> Self {
        Self {
            said: Vec::new(),
            end,
        }
    }

    /// One who was not asked.
    pub(crate) fn not_asked() -> Self {
        Self::silent(InspectionEnd::NotAsked)
    }
}

/// A client that has not said all yet.
struct Speaker {
    /// Its place among all.
    index: usize,
    socket: OwnedFd,
}

/// Reads what clients write to sockets until they close them, time is over, or it is too much.
/// Returns it in the order of the sockets.
pub(crate) fn read(sockets: Vec<OwnedFd>, within: Duration) -> Vec<Inspected> {
    let until = Instant::now() + within;
    let silent = |_| Inspected::silent(InspectionEnd::TimedOut);
    let mut all: Vec<_> = sockets.iter().map(silent).collect();
    let sockets = sockets.into_iter().enumerate();
    let mut speakers: Vec<_> = sockets
        .map(|(index, socket)| {
            prepare(&socket);
            Speaker { index, socket }
        })
        .collect();
    let mut piece = vec![0; 64 << 10];
    while !speakers.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let sockets: Vec<_> = speakers.iter().map(|one| one.socket.as_fd()).collect();
        let ready = wait(&sockets, left);
        let mut ready = ready.into_iter();
        speakers.retain(|speaker| {
            let is_ready = ready.next().unwrap_or(false);
            !is_ready || hear(speaker, &mut all[speaker.index], &mut piece)
        });
    }
    all
}

/// Makes reading return at once. An older rnicd passes a socket: closing that could wait for what
/// comes with the answer.
fn prepare(socket: &OwnedFd) {
    refuse_descriptors(socket);
    // If it could not be set, a reader that `poll` has woken does not wait either: nobody else
    // reads.
    let _ = fcntl(socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
}

/// Waits until some sockets have something to read, or time is over. Returns which have.
fn wait(sockets: &[BorrowedFd<'_>], at_most: Duration) -> Vec<bool> {
    let fds = sockets.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN));
    let mut fds: Vec<_> = fds.collect();
    // A signal ends it too: then none is ready.
    let _ = ppoll(&mut fds, Some(TimeSpec::from_duration(at_most)), None);
    let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
    fds.iter().map(is_ready).collect()
}

/// Reads a piece. Returns whether there may be more.
fn hear(speaker: &Speaker, inspected: &mut Inspected, piece: &mut [u8]) -> bool {
    match unistd::read(&speaker.socket, piece) {
        Err(Errno::EAGAIN | Errno::EINTR) => return true,
        Ok(octets) if octets > 0 => {
            inspected.said.extend_from_slice(&piece[..octets]);
            if inspected.said.len() <= MAX_SAID {
                return true;
            }
            inspected.said.truncate(MAX_SAID);
            inspected.end = InspectionEnd::TooLong;
        }
        // It was closed, or its writer was killed.
        Ok(_) | Err(_) => inspected.end = InspectionEnd::Closed,
    }
    false
}
