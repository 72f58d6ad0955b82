//! The open device: its queues, the steering program on it, and a record of what was opened.

use std::collections::BTreeSet;

use rnic_core::esp::RequiredPorts;

use super::busy_poll::{self, Deferral};
use super::config::{InterfaceConfig, ZeroCopyChoice};
use super::numa;
use super::opening::{Opened, tx_offload};
use super::report::InterfaceReport;
use super::rx::RxRing;
use super::socket_spec::Completer;
use super::statistics::InterfaceStatistics;
use super::umem::FrameLayout;
use super::zero_copy::{ZeroCopy, zero_copy_layout};
use crate::device::drivers::Driver;
use crate::device::error::OpenError;
use crate::device::netlink::{Generic, Link, RouteSocket, addresses, rx_queues};
use crate::device::protection::{HostProtection, Own};
use crate::device::queue_choice::worker_of;
use crate::device::steering::{Mode, Steering};

/// A device with the steering program attached. The workers have its sockets.
pub(crate) struct OpenDevice {
    /// Dropped first: interrupts are no longer deferred.
    _deferral: Option<Deferral>,
    steering: Steering,
    statistics: InterfaceStatistics,
    link: Link,
    layout: FrameLayout,
    config: InterfaceConfig,
    report: InterfaceReport,
    /// The ports that speak protected or not at all, if anything is protected here.
    required: Option<RequiredPorts>,
}

