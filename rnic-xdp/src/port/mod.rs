//! A port: AF_XDP sockets of the receive queues of a device, and its steering program.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tracing::debug;

use crate::control::{Control, ControlHandle};
use crate::error::OpenError;
use crate::netlink::{Generic, Link, RouteSocket, XdpFeatures, link_by_name};
use crate::steering::{Mode, ModeChoice, SteeredLinks, SteeredPorts, Steering, SteeringCounters};

mod busy_poll;
mod circulation;
mod metadata;
pub(crate) mod numa;
mod opening;
mod ring;
mod rx;
mod socket;
mod statistics;
mod tx;
mod umem;

pub use busy_poll::BusyPoll;
use busy_poll::Deferral;
pub(crate) use busy_poll::deferred;
use metadata::Completer;
pub use metadata::{TxChecksum, TxOffload};
use opening::{Opened, tx_offload};
pub use rx::{Frame, RxPort, RxSide};
use statistics::Counted;
pub use statistics::{PortStatistics, QueueStatistics};
pub use tx::TxSide;
use umem::FrameLayout;

/// Whether frames may be copied between the device and the UMEM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopyChoice {
    /// Without copying if the driver can.
    #[default]
    Auto,
    /// Always copy.
    Never,
    /// Without copying; opening fails if the driver cannot.
    Require,
}

/// The configuration of a port. All numbers of frames and ring entries are powers of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// The network device.
    pub netdev: String,
    /// Native or generic XDP.
    pub mode: ModeChoice,
    /// With or without copying.
    pub zero_copy: ZeroCopyChoice,
    /// Frames of each receive queue that circulate at first. All of them are used in turn: more of them absorb longer bursts,
    /// fewer stay in cache. If more than half of them are found waiting, their number doubles, up to eight times, until they
    /// were not needed for long. If the MTU needs frames of several chunks, this is a number of chunks.
    pub rx_frames: u32,
    /// Frames to send. Each is held until its octets are acknowledged, so there must be more of them than segments in the
    /// windows of all connections that send at once. The last one freed is used first, so that many do not cost cache. If the
    /// MTU needs frames of several chunks, this is a number of chunks.
    pub tx_frames: u32,
    /// Entries of the transmit ring: the most frames that one system call sends.
    pub tx_ring: u32,
    /// Use hugepages if there are any.
    pub huge_pages: bool,
    /// Poll the device in the worker's system calls instead of using interrupts, if the kernel can ([`PortReport::busy_poll`]
    /// says so). For a worker that never sleeps.
    pub busy_poll: bool,
    /// Use a large MTU in full with frames of several chunks, if the kernel has them (Linux 6.6).
    pub multi_buffer: bool,
    /// What completes the TCP checksums of sent frames. If the MTU needs frames of several chunks, only the engine can.
    pub tx_checksum: TxChecksum,
}

impl PortConfig {
    /// Makes the default configuration for a device.
    pub fn new(netdev: impl Into<String>) -> Self {
        Self {
            netdev: netdev.into(),
            mode: ModeChoice::default(),
            zero_copy: ZeroCopyChoice::default(),
            rx_frames: 512,
            tx_frames: 4096,
            tx_ring: 128,
            huge_pages: true,
            busy_poll: false,
            multi_buffer: true,
            tx_checksum: TxChecksum::Auto,
        }
    }

    fn check(&self) -> Result<(), OpenError> {
        let fields = [
            ("rx_frames", self.rx_frames),
            ("tx_frames", self.tx_frames),
            ("tx_ring", self.tx_ring),
        ];
        let wrong = fields
            .into_iter()
            .find(|(_, value)| !value.is_power_of_two() || *value < 32 || *value > 1 << 20);
        if let Some((field, value)) = wrong {
            return Err(OpenError::Config {
                field,
                value: value.to_string(),
                rule: "a power of two from 32 to 1048576 is needed",
            });
        }
        if self.tx_checksum == TxChecksum::Kernel && self.zero_copy == ZeroCopyChoice::Require {
            return Err(OpenError::Config {
                field: "tx_checksum",
                value: format!("{:?}", self.tx_checksum),
                rule: "the kernel completes checksums on copies that it makes, and none are allowed",
            });
        }
        Ok(())
    }
}

