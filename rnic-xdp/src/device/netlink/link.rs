//! Links: devices, their addresses, VLANs on them and XDP programs attached to them.

use rnic_core::wire::ethernet::MacAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::error::NetlinkError;
use super::lower::{IFLA_LINK, IFLA_LINK_NETNSID, Lower, lower};
use super::message::{Attributes, Builder, Message};
use super::socket::{ReplyMode, RouteSocket};

pub(super) const NEW_LINK: u16 = 16;
const DELETED_LINK: u16 = 17;
const GET_LINK: u16 = 18;

pub(super) const IFLA_ADDRESS: u16 = 1;
pub(super) const IFLA_IFNAME: u16 = 3;
pub(super) const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
pub(super) const IFLA_LINKINFO: u16 = 18;
pub(super) const IFLA_INFO_KIND: u16 = 1;
pub(super) const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_PROTOCOL: u16 = 5;
pub(super) const IFLA_NUM_TX_QUEUES: u16 = 31;
pub(super) const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_STATS64: u16 = 23;
const IFLA_ALT_IFNAME: u16 = 53;
pub(super) const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;

/// Types of devices, as ARP has them.
pub(super) const ARPHRD_ETHER: u16 = 1;

pub(super) const IFF_UP: u32 = 1;
const IFF_RUNNING: u32 = 0x40;
const ETHERTYPE_8021Q: u16 = 0x8100;

/// `struct ifinfomsg`
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct InterfaceInfo {
    pub(super) family: u8,
    pub(super) padding: u8,
    pub(super) kind: u16,
    pub(super) index: i32,
    pub(super) flags: u32,
    pub(super) change: u32,
}

impl InterfaceInfo {
    /// Names a device.
    pub(super) fn of(index: u32) -> Self {
        Self {
            index: index as i32,
            ..Self::default()
        }
    }
}

/// A VLAN device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vlan {
    /// The device that carries it.
    pub(crate) parent: u32,
    /// VLAN identifier.
    pub(crate) id: u16,
    /// Tagged by 802.1Q, the only kind that we can send.
    pub(crate) is_8021q: bool,
}

/// How an XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum XdpAttachment {
    Native,
    Generic,
    Offloaded,
    Several,
}

impl XdpAttachment {
    /// Returns its name, and the keyword of `ip link` that detaches it.
    pub(crate) fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Native => ("native", "xdp"),
            Self::Generic => ("generic", "xdpgeneric"),
            Self::Offloaded => ("offloaded", "xdpoffload"),
            Self::Several => ("in several modes", "xdp"),
        }
    }
}

/// An XDP program on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttachedXdp {
    pub(crate) program: u32,
    pub(crate) attachment: XdpAttachment,
}

/// What a device has counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkStatistics {
    pub(crate) rx_packets: u64,
    pub(crate) tx_packets: u64,
    pub(crate) rx_octets: u64,
    pub(crate) tx_octets: u64,
    pub(crate) rx_dropped: u64,
    pub(crate) tx_dropped: u64,
}

impl LinkStatistics {
    /// Reads the first part of `struct rtnl_link_stats64`.
    fn from_values(values: [u64; 8]) -> Self {
        let [
            rx_packets,
            tx_packets,
            rx_octets,
            tx_octets,
            _rx_errors,
            _tx_errors,
            rx_dropped,
            tx_dropped,
        ] = values;
        Self {
            rx_packets,
            tx_packets,
            rx_octets,
            tx_octets,
            rx_dropped,
            tx_dropped,
        }
    }
}

/// A network device.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) up: bool,
    /// Up, and with a carrier.
    pub(crate) active: bool,
    pub(crate) mac: MacAddr,
    /// Its frames have Ethernet headers, and it has a MAC address.
    pub(crate) is_ethernet: bool,
    pub(crate) mtu: u32,
    /// Kind of a virtual device: "veth", "vlan", ...
    pub(crate) kind: Option<String>,
    pub(crate) vlan: Option<Vlan>,
    /// What carries its frames, if it stands on another device: a VLAN, a macvlan, the end of a
    /// tunnel.
    pub(crate) lower: Option<Lower>,
    /// The bond, bridge or other device that it is a part of.
    pub(crate) master: Option<u32>,
    /// Queues allocated, of which fewer may be in use.
    pub(crate) rx_queues: u32,
    pub(crate) tx_queues: u32,
    pub(crate) xdp: Option<AttachedXdp>,
    /// Bus and name of the hardware device: ("pci", "0000:01:00.0").
    pub(crate) hardware: Option<(String, String)>,
    pub(crate) statistics: LinkStatistics,
}

