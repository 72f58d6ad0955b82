//! A connection of a scraper: it sends a request, gets a reply, and closes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, shutdown};

use super::http::{self, Asked};
use crate::failure::Outcome;

/// What a connection waits for.
enum State {
    /// The rest of a request, of which there is this.
    Request(Vec<u8>),
    /// Room for the rest of a reply.
    Reply(Vec<u8>),
    /// The other end to close. What it still sends is dropped: a reset could overtake the reply.
    End,
}

/// A connection.
pub(super) struct Connection {
    socket: OwnedFd,
    /// When it was accepted.
    pub(super) since: Instant,
    state: State,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            since: Instant::now(),
            state: State::Request(Vec::new()),
        }
    }

    /// Returns what it waits for.
    pub(super) fn events(&self) -> PollFlags {
        match self.state {
            State::Request(_) | State::End => PollFlags::POLLIN,
            State::Reply(_) => PollFlags::POLLOUT,
        }
    }

    /// Advances the connection by a step. Calls `metrics` if the metrics are asked for. Returns
    /// whether the connection is still of use.
    pub(super) fn step(&mut self, metrics: &mut impl FnMut() -> Outcome<String>) -> bool {
        let stepped = match &mut self.state {
            State::Request(_) => self.read_request(metrics),
            State::Reply(_) => self.send_reply(),
            State::End => self.receive().map(|octets| !octets.is_empty()),
        };
        match stepped {
            Err(Errno::EAGAIN | Errno::EINTR) => true,
            stepped => stepped.unwrap_or(false),
        }
    }

    fn read_request(&mut self, metrics: &mut impl FnMut() -> Outcome<String>) -> nix::Result<bool> {
        let octets = self.receive()?;
        let State::Request(request) = &mut self.state else {
            return Ok(false);
        };
        request.extend_from_slice(&octets);
        let reply = match http::read(request) {
            None => return Ok(!octets.is_empty()),
            Some(Asked::No(refusal)) => http::refusal(refusal),
            Some(Asked::Metrics { body }) => match metrics() {
                Ok(text) => http::metrics(&text, body),
                Err(failure) => http::failure(&failure.to_string()),
            },
        };
        self.state = State::Reply(reply);
        self.send_reply()
    }

    fn send_reply(&mut self) -> nix::Result<bool> {
        let State::Reply(reply) = &mut self.state else {
            return Ok(false);
        };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let sent = send(self.socket.as_raw_fd(), reply, flags)?;
        reply.drain(..sent);
        if reply.is_empty() {
            shutdown(self.socket.as_raw_fd(), Shutdown::Write)?;
            self.state = State::End;
        }
        Ok(true)
    }

    /// Returns what has arrived: nothing if the other end sends no more.
    fn receive(&self) -> nix::Result<Vec<u8>> {
        let mut octets = vec![0; 4096];
        let fd = self.socket.as_raw_fd();
        let received = recv(fd, &mut octets, MsgFlags::MSG_DONTWAIT)?;
        octets.truncate(received);
        Ok(octets)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
