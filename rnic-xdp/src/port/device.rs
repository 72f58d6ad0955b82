//! The open device: its queues, the steering program on it, and a record of what was opened.

use super::busy_poll::{self, Deferral};
use super::config::PortConfig;
use super::numa;
use super::opening::{Opened, tx_offload};
use super::report::PortReport;
use super::rx::RxPort;
use super::socket_spec::Completer;
use super::statistics::PortStatistics;
use super::umem::FrameLayout;
use crate::error::OpenError;
use crate::netlink::{Generic, Link, RouteSocket};
use crate::placement::worker_of;
use crate::steering::Steering;

/// A device with the steering program attached. The workers have its sockets.
pub(crate) struct OpenDevice {
    /// Dropped first: interrupts are no longer deferred.
    _deferral: Option<Deferral>,
    steering: Steering,
    statistics: PortStatistics,
    link: Link,
    layout: FrameLayout,
    config: PortConfig,
    report: PortReport,
}

impl OpenDevice {
    /// Opens a device that exists and is up. Returns it with the queues of each worker.
    pub(super) fn open(
        config: &PortConfig,
        link: Link,
        workers: u32,
        completer: Option<Completer>,
    ) -> Result<(Self, Vec<Opened>), OpenError> {
        let queues = rx_queues(&link);
        let workers = workers.clamp(1, queues);
        let steering = attach(config, &link, queues)?;
        let numa_node = numa::node_of(&link);
        let mut layout = match config.multi_buffer {
            true => FrameLayout::for_mtu(link.mtu),
            false => FrameLayout::in_one_chunk(link.mtu),
        };
        let mut opened: Vec<_> = (0..workers).map(|_| Opened::default()).collect();
        for queue in 0..queues {
            let worker = worker_of(queue, workers);
            let share = &mut opened[worker];
            let mut add = |layout| {
                numa::on_node(numa_node, || {
                    share.add_queue(config, &steering, layout, completer, (queue, worker))
                })
            };
            match add(layout) {
                Err(error) if layout.chunks > 1 && queue == 0 && error.is_unsupported() => {
                    layout = FrameLayout::in_one_chunk(link.mtu);
                    add(layout)?;
                }
                other => other?,
            }
        }
        let (busy_poll, deferral) = match config.busy_poll {
            true => busy_poll::begin(&link, &mut opened),
            false => Default::default(),
        };
        let report = PortReport {
            netdev: config.netdev.clone(),
            mode: steering.mode().clone(),
            queues,
            workers,
            numa_node,
            busy_poll,
            zero_copy: opened.iter().all(|share| share.zero_copy),
            tx_checksum: tx_offload(completer, &opened),
            huge_pages: opened.iter().all(|share| share.huge_pages),
            chunk: layout.chunk,
            chunks: layout.chunks,
            link_mtu: link.mtu,
            mtu: link.mtu.min(layout.max_mtu()),
        };
        let counted = opened.iter_mut().flat_map(|share| share.counted.drain(..));
        let device = Self {
            statistics: PortStatistics::new(counted),
            _deferral: deferral,
            steering,
            link,
            layout,
            config: config.clone(),
            report,
        };
        Ok((device, opened))
    }

    pub(super) fn report(&self) -> &PortReport {
        &self.report
    }

    pub(super) fn statistics(&self) -> &PortStatistics {
        &self.statistics
    }

    pub(super) fn steering(&self) -> &Steering {
        &self.steering
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// Returns the number of receive queues of the device now. It only grows: the kernel does not remove a queue that has a
    /// socket.
    pub(super) fn queues_now(&self) -> u32 {
        rx_queues(&self.link)
    }

    /// Opens a queue that was added to the device, for its worker. Until then the kernel answers segments on that queue with
    /// RST.
    pub(super) fn open_queue(&self, queue: u32) -> Result<Vec<RxPort>, OpenError> {
        let mut new = Opened {
            sends: false,
            ..Opened::default()
        };
        let place = (queue, worker_of(queue, self.report.workers));
        numa::on_node(self.report.numa_node, || {
            new.add_queue(&self.config, &self.steering, self.layout, None, place)
        })?;
        self.statistics.add(new.counted);
        Ok(new.rx)
    }

    /// Makes the steering program run on this many queues.
    pub(super) fn cover(&self, queues: u32) -> Result<(), OpenError> {
        self.steering.cover(queues)
    }
}

/// Attaches the steering program, and tells it the MAC addresses and VLANs by which frames are ours.
fn attach(config: &PortConfig, link: &Link, queues: u32) -> Result<Steering, OpenError> {
    let steering = Steering::attach(link, config.mode, queues.max(link.rx_queues))?;
    let read = steering.links().read(&mut RouteSocket::open()?)?;
    read.map_err(|source| OpenError::System {
        doing: "tell the steering program the device's MAC address",
        source,
    })?;
    steering.cover(queues)?;
    Ok(steering)
}

/// Returns the receive queues in use, as ethtool counts them, or those allocated if the driver does not report it.
fn rx_queues(link: &Link) -> u32 {
    let counted = Generic::open().and_then(|mut socket| socket.channels(link.index));
    match counted {
        Ok(channels) if channels.rx > 0 => channels.rx,
        _ => link.rx_queues.max(1),
    }
}
