//! Where metrics are served: at a TCP port or a Unix socket.

use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::failure::{Doing, Outcome};

/// How a Unix socket is told from a TCP port.
const UNIX: &str = "unix:";

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At a TCP port.
    Tcp(SocketAddr),
    /// At a Unix socket.
    Unix(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const NEEDED: &str = "needed is an address and TCP port, such as 127.0.0.1:9752 or [::1]:9752, or unix:/PATH";
        match text.strip_prefix(UNIX) {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(NEEDED.to_owned()),
            None => text.parse().map(Self::Tcp).map_err(|_| NEEDED.to_owned()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl Place {
    /// Returns whether it cannot be reached from other hosts.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Listens there.
    pub(super) fn listen(&self) -> Outcome<Listener> {
        let listener = match self {
            Self::Tcp(address) => TcpListener::bind(address).map(Listener::Tcp),
            Self::Unix(path) => at_path(path),
        };
        let listening = listener.and_then(|listener| listener.unblocked());
        listening.doing(format_args!("listen on {self}"))
    }
}

/// A socket that listens. That of a path is removed at the end.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// Listens at a path, which may have a socket that nobody serves any more.
fn at_path(path: &Path) -> io::Result<Listener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let nobody = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(nobody) {
        fs::remove_file(path)?;
    }
    let listener = Listener::Unix(UnixListener::bind(path)?, path.to_owned());
    // As at loopback: who may come is for the directory to say.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

impl Listener {
    fn unblocked(self) -> io::Result<Self> {
        match &self {
            Self::Tcp(listener) => listener.set_nonblocking(true)?,
            Self::Unix(listener, _) => listener.set_nonblocking(true)?,
        }
        Ok(self)
    }

    /// Returns where it listens, with the TCP port that the kernel chose if none was said.
    pub(super) fn place(&self) -> Place {
        match self {
            Self::Tcp(listener) => Place::Tcp(
                listener
                    .local_addr()
                    .unwrap_or_else(|_| SocketAddr::from(([0; 4], 0))),
            ),
            Self::Unix(_, path) => Place::Unix(path.clone()),
        }
    }

    /// Accepts the next connection.
    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| stream.into()),
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| stream.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // It may be gone already; the next one removes it otherwise.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_addresses_or_paths() {
        for (text, is_local) in [
            ("127.0.0.1:9752", true),
            ("[::1]:9752", true),
            ("[::ffff:127.0.0.1]:9752", true),
            ("unix:/run/m.sock", true),
            ("0.0.0.0:9752", false),
            ("[::]:9752", false),
            ("192.0.2.1:9752", false),
        ] {
            let place: Place = text.parse().unwrap();
            assert_eq!(
                (place.to_string(), place.is_local()),
                (text.into(), is_local)
            );
        }
        for text in [
            "",
            ":9752",
            "127.0.0.1",
            "localhost:9752",
            "unix:",
            "unix:m.sock",
            "/run/m",
        ] {
            let error = text.parse::<Place>().unwrap_err();
            assert!(error.contains("127.0.0.1:9752"), "{text}: {error}");
        }
    }
}
