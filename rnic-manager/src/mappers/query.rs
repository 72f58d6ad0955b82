//! A question to the port mapper of a peer's host.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockaddrStorage, connect, recv, send};
use rnic_core::time::Instant;
use rnic_core::wire::port_mapper::{self, Kind, MAX_LEN, Message};

use crate::private::PrivateFd;

/// How long after the question it is sent again, and when it is given up.
const AGAIN_AFTER: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(700),
];
const GIVEN_UP_AFTER: Duration = Duration::from_secs(1);

/// The most datagrams that are read in a turn.
const MAX_RECEIVED: usize = 16;

/// What has come of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The listener has this TCP port.
    Mapped(u16),
    /// The mapper there knows no such listener.
    Unknown,
    /// There is no mapper: the host says so.
    NoMapper,
    /// Nobody answers.
    Silence,
}

/// A question.
#[derive(Debug)]
pub(super) struct Query {
    /// Connected to the mapper, so that nobody else can answer, and that refusals are seen.
    pub(super) socket: PrivateFd,
    request: Message,
    asked_at: Instant,
    /// How often it was sent again.
    repeated: usize,
}

impl Query {
    /// Asks, by a UDP socket that is bound, where a listener really is.
    pub(super) fn ask(
        socket: PrivateFd,
        local: IpAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> io::Result<Self> {
        let mut mapper = remote;
        mapper.set_port(port_mapper::PORT);
        connect(socket.as_raw_fd(), &SockaddrStorage::from(mapper))?;
        let query = Self {
            socket,
            request: Message {
                kind: Kind::Request,
                handle: getrandom::u64()?,
                acceptor: SocketAddr::new(remote.ip(), remote.port()),
                // The TCP port is chosen when the way is known.
                connector: SocketAddr::new(local, 0),
            },
            asked_at: now,
            repeated: 0,
        };
        query.send(&query.request);
        Ok(query)
    }

    /// Returns the address that asks, and the host that is asked.
    pub(super) fn path(&self) -> (IpAddr, IpAddr) {
        (self.request.connector.ip(), self.request.acceptor.ip())
    }

    fn send(&self, message: &Message) {
        let mut octets = [0; MAX_LEN];
        let len = message.emit(&mut octets);
        // What is lost is sent again, and a refusal is seen by who receives.
        let _ = send(
            self.socket.as_raw_fd(),
            &octets[..len],
            MsgFlags::MSG_DONTWAIT,
        );
    }

    /// Reads what has come, and asks again if it is time. Returns the outcome once it is known.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Outcome> {
        let mut octets = [0; MAX_LEN + 1];
        for _ in 0..MAX_RECEIVED {
            match recv(self.socket.as_raw_fd(), &mut octets, MsgFlags::MSG_DONTWAIT) {
                Ok(len) => {
                    if let Some(outcome) = Message::parse(&octets[..len])
                        .filter(|message| message.handle == self.request.handle)
                        .and_then(|message| self.take(&message))
                    {
                        return Some(outcome);
                    }
                }
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                // ICMP says that nobody has the port, or lets nobody through.
                Err(_) => return Some(Outcome::NoMapper),
            }
        }
        let passed = now.since(self.asked_at);
        if passed >= GIVEN_UP_AFTER {
            return Some(Outcome::Silence);
        }
        if AGAIN_AFTER
            .get(self.repeated)
            .is_some_and(|at| passed >= *at)
        {
            self.repeated += 1;
            self.send(&self.request);
        }
        None
    }

    /// Takes an answer to this question.
    fn take(&self, answer: &Message) -> Option<Outcome> {
        match answer.kind {
            Kind::Accept => {
                self.send(&Message {
                    kind: Kind::Acknowledgment,
                    ..*answer
                });
                // The way was found to the address that was asked for, and it was admitted.
                let is_there = answer.acceptor.ip() == self.request.acceptor.ip();
                let port = answer.acceptor.port();
                Some(match is_there && port != 0 {
                    true => Outcome::Mapped(port),
                    false => Outcome::Unknown,
                })
            }
            Kind::Reject => Some(Outcome::Unknown),
            Kind::Request | Kind::Acknowledgment => None,
        }
    }

    /// Returns when to [`poll`](Self::poll) if nothing comes.
    pub(super) fn next_timeout(&self) -> Instant {
        let next = AGAIN_AFTER.get(self.repeated).unwrap_or(&GIVEN_UP_AFTER);
        self.asked_at + *next
    }
}
