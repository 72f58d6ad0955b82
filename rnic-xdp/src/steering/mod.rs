//! Steering: the XDP program of a device, its maps of local ports, its sockets and its counters.
//!
//! The program is attached by a BPF link, and nothing is pinned: when the process ends, in any way, the kernel detaches the
//! program and frees its maps. Other processes find the maps by the id of the attached program.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use aya::maps::lpm_trie::LpmTrie;
use aya::maps::{Array, HashMap, MapData, PerCpuArray, XskMap};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use nix::libc;
use serde::{Deserialize, Serialize};

use crate::drivers::Driver;
use crate::error::OpenError;
use crate::netlink::{AttachedXdp, Link, RouteSocket, link_by_index};
use crate::skeleton::{SteerSkel, SteerSkelBuilder};

mod attach;
mod below;
mod inspect;
mod layout;
mod links;
mod log;
mod maps;
mod ports;

use attach::{Attachment, In};
pub(crate) use below::{Below, above};
pub(crate) use inspect::{PROGRAM_NAME, program_info};
pub use inspect::{SteeringError, counters, entries};
pub(crate) use layout::Entry;
pub use layout::SteeringCounters;
use layout::{KeyOctets, LinkOctets, PeerOctets, PortOctets};
pub(crate) use links::SteeredLinks;
use maps::{io_error, map_from, read_counters};
pub(crate) use ports::SteeredPorts;

/// Which XDP mode to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModeChoice {
    /// Native, or generic if the driver has no XDP.
    #[default]
    Auto,
    /// In the driver only.
    Native,
    /// In the kernel's stack: works with every device, slower on real NICs.
    Generic,
}

/// The XDP mode in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// In the driver.
    Native,
    /// In the kernel's stack.
    Generic {
        /// Why it is not in the driver.
        reason: String,
    },
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Native => f.write_str("native"),
            Self::Generic { reason } => write!(f, "generic ({reason})"),
        }
    }
}

/// The steering program of one device, attached as long as this exists.
pub(crate) struct Steering {
    /// Dropping it detaches the program.
    attachment: Attachment,
    mode: Mode,
    /// The number of queues on which a veth runs the program; any other device runs it on all.
    covered: Option<Mutex<u32>>,
    maps: MapFds,
    sockets: Mutex<XskMap<MapData>>,
    ports: SteeredPorts,
    links: SteeredLinks,
    counters: PerCpuArray<MapData, u64>,
}

impl Steering {
    /// Loads the program and attaches it. Frames go to the kernel until sockets and ports are added.
    pub(crate) fn attach(link: &Link, choice: ModeChoice, queues: u32) -> Result<Self, OpenError> {
        if let Some(attached) = link.xdp {
            return Err(occupied(link, attached));
        }
        let loaded = Loaded::load(queues, None)?;
        let (attachment, mode) = loaded.attach(link, choice)?;
        let forgets_queues = mode == Mode::Native && link.kind.as_deref() == Some("veth");
        Ok(Self {
            attachment,
            mode,
            covered: forgets_queues.then_some(Mutex::new(0)),
            maps: loaded.maps,
            sockets: Mutex::new(loaded.sockets),
            ports: SteeredPorts::new(loaded.entries, loaded.ports, loaded.peers),
            links: SteeredLinks::new(link.index, loaded.links),
            counters: loaded.counters,
        })
    }

    /// Returns the mode in use.
    pub(crate) fn mode(&self) -> &Mode {
        &self.mode
    }

