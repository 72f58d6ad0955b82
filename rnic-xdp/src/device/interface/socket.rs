//! AF_XDP sockets: one per receive queue.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc::{self, xdp_desc};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send, setsockopt, sockopt};
use rnic_manager::Private;
use xsk_rs::Socket;
use xsk_rs::config::{Interface, LibxdpFlags, SocketConfig};

use super::children;
use super::metadata;
use super::ring::{Consumer, Producer, Which};
use super::shape::PortShape;
use super::socket_spec::SocketSpec;
use super::umem::{Umem, os_error, ring_size};
use super::zero_copy::ZeroCopy;
use crate::device::error::OpenError;

/// How long to wait for a busy queue. A queue that was just closed stays busy for some
/// milliseconds, or for as long as others hold the kernel's lock (RTNL) under which it is released:
/// for seconds where network namespaces are deleted on a loaded host.
const BUSY_FOR: Duration = Duration::from_secs(10);
const BUSY_RETRY: Duration = Duration::from_millis(2);

/// A socket that is open as long as this exists. Of the two handles of one socket, the first that
/// goes ends its being noted.
pub(crate) struct OpenSocket {
    fd: RawFd,
    /// Dropped before the keeper closes it.
    _noted: Private,
    /// Never locked: the lock lets several threads hold the socket.
    _keeper: Mutex<Box<dyn Send>>,
}

impl OpenSocket {
    /// Takes over a socket that is open as long as `keeper` exists.
    fn new(fd: RawFd, keeper: impl Send + 'static) -> Self {
        let keeper: Box<dyn Send> = Box::new(keeper);
        Self {
            fd,
            _noted: Private::new(&fd),
            _keeper: Mutex::new(keeper),
        }
    }

    /// Makes the kernel take frames of the transmit ring. It is no error if it cannot take all now.
    pub(super) fn send(&self) -> io::Result<()> {
        match send(self.fd, &[], MsgFlags::MSG_DONTWAIT) {
            Ok(_) | Err(Errno::ENOBUFS | Errno::EAGAIN | Errno::EBUSY | Errno::ENETDOWN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the kernel look at the fill ring, without waiting.
    pub(super) fn poll(&self) -> io::Result<()> {
        let mut this = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        poll(&mut this, PollTimeout::ZERO)?;
        Ok(())
    }
}

impl AsFd for OpenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the keeper keeps it open.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl fmt::Debug for OpenSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenSocket({})", self.fd)
    }
}

/// The four rings of a bound socket, and the socket for each side.
pub(super) struct Rings {
    pub(super) rx: Consumer<xdp_desc>,
    pub(super) fill: Producer<u64>,
    pub(super) rx_socket: OpenSocket,
    pub(super) tx: Producer<xdp_desc>,
    pub(super) completion: Consumer<u64>,
    pub(super) tx_socket: OpenSocket,
    /// Whether frames go to the device without copying.
    pub(super) zero_copy: ZeroCopy,
    /// Frames to be sent may have metadata.
    pub(super) has_metadata: bool,
}

impl Rings {
    /// Opens a socket on a queue: without copying if that is possible and wanted, else copying.
    pub(super) fn open(umem: &Umem, wanted: &SocketSpec<'_>) -> Result<Self, OpenError> {
        // Once for all attempts to bind: registering pins the UMEM.
        let socket = match wanted.completer {
            Some(completer) => {
                let socket = metadata::register(umem, wanted, Some(completer));
                Some(Arc::new(socket.map_err(|source| wanted.error(source))?))
            }
            None => None,
        };
        let bind = |zero_copy| Self::bind_until_free(umem, wanted, socket.as_ref(), zero_copy);
        let copy = match &wanted.zero_copy {
            ZeroCopy::Off(_) => wanted.zero_copy.clone(),
            ZeroCopy::On => match bind(&ZeroCopy::On)? {
                Ok(rings) => return Ok(rings),
                Err(error) => ZeroCopy::refused(&error),
            },
        };
        match copy {
            ZeroCopy::Off(reason) if wanted.must_not_copy => {
                let netdev = wanted.netdev.to_string();
                Err(OpenError::NoZeroCopy { netdev, reason })
            }
            copy => bind(&copy)?.map_err(|source| wanted.error(source)),
        }
    }

    /// Binds, and tries again while the queue is busy. The inner error is that of the last attempt.
    fn bind_until_free(
        umem: &Umem,
        wanted: &SocketSpec<'_>,
        socket: Option<&Arc<OwnedFd>>,
        zero_copy: &ZeroCopy,
    ) -> Result<io::Result<Self>, OpenError> {
        let deadline = Instant::now() + BUSY_FOR;
        loop {
            match Self::bind(umem, wanted, socket, zero_copy)? {
                Err(error)
                    if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline =>
                {
                    sleep(BUSY_RETRY);
                }
                other => return Ok(other),
            }
        }
    }

