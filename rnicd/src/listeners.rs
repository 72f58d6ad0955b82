//! The sockets at which rnicd listens, and what those may who connect there.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::fcntl::{self, OFlag};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use nix::sys::stat::Mode;
use rnic_manager::channel::{administration_socket, observation_socket, refuse_descriptors};
use tracing::{error, warn};

use crate::notify::Activated;
use crate::settings::Settings;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// What those may who connect at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// What the rules give each user. uid 0 is a user as any other: it may be that of a container.
    Client,
    /// To see all, and no more than a client beyond that.
    Observer,
    /// Everything.
    Administrator,
}

/// A socket.
pub(crate) struct Listener {
    socket: OwnedFd,
    pub(crate) role: Role,
    /// The user as whom all count who connect there, if that is not each as itself.
    pub(crate) class: Option<u32>,
    /// The kernel refuses all descriptors that are sent to those that connect here, and has from
    /// the start.
    pub(crate) brings_no_descriptors: bool,
}

impl Listener {
    /// Serves those who connect to `socket`. Somebody else may have listened there before.
    fn new(socket: OwnedFd, role: Role, class: Option<u32>, is_own: bool) -> Self {
        let refuses = refuse_descriptors(&socket);
        Self {
            socket,
            role,
            class,
            brings_no_descriptors: refuses && is_own,
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket that could not be made.
#[derive(Debug)]
pub(crate) struct CannotListen {
    pub(crate) path: PathBuf,
    pub(crate) source: io::Error,
}

/// Who may connect at a path.
struct Door {
    path: PathBuf,
    gid: u32,
    /// Without the group, root alone may.
    can_do_without_group: bool,
    /// The permissions of the socket, and those of its directory if it has to be made.
    modes: (u32, u32),
}

/// Collects the sockets that systemd listens on, and makes the others: that of clients is at
/// `clients`.
pub(crate) fn listeners(
    clients: &Path,
    activated: Activated,
    settings: &Settings,
) -> Result<Vec<Listener>, CannotListen> {
    let policy = &settings.policy;
    let door = |path: PathBuf, gid, modes| Door {
        path,
        gid,
        can_do_without_group: false,
        modes,
    };
    let own = door(clients.to_owned(), policy.socket_gid(), (0o660, 0o755));
    let admin = door(administration_socket(clients), 0, (0o600, 0o700));
    let gid = policy.observers_gid();
    let observe = Door {
        can_do_without_group: true,
        ..door(observation_socket(clients), gid, (0o660, 0o755))
    };
    let mut listeners = Vec::new();
    for (role, door, passed) in [
        (Role::Administrator, admin, activated.administrators),
        (Role::Observer, observe, activated.observers),
        (Role::Client, own, activated.clients),
    ] {
        let is_own = passed.is_none();
        let socket = passed.map_or_else(|| door.open(), Ok)?;
        listeners.push(Listener::new(socket, role, None, is_own));
    }
    for class in policy.classes() {
        let door = door(class.socket.clone(), class.gid, (0o660, 0o755));
        match door.open() {
            Ok(socket) => {
                listeners.push(Listener::new(socket, Role::Client, Some(class.uid), true))
            }
            // Its clients may write to the directory, and must not end the service for all.
            Err(CannotListen { path, source }) => {
                error!("nobody is served at {}: {source}", path.display());
            }
        }
    }
    Ok(listeners)
}

impl Door {
    fn open(self) -> Result<OwnedFd, CannotListen> {
        let listening = self.listen();
        listening.map_err(|source| CannotListen {
            path: self.path,
            source,
        })
    }

    fn listen(&self) -> io::Result<OwnedFd> {
        let (path, (mode, of_directory)) = (&self.path, self.modes);
        if let Some(directory) = path.parent().filter(|directory| !directory.exists()) {
            let mut builder = fs::DirBuilder::new();
            let made = builder.recursive(true).mode(of_directory);
            made.create(directory)?;
            // Whatever the umask of a unit.
            fs::set_permissions(directory, fs::Permissions::from_mode(of_directory))?;
        }
        let new = || {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
        };
        let address = UnixAddr::new(path)?;
        // A socket that nobody serves is one of an rnicd that was killed.
        let probe = new()?;
        if socket::connect(probe.as_raw_fd(), &address).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = new()?;
        // Before somebody connects.
        refuse_descriptors(&listener);
        socket::bind(listener.as_raw_fd(), &address)?;
        // Somebody who may write to the directory could replace the socket, for instance by a link
        // to a file of root's.
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let made = fcntl::open(path, flags, Mode::empty())?;
        let opened = PathBuf::from(format!("/proc/self/fd/{}", made.as_raw_fd()));
        if !fs::metadata(&opened)?.file_type().is_socket() {
            return Err(io::Error::other("somebody has put something else there"));
        }
        // First the group: with these permissions nobody else comes in meanwhile.
        fs::set_permissions(&opened, fs::Permissions::from_mode(mode & 0o600))?;
        match chown(&opened, None, Some(self.gid)) {
            // Then root alone observes.
            Err(error) if self.can_do_without_group => {
                warn!("{}: only root may connect: {error}", path.display());
            }
            changed => {
                changed?;
                fs::set_permissions(&opened, fs::Permissions::from_mode(mode))?;
            }
        }
        socket::listen(&listener, Backlog::new(BACKLOG)?)?;
        Ok(listener)
    }
}
