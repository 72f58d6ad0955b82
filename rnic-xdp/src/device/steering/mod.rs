//! Steering: the XDP program of a device, its maps of local ports, its sockets and its counters.
//!
//! The program is attached by a BPF link, and nothing is pinned: when the process ends, in any way,
//! the kernel detaches the program and frees its maps. Other processes find the maps by the id of
//! the attached program.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};

use aya::maps::{MapData, PerCpuArray, XskMap};

use crate::device::error::OpenError;
use crate::device::netlink::Link;

mod associations;
mod attach;
mod below;
mod buffers;
mod host;
mod inspect;
mod layout;
mod links;
mod load;
mod log;
mod maps;
mod mode;
mod occupied;
mod owner;
mod ports;
pub mod skeleton;
mod stack;

pub(crate) use associations::{Holder, SteeredAssociations};
use attach::Attachment;
pub(crate) use below::{Below, above};
pub(crate) use inspect::{PROGRAM_NAME, has_queue_ports, program_info};
pub use inspect::{SteeringError, counters, entries, steered, steered_devices};
pub use layout::{Entry, SteeringCounters};
pub(crate) use layout::{UsedAssociation, protected_recipient, recipient};
pub(crate) use links::SteeredLinks;
pub(crate) use load::{CLIENTS_ASSOCIATIONS, Loaded, Maps, Use, WANTED, load, load_steer, refused};
pub(crate) use log::capture as hold_warnings;
pub(crate) use maps::{io_error, read_counters};
pub use mode::{Mode, ModeChoice};
pub(crate) use mode::{attach_error, attach_in_mode};
pub(crate) use occupied::occupied;
pub(crate) use owner::Owner;
pub use owner::is_shared;
pub(crate) use ports::SteeredPorts;
pub(crate) use stack::{Stack, for_kernels, joins_kernels};

/// The steering program of one device, attached as long as this exists.
pub(crate) struct Steering {
    /// Dropping it detaches the program.
    attachment: Attachment,
    mode: Mode,
    /// Associations of ESP can be steered.
    esp: bool,
    /// The number of queues on which a veth runs the program; any other device runs it on all.
    covered: Option<Mutex<u32>>,
    maps: Maps,
    sockets: Mutex<XskMap<MapData>>,
    ports: SteeredPorts,
    links: SteeredLinks,
    counters: PerCpuArray<MapData, u64>,
}

impl Steering {
    /// Loads the program and attaches it. Frames go to the kernel until sockets and ports are
    /// added. With `esp`, associations can be steered too.
    pub(crate) fn attach(
        link: &Link,
        choice: ModeChoice,
        queues: u32,
        esp: bool,
    ) -> Result<Self, OpenError> {
        if let Some(attached) = link.xdp {
            return Err(occupied(link, attached));
        }
        let loaded = load_steer(queues, &Maps::default(), Use::Exclusive { esp })?;
        let attach_in = |mode| attach::attach(loaded.program.as_fd(), link.index, mode);
        let (attachment, mode) = attach_in_mode(link, choice, attach_in)?;
        let forgets_queues = mode == Mode::Native && link.kind.as_deref() == Some("veth");
        let covered = forgets_queues.then_some(Mutex::new(0));
        let kept = Self::keep(link, loaded.maps, attachment, (mode, esp), covered);
        kept.map_err(|source| OpenError::System {
            doing: "keep the steering maps",
            source,
        })
    }

    fn keep(
        link: &Link,
        maps: Maps,
        attachment: Attachment,
        (mode, esp): (Mode, bool),
        covered: Option<Mutex<u32>>,
    ) -> io::Result<Self> {
        Ok(Self {
            attachment,
            mode,
            esp,
            covered,
            sockets: Mutex::new(maps.get("steer_sockets")?),
            ports: SteeredPorts::new(&maps)?,
            links: SteeredLinks::new(link.index, &maps)?,
            counters: maps.get("steer_counters")?,
            maps,
        })
    }

    /// Returns the mode in use.
    pub(crate) fn mode(&self) -> &Mode {
        &self.mode
    }

    /// Redirects the steered frames of a receive queue to a socket. The kernel removes the entry
    /// with the socket.
    pub(crate) fn add_socket(&self, queue: u32, socket: &impl AsRawFd) -> Result<(), OpenError> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets
            .set(queue, socket.as_raw_fd(), 0)
            .map_err(|error| OpenError::System {
                doing: "hand a socket to the steering program",
                source: io_error(error),
            })
    }

    /// Makes the program run on this many queues. A veth runs a program only on the queues that it
    /// had when it was attached: for more queues the program is replaced by a copy with the same
    /// maps.
    pub(crate) fn cover(&self, queues: u32) -> Result<(), OpenError> {
        let Some(covered) = &self.covered else {
            return Ok(());
        };
        let mut covered = covered.lock().unwrap_or_else(PoisonError::into_inner);
        if *covered > 0 && *covered < queues {
            let again = load_steer(queues, &self.maps, Use::Exclusive { esp: self.esp })?;
            let replaced = self.attachment.replace(again.program.as_fd());
            replaced.map_err(|source| OpenError::System {
                doing: "attach the steering program to queues that were added",
                source,
            })?;
        }
        *covered = queues;
        Ok(())
    }

    /// Returns the steered ports, to be shared.
    pub(crate) fn ports(&self) -> SteeredPorts {
        self.ports.clone()
    }

    /// Returns the VLANs and MAC addresses by which frames are ours, to be shared.
    pub(crate) fn links(&self) -> SteeredLinks {
        self.links.clone()
    }

    /// Returns the steered associations of ESP.
    pub(crate) fn associations(&self) -> io::Result<SteeredAssociations> {
        Ok(SteeredAssociations::new(self.maps.get("steer_sas")?))
    }

    /// Reads the counters.
    pub(crate) fn counters(&self) -> io::Result<SteeringCounters> {
        read_counters(&self.counters)
    }
}