    /// Redirects the steered frames of a receive queue to a socket. The kernel removes the entry with the socket.
    pub(crate) fn add_socket(&self, queue: u32, socket: &impl AsRawFd) -> Result<(), OpenError> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets
            .set(queue, socket.as_raw_fd(), 0)
            .map_err(|error| OpenError::System {
                doing: "hand a socket to the steering program",
                source: io_error(error),
            })
    }

    /// Makes the program run on this many queues. A veth runs a program only on the queues that it had when it was attached:
    /// for more queues the program is replaced by a copy with the same maps.
    pub(crate) fn cover(&self, queues: u32) -> Result<(), OpenError> {
        let Some(covered) = &self.covered else {
            return Ok(());
        };
        let mut covered = covered.lock().unwrap_or_else(PoisonError::into_inner);
        if *covered > 0 && *covered < queues {
            let again = Loaded::load(queues, Some(&self.maps))?;
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

    /// Reads the counters.
    pub(crate) fn counters(&self) -> io::Result<SteeringCounters> {
        read_counters(&self.counters)
    }
}

/// The maps of a program, for another one.
struct MapFds {
    sockets: OwnedFd,
    entries: OwnedFd,
    ports: OwnedFd,
    peers: OwnedFd,
    links: OwnedFd,
    counters: OwnedFd,
}

/// The program and its maps, in the kernel but not attached.
struct Loaded {
    program: OwnedFd,
    maps: MapFds,
    sockets: XskMap<MapData>,
    entries: HashMap<MapData, KeyOctets, u32>,
    ports: Array<MapData, PortOctets>,
    peers: LpmTrie<MapData, PeerOctets, u32>,
    links: Array<MapData, LinkOctets>,
    counters: PerCpuArray<MapData, u64>,
}

impl Loaded {
    /// Loads the program by libbpf. After that aya handles the maps, which may be those of another program.
    fn load(queues: u32, maps: Option<&MapFds>) -> Result<Self, OpenError> {
        log::capture();
        let refused = |error: libbpf_rs::Error| match error.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => OpenError::NotPermitted {
                doing: "load an XDP program",
            },
            _ => OpenError::Load {
                reason: format!("{error}{}", log::captured()),
            },
        };
        let mut object = MaybeUninit::uninit();
        let mut open = SteerSkelBuilder::default()
            .open(&mut object)
            .map_err(refused)?;
        open.maps
            .steer_sockets
            .set_max_entries(queues)
            .map_err(refused)?;
        if let Some(maps) = maps {
            let into = &mut open.maps;
            let each = [
                (&mut into.steer_sockets, &maps.sockets),
                (&mut into.steer_map, &maps.entries),
                (&mut into.steer_ports, &maps.ports),
                (&mut into.steer_peers, &maps.peers),
                (&mut into.steer_links, &maps.links),
                (&mut into.steer_counters, &maps.counters),
            ];
            for (map, of_other) in each {
                map.reuse_fd(of_other.as_fd()).map_err(refused)?;
            }
        }
        let skeleton = open.load().map_err(refused)?;
        Self::keep(&skeleton).map_err(|source| OpenError::System {
            doing: "keep the steering maps",
            source,
        })
    }

    /// Takes over from the skeleton, which closes its own descriptors.
    fn keep(skeleton: &SteerSkel<'_>) -> io::Result<Self> {
        let own = |fd: BorrowedFd<'_>| {
            let data = MapData::from_fd(fd.try_clone_to_owned()?).map_err(io_error)?;
            map_from(data)
        };
        let sockets = skeleton.maps.steer_sockets.as_fd();
        let entries = skeleton.maps.steer_map.as_fd();
        let ports = skeleton.maps.steer_ports.as_fd();
        let peers = skeleton.maps.steer_peers.as_fd();
        let links = skeleton.maps.steer_links.as_fd();
        let counters = skeleton.maps.steer_counters.as_fd();
        Ok(Self {
            program: skeleton.progs.rnic_steer.as_fd().try_clone_to_owned()?,
            maps: MapFds {
                sockets: sockets.try_clone_to_owned()?,
                entries: entries.try_clone_to_owned()?,
                ports: ports.try_clone_to_owned()?,
                peers: peers.try_clone_to_owned()?,
                links: links.try_clone_to_owned()?,
                counters: counters.try_clone_to_owned()?,
            },
            sockets: own(sockets)?.try_into().map_err(io_error)?,
            entries: own(entries)?.try_into().map_err(io_error)?,
            ports: own(ports)?.try_into().map_err(io_error)?,
            peers: own(peers)?.try_into().map_err(io_error)?,
            links: own(links)?.try_into().map_err(io_error)?,
            counters: own(counters)?.try_into().map_err(io_error)?,
        })
    }

    fn attach(&self, link: &Link, choice: ModeChoice) -> Result<(Attachment, Mode), OpenError> {
        let attach_in = |mode| attach::attach(self.program.as_fd(), link.index, mode);
        let below = Below::of(link)?;
        let reason = match (choice, &below) {
            (ModeChoice::Generic, _) => "as configured".to_string(),
            (ModeChoice::Auto, Some(below)) => below.reason(),
            (ModeChoice::Native, Some(below)) => {
                return Err(OpenError::IsMaster {
                    netdev: link.name.clone(),
                    reason: below.reason(),
                    below: below.names(),
                });
            }
            (ModeChoice::Native | ModeChoice::Auto, None) => match attach_in(In::Driver) {
                Ok(fd) => return Ok((fd, Mode::Native)),
                Err(error) if choice == ModeChoice::Auto && means_no_native(&error) => {
                    no_native(link, &error)
                }
                Err(error) => return Err(attach_error(link, error)),
            },
        };
        let reason = match below.and_then(|below| below.losses()) {
            Some((lost, remedy)) => format!("{reason}; {lost}: {remedy}"),
            None => reason,
        };
        match attach_in(In::Stack) {
            Ok(fd) => Ok((fd, Mode::Generic { reason })),
            Err(error) => Err(attach_error(link, error)),
        }
    }
}

