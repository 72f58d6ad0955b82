//! A device that many clients share: its programs, and their maps of clients and leases.
//!
//! A client has a *port*: a veth pair, whose one end lies beside the device and whose other end is
//! the client's. The steering program on the device sends the segments for a lease (a local address
//! and TCP port) to the client that has it. A program on the host's end of each pair sends out what
//! this client may send, and a third one on the client's end puts all into its AF_XDP socket. The
//! programs are attached over netlink and the maps are pinned, so all goes on without this process.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use aya::maps::{MapData, PerCpuArray, XskMap};
use libbpf_rs::skel::SkelBuilder;
use rnic_core::engine::{Peers, Prefix};
use rnic_core::wire::ethernet::MacAddr;

use crate::device::error::OpenError;
use crate::device::netlink::{
    AttachedXdp, Link, RouteSocket, link_by_index, link_by_name, links, rx_queues,
};
use crate::device::steering::{
    Entry, Maps, Mode, ModeChoice, SteeredAssociations, SteeredLinks, SteeredPorts,
    SteeringCounters, io_error, load, occupied, protected_recipient, read_counters, recipient,
    refused,
};

mod addresses;
mod attachment;
mod clients;
mod counters;
mod error;
mod layout;
mod opening;
mod pins;
pub mod police_skeleton;
mod policy;
pub mod port_skeleton;
mod queues;

use addresses::Addresses;
use attachment::{attach, is_ours, replace};
use clients::Clients;
pub use clients::SharedClient;
pub use counters::{Count, PoliceCounters};
pub use error::SharingError;
use opening::{NIC, Opened, attach_again, detach, open, steer_again};
pub use pins::LAYOUT;
use pins::Pins;
pub use policy::{ClientPeers, ClientPolicy};
use port_skeleton::PortSkelBuilder;
use queues::Queues;

/// A device that many clients share. Dropping it leaves everything in place;
/// [`SharedSteering::close`] ends it. All methods but [`SharedSteering::attach_port`] must be
/// called in the network namespace of the device.
pub struct SharedSteering {
    link: Link,
    mode: Mode,
    pins: Pins,
    /// Clients may have associations of ESP.
    esp: bool,
    maps: Maps,
    /// The program for the host's ends.
    police: OwnedFd,
    links: SteeredLinks,
    ports: SteeredPorts,
    clients: Clients,
    queues: Queues,
    addresses: Addresses,
    counters: PerCpuArray<MapData, u64>,
    /// The number of queues on which a veth runs the steering program; any other device runs it on
    /// all.
    covered: Option<u32>,
    /// The id of the attached program, once it was found to be ours.
    program: Option<u32>,
}

/// What a look at the attached program has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// It is the steering program.
    Attached,
    /// There was none, and now it is the steering program.
    AttachedAgain,
}

impl std::fmt::Debug for SharedSteering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let netdev = &self.link.name;
        f.debug_struct("SharedSteering")
            .field("netdev", netdev)
            .finish_non_exhaustive()
    }
}

impl SharedSteering {
    /// Loads the programs, attaches the steering program to a device, and pins all under a
    /// directory of the BPF file system that is this device's alone. If a former process did so,
    /// its maps go on: clients, leases and counters are there, and the programs are replaced by
    /// those of this process, without losing a frame.
    ///
    /// It follows the MAC addresses and VLANs of the device from [`SharedSteering::read_links`] on
    /// only.
    pub fn open(netdev: &str, choice: ModeChoice, pins: &Path) -> Result<Self, OpenError> {
        Self::open_for(netdev, choice, pins, false)
    }

    /// The same, where clients may have associations of ESP if `esp` says so.
    pub(crate) fn open_for(
        netdev: &str,
        choice: ModeChoice,
        pins: &Path,
        esp: bool,
    ) -> Result<Self, OpenError> {
        let absent = || OpenError::NoSuchDevice {
            netdev: netdev.to_string(),
        };
        let link = link_by_name(&mut RouteSocket::open()?, netdev)?.ok_or_else(absent)?;
        let pins = Pins::at(netdev, pins)?;
        let opened = open(&link, choice, &pins, esp)?;
        Self::keep(link, (pins, esp), opened).map_err(|source| OpenError::System {
            doing: "keep the maps of a shared device",
            source,
        })
    }

