//! An open interface: AF_XDP sockets of the receive queues of a device, and its steering program.

use std::io;
use std::sync::Arc;

use rnic_core::esp::RequiredPorts;
use tracing::debug;

use crate::device::error::OpenError;
use crate::device::netlink::{Generic, Link, RouteSocket, XdpFeatures, link_by_name};
use crate::device::steering::{SteeringCounters, joins_kernels};
use crate::device::tx_checksum::TxChecksum;

mod busy_poll;
mod children;
mod circulation;
mod config;
mod control;
mod device;
mod granted;
mod making;
mod metadata;
pub(crate) mod numa;
mod on_queue;
mod opening;
mod report;
mod ring;
mod rx;
mod shape;
mod sides;
mod socket;
mod socket_spec;
mod statistics;
mod tx;
mod umem;
mod zero_copy;

pub use busy_poll::BusyPoll;
pub(crate) use busy_poll::deferred;
pub use config::{InterfaceConfig, ZeroCopyChoice};
pub(crate) use control::{
    Control, ControlHandle, FollowedWorker, HostIpsec, Joining, Request, WorkerNotice,
};
pub(crate) use device::OpenDevice;
pub use granted::GrantedPort;
pub use making::MadePort;
pub(crate) use metadata::unbound_socket;
pub use on_queue::MadeQueue;
use opening::Opened;
pub use report::InterfaceReport;
pub use rx::{Frame, RxRing, RxSide};
pub use shape::PortShape;
pub(crate) use socket::OpenSocket;
use socket_spec::Completer;
pub use statistics::{InterfaceStatistics, QueueStatistics};
pub use tx::TxSide;
pub(crate) use umem::largest_mtu_in_one_chunk;
pub use zero_copy::ZeroCopy;
pub(crate) use zero_copy::zero_copy_layout;

/// An open device, or one worker's share of its queues. Dropping the last share detaches the
/// program.
pub struct XdpInterface {
    /// The receive side.
    pub rx: RxSide,
    /// The transmit side.
    pub tx: TxSide,
    /// The number of the share, from 0 on.
    number: usize,
    shared: Arc<Shared>,
}

/// Why a granted port has no steering program to ask.
const NOT_OURS: &str =
    "the steering program is that of the device's manager; `rnic-ctl steering` shows its counters";

/// What all shares of a device have in common.
struct Shared {
    /// Dropped before the device, which it uses.
    control: Control,
    behind: Behind,
}

/// What is behind an open interface.
enum Behind {
    /// A device of which this process has all queues.
    Device(Arc<OpenDevice>),
    /// A port that the manager of the device has granted.
    Grant {
        report: Box<InterfaceReport>,
        statistics: InterfaceStatistics,
        partial_checksums: bool,
        crc_optional: bool,
        required: Option<RequiredPorts>,
    },
}

impl XdpInterface {
    /// Attaches the steering program to a device and opens a socket on each of its receive queues.
    /// Until ports are reserved, all frames go to the kernel as before.
    pub fn open(config: &InterfaceConfig) -> Result<Self, OpenError> {
        let mut shares = Self::open_shares(config, 1)?;
        shares.pop().ok_or(OpenError::TooFewQueues {
            netdev: config.netdev.clone(),
        })
    }

    /// Opens a device in one share for each of `workers`, but no more shares than queues. The
    /// receive queues are distributed over the shares in turn, and each share sends through its
    /// first queue.
    pub fn open_shares(config: &InterfaceConfig, workers: u32) -> Result<Vec<Self>, OpenError> {
        config.check()?;
        if let Some(queue) = config.queue {
            return Err(OpenError::Config {
                field: "queue",
                value: queue.to_string(),
                rule: "single queues of a device are rnicd's to give, and none that shares this device is reached; without it the \
                       whole device is opened",
            });
        }
        let netdev = || config.netdev.clone();
        let mut routes = RouteSocket::open()?;
        let link = link_by_name(&mut routes, &config.netdev)?
            .ok_or_else(|| OpenError::NoSuchDevice { netdev: netdev() })?;
        if !link.is_ethernet {
            return Err(OpenError::NoEthernet { netdev: netdev() });
        }
        if !link.up {
            return Err(OpenError::Down { netdev: netdev() });
        }
        // Sockets are bound by the first name: others can be longer.
        let config = InterfaceConfig {
            netdev: link.name.clone(),
            ..config.clone()
        };
        let completer = completer(config.tx_checksum, &link);
        let shares = Self::open_link(&config, link, workers, completer)?;
        if let Some(share) = shares.first() {
            debug!("opened {}", share.report());
        }
        Ok(shares)
    }