    /// Binds a socket that has registered the UMEM, or a new one of a UMEM that is registered.
    fn bind(
        umem: &Umem,
        wanted: &SocketSpec<'_>,
        socket: Option<&Arc<OwnedFd>>,
        zero_copy: &ZeroCopy,
    ) -> Result<io::Result<Self>, OpenError> {
        let flags = wanted.flags(zero_copy);
        if let Some(socket) = socket {
            let bound = metadata::bind(socket, wanted, flags.bits());
            let side = || OpenSocket::new(socket.as_raw_fd(), socket.clone());
            return Ok(bound.and_then(|()| Self::map(side(), side(), wanted, zero_copy)));
        }
        let config = SocketConfig::builder()
            .rx_queue_size(ring_size("receive ring", wanted.rx_ring)?)
            .tx_queue_size(ring_size("transmit ring", wanted.tx_ring)?)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(flags)
            .build();
        let interface: Interface = wanted.netdev.parse().map_err(|_| OpenError::NoSuchDevice {
            netdev: wanted.netdev.to_string(),
        })?;
        let Some(registered) = umem.registered() else {
            return Ok(Err(io::Error::other("the UMEM is not registered")));
        };
        // SAFETY: libxdp loads no program, so that none can be freed twice; each UMEM has one
        // socket.
        let socket = unsafe { Socket::new(config, registered, &interface, wanted.queue) };
        let (tx, rx, rings) = match socket {
            Ok(parts) => parts,
            Err(error) => return Ok(Err(os_error(&error))),
        };
        let Some((fill, completion)) = rings else {
            return Ok(Err(io::Error::other("the socket came without its rings")));
        };
        // Each queue of xsk-rs keeps the socket open.
        let fd = rx.fd().as_raw_fd();

        let (rx, tx) = (
            OpenSocket::new(fd, (rx, fill)),
            OpenSocket::new(fd, (tx, completion)),
        );
        children::are_not_to_map(&rx);
        // libxdp does not set it: programs that the application starts would keep the queue bound.
        let closed = fcntl(&rx, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
        Ok(closed
            .map_err(io::Error::from)
            .and_then(|_| Self::map(rx, tx, wanted, zero_copy)))
    }

    /// Makes the rings of a socket that another process has bound for this one.
    pub(super) fn of_bound(
        socket: OwnedFd,
        shape: &PortShape,
        zero_copy: &ZeroCopy,
    ) -> io::Result<Self> {
        let socket = Arc::new(socket);
        let side = || OpenSocket::new(socket.as_raw_fd(), socket.clone());
        let (rx_socket, tx_socket) = (side(), side());
        let socket = socket.as_fd();
        Ok(Self {
            rx: Consumer::map(socket, Which::Rx, shape.rx_ring)?,
            fill: Producer::map(socket, Which::Fill, shape.fill_ring)?,
            tx: Producer::map(socket, Which::Tx, shape.tx_ring)?,
            completion: Consumer::map(socket, Which::Completion, shape.completion_ring)?,
            rx_socket,
            tx_socket,
            zero_copy: zero_copy.clone(),
            has_metadata: false,
        })
    }

    /// Makes the rings of a bound socket, of which there is one handle for each side.
    fn map(
        rx_socket: OpenSocket,
        tx_socket: OpenSocket,
        wanted: &SocketSpec<'_>,
        zero_copy: &ZeroCopy,
    ) -> io::Result<Self> {
        let rings = Self::map_rings(rx_socket, tx_socket, wanted, zero_copy);
        // Older kernels report EBUSY here, which does not mean a busy queue.
        rings.map_err(|error| {
            io::Error::other(format!(
                "the kernel did not map the rings of a bound AF_XDP socket, which needs Linux 6.4: {error}"
            ))
        })
    }

    fn map_rings(
        rx_socket: OpenSocket,
        tx_socket: OpenSocket,
        wanted: &SocketSpec<'_>,
        zero_copy: &ZeroCopy,
    ) -> io::Result<Self> {
        let socket = rx_socket.as_fd();
        Ok(Self {
            rx: Consumer::map(socket, Which::Rx, wanted.rx_ring)?,
            fill: Producer::map(socket, Which::Fill, wanted.rings.fill)?,
            tx: Producer::map(socket, Which::Tx, wanted.tx_ring)?,
            completion: Consumer::map(socket, Which::Completion, wanted.rings.completion)?,
            rx_socket,
            tx_socket,
            zero_copy: zero_copy.clone(),
            has_metadata: wanted.completer.is_some(),
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.rx_socket.as_fd()
    }
}

/// Raises the octets in flight that the kernel allows a copying socket. Without the privilege the
/// system's limit stays, which costs some throughput.
pub(super) fn allow_in_flight(socket: BorrowedFd<'_>, octets: usize) {
    let _ = setsockopt(&socket, sockopt::SndBufForce, &octets);
}
