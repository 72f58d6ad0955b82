//! Neighbours: link-layer addresses, as the kernel resolves them.

use std::net::IpAddr;

use rnic_core::wire::ethernet::MacAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::error::NetlinkError;
use super::message::{Builder, Message};
use super::route::family_of;
use super::socket::{ReplyMode, RouteSocket};

const NEW_NEIGHBOUR: u16 = 28;
const DELETED_NEIGHBOUR: u16 = 29;
const GET_NEIGHBOUR: u16 = 30;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

const NUD_REACHABLE: u16 = 0x02;
const NUD_STALE: u16 = 0x04;
const NUD_DELAY: u16 = 0x08;
const NUD_PROBE: u16 = 0x10;
const NUD_FAILED: u16 = 0x20;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
const NUD_VALID: u16 =
    NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_NOARP | NUD_PERMANENT;

const NTF_USE: u8 = 0x01;
const FLAG_CREATE: u16 = 0x400;

/// `struct ndmsg`
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct NeighbourInfo {
    family: u8,
    padding1: u8,
    padding2: u16,
    link: i32,
    state: u16,
    flags: u8,
    kind: u8,
}

/// The kernel's entry for a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) link: u32,
    pub(crate) address: IpAddr,
    /// Its link-layer address, if it is usable.
    pub(crate) mac: Option<MacAddr>,
    /// The address is usable but was not confirmed lately.
    pub(crate) stale: bool,
    /// The neighbour did not reply to the kernel's requests.
    pub(crate) failed: bool,
}

impl Neighbour {
    /// Reads a neighbour message. Returns `None` for any other.
    pub(crate) fn from_message(message: &Message) -> Option<Self> {
        if !matches!(message.kind, NEW_NEIGHBOUR | DELETED_NEIGHBOUR) {
            return None;
        }
        let (info, attributes) = message.split::<NeighbourInfo>()?;
        let usable = message.kind == NEW_NEIGHBOUR && info.state & NUD_VALID != 0;
        Some(Self {
            link: info.link.try_into().ok()?,
            address: attributes.address(NDA_DST)?,
            mac: attributes.value(NDA_LLADDR).filter(|_| usable).map(MacAddr),
            stale: info.state & NUD_STALE != 0,
            failed: info.state & NUD_FAILED != 0,
        })
    }
}

/// Looks up the kernel's entry for a neighbour. Returns `None` if it has none.
pub(crate) fn neighbour(
    socket: &mut RouteSocket,
    link: u32,
    address: IpAddr,
) -> Result<Option<Neighbour>, NetlinkError> {
    let info = info(link, address);
    let reply = socket
        .0
        .request("look up a neighbour", ReplyMode::One, |flags| {
            Builder::new(GET_NEIGHBOUR, flags, &info).address(NDA_DST, address)
        });
    match reply {
        Ok(messages) => Ok(messages.iter().find_map(Neighbour::from_message)),
        Err(NetlinkError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lists the kernel's entries for neighbours.
pub(crate) fn neighbours(socket: &mut RouteSocket) -> Result<Vec<Neighbour>, NetlinkError> {
    let messages = socket
        .0
        .request("list the neighbours", ReplyMode::Dump, |flags| {
            Builder::new(GET_NEIGHBOUR, flags, &NeighbourInfo::default())
        })?;
    let all = messages.iter();
    Ok(all.filter_map(Neighbour::from_message).collect())
}

/// Makes the kernel resolve or confirm a neighbour, as if it had a packet to send.
pub(crate) fn ask_for_neighbour(
    socket: &mut RouteSocket,
    link: u32,
    address: IpAddr,
) -> Result<(), NetlinkError> {
    let info = NeighbourInfo {
        flags: NTF_USE,
        ..info(link, address)
    };
    let create = ReplyMode::Acknowledgement(FLAG_CREATE);
    socket.0.request("resolve a neighbour", create, |flags| {
        Builder::new(NEW_NEIGHBOUR, flags, &info).address(NDA_DST, address)
    })?;
    Ok(())
}

fn info(link: u32, address: IpAddr) -> NeighbourInfo {
    NeighbourInfo {
        family: family_of(address),
        link: link as i32,
        ..Default::default()
    }
}
