//! Why a device could not be opened, with the remedy in each message.

use std::io;
use std::ops::RangeInclusive;

use rnic_manager::channel::ChannelError;

use crate::error::Error;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A value of the configuration is out of its range.
    #[error("{field} = {value} is not possible: choose from {} to {}", range.start(), range.end())]
    Config {
        /// The field of [`DeviceConfig`](crate::DeviceConfig).
        field: &'static str,
        /// What it was set to.
        value: u32,
        /// What is possible.
        range: RangeInclusive<u32>,
    },
    /// The interface could not be opened, or what follows its routes could not be started.
    #[error(transparent)]
    Interface(#[from] rnic_xdp::OpenError),
    /// A port of rnicd was wanted, and there is none.
    #[error("there is no port of {netdev}: {refused}")]
    NotShared {
        /// The interface.
        netdev: String,
        /// Why.
        refused: NotShared,
    },
    /// rnic was to protect what it sends by ESP, and the way that was chosen has the kernel send it.
    #[error(
        "rnic's own ESP (`ipsec_if_id`, `require_protection`) is for an interface that the process has for itself: name one, \
         and choose `via` xdp; what goes by sockets, the kernel protects as its policies say (docs/ipsec.md)"
    )]
    NoEspBySockets,
    /// SCTP was asked for.
    #[error("this kernel has no SCTP: load its module (`modprobe sctp`), or use TCP")]
    NoSctp,
    /// The kernel's sockets could not be had.
    #[error(transparent)]
    Sockets(#[from] rnic_sockets::InterfaceError),
    /// The process may not have the interface for itself, and gets no port of it.
    #[error("not permitted to open {netdev} alone, which takes root, and {refused}")]
    Unprivileged {
        /// The interface.
        netdev: String,
        /// Why there is no port of it.
        refused: NotShared,
    },
    /// The process gets no port of the interface, and cannot have it for itself: it is not there,
    /// or somebody has it.
    #[error("there is no port of {netdev}: {refused}; and it cannot be had alone: {alone}")]
    NoPort {
        /// The interface.
        netdev: String,
        /// Why there is no port of it.
        refused: NotShared,
        /// Why it cannot be had alone.
        alone: Box<rnic_xdp::OpenError>,
    },
    /// There is nothing to wake a sleeping worker with.
    #[error(
        "cannot make a descriptor that wakes a worker: {0}; raise the limit of open files (`ulimit -n`, LimitNOFILE= of systemd)"
    )]
    Bell(io::Error),
    /// There is no memory for the table of STags.
    #[error(
        "no memory for a table of {0} STags; choose fewer (stags), or raise the limit of memory (`ulimit -v`)"
    )]
    Memory(u32),
    /// STags and sequence numbers would be predictable.
    #[error(
        "cannot get random numbers from the kernel: {0}; let this process call getrandom (a seccomp filter may forbid it)"
    )]
    Random(io::Error),
    /// The threads that were to drive the device could not be started.
    #[error(transparent)]
    Threads(Error),
}

impl OpenError {
    /// Returns whether TCP sockets of the kernel may do where this is in the way.
    pub(crate) fn leaves_sockets(&self) -> bool {
        let alone = match self {
            Self::Unprivileged { .. } => return true,
            Self::NoPort { alone, .. } => &**alone,
            Self::Interface(alone) => alone,
            _ => return false,
        };
        // What is not there has no sockets either: the first reason is the better one.
        !matches!(
            alone,
            rnic_xdp::OpenError::NoSuchDevice { .. } | rnic_xdp::OpenError::Config { .. }
        )
    }
}

/// Why there is no port of an interface.
#[derive(Debug, thiserror::Error)]
pub enum NotShared {
    /// rnicd does not share it with this user.
    #[error("rnicd does not share it with this user: the administrator can (/etc/rnic/rnicd.toml)")]
    Here,
    /// rnicd is to share it with this user, and cannot now.
    #[error("rnicd cannot share it now: {0}")]
    Now(String),
    /// rnicd was not to be asked.
    #[error("rnicd is not to be asked (DeviceConfig::manager)")]
    NotAsked,
    /// rnicd does not answer.
    #[error(transparent)]
    NoManager(ChannelError),
}

impl NotShared {
    /// Returns whether a user who cannot have an interface alone for this reason has to know why
    /// there is no port of it.
    pub(crate) fn explains(&self, alone: &rnic_xdp::OpenError) -> bool {
        use rnic_xdp::OpenError::{
            AlreadyDriven, HiddenProgram, NoSuchDevice, OtherProgram, Shared,
        };
        let there_is_none = matches!(self, Self::NoManager(ChannelError::NoDaemon { .. }));
        match alone {
            // The program is that of an rnicd, or may be.
            Shared { .. } | HiddenProgram { .. } => true,
            NoSuchDevice { .. } | OtherProgram { .. } | AlreadyDriven { .. } => !there_is_none,
            _ => false,
        }
    }
}
