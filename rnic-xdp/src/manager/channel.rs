//! The way of messages and descriptors between rnicd and a client: a connection of a `SOCK_SEQPACKET` Unix socket.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, sockopt};
use nix::sys::time::TimeVal;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::groups::peer_groups;
use super::protocol::{DecodeError, MAX_MESSAGE, Message, SOCKET};

/// The most descriptors that come with a message.
pub const MAX_DESCRIPTORS: usize = 4;

/// Returns where rnicd listens: what `RNICD_SOCKET` of the environment says, or [`SOCKET`].
pub fn default_socket() -> PathBuf {
    std::env::var_os("RNICD_SOCKET").map_or_else(|| SOCKET.into(), Into::into)
}

/// The process at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user, when it connected.
    pub uid: u32,
    /// Its groups, when it connected: the primary one first.
    pub gids: Vec<u32>,
    /// Its id, as this process sees it: 0 if it cannot.
    pub pid: i32,
}

/// Why a message was not sent or received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The path is too long for a Unix socket, or has a zero in it.
    #[error("{} cannot be the path of a Unix socket; choose one of at most 107 octets", path.display())]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// Nobody listens there.
    #[error("no rnicd listens at {}; {}", path.display(), remedy(path))]
    NoDaemon {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The permissions of the socket forbid it.
    #[error(
        "not permitted to connect to rnicd at {}; join its group (`ls -l {}` shows which), or ask the administrator to",
        path.display(), path.display()
    )]
    NotPermitted {
        /// The path of the socket.
        path: PathBuf,
    },
    /// What listens there is no rnicd.
    #[error("what is at {} is no rnicd: {source}; {}", path.display(), remedy(path))]
    NotRnicd {
        /// The path of the socket.
        path: PathBuf,
        /// What it does instead.
        source: Box<ChannelError>,
    },
    /// The other side did not take a message, or sent none, within the time limit.
    #[error("{} did not {doing} in time; {}", who(path), state(path))]
    TimedOut {
        /// What it did not do.
        doing: &'static str,
        /// The path of rnicd's socket, for its clients.
        path: Option<PathBuf>,
    },
    /// The other side has closed the connection, or sent an empty message.
    #[error("the other end has closed the connection")]
    Closed,
    /// The message to be sent is longer than [`MAX_MESSAGE`].
    #[error("a message would be longer than {MAX_MESSAGE} octets; ask for less at once")]
    TooLong,
    /// A message came that is longer than [`MAX_MESSAGE`].
    #[error("the other end sent a message of more than {MAX_MESSAGE} octets")]
    Truncated,
    /// Descriptors came that could not be received. Those that could are closed.
    #[error(
        "the other end sent more than {MAX_DESCRIPTORS} descriptors, or this process can open no more; raise its limit of open files \
         (`ulimit -n`)"
    )]
    DescriptorsLost,
    /// Another number of descriptors came than belong to the message. All are closed.
    #[error("the other end sent {came} descriptors with a message that has {expected}")]
    Descriptors {
        /// How many came.
        came: usize,
        /// How many belong to it.
        expected: usize,
    },
    /// What came is no message. The connection can be used on.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Something else.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Returns what helps where nobody answers, or somebody else.
fn remedy(path: &Path) -> &'static str {
    let is_set = std::env::var_os("RNICD_SOCKET").is_some_and(|set| set == path);
    match path {
        _ if is_set => {
            "RNICD_SOCKET says so: correct or unset it, or start the rnicd that is to listen there"
        }
        path if path == Path::new(SOCKET) => "`systemctl start rnicd.socket` starts it",
        _ => "start the rnicd that is to listen there, or name another socket",
    }
}

fn who(path: &Option<PathBuf>) -> String {
    match path {
        Some(path) => format!("rnicd at {}", path.display()),
        None => "the other end of the connection".to_owned(),
    }
}

/// Returns what shows the state of an rnicd that does not answer.
fn state(path: &Option<PathBuf>) -> String {
    match path {
        Some(path) if path != Path::new(SOCKET) => {
            format!(
                "look at the process that listens there (`ss -xlp src {}`)",
                path.display()
            )
        }
        _ => "`systemctl status rnicd` shows its state".to_owned(),
    }
}

/// One end of a connection. Dropping it closes the connection.
pub struct Channel {
    socket: OwnedFd,
    /// Where rnicd is, if this is a client's end.
    path: Option<PathBuf>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({})", self.socket.as_raw_fd())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Takes over a connected socket, as `accept` returns it.
impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Self {
        Self { socket, path: None }
    }
}

