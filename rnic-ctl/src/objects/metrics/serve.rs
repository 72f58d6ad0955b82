//! The loop: one thread serves all connections, and waits for none of them. Whoever is slow, or
//! sends half a request and no more, holds up nobody, and loses the connection when its time is
//! over or its place is needed.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::connection::Connection;
use super::place::Listener;
use crate::failure::{Doing, Failure, Outcome};
use crate::interrupt::Interrupt;

/// The most connections. The oldest makes room for a new one, which has its request sent a moment
/// later if it is honest.
const MAX_CONNECTIONS: usize = 64;
/// How long a connection may take.
const TIME: Duration = Duration::from_secs(5);
/// How often to look for signals that came just ahead of waiting, and for connections whose time is
/// over.
const LOOK_EVERY_MILLIS: u16 = 500;

/// Serves until a signal comes.
pub(super) fn serve(
    listener: &Listener,
    mut metrics: impl FnMut() -> Outcome<String>,
    interrupt: &Interrupt,
) -> Outcome {
    // The oldest first.
    let mut connections: Vec<Connection> = Vec::new();
    while !interrupt.is_signalled() {
        let mut ready = wait(listener, &connections)?;
        let has_newcomers = ready.remove(0);
        let now = Instant::now();
        let mut ready = ready.into_iter();
        connections.retain_mut(|connection| {
            let is_ready = ready.next().unwrap_or(false);
            let is_in_time = now.saturating_duration_since(connection.since) < TIME;
            is_in_time && (!is_ready || connection.step(&mut metrics))
        });
        if has_newcomers && let Some(newcomer) = accept(listener)? {
            if connections.len() == MAX_CONNECTIONS {
                connections.remove(0);
            }
            connections.push(newcomer);
        }
    }
    Ok(())
}

/// Waits. Returns whether the listener, and each of the connections, is ready.
fn wait(listener: &Listener, connections: &[Connection]) -> Outcome<Vec<bool>> {
    let mut fds = vec![PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    let others = connections.iter();
    fds.extend(others.map(|connection| PollFd::new(connection.as_fd(), connection.events())));
    match poll(&mut fds, PollTimeout::from(LOOK_EVERY_MILLIS)) {
        Ok(_) => Ok(fds.iter().map(|fd| fd.any().unwrap_or(true)).collect()),
        Err(Errno::EINTR) => Ok(vec![false; fds.len()]),
        Err(error) => Err(Failure::operation("wait for scrapers", error)),
    }
}

/// Accepts the next connection. Returns `None` if it is gone again.
fn accept(listener: &Listener) -> Outcome<Option<Connection>> {
    match listener.accept() {
        Ok(socket) => Ok(Some(Connection::new(socket))),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {
                Ok(None)
            }
            _ => Err(error).doing("accept connections of scrapers"),
        },
    }
}
