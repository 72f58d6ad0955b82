//! The keeper: a process that holds descriptors for rnicd, so that they outlive it, and does
//! nothing else.
//!
//! It answers root alone. It ends when it holds nothing and nobody is connected, or when nobody can
//! find it any more.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{self, Backlog};
use nix::sys::time::TimeSpec;
use nix::unistd::geteuid;
use rnic_manager::channel::{Channel, ChannelError};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use tracing::{debug, warn};

use crate::keeping::{FromKeeper, ToKeeper};

/// How often to look whether the socket can still be found, while nobody is connected.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Connections that may wait to be accepted.
pub(crate) const WAITING: i32 = 8;
/// How long to wait when the kernel has no descriptor for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// The keeper.
struct Keeper {
    listener: OwnedFd,
    /// Its path, unless it is somebody else's to remove.
    path: Option<Found>,
    connections: Vec<Channel>,
    kept: HashMap<String, OwnedFd>,
}

/// The path of a socket, and which file it was when the keeper began.
struct Found {
    path: PathBuf,
    identity: (u64, u64),
}

impl Found {
    fn of(path: &Path) -> io::Result<Self> {
        let identity = identity(path)?;
        let path = path.to_owned();
        Ok(Self { path, identity })
    }

    fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|identity| identity == self.identity)
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let of = fs::symlink_metadata(path)?;
    Ok((of.dev(), of.ino()))
}

/// Keeps what comes over a socket that listens, until there is nothing to keep. The socket at
/// `path`, if it is given, is removed then.
pub fn keep(listener: OwnedFd, path: Option<&Path>) -> io::Result<()> {
    // Each lease has a descriptor.
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        warn!("the keeper cannot raise its limit of descriptors: {error}");
    }
    // By this the kernel tells those who connect which process it is.
    socket::listen(&listener, Backlog::new(WAITING)?)?;
    let mut keeper = Keeper {
        listener,
        path: path.map(Found::of).transpose()?,
        connections: Vec::new(),
        kept: HashMap::new(),
    };
    keeper.run()
}

impl Keeper {
    fn run(&mut self) -> io::Result<()> {
        // Whoever started it is about to connect.
        let mut had_any = false;
        loop {
            let is_findable = self.path.as_ref().is_none_or(Found::is_there);
            if self.connections.is_empty() && ((had_any && self.kept.is_empty()) || !is_findable) {
                break;
            }
            self.turn()?;
            had_any |= !self.connections.is_empty();
        }
        if let Some(path) = self.path.as_ref().filter(|path| path.is_there()) {
            // It is in nobody's way: the next rnicd removes what nobody serves.
            let _ = fs::remove_file(&path.path);
        }
        Ok(())
    }

    fn turn(&mut self) -> io::Result<()> {
        let ready = self.wait()?;
        // Those behind one that has ended move up: the last go first.
        for at in (0..self.connections.len()).rev() {
            if ready[at + 1] && !self.serve(at) {
                self.connections.remove(at);
            }
        }
        if ready[0] {
            self.accept();
        }
        Ok(())
    }

    /// Waits. Returns what is ready: the listener, and each connection.
    fn wait(&self) -> io::Result<Vec<bool>> {
        let sockets = [self.listener.as_fd()];
        let sockets = sockets
            .into_iter()
            .chain(self.connections.iter().map(AsFd::as_fd));
        let mut fds: Vec<_> = sockets
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        let looks = self.connections.is_empty() && self.path.is_some();
        let timeout = looks.then(|| TimeSpec::from_duration(LOOK_EVERY));
        match ppoll(&mut fds, timeout, None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        Ok(fds.iter().map(is_ready).collect())
    }

    fn accept(&mut self) {
        let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(error) => {
                warn!("the keeper cannot accept a connection now: {error}");
                return std::thread::sleep(PAUSE);
            }
        };
        let channel = Channel::from(socket);
        match channel.peer() {
            Ok(peer) if peer.uid == geteuid().as_raw() => self.connections.push(channel),
            Ok(peer) => warn!(
                "uid {} (pid {}) has nothing to ask of the keeper",
                peer.uid, peer.pid
            ),
            Err(error) => warn!("the keeper does not know who has connected: {error}"),
        }
    }

    /// Serves a connection: carries out what it asks for. Returns whether the connection goes on.
    fn serve(&mut self, at: usize) -> bool {
        let channel = &self.connections[at];
        let done = match channel.receive::<ToKeeper>() {
            Ok((ToKeeper::Keep { key }, descriptors)) => {
                self.kept
                    .extend(descriptors.into_iter().map(|fd| (key.clone(), fd)));
                Ok(())
            }
            Ok((ToKeeper::Forget { keys }, _)) => {
                keys.iter().for_each(|key| drop(self.kept.remove(key)));
                channel.send(&FromKeeper::Done, &[])
            }
            Ok((ToKeeper::Clear, _)) => {
                self.kept.clear();
                channel.send(&FromKeeper::Done, &[])
            }
            Ok((ToKeeper::List, _)) => list(channel, &self.kept),
            Err(error @ (ChannelError::DescriptorsLost | ChannelError::Decode(_))) => {
                warn!("the keeper cannot keep something: {error}");
                Ok(())
            }
            Err(error) => Err(error),
        };
        done.inspect_err(|error| debug!("{error}")).is_ok()
    }
}

fn list(channel: &Channel, kept: &HashMap<String, OwnedFd>) -> Result<(), ChannelError> {
    for (key, descriptor) in kept {
        let key = key.clone();
        channel.send(&FromKeeper::Kept { key }, &[descriptor.as_fd()])?;
    }
    channel.send(&FromKeeper::Done, &[])
}