impl Channel {
    /// Connects to rnicd, and limits the time that connecting, sending and receiving wait for it.
    pub fn connect(path: &Path, limit: Duration) -> Result<Self, ChannelError> {
        let address = UnixAddr::new(path).map_err(|_| ChannelError::Path {
            path: path.to_owned(),
        })?;
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
            .map_err(|error| io_error("make a Unix socket", error))?;
        let channel = Self {
            socket,
            path: Some(path.to_owned()),
        };
        channel.limit(limit)?;
        loop {
            let path = || path.to_owned();
            return match socket::connect(channel.socket.as_raw_fd(), &address) {
                Ok(()) => Ok(channel),
                Err(Errno::EINTR) => continue,
                Err(Errno::ENOENT | Errno::ECONNREFUSED) => {
                    Err(ChannelError::NoDaemon { path: path() })
                }
                Err(Errno::EACCES | Errno::EPERM) => {
                    Err(ChannelError::NotPermitted { path: path() })
                }
                Err(Errno::EAGAIN) => Err(channel.timed_out("accept a connection")),
                Err(error) => Err(ChannelError::NotRnicd {
                    path: path(),
                    source: Box::new(io_error("connect to it", error)),
                }),
            };
        }
    }

    fn timed_out(&self, doing: &'static str) -> ChannelError {
        let path = self.path.clone();
        ChannelError::TimedOut { doing, path }
    }

    fn limit(&self, limit: Duration) -> Result<(), ChannelError> {
        // Zero would be no limit.
        let limit = limit.max(Duration::from_micros(1));
        let limit = TimeVal::new(
            limit.as_secs().try_into().unwrap_or(i64::MAX),
            limit.subsec_micros().into(),
        );
        socket::setsockopt(&self.socket, sockopt::SendTimeout, &limit)
            .and_then(|()| socket::setsockopt(&self.socket, sockopt::ReceiveTimeout, &limit))
            .map_err(|error| io_error("limit the time to wait for rnicd", error))
    }

    /// Makes sending and receiving return [`ChannelError::TimedOut`] at once instead of waiting.
    pub fn set_nonblocking(&self) -> Result<(), ChannelError> {
        let set = || {
            let flags = OFlag::from_bits_retain(fcntl(&self.socket, FcntlArg::F_GETFL)?);
            fcntl(&self.socket, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))
        };
        let set = set().map_err(|error| io_error("make a Unix socket nonblocking", error));
        set.map(drop)
    }

    /// Returns who is at the other end.
    pub fn peer(&self) -> Result<Peer, ChannelError> {
        let doing = "find out who has connected";
        let process = socket::getsockopt(&self.socket, sockopt::PeerCredentials)
            .map_err(|error| io_error(doing, error))?;
        let groups = peer_groups(&self.socket).map_err(|error| io_error(doing, error))?;
        let mut gids = vec![process.gid()];
        gids.extend(groups.into_iter().filter(|gid| *gid != process.gid()));
        Ok(Peer {
            uid: process.uid(),
            gids,
            pid: process.pid(),
        })
    }

    /// Sends a message with its descriptors. Panics if they are not as many as belong to it.
    pub fn send<M: Message>(
        &self,
        message: &M,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        assert_eq!(descriptors.len(), message.descriptors());
        let octets = message.encode().ok_or(ChannelError::TooLong)?;
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        loop {
            let data = [IoSlice::new(&octets)];
            return match sendmsg(&self.socket, &data, &mut control, SendFlags::NOSIGNAL) {
                // A datagram goes as a whole.
                Ok(_) => Ok(()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => Err(self.timed_out("take a message")),
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {
                    Err(ChannelError::Closed)
                }
                Err(error) => Err(io_error("send a message", error)),
            };
        }
    }

    /// Receives a message with its descriptors.
    ///
    /// After [`ChannelError::Decode`] the next message can be received. Any other error but [`ChannelError::TimedOut`] means
    /// that the other end does not keep to the protocol, or is gone.
    pub fn receive<M: Message>(&self) -> Result<(M, Vec<OwnedFd>), ChannelError> {
        let mut octets = vec![0; MAX_MESSAGE];
        let (len, descriptors) = self.receive_octets(&mut octets)?;
        let message = M::decode(&octets[..len])?;
        let (came, expected) = (descriptors.len(), message.descriptors());
        if came != expected {
            return Err(ChannelError::Descriptors { came, expected });
        }
        Ok((message, descriptors))
    }

    /// Receives a datagram; returns its length and the descriptors that came with it.
    fn receive_octets(&self, octets: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), ChannelError> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let received = loop {
            let mut data = [IoSliceMut::new(octets)];
            match recvmsg(
                &self.socket,
                &mut data,
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(received) => break received,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => return Err(self.timed_out("send a message")),
                Err(rustix::io::Errno::CONNRESET) => return Err(ChannelError::Closed),
                Err(error) => return Err(io_error("receive a message", error)),
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(ChannelError::Truncated);
        }
        // The padding of the control buffer has room for another one.
        let too_many = descriptors.len() > MAX_DESCRIPTORS;
        if too_many || received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(ChannelError::DescriptorsLost);
        }
        if received.bytes == 0 {
            return Err(ChannelError::Closed);
        }
        Ok((received.bytes, descriptors))
    }
}

pub(super) fn io_error(doing: &'static str, error: impl Into<io::Error>) -> ChannelError {
    let source = error.into();
    ChannelError::Io { doing, source }
}
