//! The host's Security Associations that a process can take. Their keys are asked for by name.

use std::net::IpAddr;

use nix::sys::prctl::set_dumpable;
use rnic_core::esp::{Algorithm, Keys, Mode, SaId};
use rnic_core::wire::encapsulation::UdpPorts;

use crate::device::netlink::{AssociationSocket, NetlinkError};

/// A Security Association of ESP that has the number of an xfrm interface.
#[derive(Clone, Debug)]
pub struct AssociationFacts {
    /// SPI and receiver.
    pub id: SaId,
    /// The sender.
    pub source: IpAddr,
    /// The number (`if_id`).
    pub if_id: u32,
    /// How it protects, or why rnic cannot use it.
    pub usable: Result<(Mode, Algorithm), String>,
    /// Its packets are in UDP, between these ports.
    pub encapsulation: Option<UdpPorts>,
    /// Sequence numbers have 64 bits.
    pub extended: bool,
    /// Numbers of its replay window.
    pub window: u32,
    /// The last number that was sent, or that a process has taken.
    pub taken: u64,
    /// The highest number that was received, as told last.
    pub received: u64,
    /// Octets and packets that it has protected, as told last.
    pub octets: u64,
    /// Packets.
    pub packets: u64,
}

/// Reads the associations of this network namespace. Only root may.
pub fn associations() -> Result<Vec<AssociationFacts>, NetlinkError> {
    let read = AssociationSocket::open()?.read()?;
    let with_number = read.into_iter().filter(|found| found.if_id != 0);
    let facts = with_number.map(|found| AssociationFacts {
        id: found.id,
        source: found.source,
        if_id: found.if_id,
        usable: found.usable.map(|(mode, algorithm, _)| (mode, algorithm)),
        encapsulation: found.encapsulation,
        extended: found.extended,
        window: found.window,
        taken: found.sent,
        received: found.received,
        octets: found.spent.octets,
        packets: found.spent.packets,
    });
    Ok(facts.collect())
}

/// The keys of a Security Association.
#[derive(Clone)]
pub struct AssociationKeys {
    /// SPI and receiver.
    pub id: SaId,
    /// The sender.
    pub source: IpAddr,
    /// The number (`if_id`).
    pub if_id: u32,
    /// What they are for.
    pub algorithm: Algorithm,
    /// The keys.
    pub keys: Keys,
}

/// Why keys are not read.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// A core dump would have them.
    #[error("this process cannot be kept from core dumps: {0}")]
    Dumpable(#[source] nix::Error),
    /// The kernel does not say them.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// Reads the keys of the associations of this network namespace that a process can use. Only root
/// may. From then on this process leaves no core dump.
pub fn association_keys() -> Result<Vec<AssociationKeys>, KeysError> {
    set_dumpable(false).map_err(KeysError::Dumpable)?;
    let read = AssociationSocket::open()?.read()?;
    let with_number = read.into_iter().filter(|found| found.if_id != 0);
    let with_keys = with_number.filter_map(|found| {
        let (_, algorithm, keys) = found.usable.ok()?;
        Some(AssociationKeys {
            id: found.id,
            source: found.source,
            if_id: found.if_id,
            algorithm,
            keys,
        })
    });
    Ok(with_keys.collect())
}