impl OpenDevice {
    /// Opens a device that exists and is up. Returns it with the queues of each worker.
    pub(super) fn open(
        config: &InterfaceConfig,
        link: Link,
        workers: u32,
        completer: Option<Completer>,
    ) -> Result<(Self, Vec<Opened>), OpenError> {
        let queues_before = rx_queues(&link);
        let steering = attach(config, &link, queues_before)?;
        // Some drivers add queues for XDP's own use, and receive on them too.
        let queues = rx_queues(&link);
        steering.cover(queues)?;
        // Each worker sends on its first queue: what is added receives only.
        let workers = workers.clamp(1, sending_queues(&link).clamp(1, queues_before));
        let numa_node = numa::node_of(&link);
        let wanted = match queues > queues_before && steering.mode() == &Mode::Native {
            true => Err(added_queues(&link, queues_before, queues)),
            false => wanted_layout(config, &link, steering.mode(), completer),
        };
        let (mut layout, zero_copy) = match wanted {
            Ok(layout) => (layout, ZeroCopy::On),
            Err(why) => (copying_layout(config, link.mtu), ZeroCopy::Off(why)),
        };
        let mut opened: Vec<_> = (0..workers).map(|_| Opened::default()).collect();
        for queue in 0..queues {
            let worker = worker_of(queue, workers);
            let share = &mut opened[worker];
            let mut add = |layout| {
                numa::on_node(numa_node, || {
                    let frames = (layout, &zero_copy);
                    share.add_queue(config, &steering, frames, completer, (queue, worker))
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
        let report = InterfaceReport {
            netdev: config.netdev.clone(),
            mode: steering.mode().clone(),
            queues,
            queue: None,
            workers,
            numa_node,
            busy_poll,
            zero_copy: of_all(&opened),
            tx_checksum: tx_offload(completer, &opened),
            huge_pages: opened.iter().all(|share| share.huge_pages),
            chunk: layout.chunk,
            chunks: layout.chunks,
            link_mtu: link.mtu,
            mtu: link.mtu.min(layout.max_mtu()),
            ignored: Vec::new(),
        };
        let counted = opened.iter_mut().flat_map(|share| share.counted.drain(..));
        let device = Self {
            statistics: InterfaceStatistics::new(counted),
            _deferral: deferral,
            steering,
            link,
            layout,
            config: config.clone(),
            report,
            required: config.ipsec_if_id.map(|_| match config.require_protection {
                true => RequiredPorts::all(),
                false => RequiredPorts::none(),
            }),
        };
        Ok((device, opened))
    }

    pub(super) fn report(&self) -> &InterfaceReport {
        &self.report
    }

    pub(super) fn statistics(&self) -> &InterfaceStatistics {
        &self.statistics
    }

    pub(crate) fn steering(&self) -> &Steering {
        &self.steering
    }

    /// Returns the ports that speak protected or not at all, if its frames are protected where
    /// policies demand it.
    pub(crate) fn required_ports(&self) -> Option<&RequiredPorts> {
        self.required.as_ref()
    }

    /// Returns what protects its frames, if that is wanted.
    pub(crate) fn protection(&self) -> Result<Option<HostProtection<Own>>, OpenError> {
        let Some(if_id) = self.config.ipsec_if_id else {
            return Ok(None);
        };
        HostProtection::open_own(&self.link, if_id, &self.steering, self.report.workers).map(Some)
    }

    pub(crate) fn config(&self) -> &InterfaceConfig {
        &self.config
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Returns the number of receive queues of the device now. It only grows: the kernel does not
    /// remove a queue that has a socket.
    pub(super) fn queues_now(&self) -> u32 {
        rx_queues(&self.link)
    }

    /// Opens a queue that was added to the device, for its worker. Until then the kernel answers
    /// segments on that queue with RST.
    pub(super) fn open_queue(&self, queue: u32) -> Result<Vec<RxRing>, OpenError> {
        let mut new = Opened {
            sends: false,
            ..Opened::default()
        };
        let place = (queue, worker_of(queue, self.report.workers));
        numa::on_node(self.report.numa_node, || {
            let frames = (self.layout, &self.report.zero_copy);
            new.add_queue(&self.config, &self.steering, frames, None, place)
        })?;
        self.statistics.add(new.counted);
        Ok(new.rx)
    }

    /// Makes the steering program run on this many queues.
    pub(super) fn cover(&self, queues: u32) -> Result<(), OpenError> {
        self.steering.cover(queues)
    }
}

/// Attaches the steering program, and tells it the MAC addresses, VLANs and addresses by which
/// frames are ours.
fn attach(config: &InterfaceConfig, link: &Link, queues: u32) -> Result<Steering, OpenError> {
    let queues = queues.max(link.rx_queues);
    let esp = config.ipsec_if_id.is_some();
    let steering = Steering::attach(link, config.mode, queues, esp)?;
    let failed = |doing| move |source| OpenError::System { doing, source };
    let (links, mut socket) = (steering.links(), RouteSocket::open()?);
    let read = links.read(&mut socket)?;
    read.map_err(failed("tell the steering program the device's MAC address"))?;
    // Those of the device are looked for most. From here on the control thread follows them.
    let own: BTreeSet<_> = addresses(&mut socket)?
        .into_iter()
        .filter(|own| !own.address.is_loopback())
        .map(|own| (own.index != link.index, own.address))
        .collect();
    let own: Vec<_> = own.into_iter().map(|(_, address)| address).collect();
    let told = links.set_locals(&own);
    told.map_err(failed("tell the steering program the host's addresses"))?;
    Ok(steering)
}

/// Returns the layout in which frames are not copied, or why they are.
pub(super) fn wanted_layout(
    config: &InterfaceConfig,
    link: &Link,
    mode: &Mode,
    completer: Option<Completer>,
) -> Result<FrameLayout, String> {
    if config.zero_copy == ZeroCopyChoice::Never {
        return Err("as configured".to_string());
    }
    if mode != &Mode::Native {
        return Err("generic XDP always copies".to_string());
    }
    if completer == Some(Completer::KERNEL) {
        return Err("the kernel completes checksums on copies that it makes".to_string());
    }
    let features = Generic::open().and_then(|mut socket| socket.xdp_features(link.index));
    let features = features.map_err(|error| error.to_string())?;
    zero_copy_layout(Driver::of(link), features, link.mtu, config.multi_buffer)
}

pub(super) fn copying_layout(config: &InterfaceConfig, mtu: u32) -> FrameLayout {
    match config.multi_buffer {
        true => FrameLayout::for_mtu(mtu),
        false => FrameLayout::in_one_chunk(mtu),
    }
}

/// Explains why a device copies frames that has got queues by attaching the program. It loses them
/// when the program goes. Where a process is killed, the program goes before its sockets, and
/// kernels continue to use the memory of sockets without a queue.
fn added_queues(link: &Link, before: u32, now: u32) -> String {
    format!(
        "its driver adds queues for XDP ({before} to {now}) and takes them from zero-copy sockets again; \
         without spare queues it does not: ethtool -L {} combined {}",
        link.name, link.rx_queues
    )
}

/// Returns whether no queue of any share copies.
fn of_all(opened: &[Opened]) -> ZeroCopy {
    let copying = opened.iter().map(|share| &share.zero_copy);
    let mut copying = copying.filter(|zero_copy| **zero_copy != ZeroCopy::On);
    copying.next().cloned().unwrap_or(ZeroCopy::On)
}

/// Returns the transmit queues in use: a socket on a queue beyond them sends nothing, and no error
/// tells.
pub(super) fn sending_queues(link: &Link) -> u32 {
    let counted = Generic::open().and_then(|mut socket| socket.channels(link.index));
    match counted {
        Ok(channels) if channels.tx > 0 => channels.tx,
        _ => link.tx_queues,
    }
}
