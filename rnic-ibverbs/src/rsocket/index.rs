//! The sockets of this process, by their numbers.

use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError, RwLock};

use super::socket::Socket;
use crate::errno::Errno;
use crate::process;

static SOCKETS: RwLock<Vec<Option<Arc<Socket>>>> = RwLock::new(Vec::new());

/// Returns the socket of this number, also one of a process from which this one was forked.
pub(super) fn find_any(fd: RawFd) -> Option<Arc<Socket>> {
    let sockets = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    sockets.get(usize::try_from(fd).ok()?)?.clone()
}

/// Returns the socket of this number, if this process has made it.
pub(super) fn find(fd: RawFd) -> Option<Arc<Socket>> {
    find_any(fd).filter(|socket| !socket.process.is_forked())
}

/// Returns the socket of this number, or what calls fail with that are given another.
pub(super) fn get(fd: RawFd) -> Result<Arc<Socket>, Errno> {
    let socket = find_any(fd).ok_or(Errno::EBADF)?;
    process::check(&socket.process)?;
    Ok(socket)
}

/// Adds a socket by all numbers that it has.
pub(super) fn insert(socket: &Arc<Socket>) {
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    for number in socket.numbers() {
        let at = number as usize;
        if sockets.len() <= at {
            sockets.resize(at + 1, None);
        }
        sockets[at] = Some(socket.clone());
    }
}

/// Returns the lock of the sockets, which a child makes new. It keeps those of the parent, whose
/// numbers are taken, unless another thread was about to change them.
pub(super) fn renewed() -> &'static RwLock<impl Default> {
    &SOCKETS
}

/// Removes a socket, which is gone when all calls on it have returned.
pub(super) fn remove(socket: &Socket) {
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    for number in socket.numbers() {
        if let Some(place) = sockets.get_mut(number as usize) {
            *place = None;
        }
    }
}
