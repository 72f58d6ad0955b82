//! What systemd and rnicd say to each other: readiness, reloading, signs of life, and the sockets
//! that systemd listens at.
//!
//! Without systemd none of it happens, and nothing fails.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use listenfd::ListenFd;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::socket::{getsockopt, sockopt};
use sd_notify::NotifyState;

/// Why a socket of systemd cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// There are several for the same.
    #[error(
        "systemd passed two sockets for {0}; one unit must have FileDescriptorName={0}, with one ListenSequentialPacket= and no other \
         Listen...="
    )]
    Several(&'static str),
    /// It is something else.
    #[error(
        "what systemd passed is not a Unix socket that listens for sequential packets ({0}); rnicd.socket needs ListenSequentialPacket="
    )]
    Other(io::Error),
}

/// The sockets at which systemd listens for rnicd.
#[derive(Debug, Default)]
pub struct Activated {
    /// For clients.
    pub clients: Option<OwnedFd>,
    /// For administrators.
    pub administrators: Option<OwnedFd>,
    /// For observers.
    pub observers: Option<OwnedFd>,
}

/// Returns the sockets at which systemd listens for rnicd, if systemd started it for that. Their
/// names are "admin", "observe", and anything else for clients.
///
/// Call it once, before there are threads: it takes the variables of systemd out of the
/// environment.
pub fn activated_sockets() -> Result<Activated, ActivationError> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names: Vec<_> = names.split(':').collect();
    let mut passed = ListenFd::from_env();
    let mut activated = Activated::default();
    for index in 0..passed.len() {
        let (slot, name) = match names.get(index) {
            Some(&"admin") => (&mut activated.administrators, "admin"),
            Some(&"observe") => (&mut activated.observers, "observe"),
            _ => (&mut activated.clients, "clients"),
        };
        if slot.is_some() {
            return Err(ActivationError::Several(name));
        }
        *slot = Some(listening(&mut passed, index)?);
    }
    Ok(activated)
}

fn listening(passed: &mut ListenFd, index: usize) -> Result<OwnedFd, ActivationError> {
    let (family, kind) = (libc::AF_UNIX, libc::SOCK_SEQPACKET);
    let socket: Option<OwnedFd> = passed
        .take_custom(index, family, kind, "Unix socket for sequential packets")
        .map_err(ActivationError::Other)?;
    let other = |why: &str| ActivationError::Other(io::Error::other(why.to_owned()));
    let socket = socket.ok_or_else(|| other("it was taken already"))?;
    match getsockopt(&socket, sockopt::AcceptConn) {
        Ok(true) => {}
        Ok(false) => return Err(other("it does not listen")),
        Err(error) => return Err(ActivationError::Other(error.into())),
    }
    let nonblocking = fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
    nonblocking.map_err(|error| ActivationError::Other(error.into()))?;
    Ok(socket)
}

/// Tells systemd that rnicd is ready for clients, or ready again, with a line about what it does.
pub fn ready(status: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(status)])
}

/// Tells systemd that rnicd reads its configuration again. [`ready`] ends that.
pub fn reloading() -> io::Result<()> {
    let now = NotifyState::monotonic_usec_now()?;
    sd_notify::notify(&[NotifyState::Reloading, now])
}

/// Tells systemd that rnicd ends.
pub fn stopping() -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Stopping])
}

/// Tells systemd in a line what rnicd does, for `systemctl status`.
pub fn status(status: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Status(status)])
}

/// Tells systemd that rnicd lives.
pub fn alive() -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Watchdog])
}

/// Returns how often systemd wants to hear that rnicd lives, if it does: it kills an rnicd that is
/// silent for twice as long.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}
