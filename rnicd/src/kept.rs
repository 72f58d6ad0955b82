//! What rnicd has given to its [keeper](crate::keeper), so that the next rnicd finds it however
//! this one ends.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use nix::sys::time::TimeSpec;
use rnic_manager::channel::{Channel, ChannelError};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tracing::{info, warn};

use crate::keeper::WAITING;
use crate::keeping::{FromKeeper, MAX_KEYS, ToKeeper};

/// How long a keeper may take for a step. It does nothing else, so that one which takes longer is
/// broken.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait before another keeper is tried.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// How long to do without a keeper that neither answers nor can be ended.
const HANGS_FOR: Duration = Duration::from_secs(60);

/// The connection to the keeper. Clones share it.
#[derive(Clone)]
pub(crate) struct Keeper(Rc<RefCell<Hand>>);

struct Hand {
    path: PathBuf,
    channel: Option<Rc<Channel>>,
    /// Keepers that this process has started, and that have not ended as far as it knows.
    children: Vec<Child>,
    /// When to try another one, if there is none.
    try_at: Instant,
    /// rnicd ends, and what is kept stays.
    has_left: bool,
}

impl Keeper {
    /// Finds the keeper that has this socket, if there is one.
    pub(crate) fn find(path: &Path) -> Option<Self> {
        let channel = Channel::connect(path, PATIENCE).ok()?;
        let mut hand = Hand::new(path.to_owned());
        hand.channel = Some(Rc::new(channel));
        Some(Self(Rc::new(RefCell::new(hand))))
    }

    /// Closes all that is kept.
    pub(crate) fn clear(&self) {
        self.0.borrow_mut().ask(&ToKeeper::Clear);
    }

    /// Finds the keeper that has this socket, or starts one. Without one rnicd goes on: the next
    /// one then has less to begin with.
    pub(crate) fn open(path: PathBuf) -> Self {
        let mut hand = Hand::new(path);
        hand.connect();
        Self(Rc::new(RefCell::new(hand)))
    }

    /// Returns the connection, to wait for its end.
    pub(crate) fn channel(&self) -> Option<Rc<Channel>> {
        self.0.borrow().channel.clone()
    }

    /// Returns how long to wait before another keeper is tried, if there is none.
    pub(crate) fn until_trying(&self) -> Option<Duration> {
        let hand = self.0.borrow();
        let wait = hand.try_at.saturating_duration_since(Instant::now());
        hand.channel.is_none().then_some(wait)
    }

    /// Notes that the keeper has gone, as far as that shows: it says nothing unasked.
    pub(crate) fn look(&self) {
        let mut hand = self.0.borrow_mut();
        hand.lose("it has ended");
    }

    /// Starts another keeper if there is none and it is time to. Returns whether everything is to
    /// be handed over again.
    pub(crate) fn restore(&self) -> bool {
        let mut hand = self.0.borrow_mut();
        if hand.channel.is_some() || hand.has_left || Instant::now() < hand.try_at {
            return false;
        }
        hand.connect();
        // It may have some of it.
        hand.ask(&ToKeeper::Clear).is_some()
    }

    /// Returns a copy of all that is kept, by key.
    pub(crate) fn list(&self) -> HashMap<String, OwnedFd> {
        let kept = self.0.borrow_mut().ask(&ToKeeper::List);
        kept.unwrap_or_default().into_iter().collect()
    }

    /// Lets the keeper keep a descriptor under a key until what this returns is dropped.
    pub(crate) fn keep(&self, key: String, descriptor: OwnedFd) -> Kept {
        let kept = Kept {
            key,
            descriptor,
            keeper: self.clone(),
        };
        self.keep_again(&kept);
        kept
    }

    /// Hands something over to another keeper.
    pub(crate) fn keep_again(&self, kept: &Kept) {
        self.hand_over(&kept.key, kept.as_fd());
    }

    /// Hands over what nobody has claimed.
    pub(crate) fn hand_over(&self, key: &str, descriptor: BorrowedFd<'_>) {
        let key = key.to_owned();
        let message = ToKeeper::Keep { key };
        self.0.borrow_mut().tell(&message, &[descriptor]);
    }

    /// Takes over what a former rnicd had kept under a key.
    pub(crate) fn adopt(&self, key: String, descriptor: OwnedFd) -> Kept {
        Kept {
            key,
            descriptor,
            keeper: self.clone(),
        }
    }

    /// Lets the keeper close some. When this returns, it has them no more.
    fn forget(&self, keys: Vec<String>) {
        let mut hand = self.0.borrow_mut();
        for keys in keys.chunks(MAX_KEYS) {
            let keys = keys.to_vec();
            hand.ask(&ToKeeper::Forget { keys });
        }
    }

    /// Leaves what is kept to the next rnicd.
    pub(crate) fn leave(&self) {
        let mut hand = self.0.borrow_mut();
        hand.has_left = true;
        hand.channel = None;
    }
}