/// What was opened, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// The device.
    pub netdev: String,
    /// XDP mode.
    pub mode: Mode,
    /// Receive queues.
    pub queues: u32,
    /// Workers that share the queues.
    pub workers: u32,
    /// The NUMA node that the frames lie on, if there are several.
    pub numa_node: Option<u32>,
    /// Whether the workers poll instead of using interrupts.
    pub busy_poll: BusyPoll,
    /// Every queue works without copying.
    pub zero_copy: bool,
    /// Whether the TCP checksums of what is sent are completed by the device.
    pub tx_checksum: TxOffload,
    /// Every UMEM lies on hugepages.
    pub huge_pages: bool,
    /// Octets of a chunk of UMEM.
    pub chunk: u32,
    /// Chunks of the longest frame.
    pub chunks: u32,
    /// MTU of the device.
    pub link_mtu: u32,
    /// The largest IP datagram that is sent and received. It is smaller than the device's MTU if that is not used in full.
    pub mtu: u32,
}

impl fmt::Display for PortReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: XDP {}, {}, {} queue{}, UMEM on {}, frames of {}{}, MTU {}",
            self.netdev,
            self.mode,
            if self.zero_copy { "zero-copy" } else { "copy" },
            self.queues,
            if self.queues == 1 { "" } else { "s" },
            if self.huge_pages {
                "hugepages"
            } else {
                "ordinary pages"
            },
            match self.chunks {
                1 => String::new(),
                chunks => format!("{chunks} x "),
            },
            self.chunk,
            self.mtu,
        )?;
        if self.workers > 1 {
            write!(f, ", {} workers", self.workers)?;
        }
        if let Some(node) = self.numa_node {
            write!(f, ", NUMA node {node}")?;
        }
        if self.busy_poll != BusyPoll::Off {
            write!(f, ", busy poll {}", self.busy_poll)?;
        }
        match &self.tx_checksum {
            TxOffload::Off => {}
            TxOffload::On => f.write_str(", TCP checksums by the device")?,
            TxOffload::Refused(why) => write!(f, ", TCP checksums not by the device: {why}")?,
        }
        if self.mtu < self.link_mtu {
            write!(f, " (of {}: without multi-buffer frames)", self.link_mtu)?;
        }
        Ok(())
    }
}

/// An open device, or one worker's share of its queues. Dropping the last share detaches the program.
pub struct XdpPort {
    /// The receive side.
    pub rx: RxSide,
    /// The transmit side.
    pub tx: TxSide,
    /// The number of the share, from 0 on.
    number: usize,
    shared: Arc<Shared>,
}

/// What all shares of a device have in common.
struct Shared {
    /// Dropped before the device, which it uses.
    control: Control,
    device: Arc<OpenDevice>,
}

/// The device itself.
pub(crate) struct OpenDevice {
    /// Dropped first: interrupts come again.
    _deferral: Option<Deferral>,
    steering: Steering,
    counted: Mutex<Vec<Weak<Counted>>>,
    link: Link,
    layout: FrameLayout,
    config: PortConfig,
    report: PortReport,
}

impl XdpPort {
    /// Attaches the steering program to a device and opens a socket on each of its receive queues. Until ports are
    /// reserved, all frames go to the kernel as before.
    pub fn open(config: &PortConfig) -> Result<Self, OpenError> {
        let mut shares = Self::open_shares(config, 1)?;
        shares.pop().ok_or(OpenError::TooFewQueues {
            netdev: config.netdev.clone(),
        })
    }

    /// Opens a device in one share for each of `workers`, but no more shares than queues. The receive queues are distributed
    /// over the shares in turn, and each share sends through its first queue.
    pub fn open_shares(config: &PortConfig, workers: u32) -> Result<Vec<Self>, OpenError> {
        config.check()?;
        let netdev = || config.netdev.clone();
        let mut routes = RouteSocket::open()?;
        let link = link_by_name(&mut routes, &config.netdev)?
            .ok_or_else(|| OpenError::NoSuchDevice { netdev: netdev() })?;
        if !link.up {
            return Err(OpenError::Down { netdev: netdev() });
        }
        let completer = completer(config.tx_checksum, &link);
        let shares = Self::open_link(config, link, workers, completer)?;
        if let Some(share) = shares.first() {
            debug!("opened {}", share.report());
        }
        Ok(shares)
    }

