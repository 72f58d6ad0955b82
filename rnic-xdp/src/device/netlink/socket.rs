//! A netlink socket: requests with their replies, and notifications.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, NetlinkAddr, bind, recv, send, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};

use zeroize::Zeroize;

use super::error::NetlinkError;
use super::message::{Builder, Message, parse};

const ERROR: u16 = 2;
const DONE: u16 = 3;
const FLAG_REQUEST: u16 = 0x1;
const FLAG_MULTI: u16 = 0x2;
const FLAG_ACK: u16 = 0x4;
const FLAG_DUMP: u16 = 0x300;
const FLAG_DUMP_INTERRUPTED: u16 = 0x10;

/// The kernel replies within the call; the timeout is for faults only.
const REPLY_TIMEOUT_SECONDS: i64 = 5;
/// Octets received at once.
const BUFFER: usize = 65536;
/// How often to repeat a dump that a change interrupted.
const DUMP_ATTEMPTS: usize = 5;

/// Multicast groups to follow, as a mask of `RTMGRP_*`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups(u32);

impl Groups {
    pub(crate) const NONE: Self = Self(0);
    /// IPsec policies.
    pub(crate) const POLICIES: Self = Self(0x8);
    /// IPsec policies, Security Associations, and the ends of these.
    pub(crate) const ASSOCIATIONS: Self = Self(0x2 | 0x4 | 0x8);
    /// Links, neighbours, addresses, routes and routing rules of both families, and next hops that
    /// routes name.
    pub(crate) const ALL: Self =
        Self(0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 0x4_0000 | 0x8000_0000);
}

/// What the kernel replies to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    /// One message.
    One,
    /// Any number of messages.
    Dump,
    /// A confirmation, with further request flags (`NLM_F_CREATE`, ...).
    Acknowledgement(u16),
}

/// A netlink socket of any protocol.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket. Without a protocol it is NETLINK_ROUTE, which has the number 0.
    pub(crate) fn open(protocol: impl Into<Option<Protocol>>, groups: Groups) -> io::Result<Self> {
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol.into(),
        )?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups.0))?;
        setsockopt(
            &fd,
            sockopt::ReceiveTimeout,
            &TimeVal::seconds(REPLY_TIMEOUT_SECONDS),
        )?;
        Ok(Self {
            fd,
            sequence: 0,
            buffer: vec![0; BUFFER],
        })
    }

    /// Sends a request and collects its reply.
    pub(crate) fn request(
        &mut self,
        doing: &'static str,
        reply: ReplyMode,
        build: impl Fn(u16) -> Builder,
    ) -> Result<Vec<Message>, NetlinkError> {
        for _ in 0..DUMP_ATTEMPTS {
            let messages = self.request_once(doing, reply, &build)?;
            let interrupted = |message: &Message| message.flags & FLAG_DUMP_INTERRUPTED != 0;
            if reply != ReplyMode::Dump || !messages.iter().any(interrupted) {
                return Ok(messages);
            }
        }
        Err(NetlinkError::BadReply { doing })
    }

    fn request_once(
        &mut self,
        doing: &'static str,
        reply: ReplyMode,
        build: impl Fn(u16) -> Builder,
    ) -> Result<Vec<Message>, NetlinkError> {
        let failed = |source: Errno| NetlinkError::Socket {
            doing,
            source: source.into(),
        };
        let flags = match reply {
            ReplyMode::One => 0,
            ReplyMode::Dump => FLAG_DUMP,
            ReplyMode::Acknowledgement(more) => FLAG_ACK | more,
        };
        self.sequence = self.sequence.wrapping_add(1);
        let request = build(FLAG_REQUEST | flags).finish(self.sequence);
        send(self.fd.as_raw_fd(), &request, MsgFlags::empty()).map_err(failed)?;

        let mut messages = Vec::new();
        loop {
            let len = match recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => continue,
                other => other.map_err(failed)?,
            };
            for message in parse(&self.buffer[..len]) {
                if message.sequence != self.sequence {
                    continue; // a notification, or the rest of a request given up
                }
                if message.kind == ERROR || message.kind == DONE {
                    let code = message.split::<i32>().map_or(0, |(code, _)| code);
                    return match code {
                        0 => Ok(messages),
                        code => Err(NetlinkError::Refused {
                            doing,
                            source: io::Error::from_raw_os_error(code.saturating_neg()),
                        }),
                    };
                }
                let more = message.flags & FLAG_MULTI != 0;
                messages.push(message);
                if reply == ReplyMode::One && !more {
                    return Ok(messages);
                }
            }
        }
    }

    /// Overwrites what was received last: it has keys.
    pub(crate) fn wipe(&mut self) {
        self.buffer.zeroize();
        self.buffer.resize(BUFFER, 0);
    }

    /// Returns the waiting notifications, or `None` if the kernel dropped some, so that the state
    /// must be read again.
    pub(crate) fn notifications(&mut self) -> io::Result<Option<Vec<Message>>> {
        let mut messages = Vec::new();
        loop {
            match recv(
                self.fd.as_raw_fd(),
                &mut self.buffer,
                MsgFlags::MSG_DONTWAIT,
            ) {
                Ok(len) => messages.extend(parse(&self.buffer[..len])),
                Err(Errno::EAGAIN) => return Ok(Some(messages)),
                Err(Errno::EINTR) => {}
                Err(Errno::ENOBUFS) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A socket for requests about links, addresses, routes and neighbours.
#[derive(Debug)]
pub(crate) struct RouteSocket(pub(crate) Socket);

impl RouteSocket {
    /// Opens a socket in the network namespace of this thread.
    pub(crate) fn open() -> Result<Self, NetlinkError> {
        Socket::open(None, Groups::NONE)
            .map(Self)
            .map_err(|source| NetlinkError::Socket {
                doing: "open a socket",
                source,
            })
    }
}
