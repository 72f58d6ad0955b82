//! What systemd and rnicd say to each other: readiness, reloading, signs of life, and the socket that systemd listens at.
//!
//! Without systemd none of it happens, and nothing fails.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use listenfd::ListenFd;
use nix::libc;
use nix::sys::socket::{getsockopt, sockopt};
use sd_notify::NotifyState;

/// Why the socket of systemd cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// There are several.
    #[error(
        "systemd passed {0} sockets; rnicd.socket must have one ListenSequentialPacket= and no other Listen...="
    )]
    Several(usize),
    /// It is something else.
    #[error(
        "what systemd passed is not a Unix socket that listens for sequential packets ({0}); rnicd.socket needs ListenSequentialPacket="
    )]
    Other(io::Error),
}

/// Returns the socket at which systemd listens for rnicd, if systemd started it for that.
///
/// Call it once, before there are threads: it takes the variables of systemd out of the environment.
pub fn activated_socket() -> Result<Option<OwnedFd>, ActivationError> {
    let mut passed = ListenFd::from_env();
    if passed.len() > 1 {
        return Err(ActivationError::Several(passed.len()));
    }
    let (family, kind) = (libc::AF_UNIX, libc::SOCK_SEQPACKET);
    let socket: Option<OwnedFd> = passed
        .take_custom(0, family, kind, "Unix socket for sequential packets")
        .map_err(ActivationError::Other)?;
    let Some(socket) = socket else {
        return Ok(None);
    };
    match getsockopt(&socket, sockopt::AcceptConn) {
        Ok(true) => Ok(Some(socket)),
        Ok(false) => Err(ActivationError::Other(io::Error::other(
            "it does not listen",
        ))),
        Err(error) => Err(ActivationError::Other(error.into())),
    }
}

/// Says that rnicd is ready for clients, or ready again, with a line about what it does.
pub fn ready(status: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(status)])
}

/// Says that rnicd reads its configuration again. [`ready`] ends that.
pub fn reloading() -> io::Result<()> {
    let now = NotifyState::monotonic_usec_now()?;
    sd_notify::notify(&[NotifyState::Reloading, now])
}

/// Says that rnicd ends.
pub fn stopping() -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Stopping])
}

/// Says in a line what rnicd does, for `systemctl status`.
pub fn status(status: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Status(status)])
}

/// Says that rnicd lives.
pub fn alive() -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Watchdog])
}

/// Returns how often systemd wants to hear that rnicd lives, if it does: it kills an rnicd that is silent for twice as long.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}