impl Link {
    /// Reads a link message. Returns `None` for any other.
    pub(crate) fn from_message(message: &Message) -> Option<Self> {
        if message.kind != NEW_LINK {
            return None;
        }
        let (info, attributes) = message.split::<InterfaceInfo>()?;
        let mac = attributes
            .value::<[u8; 6]>(IFLA_ADDRESS)
            .unwrap_or_default();
        let link_info = attributes.nested(IFLA_LINKINFO);
        let kind = link_info.and_then(|info| info.string(IFLA_INFO_KIND));
        let data = link_info.and_then(|info| info.nested(IFLA_INFO_DATA));
        let vlan_data = data.filter(|_| kind.as_deref() == Some("vlan"));
        Some(Self {
            index: info.index.try_into().ok()?,
            name: attributes.string(IFLA_IFNAME)?,
            up: info.flags & IFF_UP != 0,
            active: info.flags & (IFF_UP | IFF_RUNNING) == IFF_UP | IFF_RUNNING,
            mac: MacAddr(mac),
            is_ethernet: info.kind == ARPHRD_ETHER && mac != [0; 6],
            mtu: attributes.value(IFLA_MTU).unwrap_or(0),
            vlan: vlan_data.and_then(|data| vlan(attributes, data)),
            lower: lower(info.index as u32, kind.as_deref(), attributes, data),
            master: attributes.value(IFLA_MASTER),
            kind,
            rx_queues: attributes.value(IFLA_NUM_RX_QUEUES).unwrap_or(1),
            tx_queues: attributes.value(IFLA_NUM_TX_QUEUES).unwrap_or(1),
            xdp: attributes.nested(IFLA_XDP).and_then(attached_xdp),
            hardware: attributes
                .string(IFLA_PARENT_DEV_BUS_NAME)
                .zip(attributes.string(IFLA_PARENT_DEV_NAME)),
            statistics: LinkStatistics::from_values(
                attributes.value(IFLA_STATS64).unwrap_or_default(),
            ),
        })
    }

    /// Returns whether a message says that a device is gone from this network namespace.
    pub(crate) fn is_end_of(message: &Message, index: u32) -> bool {
        // A bridge that loses a port sends such a message too, of its own family.
        let whole = |info: InterfaceInfo| info.family == 0 && info.index as u32 == index;
        message.kind == DELETED_LINK
            && message
                .split::<InterfaceInfo>()
                .is_some_and(|(info, _)| whole(info))
    }

    /// Returns its VLAN identifier if it is a VLAN on a device whose tag the engine can write.
    pub(crate) fn vlan_on(&self, device: u32) -> Option<u16> {
        let vlan = self.vlan?;
        (vlan.parent == device && vlan.is_8021q).then_some(vlan.id)
    }

    /// Returns whether it is a routing domain: its parts keep their addresses and receive their
    /// frames themselves.
    pub(crate) fn is_vrf(&self) -> bool {
        self.kind.as_deref() == Some("vrf")
    }

    /// Makes a link without properties.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        Self {
            index: 0,
            name: String::new(),
            up: true,
            active: true,
            mac: MacAddr::default(),
            is_ethernet: true,
            mtu: 1500,
            kind: None,
            vlan: None,
            lower: None,
            master: None,
            rx_queues: 1,
            tx_queues: 1,
            xdp: None,
            hardware: None,
            statistics: LinkStatistics::default(),
        }
    }

    /// Returns whether a message is about links at all.
    pub(crate) fn is_link_message(message: &Message) -> bool {
        matches!(message.kind, NEW_LINK | DELETED_LINK)
    }
}

/// A change of a link.
#[derive(Clone, Debug)]
pub(crate) enum LinkChange {
    /// It exists with these properties.
    Is(Box<Link>),
    /// The link with this index is gone.
    Gone(u32),
}

impl LinkChange {
    /// Reads a change of a link. Returns `None` for other messages, such as those of a bridge about
    /// its ports.
    pub(crate) fn from_message(message: &Message) -> Option<Self> {
        let (info, _) = message.split::<InterfaceInfo>()?;
        match message.kind {
            _ if info.family != 0 => None,
            NEW_LINK => Some(Self::Is(Box::new(Link::from_message(message)?))),
            DELETED_LINK => Some(Self::Gone(info.index.try_into().ok()?)),
            _ => None,
        }
    }
}

fn vlan(link: Attributes<'_>, data: Attributes<'_>) -> Option<Vlan> {
    // The lower device is in another network namespace, so its index means nothing here.
    if link.value::<u32>(IFLA_LINK_NETNSID).is_some() {
        return None;
    }
    let protocol = data
        .value(IFLA_VLAN_PROTOCOL)
        .map_or(ETHERTYPE_8021Q, u16::from_be_bytes);
    Some(Vlan {
        parent: link.value(IFLA_LINK)?,
        id: data.value(IFLA_VLAN_ID)?,
        is_8021q: protocol == ETHERTYPE_8021Q,
    })
}

fn attached_xdp(xdp: Attributes<'_>) -> Option<AttachedXdp> {
    let attachment = match xdp.value::<u8>(IFLA_XDP_ATTACHED)? {
        1 => XdpAttachment::Native,
        2 => XdpAttachment::Generic,
        3 => XdpAttachment::Offloaded,
        4 => XdpAttachment::Several,
        _ => return None,
    };
    let program = [
        IFLA_XDP_PROG_ID,
        IFLA_XDP_DRV_PROG_ID,
        IFLA_XDP_SKB_PROG_ID,
        IFLA_XDP_HW_PROG_ID,
    ]
    .into_iter()
    .find_map(|kind| xdp.value::<u32>(kind).filter(|id| *id != 0))?;
    Some(AttachedXdp {
        program,
        attachment,
    })
}