    /// Opens a device that exists and is up.
    fn open_link(
        config: &PortConfig,
        link: Link,
        workers: u32,
        completer: Option<Completer>,
    ) -> Result<Vec<Self>, OpenError> {
        let queues = rx_queues(&link);
        let workers = workers.clamp(1, queues);
        let steering = Steering::attach(&link, config.mode, queues.max(link.rx_queues))?;
        let read = steering.links().read(&mut RouteSocket::open()?)?;
        read.map_err(|source| OpenError::System {
            doing: "tell the steering program the device's MAC address",
            source,
        })?;
        steering.cover(queues)?;
        let mut layout = match config.multi_buffer {
            true => FrameLayout::for_mtu(link.mtu),
            false => FrameLayout::in_one_chunk(link.mtu),
        };

        let mut opened: Vec<_> = (0..workers).map(|_| Opened::default()).collect();
        let numa_node = numa::node_of(&link);
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
        let device = Arc::new(OpenDevice {
            counted: Mutex::new(counted.collect()),
            _deferral: deferral,
            steering,
            link,
            layout,
            config: config.clone(),
            report,
        });
        let shared = Arc::new(Shared {
            control: Control::start(device.clone())?,
            device,
        });
        let share = |(number, share): (usize, Opened)| {
            Some(Self {
                rx: RxSide::new(share.rx),
                tx: share.tx?,
                number,
                shared: shared.clone(),
            })
        };
        Ok(opened.into_iter().enumerate().filter_map(share).collect())
    }

    /// Reports what was opened.
    pub fn report(&self) -> &PortReport {
        &self.shared.device.report
    }

    /// Returns a reader of the counters of each queue of the device. It works also after the port was given to a worker.
    pub fn statistics(&self) -> PortStatistics {
        PortStatistics(Arc::downgrade(&self.shared.device))
    }

    /// Reads the counters of the steering program.
    pub fn steering_counters(&self) -> io::Result<SteeringCounters> {
        self.shared.device.steering.counters()
    }

    pub(crate) fn link(&self) -> &Link {
        &self.shared.device.link
    }

    pub(crate) fn steered_ports(&self) -> SteeredPorts {
        self.shared.device.steering.ports()
    }

    /// Returns the steering program's table of links, for the first share, which keeps it up to date.
    pub(crate) fn links_to_follow(&self) -> Option<SteeredLinks> {
        (self.number == 0).then(|| self.shared.device.steering.links())
    }

    /// Returns the control thread, which makes the calls that may block.
    pub(crate) fn control(&self) -> &ControlHandle {
        self.shared.control.handle()
    }

    /// Returns the number of the share, from 0 on.
    pub(crate) fn number(&self) -> usize {
        self.number
    }
}

impl OpenDevice {
    pub(crate) fn report(&self) -> &PortReport {
        &self.report
    }

    pub(crate) fn link_index(&self) -> u32 {
        self.link.index
    }

    /// Returns the number of receive queues of the device now. It only grows: the kernel does not remove a queue that has a
    /// socket.
    pub(crate) fn queues_now(&self) -> u32 {
        rx_queues(&self.link)
    }

    /// Opens a queue that was added to the device, for its worker. Until then the kernel answers segments on that queue with
    /// RST.
    pub(crate) fn open_queue(&self, queue: u32) -> Result<Vec<RxPort>, OpenError> {
        let mut new = Opened {
            sends: false,
            ..Opened::default()
        };
        let place = (queue, worker_of(queue, self.report.workers));
        numa::on_node(self.report.numa_node, || {
            new.add_queue(&self.config, &self.steering, self.layout, None, place)
        })?;
        let counted = self.counted.lock();
        counted
            .unwrap_or_else(PoisonError::into_inner)
            .extend(new.counted);
        Ok(new.rx)
    }

    /// Makes the steering program run on this many queues.
    pub(crate) fn cover(&self, queues: u32) -> Result<(), OpenError> {
        self.steering.cover(queues)
    }
}

/// Returns the worker that has a receive queue.
pub(crate) fn worker_of(queue: u32, workers: u32) -> usize {
    (queue % workers) as usize
}

/// Returns what completes the checksums of what a device sends, if not the engine.
fn completer(choice: TxChecksum, link: &Link) -> Option<Completer> {
    match choice {
        TxChecksum::Never => None,
        TxChecksum::Device => Some(Completer::DEVICE),
        TxChecksum::Kernel => Some(Completer::KERNEL),
        TxChecksum::Auto => {
            let features = Generic::open().and_then(|mut socket| socket.xdp_features(link.index));
            let offered = features.is_ok_and(XdpFeatures::tx_checksum);
            offered.then_some(Completer::DEVICE)
        }
    }
}

/// Returns the largest MTU that is used in full without frames of several chunks.
pub(crate) fn largest_mtu_in_one_chunk() -> u32 {
    FrameLayout::in_one_chunk(u32::MAX).max_mtu()
}

/// Returns the receive queues in use, as ethtool counts them, or those allocated if the driver does not report it.
fn rx_queues(link: &Link) -> u32 {
    let counted = Generic::open().and_then(|mut socket| socket.channels(link.index));
    match counted {
        Ok(channels) if channels.rx > 0 => channels.rx,
        _ => link.rx_queues.max(1),
    }
}
