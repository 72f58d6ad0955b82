//! Routes of the kernel.

use std::net::IpAddr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::error::NetlinkError;
use super::message::{Builder, Message};
use super::socket::{ReplyMode, RouteSocket};

const NEW_ROUTE: u16 = 24;
const DELETED_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const NEW_RULE: u16 = 32;
const DELETED_RULE: u16 = 33;
const NEW_NEXTHOP: u16 = 104;
const DELETED_NEXTHOP: u16 = 105;
const NEW_NEXTHOP_BUCKET: u16 = 116;
const DELETED_NEXTHOP_BUCKET: u16 = 117;

const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;

const RTN_UNICAST: u8 = 1;

/// `struct rtmsg`
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RouteInfo {
    family: u8,
    destination_len: u8,
    source_len: u8,
    traffic_class: u8,
    table: u8,
    protocol: u8,
    scope: u8,
    kind: u8,
    flags: u32,
}

/// The kernel's route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The device of the route.
    pub(crate) link: u32,
    /// The router; `None` if the destination is on the link.
    pub(crate) gateway: Option<IpAddr>,
    /// The local address to use.
    pub(crate) source: Option<IpAddr>,
    /// MTU of the route or of the path, if the kernel knows one.
    pub(crate) mtu: Option<u32>,
    /// The largest segments that peers are asked for, if the route says so.
    pub(crate) advertised_mss: Option<u32>,
}

impl Route {
    fn from_message(message: &Message) -> Option<Self> {
        let (info, attributes) = message.split::<RouteInfo>()?;
        if message.kind != NEW_ROUTE || info.kind != RTN_UNICAST {
            return None;
        }
        // An IPv4 route through an IPv6 router names it in RTA_VIA: family, then address.
        let via = || {
            let (family, octets) = attributes.get(RTA_VIA)?.split_at_checked(2)?;
            let address: [u8; 16] = octets.try_into().ok()?;
            (family != [0, 0]).then(|| IpAddr::from(address))
        };
        let metric = |kind| attributes.nested(RTA_METRICS)?.value(kind);
        Some(Self {
            link: attributes.value(RTA_OIF)?,
            gateway: attributes.address(RTA_GATEWAY).or_else(via),
            source: attributes.address(RTA_PREFSRC),
            mtu: metric(RTAX_MTU),
            advertised_mss: metric(RTAX_ADVMSS),
        })
    }

    /// Returns whether a message says that routing may have changed: by routes, by the rules that
    /// choose their table, or by the next hops that routes name.
    pub(crate) fn is_of_routing(message: &Message) -> bool {
        matches!(
            message.kind,
            NEW_ROUTE
                | DELETED_ROUTE
                | NEW_RULE
                | DELETED_RULE
                | NEW_NEXTHOP
                | DELETED_NEXTHOP
                | NEW_NEXTHOP_BUCKET
                | DELETED_NEXTHOP_BUCKET
        )
    }
}

pub(crate) fn family_of(address: IpAddr) -> u8 {
    let family = match address {
        IpAddr::V4(_) => nix::libc::AF_INET,
        IpAddr::V6(_) => nix::libc::AF_INET6,
    };
    family as u8
}

/// Looks up the route to `destination`, from a local address and through a device if stated.
/// Returns `None` if there is no unicast route (unreachable, or it is this host itself).
pub(crate) fn route(
    socket: &mut RouteSocket,
    destination: IpAddr,
    source: Option<IpAddr>,
    link: Option<u32>,
) -> Result<Option<Route>, NetlinkError> {
    let bits = if destination.is_ipv4() { 32 } else { 128 };
    let info = RouteInfo {
        family: family_of(destination),
        destination_len: bits,
        source_len: if source.is_some() { bits } else { 0 },
        ..Default::default()
    };
    let reply = socket
        .0
        .request("look up a route", ReplyMode::One, |flags| {
            let mut request = Builder::new(GET_ROUTE, flags, &info).address(RTA_DST, destination);
            if let Some(source) = source {
                request = request.address(RTA_SRC, source);
            }
            if let Some(link) = link {
                request = request.attribute(RTA_OIF, &link.to_ne_bytes());
            }
            request
        });
    match reply {
        Ok(messages) => Ok(messages.iter().find_map(Route::from_message)),
        // Unreachable, prohibited, no such device, not a local source: no route in each case.
        Err(NetlinkError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