/// Linux' own "operation not supported", which some drivers return.
const ENOTSUPP: i32 = 524;

fn means_no_native(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::EINVAL | ENOTSUPP)
    )
}

/// Says why a program does not run in the driver.
fn no_native(link: &Link, error: &io::Error) -> String {
    let limit = Driver::of(link).refuses_xdp_at(link.mtu);
    limit.unwrap_or_else(|| format!("its driver refuses native XDP: {error}"))
}

fn attach_error(link: &Link, error: io::Error) -> OpenError {
    let netdev = link.name.clone();
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => OpenError::NotPermitted {
            doing: "attach an XDP program",
        },
        Some(libc::EBUSY | libc::EEXIST) => occupied_now(link, error),
        Some(libc::ENOSPC) => OpenError::TooFewQueues { netdev },
        Some(libc::ERANGE) => OpenError::MtuTooLarge {
            netdev,
            mtu: link.mtu,
        },
        Some(libc::ENODEV) => OpenError::NoSuchDevice { netdev },
        _ if means_no_native(&error) => OpenError::NoNative {
            netdev,
            reason: no_native(link, &error),
        },
        _ => OpenError::Attach {
            netdev,
            source: error,
        },
    }
}

/// Makes the error for a program that is in the way: one that was attached since the last look, or one of the device's master. Looks
/// up its name.
fn occupied_now(link: &Link, error: io::Error) -> OpenError {
    let again = RouteSocket::open().and_then(|mut socket| link_by_index(&mut socket, link.index));
    let links = [again.ok().flatten(), above(link)];
    let mut links = links.iter().flatten();
    let found = links.find_map(|link| Some(occupied(link, link.xdp?)));
    found.unwrap_or(OpenError::Attach {
        netdev: link.name.clone(),
        source: error,
    })
}

fn occupied(link: &Link, attached: AttachedXdp) -> OpenError {
    let netdev = link.name.clone();
    let program = attached.program;
    let name = program_info(program).map_or("?".to_string(), |info| {
        String::from_utf8_lossy(info.name()).into_owned()
    });
    if name == PROGRAM_NAME {
        return OpenError::AlreadyDriven { netdev, program };
    }
    let (attachment, detach) = attached.attachment.words();
    OpenError::OtherProgram {
        netdev,
        name,
        program,
        attachment,
        detach,
    }
}
