//! The path of a connection's frames: next hop and headers.

use crate::wire::{
    ethernet::MacAddr,
    template::{HeaderTemplate, NetHeader},
};

use super::flow::FlowKey;

/// The time to live (hop limit) that we send, as Linux does.
const HOP_LIMIT: u8 = 64;

/// How frames for a destination leave this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// This host's address on the link.
    pub source_mac: MacAddr,
    /// The neighbour's address: the destination's, or its gateway's.
    pub destination_mac: MacAddr,
    /// The VLAN to send in, if any.
    pub vlan: Option<u16>,
    /// The MTU of the route, in octets of an IP packet.
    pub mtu: u16,
}

/// The link and network headers of a connection, once its next hop is known.
pub(crate) struct Path {
    /// Ready to be written.
    template: HeaderTemplate,
    known: bool,
}

impl Path {
    /// Makes the path of a connection whose next hop is not known yet.
    pub(crate) fn unknown(key: &FlowKey) -> Self {
        let nowhere = MacAddr::default();
        Self::new(&header(key, nowhere, nowhere, None), false)
    }

    /// Makes the path back over the link that a packet came from, for use until the route is known.
    pub(crate) fn back(header: &NetHeader) -> Self {
        Self::new(header, true)
    }

    fn new(header: &NetHeader, known: bool) -> Self {
        Self {
            template: HeaderTemplate::new(header),
            known,
        }
    }

    pub(crate) fn set_next_hop(&mut self, key: &FlowKey, hop: &NextHop) {
        let header = header(key, hop.source_mac, hop.destination_mac, hop.vlan);
        *self = Self::new(&header, true);
    }

    /// Returns the headers to write for a burst of segments, or `None` while the next hop is unknown.
    pub(crate) fn template_mut(&mut self) -> Option<&mut HeaderTemplate> {
        self.known.then_some(&mut self.template)
    }

    /// Returns the headers to write, or `None` while the next hop is unknown.
    pub(crate) fn template(&self) -> Option<&HeaderTemplate> {
        self.known.then_some(&self.template)
    }
}

/// Returns the headers between these addresses.
fn header(
    key: &FlowKey,
    source_mac: MacAddr,
    destination_mac: MacAddr,
    vlan: Option<u16>,
) -> NetHeader {
    NetHeader {
        source_mac,
        destination_mac,
        vlan,
        source: key.local.ip(),
        destination: key.remote.ip(),
        hop_limit: HOP_LIMIT,
        traffic_class: 0,
    }
}