    fn keep(link: Link, (pins, esp): (Pins, bool), opened: Opened) -> io::Result<Self> {
        let Opened {
            maps,
            police,
            mode,
            links,
            clients,
        } = opened;
        let forgets_queues = mode == Mode::Native && link.kind.as_deref() == Some("veth");
        Ok(Self {
            covered: forgets_queues.then(|| rx_queues(&link)),
            link,
            mode,
            pins,
            esp,
            police,
            links,
            clients,
            queues: Queues::new(&maps)?,
            ports: SteeredPorts::new(&maps)?,
            addresses: Addresses::new(&maps)?,
            counters: maps.get("steer_counters")?,
            maps,
            program: None,
        })
    }

    /// Returns whether the device runs the program only on the queues that it had when the program
    /// was attached, so that somebody has to [`cover`](Self::cover) those that are added.
    pub(crate) fn forgets_queues(&self) -> bool {
        self.covered.is_some()
    }

    /// Makes the steering program run on queues that were added to the device. Returns their
    /// number, if there are more than before.
    pub(crate) fn cover(&mut self) -> Result<Option<u32>, OpenError> {
        let queues = rx_queues(&self.link);
        let Some(covered) = self.covered.filter(|covered| *covered != queues) else {
            return Ok(None);
        };
        if covered < queues {
            steer_again(&self.link, queues, &self.maps, (&self.pins, self.esp))?;
        }
        self.covered = Some(queues);
        Ok((covered < queues).then_some(queues))
    }

    /// Returns whether an attached program is known to be the steering program.
    pub(crate) fn is_ours(&self, attached: Option<AttachedXdp>) -> bool {
        attached.is_some_and(|attached| Some(attached.program) == self.program)
    }

    /// Looks whether the device, which is this now, runs the steering program, and attaches that
    /// again if it runs none. Fails if it runs another.
    pub(crate) fn look(&mut self, now: &Link) -> Result<Looked, OpenError> {
        if self.is_ours(now.xdp) {
            return Ok(Looked::Attached);
        }
        let Some(attached) = now.xdp else {
            attach_again(now, &self.mode, &self.maps, (&self.pins, self.esp))?;
            self.program = None;
            self.covered = self.covered.map(|_| rx_queues(now));
            return Ok(Looked::AttachedAgain);
        };
        match is_ours(attached, &self.maps) {
            Ok(true) => {
                self.program = Some(attached.program);
                Ok(Looked::Attached)
            }
            Ok(false) => Err(occupied(now, attached)),
            Err(source) => Err(OpenError::System {
                doing: "look at the attached XDP program",
                source,
            }),
        }
    }

    /// Ends the sharing: removes all clients, detaches the program from the device, and removes the
    /// pins. The programs on clients' devices stay, and drop all frames.
    pub fn close(mut self) -> Result<(), SharingError> {
        let clients: Vec<_> = self.clients()?.iter().map(|client| client.port).collect();
        for port in clients {
            self.remove_client(port)?;
        }
        let cleared = self.clients.clear_device(NIC);
        cleared.map_err(SharingError::system("end the redirects to the device"))?;
        detach(&self.link, &self.maps)?;
        Ok(self.pins.remove()?)
    }

    /// Returns the XDP mode in use.
    pub fn mode(&self) -> &Mode {
        &self.mode
    }

    /// Returns the MAC addresses and VLANs of the device as the programs see them, for whoever
    /// follows them.
    pub(crate) fn links(&self) -> SteeredLinks {
        self.links.clone()
    }

    /// Reads the MAC addresses and VLANs of the device anew: to be called when a link has changed.
    pub fn read_links(&self) -> Result<(), SharingError> {
        let read = RouteSocket::open().and_then(|mut socket| self.links.read(&mut socket));
        let written = read.map_err(OpenError::from)?;
        written.map_err(SharingError::system(
            "write the MAC addresses of the device",
        ))
    }

    /// Sets which addresses this host has on the device, each with its VLAN (0 is none), and in
    /// which networks. Loopback addresses need not be among them.
    pub fn set_addresses(
        &mut self,
        addresses: &[(IpAddr, u16)],
        networks: &[(Prefix, u16)],
    ) -> Result<(), SharingError> {
        let set = self.addresses.set(addresses, networks);
        set.map_err(SharingError::system("write the addresses of this host"))
    }

    /// Sets which hosts are on the link, for clients that may speak with those.
    pub fn set_on_link(&mut self, prefixes: &[Prefix]) -> Result<(), SharingError> {
        let set = self.clients.list_for(NIC, prefixes);
        let set = set.and_then(|()| self.links.set_networks(prefixes));
        set.map_err(SharingError::system("write the networks of the device"))
    }

