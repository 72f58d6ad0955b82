//! Why frames cannot be captured.

use std::io;

use crate::device::netlink::NetlinkError;

/// Why frames cannot be captured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// There is no such device in this network namespace.
    #[error("there is no network device {0} here; `ip link` lists those of this network namespace")]
    NoSuchDevice(String),
    /// The device was removed.
    #[error("the network device {0} is gone")]
    DeviceGone(String),
    /// Another process captures.
    #[error("another process captures on {0} already; `pgrep -af 'rnic-ctl capture'` may find it")]
    Busy(String),
    /// The kernel refuses.
    #[error("not permitted to {0}; run as root in the host's user namespace")]
    NotPermitted(&'static str),
    /// Something else failed.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was attempted.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A netlink request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// Returns what makes an error of a failed system call.
pub(super) fn failed(doing: &'static str) -> impl Fn(io::Error) -> CaptureError {
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => CaptureError::NotPermitted(doing),
        _ => CaptureError::System { doing, source },
    }
}

/// Returns an error of libbpf as one of `std::io`.
pub(super) fn bpf_error(error: &libbpf_rs::Error) -> io::Error {
    let kind = match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error.to_string())
}
