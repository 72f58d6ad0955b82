//! Veth pairs whose other end lies in another network namespace.

use std::os::fd::{AsRawFd, BorrowedFd};

use zerocopy::IntoBytes;

use super::error::NetlinkError;
use super::link::{IFF_UP, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, IFLA_MTU};
use super::link::{IFLA_NUM_RX_QUEUES, IFLA_NUM_TX_QUEUES, InterfaceInfo, NEW_LINK};
use super::message::{Builder, attribute};
use super::socket::{ReplyMode, RouteSocket};

const DELETE_LINK: u16 = 17;
const SET_LINK: u16 = 19;

const FLAG_EXCLUSIVE: u16 = 0x200;
const FLAG_CREATE: u16 = 0x400;

const IFLA_AF_SPEC: u16 = 26;
const IFLA_NET_NS_FD: u16 = 28;
const VETH_INFO_PEER: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
/// No link-local address: the kernel has nothing to say on such a device.
const ADDR_GEN_MODE_NONE: u8 = 1;
const AF_INET6: u16 = 10;

/// Makes a veth pair of one queue. One end is in this network namespace, the other in `namespace`.
/// Both are down.
pub(crate) fn make_veth(
    socket: &mut RouteSocket,
    name: &str,
    (peer, namespace): (&str, BorrowedFd<'_>),
    mtu: u32,
) -> Result<(), NetlinkError> {
    let each = |name: &str| {
        let mut octets = attribute(IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        octets.extend(attribute(IFLA_MTU, mtu.as_bytes()));
        octets.extend(attribute(IFLA_NUM_TX_QUEUES, 1u32.as_bytes()));
        octets.extend(attribute(IFLA_NUM_RX_QUEUES, 1u32.as_bytes()));
        octets
    };
    let mut other = InterfaceInfo::default().as_bytes().to_vec();
    other.extend(each(peer));
    other.extend(attribute(IFLA_NET_NS_FD, namespace.as_raw_fd().as_bytes()));
    let data = attribute(VETH_INFO_PEER, &other);
    let build = |flags| {
        Builder::new(NEW_LINK, flags, &InterfaceInfo::default())
            .attributes(&each(name))
            .nested(
                IFLA_LINKINFO,
                &[(IFLA_INFO_KIND, b"veth\0"), (IFLA_INFO_DATA, &data)],
            )
    };
    let reply = ReplyMode::Acknowledgement(FLAG_CREATE | FLAG_EXCLUSIVE);
    socket.0.request("make a veth pair", reply, build).map(drop)
}

/// Starts a device on which the kernel itself says nothing: it gets no IPv6 address.
pub(crate) fn start_silent(socket: &mut RouteSocket, index: u32) -> Result<(), NetlinkError> {
    let mode = attribute(IFLA_INET6_ADDR_GEN_MODE, &[ADDR_GEN_MODE_NONE]);
    let info = InterfaceInfo::of(index);
    let silence =
        |flags| Builder::new(SET_LINK, flags, &info).nested(IFLA_AF_SPEC, &[(AF_INET6, &mode)]);
    let acknowledged = ReplyMode::Acknowledgement(0);
    let silenced = socket.0.request("silence a device", acknowledged, silence);
    // A kernel without IPv6 says nothing anyway.
    if let Err(error) = silenced
        && error.refusal() != Some(nix::libc::EAFNOSUPPORT)
    {
        return Err(error);
    }
    let up = InterfaceInfo {
        flags: IFF_UP,
        change: IFF_UP,
        ..info
    };
    let build = |flags| Builder::new(SET_LINK, flags, &up);
    let started = socket.0.request("start a device", acknowledged, build);
    started.map(drop)
}

/// Stops a device.
pub(crate) fn stop_link(socket: &mut RouteSocket, index: u32) -> Result<(), NetlinkError> {
    let down = InterfaceInfo {
        change: IFF_UP,
        ..InterfaceInfo::of(index)
    };
    let build = |flags| Builder::new(SET_LINK, flags, &down);
    let reply = ReplyMode::Acknowledgement(0);
    socket.0.request("stop a device", reply, build).map(drop)
}

/// Removes a device; of a veth pair both ends.
pub(crate) fn remove_link(socket: &mut RouteSocket, index: u32) -> Result<(), NetlinkError> {
    let info = InterfaceInfo::of(index);
    let build = |flags| Builder::new(DELETE_LINK, flags, &info);
    let reply = ReplyMode::Acknowledgement(0);
    socket.0.request("remove a device", reply, build).map(drop)
}
