//! What rnicd gives a client and is asked for, as its messages have it: a port, its addresses, next
//! hops, segments that were too big.

use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU32};

use serde::{Deserialize, Serialize};

use crate::device::Mode;
use crate::token::Token;

/// A port, as it was made. The UMEM has the chunks of received frames first, then those of frames
/// to be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Its number, by which requests and notices name it.
    pub port: u32,
    /// What shows that it is the client's, after a new connection.
    pub token: Token,
    /// The device.
    pub netdev: String,
    /// Octets of a chunk of UMEM.
    pub chunk: u32,
    /// Chunks of the longest frame.
    pub chunks: u32,
    /// Chunks for received frames.
    pub rx_chunks: u32,
    /// Chunks for frames to be sent.
    pub tx_chunks: u32,
    /// Entries of the socket's rings.
    pub rings: RingSizes,
    /// Octets of the largest IP datagram that is sent and received.
    pub mtu: u32,
    /// The MTU of the device.
    pub link_mtu: u32,
    /// The XDP mode of the device.
    pub mode: Mode,
    /// Why frames are copied on their way between device and UMEM; without it, they are not.
    pub copied: Option<String>,
    /// Whether the UMEM lies on hugepages.
    pub huge_pages: bool,
    /// Whether frames may come from a kernel on the same host, whose segments can have partial
    /// checksums.
    #[serde(default)]
    pub partial_checksums: bool,
    /// Whether connections may do without the CRCs of MPA, where the programs of both sides say so.
    #[serde(default)]
    pub crc_optional: bool,
    /// The local addresses whose frames arrive without a tag.
    #[serde(default)]
    pub untagged: Vec<UntaggedAddress>,
    /// The hardware queue that the port is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// The number (`if_id`) of the host's policies and associations of which the port may have some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipsec_if_id: Option<NonZeroU32>,
}

/// Entries of the rings of an AF_XDP socket: powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingSizes {
    /// The fill ring.
    pub fill: u32,
    /// The completion ring.
    pub completion: u32,
    /// The receive ring.
    pub rx: u32,
    /// The transmit ring.
    pub tx: u32,
}

/// A local address whose frames arrive without a tag, because the device removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UntaggedAddress {
    /// The address.
    pub address: IpAddr,
    /// The VLAN of its frames.
    pub vlan: u16,
}

/// A next hop, as JSON has it: [`NextHop`](rnic_core::connection::NextHop) in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// This host's MAC address on the link.
    pub source_mac: [u8; 6],
    /// The neighbour's.
    pub destination_mac: [u8; 6],
    /// The VLAN to send in, if any.
    pub vlan: Option<u16>,
    /// The MTU of the route, in octets of an IP packet.
    pub mtu: u16,
    /// The largest segments that peers on the route are asked for, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertised_mss: Option<NonZeroU16>,
}

/// A segment that was too big, as JSON has it: [`TooBig`](rnic_core::wire::icmp::TooBig) in
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BigSegment {
    /// The sender of the segment.
    pub local: SocketAddr,
    /// Its receiver.
    pub remote: SocketAddr,
    /// Its sequence number.
    pub seq: u32,
    /// Octets of the largest IP packet that fits.
    pub mtu: u16,
}

/// A sealed packet that was too big, as JSON has it:
/// [`EspTooBig`](rnic_core::wire::icmp::EspTooBig) in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BigPacket {
    /// The sender.
    pub source: IpAddr,
    /// The receiver.
    pub destination: IpAddr,
    /// Its Security Parameters Index.
    pub spi: u32,
    /// The lower half of its sequence number.
    pub number: u32,
    /// Octets of the largest IP packet that fits.
    pub mtu: u16,
}
