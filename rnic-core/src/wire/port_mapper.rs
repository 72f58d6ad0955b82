//! Messages of the iWARP Port Mapper, as `iwpmd` of rdma-core speaks it over UDP.
//!
//! Over iWARP, TCP and RDMA share one space of port numbers. A port mapper lets a program listen
//! for RDMA at a number that a TCP socket has. The listener then has another TCP port, the mapped
//! port. A host that connects first asks the port mapper of the listener's host for the mapped port.
//! It sends a Request. The answer is an Accept, which the host acknowledges, or a Reject.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use zerocopy::byteorder::network_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The UDP port of mappers.
pub const PORT: u16 = 3935;

/// Octets of the longest message, a Request.
pub const MAX_LEN: usize = size_of::<RawRequest>();

/// The version of the protocol.
const VERSION: u8 = 0;

const VERSION_SHIFT: u32 = 6;
const KIND_SHIFT: u32 = 4;
const KIND_MASK: u8 = 0x3;
const FAMILY_MASK: u8 = 0xf;
/// The most octets of an address.
const ADDRESS_LEN: usize = 16;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawMessage {
    version_kind_family: u8,
    /// How long a mapping is valid. `iwpmd` sends 0, and looks at none.
    time: u8,
    /// In a Request the mapped port of the side that connects.
    mapped_port: U16,
    acceptor_port: U16,
    connector_port: U16,
    handle: U64,
    connector: [u8; ADDRESS_LEN],
    acceptor: [u8; ADDRESS_LEN],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRequest {
    message: RawMessage,
    mapped_connector: [u8; ADDRESS_LEN],
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Where does who listens at [`Message::acceptor`] listen?
    Request,
    /// At [`Message::acceptor`].
    Accept,
    /// The Accept has come.
    Acknowledgment,
    /// Nobody listens there.
    Reject,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// Chosen by the sender of the Request, and repeated in each message about it.
    pub handle: u64,
    /// The side that listens: as it is asked for, or in an Accept as it is mapped.
    pub acceptor: SocketAddr,
    /// The side that connects, as its program knows itself. It has the family of the acceptor.
    pub connector: SocketAddr,
}

impl Message {
    /// Reads a datagram. Returns `None` if it is no message of this version.
    pub fn parse(octets: &[u8]) -> Option<Self> {
        let (raw, rest) = RawMessage::ref_from_prefix(octets).ok()?;
        let first = raw.version_kind_family;
        if !matches!(rest.len(), 0 | ADDRESS_LEN) || first >> VERSION_SHIFT != VERSION {
            return None;
        }
        let kind = match first >> KIND_SHIFT & KIND_MASK {
            0 => Kind::Request,
            1 => Kind::Accept,
            2 => Kind::Acknowledgment,
            _ => Kind::Reject,
        };
        let is_v4 = match first & FAMILY_MASK {
            4 => true,
            6 => false,
            _ => return None,
        };
        Some(Self {
            kind,
            handle: raw.handle.get(),
            acceptor: SocketAddr::new(read(raw.acceptor, is_v4), raw.acceptor_port.get()),
            connector: SocketAddr::new(read(raw.connector, is_v4), raw.connector_port.get()),
        })
    }

    /// Writes the message at the start of `octets`. Returns its length. In a Request the side that
    /// connects is mapped to itself.
    pub fn emit(&self, octets: &mut [u8; MAX_LEN]) -> usize {
        let kind = match self.kind {
            Kind::Request => 0,
            Kind::Accept => 1,
            Kind::Acknowledgment => 2,
            Kind::Reject => 3,
        };
        let family = if self.acceptor.is_ipv4() { 4 } else { 6 };
        let is_request = self.kind == Kind::Request;
        let message = RawMessage {
            version_kind_family: VERSION << VERSION_SHIFT | kind << KIND_SHIFT | family,
            time: 0,
            mapped_port: if is_request { self.connector.port() } else { 0 }.into(),
            acceptor_port: self.acceptor.port().into(),
            connector_port: self.connector.port().into(),
            handle: self.handle.into(),
            connector: written(self.connector.ip()),
            acceptor: written(self.acceptor.ip()),
        };
        let mapped_connector = message.connector;
        let request = RawRequest {
            message,
            mapped_connector,
        };
        octets.copy_from_slice(request.as_bytes());
        match is_request {
            true => size_of::<RawRequest>(),
            false => size_of::<RawMessage>(),
        }
    }
}

/// Reads an address. One of IPv4 takes the first four octets.
fn read(octets: [u8; ADDRESS_LEN], is_v4: bool) -> IpAddr {
    let [a, b, c, d, ..] = octets;
    match is_v4 {
        true => Ipv4Addr::new(a, b, c, d).into(),
        false => Ipv6Addr::from(octets).into(),
    }
}

fn written(address: IpAddr) -> [u8; ADDRESS_LEN] {
    match address {
        IpAddr::V4(v4) => {
            let mut octets = [0; ADDRESS_LEN];
            octets[..4].copy_from_slice(&v4.octets());
            octets
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}
