//! Makes a port for another process that is a hardware queue of a device: an AF_XDP socket bound to
//! that queue.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::libc;

use super::config::InterfaceConfig;
use super::device::{copying_layout, sending_queues, wanted_layout};
use super::making::Memory;
use super::metadata;
use super::numa;
use super::shape::PortShape;
use super::socket::allow_in_flight;
use super::socket_spec::SocketSpec;
use super::zero_copy::ZeroCopy;
use crate::device::error::OpenError;
use crate::device::netlink::{Link, rx_queues};
use crate::device::steering::Mode;

/// The least frames and entries of rings.
const FEWEST: u32 = 32;

/// A hardware queue that was made a port for another process, which gets the socket and the memory.
#[derive(Debug)]
pub struct MadeQueue {
    /// The AF_XDP socket, bound to the queue.
    pub socket: OwnedFd,
    /// Its UMEM: a memfd that cannot change its length.
    pub umem: OwnedFd,
    /// The UMEM lies on hugepages.
    pub huge_pages: bool,
    /// The sizes: those of chunks are as the driver needs them.
    pub shape: PortShape,
    /// Whether frames are copied.
    pub zero_copy: ZeroCopy,
}

impl MadeQueue {
    /// Binds a socket to a queue of a device, in the network namespace of this thread: without
    /// copying if the driver can. A queue that is busy is not waited for.
    pub(crate) fn make(
        link: &Link,
        mode: &Mode,
        queue: u32,
        config: &InterfaceConfig,
    ) -> Result<Self, OpenError> {
        let queues = rx_queues(link).min(sending_queues(link));
        if queue >= queues {
            return Err(OpenError::NoSuchQueue {
                netdev: link.name.clone(),
                queue,
                queues,
            });
        }
        let (layout, zero_copy) = match wanted_layout(config, link, mode, None) {
            Ok(layout) => (layout, ZeroCopy::On),
            Err(why) => (copying_layout(config, link.mtu), ZeroCopy::Off(why)),
        };
        let shape = PortShape::new(config, layout, true);
        numa::on_node(numa::node_of(link), || bound(link, queue, shape, zero_copy))
    }

    /// Returns whether a queue has no socket, not even one that the kernel is taking down.
    pub(crate) fn is_free(link: &Link, queue: u32) -> bool {
        let config = InterfaceConfig {
            rx_frames: FEWEST,
            tx_frames: FEWEST,
            tx_ring: FEWEST,
            ..InterfaceConfig::new(&link.name)
        };
        let shape = PortShape::new(&config, copying_layout(&config, link.mtu), true);
        let copies = ZeroCopy::Off("only to see".into());
        let made = bound(link, queue, shape, copies);
        !matches!(made, Err(OpenError::QueueBusy { .. }))
    }
}

/// Opens a socket with a UMEM of its own, and binds it.
fn bound(
    link: &Link,
    queue: u32,
    shape: PortShape,
    zero_copy: ZeroCopy,
) -> Result<MadeQueue, OpenError> {
    let memory = Memory::make(&shape)?;
    let wanted = SocketSpec::of_port(&link.name, queue, zero_copy, &shape);
    let socket = metadata::register(&memory.umem, &wanted, None);
    let socket = socket.map_err(|source| wanted.error(source))?;
    let zero_copy = bind(&socket, &wanted).map_err(|source| wanted.error(source))?;
    allow_in_flight(socket.as_fd(), shape.octets());
    Ok(MadeQueue {
        socket,
        umem: memory.file,
        huge_pages: memory.huge,
        shape,
        zero_copy,
    })
}

/// Binds a socket: without copying if that is wanted and possible, else copying.
fn bind(socket: &OwnedFd, wanted: &SocketSpec<'_>) -> io::Result<ZeroCopy> {
    let attempt = |zero_copy| metadata::bind(socket, wanted, wanted.flags(zero_copy).bits());
    let copy = match &wanted.zero_copy {
        ZeroCopy::Off(_) => wanted.zero_copy.clone(),
        ZeroCopy::On => match attempt(&ZeroCopy::On) {
            Ok(()) => return Ok(ZeroCopy::On),
            // It is as busy for a socket that copies.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(error),
            Err(error) => ZeroCopy::refused(&error),
        },
    };
    attempt(&copy).map(|()| copy)
}