    /// Sets which addresses this host has on any of its devices: those that a lease of any address
    /// is for.
    pub fn set_locals(&self, addresses: &[IpAddr]) -> Result<(), SharingError> {
        let set = self.links.set_locals(addresses);
        set.map_err(SharingError::system("write the addresses of this host"))
    }

    /// Sets to which MAC addresses clients may send.
    pub fn set_neighbours<'a>(
        &mut self,
        macs: impl Iterator<Item = &'a MacAddr>,
    ) -> Result<(), SharingError> {
        let set = self.addresses.set_neighbours(macs);
        set.map_err(SharingError::system("write the neighbours of this host"))
    }

    /// Adds a client with its port: a number from 1 to 1023, and the index of the host's end of its
    /// veth pair. Nothing comes from there before [`SharedSteering::attach_police`]. Its counters
    /// begin at zero.
    pub fn add_client(
        &mut self,
        port: u32,
        ifindex: u32,
        policy: &ClientPolicy,
    ) -> Result<(), SharingError> {
        self.clients.add(port, ifindex, policy)
    }

    /// Removes a client with its leases and peers, as far as they are there. The program on its
    /// device stays, and drops all.
    pub fn remove_client(&mut self, port: u32) -> Result<(), SharingError> {
        self.clients.remove(port)?;
        for (owner, entry) in self.leases() {
            if owner == port {
                self.remove_lease(port, &entry)?;
            }
        }
        self.queues.remove(port);
        Ok(())
    }

    /// Adds a client's port that is a hardware queue of the device, to which the socket is bound.
    /// What it sends does not come by the programs: these peers bound what arrives.
    pub(crate) fn add_queue(
        &mut self,
        port: u32,
        queue: u32,
        socket: &impl AsRawFd,
        peers: &ClientPeers,
    ) -> Result<(), SharingError> {
        self.queues.add(port, queue, socket)?;
        let allowed = self.clients.allow(port, peers);
        allowed.map_err(SharingError::system("add a client"))
    }

    /// Takes over such a port from a former process.
    pub(crate) fn adopt_queue(&mut self, port: u32, queue: u32) -> Result<(), SharingError> {
        self.queues.adopt(port, queue)
    }

    /// Returns the hardware queue of a port, if it is one.
    pub(crate) fn queue_of(&self, port: u32) -> Option<u32> {
        self.queues.of(port)
    }

    /// Returns whether a client's socket on a queue is still there. It takes another AF_XDP socket
    /// to see that.
    pub(crate) fn queue_has_socket(
        &mut self,
        queue: u32,
        another: OwnedFd,
    ) -> Result<bool, SharingError> {
        self.queues.has_socket(queue, another)
    }

    /// Lists the clients by port, those of former processes included, whether their devices still
    /// exist or not.
    pub fn clients(&self) -> Result<Vec<SharedClient>, SharingError> {
        let list = self.clients.list();
        list.map_err(SharingError::system("read the map of clients"))
    }

    /// Returns the name of the device that runs the program which is pinned there, if one does.
    pub fn device_of(netdev: &str, pins: &Path) -> Result<Option<String>, OpenError> {
        let Some(program) = Pins::at(netdev, pins)?.program() else {
            return Ok(None);
        };
        let links = links(&mut RouteSocket::open()?)?;
        let runs = |link: &Link| link.xdp.is_some_and(|xdp| xdp.program == program);
        Ok(links.into_iter().find(runs).map(|link| link.name))
    }

    /// Lists the clients that a former process left under these pins, whether the device still
    /// exists or not.
    pub fn clients_left(netdev: &str, pins: &Path) -> Result<Vec<SharedClient>, SharingError> {
        let Some(maps) = Pins::at(netdev, pins)?.maps()? else {
            return Ok(Vec::new());
        };
        let list = Clients::new(&maps).and_then(|clients| clients.list());
        list.map_err(SharingError::system("read the map of clients"))
    }

    /// Attaches the program that says what clients may send to the host's end of a veth pair, in
    /// the same mode as that on the device. Until then what comes from there goes to the kernel.
    pub fn attach_police(&self, ifindex: u32) -> Result<(), SharingError> {
        let link = link_at(ifindex)?;
        if let Some(attached) = link.xdp {
            replace(&link, attached, &self.maps, Some(self.police.as_fd()))?;
            return Ok(());
        }
        Ok(attach(&link, ModeChoice::only(&self.mode), self.police.as_fd()).map(drop)?)
    }

    /// Attaches the program that puts all that arrives at the client's end of a veth pair into a
    /// socket, which is bound to queue 0 of that device. Must be called in the network namespace of
    /// that end.
    pub fn attach_port(ifindex: u32, socket: &impl AsRawFd) -> Result<(), SharingError> {
        let link = link_at(ifindex)?;
        let mut object = std::mem::MaybeUninit::uninit();
        let open = PortSkelBuilder::default().open(&mut object);
        let loaded = load(open.map_err(refused)?, &Maps::default(), None)?;
        let failed = SharingError::system("hand the client's socket to its program");
        let mut sockets: XskMap<_> = loaded.maps.get("port_socket").map_err(&failed)?;
        let set = sockets.set(0, socket.as_raw_fd(), 0);
        set.map_err(io_error).map_err(&failed)?;
        Ok(attach(&link, ModeChoice::Native, loaded.program.as_fd()).map(drop)?)
    }

    /// Leases a local address and TCP port to a client: from there it may send, and segments of
    /// these peers come to it. The port must be reserved in the kernel, which also keeps two
    /// clients from leases that overlap.
    pub fn add_lease(
        &mut self,
        port: u32,
        entry: &Entry,
        peers: &Peers,
    ) -> Result<(), SharingError> {
        self.add_lease_for(port, entry, peers, false)
    }

    /// The same. If it is protected, nothing goes there or comes from there unprotected, and it is
    /// of no use to a hardware queue.
    pub(crate) fn add_lease_for(
        &mut self,
        port: u32,
        entry: &Entry,
        peers: &Peers,
        is_protected: bool,
    ) -> Result<(), SharingError> {
        let queue = self.queues.of(port);
        if queue.is_none() {
            self.clients.check(port)?;
        }
        let failed = SharingError::system("add a lease");
        if let Some(port) = self.ports.port_of(entry) {
            let Entry { local, vlan } = *entry;
            return Err(SharingError::LeaseTaken { local, vlan, port });
        }
        let recipient = match is_protected {
            true => protected_recipient(port),
            false => recipient(port, queue),
        };
        let added = self.ports.add_for(recipient, entry, peers);
        added.map_err(failed)
    }

    /// Ends a lease of a client.
    pub fn remove_lease(&mut self, port: u32, entry: &Entry) -> Result<(), SharingError> {
        if self.ports.port_of(entry) != Some(port) {
            let Entry { local, vlan } = *entry;
            return Err(SharingError::NotLeased { port, local, vlan });
        }
        let removed = self.ports.remove(entry);
        removed.map_err(SharingError::system("remove a lease"))
    }

    /// Lists the leases, each with the port of its client.
    pub fn leases(&self) -> Vec<(u32, Entry)> {
        self.ports.list()
    }

    /// Lists the leases of each address and port, with the port of the client and whether nothing
    /// goes there unprotected.
    pub(crate) fn protected_leases(&self) -> Vec<(u32, SocketAddr, bool)> {
        self.ports.list_protected()
    }

    /// Returns whether nothing goes unprotected to a lease of a port.
    pub(crate) fn is_protected(&self, port: u32, local: SocketAddr) -> bool {
        self.ports.is_protected(port, local)
    }

    /// Returns the maps of the associations that clients receive with, and send with.
    pub(crate) fn associations(&self) -> io::Result<[SteeredAssociations; 2]> {
        let of = |name| self.maps.get(name).map(SteeredAssociations::new);
        Ok([of("steer_sas")?, of("police_sas")?])
    }

    /// Returns how many peers leases are limited to, each with the port of its client.
    pub fn listed_peers(&self) -> Vec<(u32, usize)> {
        self.ports.listed_peers()
    }

    /// Lists the leases of an address and port, one for each VLAN, each with the port of its
    /// client.
    pub fn leases_at(&self, local: SocketAddr) -> Vec<(u32, Entry)> {
        self.ports.at(local)
    }

    /// Returns what became of the frames that a client sent; port 0 has those from devices that are
    /// no client's.
    pub fn counters(&self, port: u32) -> Result<PoliceCounters, SharingError> {
        self.clients.counters(port)
    }

    /// Returns what became of the frames that the device received.
    pub fn steering_counters(&self) -> Result<SteeringCounters, SharingError> {
        let read = read_counters(&self.counters);
        read.map_err(SharingError::system("read the counters of the device"))
    }
}

/// Returns the device with an index in this network namespace.
fn link_at(ifindex: u32) -> Result<Link, SharingError> {
    let found = RouteSocket::open().and_then(|mut socket| link_by_index(&mut socket, ifindex));
    let found = found.map_err(OpenError::from)?;
    found.ok_or(SharingError::NoSuchDevice { ifindex })
}
