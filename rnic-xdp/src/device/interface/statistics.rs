//! The counters of each queue, of the kernel and of the worker.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::libc::{self, socklen_t, xdp_statistics};
use rnic_manager::PrivateFd;

/// The counters of a receive queue since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStatistics {
    /// The queue.
    pub queue: u32,
    /// Its worker.
    pub worker: usize,
    /// Frames that the worker took.
    pub frames_received: u64,
    /// Frames lost because the receive ring was full.
    pub rx_ring_full: u64,
    /// Times that the device found no free frame to receive into.
    pub fill_ring_empty: u64,
    /// Frames dropped because no frame was free or they are too long.
    pub rx_dropped: u64,
    /// Addresses that the kernel did not accept as those of free frames. It should be none.
    pub rx_invalid_descriptors: u64,
    /// Frames to be sent that the kernel did not accept. It should be none.
    pub tx_invalid_descriptors: u64,
}

impl QueueStatistics {
    /// Returns each counter with its name.
    pub fn entries(&self) -> [(&'static str, u64); 6] {
        [
            ("frames_received", self.frames_received),
            ("rx_ring_full", self.rx_ring_full),
            ("fill_ring_empty", self.fill_ring_empty),
            ("rx_dropped", self.rx_dropped),
            ("rx_invalid_descriptors", self.rx_invalid_descriptors),
            ("tx_invalid_descriptors", self.tx_invalid_descriptors),
        ]
    }
}

/// Reads the counters of each queue of a device, from any thread, as long as the device is open.
#[derive(Clone, Debug)]
pub struct InterfaceStatistics(Arc<Mutex<Vec<Weak<Counted>>>>);

impl InterfaceStatistics {
    /// Makes a reader of these queues.
    pub(super) fn new(queues: impl Iterator<Item = Weak<Counted>>) -> Self {
        Self(Arc::new(Mutex::new(queues.collect())))
    }

    /// Adds queues, also to what the clones read.
    pub(super) fn add(&self, queues: Vec<Weak<Counted>>) {
        self.queues().extend(queues);
    }

    /// Returns the counters of each open queue, in order.
    pub fn read(&self) -> io::Result<Vec<QueueStatistics>> {
        let counted = self.queues();
        let open = counted.iter().filter_map(Weak::upgrade);
        let read: io::Result<Vec<_>> = open.map(|queue| queue.read()).collect();
        let mut queues = read?;
        queues.sort_by_key(|queue| queue.queue);
        Ok(queues)
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Weak<Counted>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue and its counters. It ends with the receive side of the queue: this handle of the socket
/// keeps the queue bound, and must not outlive what empties its ring.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) queue: u32,
    pub(super) worker: usize,
    pub(super) socket: PrivateFd,
    pub(super) received: AtomicU64,
    /// Frames of several chunks on a socket that takes frames of one.
    pub(super) dropped: AtomicU64,
}

impl Counted {
    /// Begins to count for a queue and its worker.
    pub(super) fn new(queue: u32, worker: usize, socket: OwnedFd) -> Self {
        Self {
            queue,
            worker,
            socket: socket.into(),
            received: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    fn read(&self) -> io::Result<QueueStatistics> {
        let kernel = of_socket(&self.socket)?;
        Ok(QueueStatistics {
            queue: self.queue,
            worker: self.worker,
            frames_received: self.received.load(Ordering::Relaxed),
            rx_ring_full: kernel.rx_ring_full,
            fill_ring_empty: kernel.rx_fill_ring_empty_descs,
            rx_dropped: kernel.rx_dropped + self.dropped.load(Ordering::Relaxed),
            rx_invalid_descriptors: kernel.rx_invalid_descs,
            tx_invalid_descriptors: kernel.tx_invalid_descs,
        })
    }
}

/// Reads the kernel's counters. Kernels before 5.9 have fewer, and leave zeroes.
fn of_socket(socket: &PrivateFd) -> io::Result<xdp_statistics> {
    // SAFETY: zeroes are a valid value of this structure of integers.
    let mut statistics: xdp_statistics = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&statistics) as socklen_t;
    // SAFETY: the kernel writes no more than `len` octets to `statistics`, and how many those are
    // to `len`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_STATISTICS,
            (&raw mut statistics).cast(),
            &raw mut len,
        )
    };
    match result {
        0 => Ok(statistics),
        _ => Err(io::Error::last_os_error()),
    }
}
