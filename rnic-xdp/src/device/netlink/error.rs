//! Why a netlink request failed.

use std::io;

/// Why a netlink request failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The netlink socket does not work.
    #[error("cannot talk to the kernel over netlink to {doing}: {source}")]
    Socket {
        /// What the request was for.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The kernel refused.
    #[error("the kernel refused to {doing}: {source}")]
    Refused {
        /// What the request was for.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The reply is missing or not of the expected form.
    #[error("the kernel's reply is missing or malformed while trying to {doing}")]
    BadReply {
        /// What the request was for.
        doing: &'static str,
    },
}

impl NetlinkError {
    /// Returns the error number of a refusal.
    pub(crate) fn refusal(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Returns the kernel's error.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            Self::Socket { source, .. } | Self::Refused { source, .. } => source,
            Self::BadReply { .. } => io::Error::other(self),
        }
    }
}
