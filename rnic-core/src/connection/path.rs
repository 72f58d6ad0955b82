//! The path of a connection's frames: next hop and headers.

use std::num::NonZeroU16;

use crate::wire::{
    ethernet::MacAddr,
    template::{HeaderTemplate, NetHeader},
};

use super::flow::FlowKey;

/// The time to live (hop limit) that we send, as Linux does.
const HOP_LIMIT: u8 = 64;
/// The bits of the traffic class that are not the application's.
const ECN_BITS: u8 = 3;

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
    /// The largest segments that peers on this route are asked for, if the route says so
    /// (`advmss`).
    pub advertised_mss: Option<NonZeroU16>,
}

/// Where a connection's frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nowhere yet: the next hop is not known.
    Unknown,
    /// To the device.
    Device,
    /// Back to this device's engines, without the network: the peer is there.
    Back,
}

/// The link and network headers of a connection, once its next hop is known.
pub(crate) struct Path {
    /// Ready to be written.
    template: HeaderTemplate,
    way: Way,
    /// The class of what is sent. The bits for ECN are those of each segment.
    traffic_class: u8,
}

impl Path {
    /// Makes the path of a connection whose next hop is not known yet.
    pub(crate) fn unknown(key: &FlowKey) -> Self {
        Self::new(&header(key, &NOWHERE, 0), Way::Unknown)
    }

    /// Makes the path back over the link that a packet came from, for use until the route is known.
    pub(crate) fn back(header: &NetHeader) -> Self {
        match is_within_device(header) {
            true => Self::new(header, Way::Back),
            false => Self::new(header, Way::Device),
        }
    }

    fn new(header: &NetHeader, way: Way) -> Self {
        Self {
            template: HeaderTemplate::new(header),
            way,
            traffic_class: header.traffic_class,
        }
    }

    /// Makes an unknown path one that leads back to this device's engines.
    pub(crate) fn lead_back(&mut self) {
        self.way = Way::Back;
    }

    /// Returns whether frames come back to this device's engines.
    #[inline]
    pub(crate) fn leads_back(&self) -> bool {
        self.way == Way::Back
    }

    /// Sets the class of what is sent from now on.
    pub(crate) fn set_traffic_class(&mut self, class: u8) {
        self.traffic_class = class & !ECN_BITS;
        self.template.set_traffic_class(self.traffic_class);
    }

    pub(crate) fn set_next_hop(&mut self, key: &FlowKey, hop: &NextHop) {
        let header = header(key, hop, self.traffic_class);
        *self = Self::new(&header, Way::Device);
    }

    /// Returns the headers to write for a burst of segments to the device, or `None` where frames
    /// go elsewhere.
    pub(crate) fn template_mut(&mut self) -> Option<&mut HeaderTemplate> {
        (self.way == Way::Device).then_some(&mut self.template)
    }

    /// Returns the headers to write for the device, or `None` where frames go elsewhere.
    pub(crate) fn template(&self) -> Option<&HeaderTemplate> {
        (self.way == Way::Device).then_some(&self.template)
    }

    /// Returns the headers to write, wherever the frame goes, or `None` while the next hop is
    /// unknown.
    pub(crate) fn any_template(&self) -> Option<&HeaderTemplate> {
        (self.way != Way::Unknown).then_some(&self.template)
    }
}

/// Returns whether a frame with these headers is one that comes back: no frame of a network is from
/// the link-layer address of zeros and to it.
pub(crate) fn is_within_device(header: &NetHeader) -> bool {
    (header.source_mac, header.destination_mac) == (NOWHERE.source_mac, NOWHERE.destination_mac)
}

/// Of a path that nothing is sent on, or nothing to the network.
const NOWHERE: NextHop = NextHop {
    source_mac: MacAddr([0; 6]),
    destination_mac: MacAddr([0; 6]),
    vlan: None,
    mtu: 0,
    advertised_mss: None,
};

/// Returns the headers for a next hop.
fn header(key: &FlowKey, hop: &NextHop, traffic_class: u8) -> NetHeader {
    NetHeader {
        source_mac: hop.source_mac,
        destination_mac: hop.destination_mac,
        vlan: hop.vlan,
        source: key.local.ip(),
        destination: key.remote.ip(),
        hop_limit: HOP_LIMIT,
        traffic_class,
    }
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

    use super::*;
    use crate::wire::checksum::{Checksums, sum};
    use crate::wire::packet::parse;
    use crate::wire::tcp::TcpHeader;

    /// Returns the IP header of a segment that is sent on a path, with this ECN field.
    fn ip_header(path: &Path, ecn: u8) -> Vec<u8> {
        let template = path.template().expect("its next hop is known");
        let header = TcpHeader::default();
        let mut frame = vec![0; template.len() + header.len()];
        template.write(&mut frame, ecn, &header, 0, 0);
        assert!(parse(&frame, Checksums::None).is_ok(), "the checksums hold");
        frame[14..template.len()].to_vec()
    }

    #[test]
    fn the_class_is_in_every_header_whenever_the_next_hop_becomes_known() {
        let hop = NextHop {
            source_mac: MacAddr([2; 6]),
            destination_mac: MacAddr([4; 6]),
            vlan: None,
            mtu: 1500,
            advertised_mss: None,
        };
        let v4 = |last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
        for (local, remote) in [
            (v4(1), v4(2)),
            (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()),
        ] {
            let [local, remote] = [local, remote].map(|ip| SocketAddr::new(ip, 7));
            let key = FlowKey::new(local, remote);
            let mut path = Path::unknown(&key);
            // The two bits for ECN are not the application's.
            path.set_traffic_class(0x6b);
            path.set_next_hop(&key, &hop);
            let class = |path: &Path, ecn| {
                let ip = ip_header(path, ecn);
                match local.is_ipv4() {
                    true => {
                        assert_eq!(sum(&ip), 0xffff);
                        ip[1]
                    }
                    false => ip[0] << 4 | ip[1] >> 4,
                }
            };
            assert_eq!(class(&path, 0), 0x68);
            assert_eq!(class(&path, 2), 0x6a);
            path.set_traffic_class(0xff);
            assert_eq!(class(&path, 1), 0xfd);
            path.set_next_hop(&key, &hop);
            assert_eq!(class(&path, 0), 0xfc);
        }
    }
}
