//! A network device that is shared: what rnicd needs of it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rnic_core::connection::{AddressPair, NextHop};
use rnic_core::time::Instant;
use rnic_core::wire::icmp::{EspTooBig, Report, TooBig};
use rnic_manager::states::{DeviceNews, KernelLink};
use tracing::{debug, info};

use super::host_end::{HostEnd, remove_host_end, stop_host_end};
use super::programs::{ClientPolicy, PoliceCounters, SharedSteering, SharingError};
use super::protection::{SharedProtection, end_given};
use super::queue_ports::{QueuePorts, end_port};
use super::surroundings::Surroundings;
use crate::device::clock::clock;
use crate::device::error::OpenError;
use crate::device::icmp::Icmp;
use crate::device::interface::{MadePort, PortShape};
use crate::device::locals::Locals;
use crate::device::netlink::{Groups, Link, RouteSocket, Socket, link_by_index, link_by_name};
use crate::device::port_mapper::PortMapper;
use crate::device::routes::{LinkState, Routes, Update};
use crate::device::steering::{Mode, ModeChoice, SteeringCounters, joins_kernels};
use crate::device::vlans::Untagged;

/// How often to look for new queues of a veth, which does not announce them.
const QUEUES_EVERY: Duration = Duration::from_secs(1);

/// What happened to a device or to a port of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The next hop of a path that is followed; `None`: the peer is unreachable.
    NextHop(AddressPair, Option<NextHop>),
    /// Whether the device can send.
    Link(LinkState),
    /// The local addresses whose frames arrive without a tag are others now.
    Untagged,
    /// A router reported that a segment was too big.
    TooBig(TooBig),
    /// A router reported that a packet was too big that this port has sealed.
    ProtectedTooBig(u32, EspTooBig),
    /// What protects a port is another thing now.
    Protection(u32),
    /// Something else of the device has changed.
    News(DeviceNews),
    /// Nobody has the socket of this port any more. Its leases are gone.
    PortEnded(u32),
}

/// A device that is shared.
pub struct SharedDevice {
    pub(super) link: Link,
    pub(super) steering: SharedSteering,
    pub(super) locals: Locals,
    routes: Routes,
    icmp: Icmp,
    pub(super) requests: RouteSocket,
    pub(super) mapper: PortMapper,
    changes: Socket,
    /// The number of the port whose host end has this index.
    pub(super) ports: HashMap<u32, u32>,
    /// Those that have no host end.
    pub(super) queue_ports: QueuePorts,
    /// The device has taken no rule that brings segments to a queue, and is not asked again.
    pub(super) takes_no_rules: bool,
    pub(super) events: VecDeque<DeviceEvent>,
    has_partial_checksums: bool,
    /// When to look for new queues, if the device has to be looked at.
    queues_at: Option<Instant>,
    /// When to look whether the device runs the steering program.
    pub(super) program_at: Instant,
    /// Why it does not, if it does not.
    pub(super) fault: Option<String>,
    /// What the programs must know of this host.
    pub(super) surroundings: Surroundings,
    /// The host's associations for clients, if they may have any.
    pub(super) protection: Option<SharedProtection>,
}

