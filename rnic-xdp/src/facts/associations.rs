//! The host's Security Associations that a process can take, without their keys.

use std::net::IpAddr;

use rnic_core::esp::{Algorithm, Mode, SaId};
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
