//! AF_XDP sockets: one per receive queue.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use xsk_rs::config::{BindFlags, Interface, LibxdpFlags, SocketConfig};
use xsk_rs::{CompQueue, FillQueue, RxQueue, Socket, TxQueue};

use super::ZeroCopyChoice;
use super::umem::{Umem, os_error, ring_size};
use crate::error::OpenError;

/// A queue that was closed a moment ago stays busy for some milliseconds.
const BUSY_FOR: Duration = Duration::from_millis(500);
const BUSY_RETRY: Duration = Duration::from_millis(2);

/// Where a socket is to be bound.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    pub(super) netdev: &'a str,
    pub(super) queue: u32,
    pub(super) zero_copy: ZeroCopyChoice,
    /// Frames may take several chunks.
    pub(super) multi_buffer: bool,
    pub(super) rx_ring: u32,
    pub(super) tx_ring: u32,
}

/// A bound socket's four rings.
pub(super) struct Rings {
    pub(super) rx: RxQueue,
    pub(super) tx: TxQueue,
    pub(super) fill: FillQueue,
    pub(super) completion: CompQueue,
    /// Frames go to the device without copying.
    pub(super) zero_copy: bool,
}

impl Rings {
    /// Opens a socket on a queue: without copying if that is possible and wanted, else copying.
    pub(super) fn open(umem: &Umem, place: &Place<'_>) -> Result<Self, OpenError> {
        if place.zero_copy != ZeroCopyChoice::Never {
            match Self::bind_patiently(umem, place, BindFlags::XDP_ZEROCOPY)? {
                Ok(rings) => return Ok(rings),
                Err(source) if place.zero_copy == ZeroCopyChoice::Require => {
                    let (netdev, queue) = (place.netdev.to_string(), place.queue);
                    return Err(OpenError::NoZeroCopy {
                        netdev,
                        queue,
                        source,
                    });
                }
                Err(_) => {}
            }
        }
        Self::bind_patiently(umem, place, BindFlags::XDP_COPY)?
            .map_err(|source| place.error(source))
    }

    /// Tries again while the queue is busy. The inner error is the last attempt's.
    fn bind_patiently(
        umem: &Umem,
        place: &Place<'_>,
        mode: BindFlags,
    ) -> Result<io::Result<Self>, OpenError> {
        let patience = Instant::now() + BUSY_FOR;
        loop {
            match Self::bind(umem, place, mode)? {
                Err(error)
                    if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < patience =>
                {
                    sleep(BUSY_RETRY);
                }
                other => return Ok(other),
            }
        }
    }

    fn bind(
        umem: &Umem,
        place: &Place<'_>,
        mode: BindFlags,
    ) -> Result<io::Result<Self>, OpenError> {
        let mut flags = mode | BindFlags::XDP_USE_NEED_WAKEUP;
        if place.multi_buffer {
            flags |= BindFlags::XDP_USE_SG;
        }
        let config = SocketConfig::builder()
            .rx_queue_size(ring_size("receive ring", place.rx_ring)?)
            .tx_queue_size(ring_size("transmit ring", place.tx_ring)?)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(flags)
            .build();
        let interface: Interface = place.netdev.parse().map_err(|_| OpenError::NoSuchDevice {
            netdev: place.netdev.to_string(),
        })?;
        // SAFETY: libxdp loads no program, so that none can be freed twice; each UMEM has one socket.
        let socket = unsafe { Socket::new(config, umem.raw(), &interface, place.queue) };
        let (tx, rx, rings) = match socket {
            Ok(parts) => parts,
            Err(error) => return Ok(Err(os_error(&error))),
        };
        let Some((fill, completion)) = rings else {
            return Ok(Err(io::Error::other("the socket came without its rings")));
        };
        let rings = Self {
            rx,
            tx,
            fill,
            completion,
            zero_copy: mode.contains(BindFlags::XDP_ZEROCOPY),
        };
        // libxdp opens it without: a program started by the application would keep the queue.
        let closed = fcntl(rings.fd(), FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
        Ok(closed.map(|_| rings).map_err(io::Error::from))
    }

    /// Raises the octets in flight that the kernel allows a copying socket. Without the right to, the system's
    /// limit stays, which costs some throughput.
    pub(super) fn allow_in_flight(&self, octets: usize) {
        let _ = setsockopt(&self.fd(), sockopt::SndBufForce, &octets);
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        borrow(&self.rx)
    }
}

/// The socket of a transmit queue.
pub(super) fn borrow_tx(tx: &TxQueue) -> BorrowedFd<'_> {
    // SAFETY: the queue keeps its socket open.
    unsafe { BorrowedFd::borrow_raw(tx.fd().as_raw_fd()) }
}

/// The socket of a receive queue, to poll.
pub(super) fn borrow(rx: &RxQueue) -> BorrowedFd<'_> {
    // SAFETY: the queue keeps its socket open.
    unsafe { BorrowedFd::borrow_raw(rx.fd().as_raw_fd()) }
}

impl Place<'_> {
    fn error(&self, source: io::Error) -> OpenError {
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