impl SharedDevice {
    /// Opens a device, in the network namespace of this thread, and shares it from now on. Takes
    /// over what a former process left under `pins`: ports and leases go on. With `ipsec_if_id`,
    /// clients have associations of the host with this number, once it was said [which
    /// ports](Self::may_protect_all) may.
    pub fn open(
        netdev: &str,
        mode: ModeChoice,
        ipsec_if_id: Option<NonZeroU32>,
        pins: &Path,
    ) -> Result<Self, OpenError> {
        let mut requests = RouteSocket::open()?;
        let name = || netdev.to_string();
        let link = link_by_name(&mut requests, netdev)?;
        let link = link.ok_or_else(|| OpenError::NoSuchDevice { netdev: name() })?;
        // An alternative name is as good: it is the one that clients and administrators know.
        let link = Link {
            name: name(),
            ..link
        };
        if !link.up {
            return Err(OpenError::Down { netdev: name() });
        }
        let failed = |source| OpenError::System {
            doing: "follow the network devices of this host",
            source,
        };
        // Changes are followed before anything is read, so that none is missed.
        let changes = Socket::open(None, Groups::ALL).map_err(failed)?;
        let steering = SharedSteering::open_for(netdev, mode, pins, ipsec_if_id.is_some())?;
        let protection = ipsec_if_id.map(|if_id| SharedProtection::open(netdev, if_id, &steering));
        let protection = protection.transpose()?;
        if protection.is_none() {
            end_given(&steering).map_err(sharing)?;
        }
        let mut locals = Locals::new(&link, u32::MAX)?;
        locals.ipsec_if_id = ipsec_if_id;
        let clients = steering.clients().map_err(sharing)?.into_iter();
        let mut device = Self {
            // What the device has is the bound for routes, whatever it was when ports were made.
            locals,
            protection,
            routes: Routes::open(&link, u32::MAX, Some(steering.links()))?,
            icmp: Icmp::open()?,
            mapper: PortMapper::new(&link, true)?,
            requests,
            changes,
            ports: clients
                .map(|client| (client.ifindex, client.port))
                .collect(),
            queue_ports: QueuePorts::default(),
            takes_no_rules: false,
            queues_at: steering.forgets_queues().then_some(Instant::ZERO),
            program_at: Instant::ZERO,
            fault: None,
            surroundings: Surroundings::default(),
            has_partial_checksums: joins_kernels(&link),
            steering,
            link,
            events: VecDeque::new(),
        };
        device.read_again();
        Ok(device)
    }

    /// Sets the range from which a TCP port is chosen for a lease of any port. Without it the
    /// kernel chooses.
    pub fn set_automatic_ports(&mut self, range: RangeInclusive<u16>) {
        self.locals.automatic = Some(range);
    }

    /// Stops sharing the device: removes its programs, maps and ports. The host ends of the ports
    /// stay as long as somebody has their sockets. The programs go last: drivers do not bear that a
    /// queue with a socket loses its program. If the processes that have such a queue cannot be
    /// ended, they and the maps stay.
    pub fn close(mut self) -> Result<(), SharingError> {
        if self.link_state() != LinkState::Gone {
            self.end_queue_ports()?;
        }
        let ended = end_given(&self.steering);
        let closed = self.steering.close();
        let closed = closed.and(ended);
        for &host_end in self.ports.keys() {
            stop_host_end(&mut self.requests, host_end);
        }
        closed
    }

    /// Returns its name.
    pub fn netdev(&self) -> &str {
        &self.link.name
    }

    /// Returns its MTU, which ports get that are made now.
    pub fn mtu(&self) -> u32 {
        self.link.mtu
    }

    /// Returns the XDP mode of the steering program.
    pub fn mode(&self) -> &Mode {
        self.steering.mode()
    }

    /// Returns whether frames may come from a kernel on this host, whose segments can have partial
    /// checksums.
    pub fn has_partial_checksums(&self) -> bool {
        self.has_partial_checksums
    }

    /// Returns whether it can send.
    pub fn link_state(&self) -> LinkState {
        self.routes.link_state()
    }

    /// Returns the local addresses whose frames arrive without the tag of their VLAN.
    pub fn untagged(&self) -> &Untagged {
        self.routes.untagged()
    }

    /// Returns the numbers of the ports that exist.
    pub fn ports(&self) -> impl Iterator<Item = u32> {
        self.ports.values().copied()
    }

    /// Returns the host end of a port that exists, or that was [retired](Self::retire_port) by a
    /// former process.
    pub fn host_end_of(&mut self, number: u32) -> Result<Option<HostEnd>, OpenError> {
        let name = self.host_end(number);
        let link = link_by_name(&mut self.requests, &name)?;
        Ok(link.map(|link| HostEnd {
            ifindex: link.index,
            name,
        }))
    }

    /// Returns what ports have leased.
    pub fn leases(&self) -> Vec<(u32, SocketAddr)> {
        let leases = self.steering.leases();
        let mut leases: Vec<_> = leases
            .into_iter()
            .map(|(port, entry)| (port, entry.local))
            .collect();
        leases.sort_unstable();
        leases.dedup();
        leases
    }

    /// Returns the name of the host end of a port.
    pub(super) fn host_end(&self, number: u32) -> String {
        format!("rnic{}-{number}", self.link.index)
    }