    /// Opens a device that exists and is up.
    fn open_link(
        config: &InterfaceConfig,
        link: Link,
        workers: u32,
        completer: Option<Completer>,
    ) -> Result<Vec<Self>, OpenError> {
        let (device, opened) = OpenDevice::open(config, link, workers, completer)?;
        let device = Arc::new(device);
        let shared = Arc::new(Shared {
            control: control::start(device.clone())?,
            behind: Behind::Device(device),
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

    /// Takes over a port that the manager of a device has granted, with the thread that serves its
    /// worker.
    pub(crate) fn granted(port: GrantedPort, control: Control) -> Self {
        Self {
            rx: RxSide::new(vec![port.rx]),
            tx: port.tx,
            number: 0,
            shared: Arc::new(Shared {
                control,
                behind: Behind::Grant {
                    report: Box::new(port.report),
                    statistics: port.statistics,
                    partial_checksums: port.partial_checksums,
                    crc_optional: port.crc_optional,
                    required: port.required,
                },
            }),
        }
    }

    /// Reports what was opened.
    pub fn report(&self) -> &InterfaceReport {
        match &self.shared.behind {
            Behind::Device(device) => device.report(),
            Behind::Grant { report, .. } => report,
        }
    }

    /// Returns a reader of the counters of each queue of the interface. It works also after the
    /// interface was given to a worker.
    pub fn statistics(&self) -> InterfaceStatistics {
        match &self.shared.behind {
            Behind::Device(device) => device.statistics().clone(),
            Behind::Grant { statistics, .. } => statistics.clone(),
        }
    }

    /// Reads the counters of the steering program. Fails if that is not this process's.
    pub fn steering_counters(&self) -> io::Result<SteeringCounters> {
        let device = self.device();
        let device = device.ok_or_else(|| io::Error::other(NOT_OURS))?;
        device.steering().counters()
    }

    /// Returns the device, if this process has opened it.
    pub(crate) fn device(&self) -> Option<&OpenDevice> {
        match &self.shared.behind {
            Behind::Device(device) => Some(device),
            Behind::Grant { .. } => None,
        }
    }

    /// Returns whether frames may come from a kernel on this host, whose segments can have partial
    /// checksums.
    pub(crate) fn has_partial_checksums(&self) -> bool {
        match &self.shared.behind {
            Behind::Device(device) => joins_kernels(device.link()),
            Behind::Grant {
                partial_checksums, ..
            } => *partial_checksums,
        }
    }

    /// Returns whether every connection has CRCs: where the manager of the device has not granted
    /// that programs may do without. Whoever opens a device for itself is its administrator.
    pub(crate) fn needs_crcs(&self) -> bool {
        match &self.shared.behind {
            Behind::Device(_) => false,
            Behind::Grant { crc_optional, .. } => !crc_optional,
        }
    }

    /// Returns the local ports that speak protected or not at all, if anything is protected here.
    pub(crate) fn required_ports(&self) -> Option<&RequiredPorts> {
        match &self.shared.behind {
            Behind::Device(device) => device.required_ports(),
            Behind::Grant { required, .. } => required.as_ref(),
        }
    }

    /// Returns the thread that makes the calls that may block.
    pub(crate) fn control(&self) -> &ControlHandle {
        self.shared.control.handle()
    }

    /// Returns the number of the share, from 0 on.
    pub(crate) fn number(&self) -> usize {
        self.number
    }
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
