//! What AF_XDP socket to open, and what it means if the kernel refuses.

use std::io;

use nix::libc;
use xsk_rs::config::BindFlags;

use super::shape::PortShape;
use super::umem::UmemRings;
use super::zero_copy::ZeroCopy;
use crate::device::error::OpenError;

/// What completes the TCP checksums of sent frames if the engine does not: flags of the UMEM's
/// registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completer(u32);

impl Completer {
    pub(super) const DEVICE: Self = Self(libc::XDP_UMEM_TX_METADATA_LEN);
    pub(super) const KERNEL: Self =
        Self(libc::XDP_UMEM_TX_METADATA_LEN | libc::XDP_UMEM_TX_SW_CSUM);
    /// Flags that no kernel knows, as older ones do not know the others.
    #[cfg(test)]
    pub(super) const UNKNOWN: Self = Self(1 << 31);

    pub(super) fn registration_flags(self) -> u32 {
        self.0
    }
}

/// What socket to open, and where to bind it.
#[derive(Clone, Debug)]
pub(super) struct SocketSpec<'a> {
    pub(super) netdev: &'a str,
    pub(super) queue: u32,
    /// Whether to bind it without copying.
    pub(super) zero_copy: ZeroCopy,
    /// Copying is no alternative.
    pub(super) must_not_copy: bool,
    /// Frames may take several chunks.
    pub(super) multi_buffer: bool,
    pub(super) rx_ring: u32,
    pub(super) tx_ring: u32,
    pub(super) rings: UmemRings,
    /// Octets of a chunk of UMEM.
    pub(super) chunk: u32,
    /// Who completes checksums, if the UMEM is not registered yet.
    pub(super) completer: Option<Completer>,
}

impl<'a> SocketSpec<'a> {
    /// Describes the socket of a port that is made for another process, whose checksums its engine
    /// completes.
    pub(super) fn of_port(
        netdev: &'a str,
        queue: u32,
        zero_copy: ZeroCopy,
        shape: &PortShape,
    ) -> Self {
        Self {
            netdev,
            queue,
            zero_copy,
            must_not_copy: false,
            multi_buffer: shape.chunks > 1,
            rx_ring: shape.rx_ring,
            tx_ring: shape.tx_ring,
            rings: shape.rings(),
            chunk: shape.chunk,
            completer: None,
        }
    }

    /// Returns the flags to bind it with.
    pub(super) fn flags(&self, zero_copy: &ZeroCopy) -> BindFlags {
        let mode = match zero_copy {
            ZeroCopy::On => BindFlags::XDP_ZEROCOPY,
            ZeroCopy::Off(_) => BindFlags::XDP_COPY,
        };
        let mut flags = mode | BindFlags::XDP_USE_NEED_WAKEUP;
        if self.multi_buffer {
            flags |= BindFlags::XDP_USE_SG;
        }
        flags
    }

    /// Returns the error for a refusal by the kernel.
    pub(super) fn error(&self, source: io::Error) -> OpenError {
        let (netdev, queue) = (self.netdev.to_string(), self.queue);
        match source.raw_os_error() {
            Some(libc::EBUSY) => OpenError::QueueBusy { netdev, queue },
            Some(libc::EPERM | libc::EACCES) => OpenError::NotPermitted {
                doing: "bind an AF_XDP socket",
            },
            Some(libc::ENETDOWN) => OpenError::Down { netdev },
            Some(libc::ENODEV) => OpenError::NoSuchDevice { netdev },
            _ => OpenError::Socket {
                netdev,
                queue,
                source,
            },
        }
    }
}
