//! The frames of these tests.

use std::net::{IpAddr, SocketAddr};

/// The MAC addresses of our device, of the VLAN device on it, and of the next hop.
pub(crate) const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const VLANS: [u8; 6] = [2, 0, 0, 0, 1, 1];
pub(crate) const GATEWAY: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// The VLAN in which this host has an address.
pub(crate) const VLAN: u16 = 100;

/// A TCP segment in its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) destination_mac: [u8; 6],
    pub(crate) source_mac: [u8; 6],
    /// The VLAN of its tag, if it has one.
    pub(crate) vlan: Option<u16>,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    /// Words of IPv4 options.
    pub(crate) ip_options: usize,
    /// Words of TCP options.
    pub(crate) tcp_options: usize,
    /// The octet of flags in the TCP header.
    pub(crate) flags: u8,
    pub(crate) payload: usize,
}

/// Makes a segment from our device, of 100 octets.
pub(crate) fn segment(source: &str, destination: &str) -> Segment {
    Segment {
        destination_mac: GATEWAY,
        source_mac: OURS,
        vlan: None,
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        ip_options: 0,
        tcp_options: 3,
        flags: 0,
        payload: 100,
    }
}

impl Segment {
    /// Returns where its IP header begins.
    pub(crate) fn ip_at(&self) -> usize {
        if self.vlan.is_some() { 18 } else { 14 }
    }

    /// Returns the octets of its frame. The checksums are zero, which the program does not look at.
    pub(crate) fn octets(&self) -> Vec<u8> {
        let mut frame = [self.destination_mac, self.source_mac].concat();
        if let Some(vlan) = self.vlan {
            frame.extend([0x81, 0]);
            frame.extend(vlan.to_be_bytes());
        }
        let tcp_len = 20 + 4 * self.tcp_options + self.payload;
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header_len = 20 + 4 * self.ip_options;
                frame.extend([8, 0, 0x40 | (header_len / 4) as u8, 0]);
                frame.extend(((header_len + tcp_len) as u16).to_be_bytes());
                frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
                frame.extend(vec![1; header_len - 20]);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend((tcp_len as u16).to_be_bytes());
                frame.extend([6, 64]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
            }
            both => panic!("{both:?} are of two families"),
        }
        let mut tcp = vec![0; tcp_len];
        tcp[..2].copy_from_slice(&self.source.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&self.destination.port().to_be_bytes());
        tcp[12] = ((5 + self.tcp_options) << 4) as u8;
        tcp[13] = self.flags;
        frame.extend(tcp);
        frame
    }
}

/// Returns segments that the client of these tests may send, one of each kind.
pub(crate) fn allowed() -> [Segment; 3] {
    [
        segment("10.1.2.3:4420", "10.9.9.9:50000"),
        segment("[fd00::1]:4420", "[fd00::99]:50000"),
        Segment {
            vlan: Some(VLAN),
            source_mac: VLANS,
            ..segment("10.1.100.3:4420", "10.1.100.9:50000")
        },
    ]
}