impl Hand {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            channel: None,
            children: Vec::new(),
            try_at: Instant::now(),
            has_left: false,
        }
    }

    fn connect(&mut self) {
        self.try_at = Instant::now() + AGAIN_AFTER;
        let runs = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        self.children.retain_mut(runs);
        let connected = Channel::connect(&self.path, PATIENCE).or_else(|error| match error {
            ChannelError::NoDaemon { .. } => {
                let started = start(&self.path).map_err(|source| ChannelError::Io {
                    doing: "start the keeper",
                    source,
                });
                self.children.push(started?);
                Channel::connect(&self.path, PATIENCE)
            }
            error => Err(error),
        });
        match connected {
            Ok(channel) => self.channel = Some(Rc::new(channel)),
            Err(error) => warn!(
                "no keeper at {}: {error}; while rnicd restarts, nobody holds what is leased",
                self.path.display()
            ),
        }
    }

    fn tell(&mut self, message: &ToKeeper, descriptors: &[BorrowedFd<'_>]) -> Option<Rc<Channel>> {
        let channel = self.channel.clone()?;
        match channel.send(message, descriptors) {
            Ok(()) => Some(channel),
            Err(error) => {
                self.give_up(&channel, &error);
                None
            }
        }
    }

    /// Asks for something. Returns what comes until it is done.
    fn ask(&mut self, message: &ToKeeper) -> Option<Vec<(String, OwnedFd)>> {
        let channel = self.tell(message, &[])?;
        let mut all = Vec::new();
        loop {
            match channel.receive::<FromKeeper>() {
                Ok((FromKeeper::Kept { key }, descriptors)) => {
                    all.extend(descriptors.into_iter().map(|fd| (key.clone(), fd)));
                }
                Ok((FromKeeper::Done, _)) => return Some(all),
                Err(error) => {
                    self.give_up(&channel, &error);
                    return None;
                }
            }
        }
    }

    /// Abandons the keeper. If it still runs, it is ended: it would hold what is to be free, or
    /// bound anew.
    fn give_up(&mut self, channel: &Channel, error: &ChannelError) {
        let ended = match error {
            ChannelError::Closed => Ok(()),
            _ => self.end_keeper(channel),
        };
        self.lose(&error.to_string());
        if let Err(error) = ended {
            let path = self.path.display();
            warn!("end the keeper that listens at {path} (`ss -xlp src {path}`): {error}");
            self.try_at = Instant::now() + HANGS_FOR;
        }
    }

    fn end_keeper(&self, channel: &Channel) -> io::Result<()> {
        // To whom connects before the keeper listens by itself, the kernel tells who listened
        // first: this process, or systemd.
        let peer = channel.peer().map_or(0, |peer| peer.pid);
        let children = self
            .children
            .iter()
            .filter_map(|child| child.id().try_into().ok());
        let ended: Vec<_> = children.chain([peer]).map(end).collect();
        let has_ended_one = ended.iter().any(Result::is_ok);
        ended.into_iter().find(|_| !has_ended_one).unwrap_or(Ok(()))
    }

    fn lose(&mut self, why: &str) {
        if self.channel.take().is_some() {
            warn!("the keeper is lost ({why}); another one gets all that it had");
            self.try_at = Instant::now();
        }
    }
}

/// Starts a keeper that listens at a path.
fn start(path: &Path) -> io::Result<Child> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let listener = socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    socket::bind(listener.as_raw_fd(), &UnixAddr::new(path)?)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    socket::listen(&listener, Backlog::new(WAITING)?)?;
    // The path of a program that was upgraded leads to another one, or nowhere.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("rnicd").arg("--keep").arg(path);
    command.stdin(Stdio::from(listener)).stdout(Stdio::null());
    // What a terminal sends to rnicd is not meant for it.
    command.process_group(0);
    let child = command.spawn()?;
    info!("the keeper is pid {}", child.id());
    Ok(child)
}

/// Ends a keeper, unless it has ended, and waits until it has closed what it had. A process that is
/// no keeper by its command line is not ended: the one that listened there first may be another.
fn end(pid: i32) -> io::Result<()> {
    let unknown = || io::Error::other("which process it is, is not known");
    let of = Pid::from_raw(pid).ok_or_else(unknown)?;
    // From here on the number stands for one process.
    let process = match pidfd_open(of, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(()),
        process => process?,
    };
    let line = fs::read(format!("/proc/{pid}/cmdline"))?;
    // One that ends has none any more.
    if !line.is_empty() && line.split(|octet| *octet == 0).nth(1) != Some(b"--keep") {
        return Err(unknown());
    }
    pidfd_send_signal(&process, Signal::KILL)?;
    let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    ppoll(&mut ended, Some(TimeSpec::from_duration(PATIENCE)), None)?;
    Ok(())
}

/// A descriptor that rnicd and its keeper have. When this is dropped, the keeper closes its own,
/// and then rnicd.
pub(crate) struct Kept {
    key: String,
    descriptor: OwnedFd,
    keeper: Keeper,
}

impl Kept {
    /// Drops many with fewer questions.
    pub(crate) fn drop_all(mut all: Vec<Self>) {
        let Some(keeper) = all.first().map(|kept| kept.keeper.clone()) else {
            return;
        };
        keeper.forget(
            all.iter_mut()
                .map(|kept| std::mem::take(&mut kept.key))
                .collect(),
        );
    }

    /// Closes the descriptor of rnicd alone.
    pub(crate) fn leave(mut self) {
        self.key.clear();
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({})", self.key)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.key.is_empty() {
            self.keeper.forget(vec![std::mem::take(&mut self.key)]);
        }
    }
}