    /// Makes a port with this number, and lets its client send what the policy allows.
    pub fn make_port(
        &mut self,
        number: u32,
        shape: &PortShape,
        policy: &ClientPolicy,
    ) -> Result<MadePort, OpenError> {
        let name = self.host_end(number);
        // That of a port which was taken from its client by an rnicd that ended before it had
        // removed it.
        if let Some(stale) = link_by_name(&mut self.requests, &name)? {
            remove_host_end(&mut self.requests, stale.index);
        }
        let made = MadePort::make(&name, self.link.mtu, shape, |client_end, socket| {
            SharedSteering::attach_port(client_end, &socket).map_err(sharing)
        })?;
        // If one of these fails, the veth pair ends with the socket.
        self.steering
            .attach_police(made.host_end)
            .map_err(sharing)?;
        let added = self.steering.add_client(number, made.host_end, policy);
        added.map_err(sharing)?;
        self.ports.insert(made.host_end, number);
        self.note_ports();
        Ok(made)
    }

    /// Revokes a client's port: nothing is sent or received there any more when this returns. For a
    /// hardware queue, this ends the client's processes, and waits for that. Otherwise the client
    /// may still have the socket; then this returns the host end, which stays as long as the
    /// socket.
    pub fn retire_port(&mut self, number: u32) -> Result<Option<HostEnd>, SharingError> {
        if let Some(port) = self.queue_ports.get(number) {
            end_port(&self.link, &mut self.steering, number, port)?;
            self.queue_ports.remove(number);
            self.end_protection(number);
            return Ok(None);
        }
        let end = self.host_end_of(number).map_err(SharingError::Open)?;
        self.steering.remove_client(number)?;
        self.ports.retain(|_, port| *port != number);
        self.end_protection(number);
        if let Some(end) = &end {
            stop_host_end(&mut self.requests, end.ifindex);
        }
        Ok(end)
    }

    /// Removes a port that no client has got, or of which nothing is known.
    pub fn remove_port(&mut self, number: u32) -> Result<(), SharingError> {
        self.steering.remove_client(number)?;
        let requests = &mut self.requests;
        self.ports.retain(|host_end, port| {
            let stays = *port != number;
            if !stays {
                remove_host_end(requests, *host_end);
            }
            stays
        });
        self.end_protection(number);
        Ok(())
    }

    /// Returns what the kernel says of the device now. It is `None` if the device is gone.
    pub fn kernel_link(&mut self) -> Result<Option<KernelLink>, OpenError> {
        let link = link_by_index(&mut self.requests, self.link.index)?;
        Ok(link.map(kernel_link))
    }

    /// Returns what the kernel says of the host end of a port now. It is `None` if the port is
    /// gone.
    pub fn kernel_host_end(&mut self, number: u32) -> Result<Option<KernelLink>, OpenError> {
        let name = self.host_end(number);
        let link = link_by_name(&mut self.requests, &name)?;
        Ok(link.map(kernel_link))
    }

    /// Returns what became of the frames that the device received.
    pub fn steering_counters(&self) -> Result<SteeringCounters, SharingError> {
        self.steering.steering_counters()
    }

    /// Returns what became of the frames that the client of a port sent.
    pub fn port_counters(&self, number: u32) -> Result<PoliceCounters, SharingError> {
        self.steering.counters(number)
    }

    /// Returns whether an address is one of this device.
    pub fn is_of_this_host(&self, address: IpAddr) -> bool {
        let at_any_port = SocketAddr::new(address, 0);
        address.is_loopback()
            || (!address.is_unspecified() && self.locals.vlans_of(at_any_port).is_ok())
    }

    /// Reports the next hop of a path, and each of its changes. Without a local address it is that
    /// of the route.
    pub fn follow(&mut self, path: AddressPair) {
        let destination = path.remote;
        if !self.is_of_this_host(destination) {
            return self.routes.request(path);
        }
        // A loopback address is in none.
        let vlans = self.locals.vlans_of(SocketAddr::new(destination, 0));
        let vlan = vlans.ok().and_then(|vlans| vlans.last().copied());
        let hop = NextHop {
            source_mac: self.link.mac,
            destination_mac: self.link.mac,
            vlan: vlan.filter(|vlan| *vlan != 0),
            mtu: self.link.mtu.try_into().unwrap_or(u16::MAX),
            advertised_mss: None,
        };
        self.events.push_back(DeviceEvent::NextHop(path, Some(hop)));
    }

