//! How a connection's frames leave this host.

use crate::engine::{FlowKey, NextHop};
use crate::wire::ethernet::MacAddr;
use crate::wire::packet::{ECN_CAPABLE, NetHeader, Packet};

/// Time to live of what we send, as Linux has it.
const HOP_LIMIT: u8 = 64;

/// The link and network headers of a connection, once its next hop is known.
pub(crate) struct Path {
    header: NetHeader,
    known: bool,
}

impl Path {
    /// The next hop is still being found out.
    pub(crate) fn unknown(key: &FlowKey) -> Self {
        let header = NetHeader {
            source_mac: MacAddr::default(),
            destination_mac: MacAddr::default(),
            vlan: None,
            source: key.local.ip(),
            destination: key.remote.ip(),
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
        };
        Self {
            header,
            known: false,
        }
    }

    /// Back the way that a packet came: good until the route is known.
    pub(crate) fn reply_to(packet: &Packet<'_>) -> Self {
        Self {
            header: NetHeader::reply_to(packet),
            known: true,
        }
    }

    pub(crate) fn set_next_hop(&mut self, hop: &NextHop) {
        self.header.source_mac = hop.source_mac;
        self.header.destination_mac = hop.destination_mac;
        self.header.vlan = hop.vlan;
        self.known = true;
    }

    /// Octets of the headers, or `None` while the next hop is unknown.
    pub(crate) fn len(&self) -> Option<usize> {
        self.known.then(|| self.header.len())
    }

    /// The headers to write, of a packet that routers may mark (RFC 3168) or not, or `None` while the next hop is
    /// unknown.
    pub(crate) fn header(&mut self, ecn_capable: bool) -> Option<&NetHeader> {
        self.header.traffic_class = if ecn_capable { ECN_CAPABLE } else { 0 };
        self.known.then_some(&self.header)
    }
}
