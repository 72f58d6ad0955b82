//! The steering of a device as any process can see it: through the id of the program that is
//! attached.

use std::io;
use std::net::SocketAddr;

use aya::maps::{HashMap, Map, MapData, PerCpuArray};
use aya::programs::{ProgramInfo, loaded_programs};

use super::layout::{
    self, Entry, KeyOctets, OWN_SOCKETS, SteeringCounters, TargetWords, is_queue, port_in,
};
use super::load::Maps;
use super::maps::{io_error, map_from, read_counters};
use crate::device::netlink::{NetlinkError, RouteSocket, link_by_name, links};

/// The name of the program, by which other processes know it.
pub(crate) const PROGRAM_NAME: &str = "rnic_steer";

/// Why the steering of a device cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SteeringError {
    /// There is no such device in this network namespace.
    #[error("there is no network device {0} here; `ip link` lists those of this network namespace")]
    NoSuchDevice(String),
    /// No XDP program at all.
    #[error("no rnic process drives {0}: it has no XDP program")]
    NotDriven(String),
    /// Another XDP program.
    #[error("no rnic process drives {netdev}: its XDP program is \"{name}\" (id {program})")]
    OtherProgram {
        /// The device.
        netdev: String,
        /// The name of the program.
        name: String,
        /// Its id.
        program: u32,
    },
    /// A map could not be read.
    #[error("cannot read the steering maps of {netdev}: {source}; it takes root (CAP_SYS_ADMIN)")]
    Unreadable {
        /// The device.
        netdev: String,
        /// Why not.
        source: io::Error,
    },
    /// A netlink request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// Returns what became of the frames that a device received since its program was attached.
pub fn counters(netdev: &str) -> Result<SteeringCounters, SteeringError> {
    let map = attached_map(netdev, "steer_counters")?;
    let read = || read_counters(&PerCpuArray::try_from(map).map_err(io_error)?);
    read().map_err(|source| unreadable(netdev, source))
}

/// Returns the local addresses and ports that are steered to the process that drives a device, or
/// to clients of rnicd.
pub fn entries(netdev: &str) -> Result<Vec<SocketAddr>, SteeringError> {
    let steered = steered(netdev)?;
    let mut entries: Vec<_> = steered.into_iter().map(|(entry, _)| entry.local).collect();
    // An address in several VLANs has an entry for each.
    entries.dedup();
    Ok(entries)
}

/// Returns the entries of a device in order, each with the number of the port to which its frames
/// go; `None` is the process that has the device for itself.
pub fn steered(netdev: &str) -> Result<Vec<(Entry, Option<u32>)>, SteeringError> {
    let map = attached_map(netdev, "steer_map")?;
    let read = || -> io::Result<Vec<_>> {
        let map = HashMap::<MapData, KeyOctets, TargetWords>::try_from(map).map_err(io_error)?;
        let both = map.iter().filter_map(Result::ok);
        let steered = both.filter_map(|(key, [_, recipient])| {
            let port = port_in(recipient);
            Some((layout::entry(&key)?, (port != OWN_SOCKETS).then_some(port)))
        });
        let mut steered: Vec<_> = steered.collect();
        steered.sort();
        Ok(steered)
    };
    read().map_err(|source| unreadable(netdev, source))
}

/// Returns the names of the devices of this network namespace that have the steering program.
pub fn steered_devices() -> Result<Vec<String>, SteeringError> {
    let links = links(&mut RouteSocket::open()?)?.into_iter();
    let is_ours = |id| program_info(id).is_some_and(|info| info.name() == PROGRAM_NAME.as_bytes());
    let ours = links.filter(|link| link.xdp.is_some_and(|xdp| is_ours(xdp.program)));
    Ok(ours.map(|link| link.name).collect())
}

/// Returns whether something is steered to a client whose port is a hardware queue, as the maps of
/// a program have it.
pub(crate) fn has_queue_ports(maps: &Maps) -> io::Result<bool> {
    let map: HashMap<MapData, KeyOctets, TargetWords> = maps.get("steer_map")?;
    let mut targets = map.iter().filter_map(Result::ok);
    Ok(targets.any(|(_, [_, recipient])| is_queue(recipient)))
}

/// Looks up a program by its id. Returns `None` if it is gone or not accessible.
pub(crate) fn program_info(id: u32) -> Option<ProgramInfo> {
    loaded_programs()
        .filter_map(Result::ok)
        .find(|info| info.id() == id)
}

fn attached_map(netdev: &str, name: &str) -> Result<Map, SteeringError> {
    let link = link_by_name(&mut RouteSocket::open()?, netdev)?
        .ok_or_else(|| SteeringError::NoSuchDevice(netdev.to_string()))?;
    let attached = link
        .xdp
        .ok_or_else(|| SteeringError::NotDriven(netdev.to_string()))?;
    let denied = || unreadable(netdev, io::ErrorKind::PermissionDenied.into());
    let program = program_info(attached.program).ok_or_else(denied)?;
    let maps = program.map_ids().ok().flatten().ok_or_else(denied)?;
    let found = maps.into_iter().filter_map(|id| MapData::from_id(id).ok());
    let found = found
        .filter(|map| map.info().is_ok_and(|info| info.name() == name.as_bytes()))
        .find_map(|map| map_from(map).ok());
    match found {
        Some(map) if program.name() == PROGRAM_NAME.as_bytes() => Ok(map),
        _ => Err(SteeringError::OtherProgram {
            netdev: netdev.to_string(),
            name: String::from_utf8_lossy(program.name()).into_owned(),
            program: attached.program,
        }),
    }
}

fn unreadable(netdev: &str, source: io::Error) -> SteeringError {
    SteeringError::Unreadable {
        netdev: netdev.to_string(),
        source,
    }
}
