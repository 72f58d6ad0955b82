//! The way of messages and descriptors between rnicd and a client: a connection of a
//! `SOCK_SEQPACKET` Unix socket.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::{self, c_int};
use nix::sys::socket::sockopt::SetBool;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, sockopt};
use nix::sys::time::TimeVal;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::closer::Closer;
use crate::peer;
use crate::private::PrivateFd;
use zeroize::Zeroize;

use crate::protocol::{DecodeError, MAX_MESSAGE, Message, OLDEST, SOCKET};
pub use crate::sockets::{administration_socket, default_socket, observation_socket};

/// The most descriptors that come with a message.
pub const MAX_DESCRIPTORS: usize = 4;

/// The most that the kernel lets anybody send with a message.
const SCM_MAX_FD: usize = 253;
/// Whether a Unix socket takes descriptors (`SO_PASSRIGHTS`, Linux 6.16).
const PASS_RIGHTS: c_int = 83;

nix::setsockopt_impl!(PassRights, libc::SOL_SOCKET, PASS_RIGHTS, bool, SetBool);

/// The option as nix sets options.
#[derive(Clone, Copy, Debug)]
struct PassRights;

/// Makes the kernel refuse descriptors that others send to a socket, or to those that connect to
/// it, from now on. Returns whether it can.
pub fn refuse_descriptors(socket: impl AsFd) -> bool {
    socket::setsockopt(&socket, PassRights, &false).is_ok()
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
    /// The other side speaks versions of the protocol that are too old.
    #[error(
        "rnicd speaks version {version} of the protocol, and this program {OLDEST} at least; upgrade rnicd"
    )]
    Outdated {
        /// The newest that it speaks.
        version: u32,
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
    socket: PrivateFd,
    /// Where rnicd is, if this is a client's end.
    path: Option<PathBuf>,
    /// Who closes descriptors that should not have come, if this thread must not wait for that.
    closer: Option<Closer>,
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
        Self {
            socket: socket.into(),
            path: None,
            closer: None,
        }
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
            socket: socket.into(),
            path: Some(path.to_owned()),
            closer: None,
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

    /// Refuses all descriptors, for an end whose messages have none: the kernel does, or the thread
    /// of `closer` closes them, which can take as long as their sender likes.
    pub fn without_descriptors(self, closer: &Closer) -> Self {
        // Some may have been sent before the kernel refused them.
        refuse_descriptors(&self.socket);
        self.closing_by(closer)
    }

    /// Refuses all descriptors as a kernel needs it that does not: what comes is closed by the
    /// thread of `closer`.
    pub fn closing_by(self, closer: &Closer) -> Self {
        let closer = Some(closer.clone());
        Self { closer, ..self }
    }

    /// Ends the connection, and waits for nothing.
    pub fn close(self) {
        if let Some(closer) = self.closer {
            closer.close([self.socket.into()]);
        }
    }

    /// Returns whether the other end has read all that was sent. Then it has all descriptors, too.
    pub fn is_read(&self) -> bool {
        // The kernel always says it of a Unix socket.
        peer::unread(&self.socket).is_ok_and(|octets| octets == 0)
    }

    /// Returns whether the process at the other end lives in this process's user namespace. What
    /// cannot be found out is not so.
    pub fn shares_user_namespace(&self) -> bool {
        peer::shares_user_namespace(&self.socket).unwrap_or(false)
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
        let groups = peer::groups(&self.socket).map_err(|error| io_error(doing, error))?;
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
        // It may have keys.
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
    /// After [`ChannelError::Decode`] the next message can be received. Any other error but
    /// [`ChannelError::TimedOut`] means that the other end does not keep to the protocol, or is
    /// gone.
    pub fn receive<M: Message>(&self) -> Result<(M, Vec<OwnedFd>), ChannelError> {
        let mut octets = vec![0; MAX_MESSAGE];
        let (len, descriptors) = self.receive_octets(&mut octets)?;
        let came = descriptors.len();
        if let Some(closer) = self.closer.as_ref().filter(|_| came > 0) {
            closer.close(descriptors);
            return Err(ChannelError::Descriptors { came, expected: 0 });
        }
        let message = M::decode(&octets[..len]);
        octets[..len].zeroize();
        let message = message?;
        let expected = message.descriptors();
        if came != expected {
            return Err(ChannelError::Descriptors { came, expected });
        }
        Ok((message, descriptors))
    }

    /// Closes descriptors that came with what is no message.
    fn discard(&self, descriptors: Vec<OwnedFd>) {
        match &self.closer {
            Some(closer) => closer.close(descriptors),
            None => drop(descriptors),
        }
    }

    /// Receives a datagram; returns its length and the descriptors that came with it.
    fn receive_octets(&self, octets: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), ChannelError> {
        // Those that find no room the kernel closes, while this thread waits.
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
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
        let too_many = descriptors.len() > MAX_DESCRIPTORS;
        let error = if received.flags.contains(ReturnFlags::TRUNC) {
            ChannelError::Truncated
        } else if too_many || received.flags.contains(ReturnFlags::CTRUNC) {
            ChannelError::DescriptorsLost
        } else if received.bytes == 0 {
            ChannelError::Closed
        } else {
            return Ok((received.bytes, descriptors));
        };
        self.discard(descriptors);
        Err(error)
    }
}

pub(crate) fn io_error(doing: &'static str, error: impl Into<io::Error>) -> ChannelError {
    let source = error.into();
    ChannelError::Io { doing, source }
}
