//! Why a change to a shared device failed.

use std::io;
use std::net::SocketAddr;

use crate::device::error::OpenError;

/// Why a change to a shared device failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharingError {
    /// No port has this number.
    #[error("there is no port {port}: ports have the numbers 1 to {most}")]
    PortNumber {
        /// The number.
        port: u32,
        /// The largest one.
        most: u32,
    },
    /// Another client has this port.
    #[error("port {port} is a client's already; remove that client, or take another port")]
    PortInUse {
        /// The port.
        port: u32,
    },
    /// The device is another client's.
    #[error("the device with index {ifindex} is that of port {port} already")]
    DeviceInUse {
        /// The index of the device.
        ifindex: u32,
        /// The port that has it.
        port: u32,
    },
    /// No client has this port.
    #[error("no client has port {port}; add it first")]
    NoSuchPort {
        /// The port.
        port: u32,
    },
    /// There is no such device.
    #[error("there is no device with index {ifindex} in this network namespace")]
    NoSuchDevice {
        /// The index of the device.
        ifindex: u32,
    },
    /// The rate is not possible.
    #[error("a rate of {rate} octets a second is not possible: it is 1 to {most}, or none")]
    Rate {
        /// The rate.
        rate: u64,
        /// The largest one.
        most: u64,
    },
    /// The burst is not possible.
    #[error(
        "a burst of {burst} octets is not possible: it is at least the longest frame ({least}), and at most {most}"
    )]
    Burst {
        /// The burst.
        burst: u64,
        /// The longest frame.
        least: u64,
        /// The largest burst.
        most: u64,
    },
    /// The device has got this queue since it was first shared.
    #[error(
        "queue {queue} was added after the device was shared, when it had {most}; share it anew (`rnic-ctl dev del`, `dev add`)"
    )]
    NewQueue {
        /// The queue.
        queue: u32,
        /// How many queues the steering program knows.
        most: u32,
    },
    /// Processes that have the socket of a hardware queue could not be ended.
    #[error(
        "port {port} receives nothing any more, but its socket is still open and can send: no process of uid {uid} is seen to have it;          look for one that has (`lsof | grep {inode}`) and end it"
    )]
    StillOpen {
        /// The port.
        port: u32,
        /// The user of its client.
        uid: u32,
        /// The inode of the socket.
        inode: u64,
    },
    /// Another lease has this address and port.
    #[error("{local} in VLAN {vlan} is leased already, by port {port}")]
    LeaseTaken {
        /// The address and port.
        local: SocketAddr,
        /// Its VLAN.
        vlan: u16,
        /// Who has it.
        port: u32,
    },
    /// The client has no such lease.
    #[error("port {port} has not leased {local} in VLAN {vlan}")]
    NotLeased {
        /// The client's port.
        port: u32,
        /// The address and port.
        local: SocketAddr,
        /// Its VLAN.
        vlan: u16,
    },
    /// A program could not be loaded or attached.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A map could not be read or changed.
    #[error("cannot {doing}: {source}; it takes root (CAP_BPF and CAP_NET_ADMIN)")]
    System {
        /// What for.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl SharingError {
    /// Returns what makes the error for an error of the kernel.
    pub(in crate::shared) fn system(doing: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { doing, source }
    }
}