const READ_LINK: &str = "read a network device";

/// Looks up a device by its name, or by an alternative one. Returns `None` if there is none.
pub(crate) fn link_by_name(
    socket: &mut RouteSocket,
    name: &str,
) -> Result<Option<Link>, NetlinkError> {
    // Alternative names are found by either attribute, if they are short enough for it.
    let attribute = match name.len() {
        ..nix::libc::IFNAMSIZ => IFLA_IFNAME,
        _ => IFLA_ALT_IFNAME,
    };
    one(socket, |flags| {
        Builder::new(GET_LINK, flags, &InterfaceInfo::default()).string(attribute, name)
    })
}

/// Returns the first name of a device that this one is a name of, in the network namespace of this
/// thread.
pub fn device_name(name: &str) -> Option<String> {
    Some(named(name)?.name)
}

/// Returns the MTU of a device in octets, in the network namespace of this thread.
pub fn link_mtu(name: &str) -> Option<u32> {
    Some(named(name)?.mtu)
}

pub(super) fn named(name: &str) -> Option<Link> {
    let link = RouteSocket::open().and_then(|mut socket| link_by_name(&mut socket, name));
    link.ok()?
}

/// Looks up a device by its index. Returns `None` if there is none.
pub(crate) fn link_by_index(
    socket: &mut RouteSocket,
    index: u32,
) -> Result<Option<Link>, NetlinkError> {
    let info = InterfaceInfo::of(index);
    one(socket, |flags| Builder::new(GET_LINK, flags, &info))
}

/// Lists all devices of this network namespace.
pub(crate) fn links(socket: &mut RouteSocket) -> Result<Vec<Link>, NetlinkError> {
    let build = |flags| Builder::new(GET_LINK, flags, &InterfaceInfo::default());
    let messages = socket
        .0
        .request("list the network devices", ReplyMode::Dump, build)?;
    Ok(messages.iter().filter_map(Link::from_message).collect())
}

fn one(
    socket: &mut RouteSocket,
    build: impl Fn(u16) -> Builder,
) -> Result<Option<Link>, NetlinkError> {
    let absent = [
        nix::libc::ENODEV,
        nix::libc::ENOENT,
        nix::libc::ERANGE,
        nix::libc::EINVAL,
    ];
    match socket.0.request(READ_LINK, ReplyMode::One, build) {
        Ok(messages) => Ok(messages.iter().find_map(Link::from_message)),
        Err(error) if error.refusal().is_some_and(|code| absent.contains(&code)) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::netlink::message::parse;

    #[test]
    fn a_vlan_names_its_parent_and_tag() {
        let info = InterfaceInfo {
            index: 7,
            flags: IFF_UP,
            ..Default::default()
        };
        let mut data = Vec::new();
        data.extend([6, 0, 1, 0, 42, 0, 0, 0]); // IFLA_VLAN_ID
        data.extend([6, 0, 5, 0, 0x81, 0x00, 0, 0]); // IFLA_VLAN_PROTOCOL, network order
        let octets = Builder::new(NEW_LINK, 0, &info)
            .string(IFLA_IFNAME, "v42")
            .attribute(IFLA_LINK, &3u32.to_ne_bytes())
            .nested(
                IFLA_LINKINFO,
                &[(IFLA_INFO_KIND, b"vlan\0"), (IFLA_INFO_DATA, &data)],
            )
            .finish(1);
        let link = Link::from_message(&parse(&octets)[0]).unwrap();
        assert!(link.up && !link.active && link.index == 7 && link.name == "v42");
        let expected = Vlan {
            parent: 3,
            id: 42,
            is_8021q: true,
        };
        assert_eq!(link.vlan, Some(expected));
    }

    #[test]
    fn only_devices_with_ethernet_headers_and_an_address_are_ethernet() {
        let of = |kind, mac: Option<[u8; 6]>| {
            let info = InterfaceInfo {
                index: 7,
                kind,
                ..Default::default()
            };
            let built = Builder::new(NEW_LINK, 0, &info).string(IFLA_IFNAME, "dev");
            let built = match mac {
                Some(mac) => built.attribute(IFLA_ADDRESS, &mac),
                None => built,
            };
            let link = Link::from_message(&parse(&built.finish(1))[0]).unwrap();
            link.is_ethernet
        };
        assert!(of(ARPHRD_ETHER, Some([2, 0, 0, 0, 0, 1])));
        // WireGuard and tun have neither, a loopback device has no address, IPoIB and GRE have
        // others.
        assert!(!of(0xfffe, None) && !of(772, Some([0; 6])));
        assert!(!of(32, Some([2; 6])) && !of(ARPHRD_ETHER, None));
    }
}