    /// Reports no more of a path.
    pub fn forget(&mut self, path: AddressPair) {
        self.routes.forget(path);
    }

    /// Handles what the kernel has reported.
    pub fn poll(&mut self) {
        let now = Instant::from_nanos(clock());
        self.routes.poll(now);
        self.follow_queues(now);
        self.follow_program(now);
        self.look_for_queue_ports(now);
        self.expire_surroundings(now);
        match self.changes.notifications() {
            Ok(Some(messages)) => self.handle_changes(&messages),
            // Some were lost.
            Ok(None) | Err(_) => self.read_again(),
        }
        if let Some(state) = self.routes.poll_device() {
            self.events.push_back(DeviceEvent::Link(state));
        }
        if self.routes.poll_untagged().is_some() {
            self.events.push_back(DeviceEvent::Untagged);
        }
        while let Some(update) = self.routes.poll_update() {
            let (path, hop) = match update {
                Update::Set(path, hop) => (path, Some(hop)),
                Update::Unreachable(path) => (path, None),
            };
            let event = DeviceEvent::NextHop(path, hop);
            self.events.push_back(event);
        }
        self.mapper.poll();
        let (events, protection) = (&mut self.events, &self.protection);
        self.icmp.poll(|report| match report {
            Report::Segment(too_big) => events.push_back(DeviceEvent::TooBig(too_big)),
            Report::Protected(too_big) => {
                let sender = protection.as_ref().and_then(|all| all.sender_of(&too_big));
                events.extend(sender.map(|port| DeviceEvent::ProtectedTooBig(port, too_big)));
            }
        });
        self.follow_protection(now);
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.events.pop_front()
    }

    /// Returns how long [`poll`](Self::poll) can wait if no descriptor is readable: not at all if
    /// there are events, as after [`follow`](Self::follow) of an address of this host.
    pub fn timeout(&self) -> Option<Duration> {
        let protection = self.protection.as_ref();
        if !self.events.is_empty() || protection.is_some_and(SharedProtection::is_due) {
            return Some(Duration::ZERO);
        }
        let now = Instant::from_nanos(clock());
        let looks = self.queue_ports.look_at();
        let timers = [
            self.routes.next_timeout(),
            self.queues_at,
            Some(self.program_at),
            looks,
            self.surroundings.next_timeout(),
            protection.map(SharedProtection::next_timeout),
        ];
        let timers = timers.into_iter().flatten().map(|at| at.since(now));
        timers.chain(self.mapper.timeout()).min()
    }

    /// Returns what to wait on.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [
            self.routes.as_fd(),
            self.changes.as_fd(),
            self.mapper.as_fd(),
        ]
        .into_iter()
        .chain(self.icmp.fds())
        .chain(self.protection.as_ref().map(AsFd::as_fd))
    }

    /// Looks whether the device has got queues on which it does not run the steering program.
    fn follow_queues(&mut self, now: Instant) {
        if self.queues_at.is_none_or(|at| now < at) {
            return;
        }
        self.queues_at = Some(now + QUEUES_EVERY);
        let netdev = &self.link.name;
        match self.steering.cover() {
            Ok(Some(queues)) => {
                info!("{netdev} has {queues} receive queues now, and is steered on all")
            }
            Ok(None) => {}
            // It is tried again.
            Err(error) => debug!("{netdev} is not steered on its new queues: {error}"),
        }
    }
}

pub(super) fn sharing(error: SharingError) -> OpenError {
    match error {
        SharingError::Open(error) => error,
        error => OpenError::System {
            doing: "share a device",
            source: io::Error::other(error.to_string()),
        },
    }
}

fn kernel_link(link: Link) -> KernelLink {
    let counted = link.statistics;
    KernelLink {
        name: link.name,
        ifindex: link.index,
        up: link.up,
        mtu: link.mtu,
        program: link.xdp.map(|xdp| xdp.program),
        xdp: link.xdp.map(|xdp| xdp.attachment.words().0.to_owned()),
        rx_packets: counted.rx_packets,
        rx_octets: counted.rx_octets,
        rx_dropped: counted.rx_dropped,
        tx_packets: counted.tx_packets,
        tx_octets: counted.tx_octets,
        tx_dropped: counted.tx_dropped,
    }
}
