//! The frames of these tests.

use std::net::Ipv6Addr;

use crate::host::{OURS, VLAN};

/// Makes an Ethernet header with VLAN tags of these types.
pub(crate) fn ethernet(tags: &[u16], ethertype: u16) -> Vec<u8> {
    let mut frame = OURS.to_vec();
    frame.extend([2, 0, 0, 0, 0, 2]);
    for tag in tags {
        frame.extend(tag.to_be_bytes());
        frame.extend(VLAN.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame
}

/// What varies in IPv4 headers.
pub(crate) struct Ipv4 {
    /// Words of options.
    pub(crate) options: usize,
    /// Flags and fragment offset.
    pub(crate) fragment: u16,
    pub(crate) protocol: u8,
    pub(crate) destination: [u8; 4],
}

/// For an address of the device.
pub(crate) const PLAIN: Ipv4 = Ipv4 {
    options: 0,
    fragment: 0x4000,
    protocol: 6,
    destination: [10, 1, 2, 3],
};

/// For an address of the VLAN device.
pub(crate) const ON_VLAN: Ipv4 = Ipv4 {
    destination: [10, 1, 100, 3],
    ..PLAIN
};

/// Makes a frame of IPv4 and TCP.
pub(crate) fn ipv4(tags: &[u16], ip: &Ipv4, port: u16, payload: usize) -> Vec<u8> {
    let mut frame = ethernet(tags, 0x0800);
    let header_len = 20 + ip.options * 4;
    let total = (header_len + 20 + payload) as u16;
    frame.extend([0x40 | (header_len / 4) as u8, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(ip.fragment.to_be_bytes());
    frame.extend([64, ip.protocol, 0, 0, 10, 9, 9, 9]);
    frame.extend(ip.destination);
    frame.extend(std::iter::repeat_n(1, ip.options * 4));
    frame.extend(tcp(port));
    frame.resize(frame.len() + payload, 0xaa);
    frame
}

/// Makes a frame of IPv6 and TCP.
pub(crate) fn ipv6(
    tags: &[u16],
    next_header: u8,
    destination: &str,
    port: u16,
    payload: usize,
) -> Vec<u8> {
    let mut frame = ethernet(tags, 0x86dd);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((20 + payload as u16).to_be_bytes());
    frame.extend([next_header, 64]);
    frame.extend("fd00::99".parse::<Ipv6Addr>().unwrap().octets());
    frame.extend(destination.parse::<Ipv6Addr>().unwrap().octets());
    frame.extend(tcp(port));
    frame.resize(frame.len() + payload, 0xaa);
    frame
}

/// Makes a TCP header.
fn tcp(port: u16) -> [u8; 20] {
    let mut header = [0; 20];
    header[0..2].copy_from_slice(&50000u16.to_be_bytes());
    header[2..4].copy_from_slice(&port.to_be_bytes());
    header[12] = 0x50;
    header[13] = 0x10;
    header
}
