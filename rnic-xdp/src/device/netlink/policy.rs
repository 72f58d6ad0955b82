//! IPsec policies (xfrm): which traffic of this host the kernel protects with ESP or AH, or blocks.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::libc;
use rnic_core::engine::{Peers, Prefix};
use rnic_core::esp::Ports;
use rustix::net::netlink;
use zerocopy::FromBytes;

use super::error::NetlinkError;
use super::message::{Attributes, Builder, Message};
use super::policy_layout::{DIRECTION_IN, DIRECTION_OUT, RawPolicy, RawTemplate, XFRMA_TMPL};
use super::socket::{Groups, ReplyMode, Socket};

const NEW_POLICY: u16 = 0x13;
const GET_POLICY: u16 = 0x15;
const GET_DEFAULT: u16 = 0x28;

const XFRMA_POLICY_TYPE: u16 = 16;
const XFRMA_MARK: u16 = 21;
const XFRMA_IF_ID: u16 = 31;

const ACTION_BLOCK: u8 = 1;
const DEFAULT_BLOCK: u8 = 1;

/// What a policy does with the packets that it selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// They pass.
    Pass,
    /// They are dropped.
    Block,
    /// They are protected: by these, from the inside out.
    Protect(Vec<Layer>),
}

/// What is demanded of packets: a protocol around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) protocol: u8,
    pub(super) mode: u8,
    pub(super) request: u32,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
}

impl Layer {
    fn new(raw: &RawTemplate) -> Self {
        // A demand counts, whatever its family is.
        let end = |octets| address(raw.family, octets).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        Self {
            protocol: raw.protocol,
            mode: raw.mode,
            request: raw.request,
            source: end(raw.source),
            destination: end(raw.destination),
        }
    }

    /// Returns whether it only has key managers asked (pluto): it names no request and no ends, and
    /// another policy takes its place when associations are there.
    pub(super) fn is_to_ask(&self) -> bool {
        self.request == 0 && self.source.is_unspecified() && self.destination.is_unspecified()
    }
}

fn ports([port, mask]: [[u8; 2]; 2]) -> Ports {
    let [port, mask] = [port, mask].map(u16::from_be_bytes);
    Ports { port, mask }
}

/// An IPsec policy of the kernel, for what this host sends or receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(super) outgoing: bool,
    pub(super) priority: u32,
    /// The kernel counts its policies: of two with the same priority the older one has precedence.
    pub(super) index: u32,
    /// Main policies and sub policies apply both.
    kind: u8,
    /// Of IP; 0 is all of them.
    protocol: u8,
    pub(super) local: Prefix,
    pub(super) local_ports: Ports,
    pub(super) remote: Prefix,
    pub(super) remote_ports: Ports,
    /// The link that it is for, if it is for one only.
    pub(super) link: Option<u32>,
    /// The kernel's default for packets that no policy selects.
    is_default: bool,
    pub(super) action: Action,
    /// The requests of what may protect it and need not (`level use`).
    pub(super) optional: Vec<u32>,
}

/// Reads an address. Returns `None` for a family that is not IP.
pub(super) fn address(family: u16, octets: [u8; 16]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => {
            let [a, b, c, d, ..] = octets;
            Some([a, b, c, d].into())
        }
        libc::AF_INET6 => Some(octets.into()),
        _ => None,
    }
}

fn prefix(family: u16, octets: [u8; 16], len: u8) -> Option<Prefix> {
    Some(Prefix::new(address(family, octets)?, len))
}

impl Policy {
    /// Reads a policy that is of this xfrm interface, of none if that is 0. Returns `None` for any
    /// other message.
    fn from_message(message: &Message, if_id: u32) -> Option<Self> {
        if message.kind != NEW_POLICY {
            return None;
        }
        let (raw, attributes) = message.split::<RawPolicy>()?;
        let selector = raw.selector;
        // Policies of sockets and for forwarding, of other xfrm interfaces and for marked packets
        // are not for ours, which have no mark.
        let [mark, _mask] = attributes.value::<[u32; 2]>(XFRMA_MARK).unwrap_or_default();
        let other_direction = !matches!(raw.direction, DIRECTION_IN | DIRECTION_OUT);
        let of_other = attributes.value::<u32>(XFRMA_IF_ID).unwrap_or(0) != if_id;
        if other_direction || of_other || mark != 0 {
            return None;
        }
        let source = prefix(selector.family, selector.source, selector.source_len)?;
        let destination = prefix(
            selector.family,
            selector.destination,
            selector.destination_len,
        )?;
        let source_ports = ports([selector.source_port, selector.source_port_mask]);
        let destination_ports = ports([selector.destination_port, selector.destination_port_mask]);
        let outgoing = raw.direction == DIRECTION_OUT;
        let (local, remote) = match outgoing {
            true => ((source, source_ports), (destination, destination_ports)),
            false => ((destination, destination_ports), (source, source_ports)),
        };
        Some(Self {
            outgoing,
            priority: raw.priority,
            index: raw.index,
            kind: attributes.value(XFRMA_POLICY_TYPE).unwrap_or(0),
            protocol: selector.protocol,
            local: local.0,
            local_ports: local.1,
            remote: remote.0,
            remote_ports: remote.1,
            link: u32::try_from(selector.link).ok().filter(|link| *link != 0),
            is_default: false,
            action: action(raw.action, attributes),
            optional: optional(attributes),
        })
    }

    /// Returns what the kernel does with packets that no policy selects, if it blocks them.
    fn defaults(message: &Message) -> Vec<Self> {
        let Some(([incoming, _, outgoing], _)) = message.split::<[u8; 3]>() else {
            return Vec::new();
        };
        let families = [
            IpAddr::from(Ipv4Addr::UNSPECIFIED),
            Ipv6Addr::UNSPECIFIED.into(),
        ];
        let mut blocks = Vec::new();
        for (outgoing, action) in [(false, incoming), (true, outgoing)] {
            for any in families.into_iter().filter(|_| action == DEFAULT_BLOCK) {
                blocks.push(Self {
                    outgoing,
                    priority: u32::MAX,
                    index: 0,
                    kind: 0,
                    protocol: 0,
                    local: Prefix::new(any, 0),
                    local_ports: Ports::ALL,
                    remote: Prefix::new(any, 0),
                    remote_ports: Ports::ALL,
                    link: None,
                    is_default: true,
                    action: Action::Block,
                    optional: Vec::new(),
                });
            }
        }
        blocks
    }

    /// Returns whether it can apply to TCP connections.
    fn is_for_tcp(&self) -> bool {
        matches!(i32::from(self.protocol), 0 | libc::IPPROTO_TCP)
    }

    /// Returns whether it can apply to nothing but TCP connections.
    pub(super) fn is_for_tcp_alone(&self) -> bool {
        i32::from(self.protocol) == libc::IPPROTO_TCP
    }

    /// Returns whether it is for what is sent.
    pub(crate) fn is_outgoing(&self) -> bool {
        self.outgoing
    }

    pub(super) fn is_demand(&self) -> bool {
        self.action != Action::Pass
    }

    fn is_for_link(&self, links: &[u32]) -> bool {
        self.link.is_none_or(|link| links.contains(&link))
    }

    /// Returns whether it selects the packets between two ends.
    fn selects(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.local.contains(local.ip())
            && self.remote.contains(remote.ip())
            && self.local_ports.contains(local.port())
            && self.remote_ports.contains(remote.port())
    }

    /// Returns whether it has precedence over another that selects the same packet.
    fn precedes(&self, other: &Self) -> bool {
        (self.outgoing, self.kind) == (other.outgoing, other.kind)
            && (self.is_default, self.priority) < (other.is_default, other.priority)
    }
}

fn templates(attributes: Attributes<'_>) -> impl Iterator<Item = RawTemplate> {
    let templates = attributes.get(XFRMA_TMPL).unwrap_or_default();
    let templates = templates.chunks_exact(size_of::<RawTemplate>());
    templates.filter_map(|octets| RawTemplate::read_from_bytes(octets).ok())
}

fn optional(attributes: Attributes<'_>) -> Vec<u32> {
    let optional = templates(attributes).filter(|template| template.optional != 0);
    optional.map(|template| template.request).collect()
}

fn action(action: u8, attributes: Attributes<'_>) -> Action {
    if action == ACTION_BLOCK {
        return Action::Block;
    }
    let demanded = templates(attributes)
        .filter(|template| template.optional == 0)
        .map(|template| Layer::new(&template));
    match demanded.collect::<Vec<_>>() {
        none if none.is_empty() => Action::Pass,
        demanded => Action::Protect(demanded),
    }
}

impl fmt::Display for Policy {
    /// Formats it as `ip xfrm policy` does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.outgoing { "out" } else { "in" };
        if self.is_default {
            return write!(f, "default {direction} block");
        }
        let ends = [
            (self.local, self.local_ports),
            (self.remote, self.remote_ports),
        ];
        let [(source, from), (destination, to)] = match self.outgoing {
            true => ends,
            false => [ends[1], ends[0]],
        };
        write!(f, "src {source} dst {destination}")?;
        for (name, ports) in [("sport", from), ("dport", to)] {
            if ports.mask != 0 {
                write!(f, " {name} {}", ports.port)?;
            }
        }
        write!(f, " dir {direction} priority {}", self.priority)?;
        match &self.action {
            Action::Pass => f.write_str(" action allow"),
            Action::Block => f.write_str(" action block"),
            Action::Protect(layers) => {
                layers.iter().try_for_each(|Layer { protocol, mode, .. }| {
                    let protocol = match i32::from(*protocol) {
                        libc::IPPROTO_ESP => "esp",
                        libc::IPPROTO_AH => "ah",
                        libc::IPPROTO_COMP => "comp",
                        _ => "other",
                    };
                    let mode =
                        ["transport", "tunnel", "ro", "in_trigger", "beet"].get(usize::from(*mode));
                    write!(
                        f,
                        " tmpl proto {protocol} mode {}",
                        mode.unwrap_or(&"other")
                    )
                })
            }
        }
    }
}

/// The IPsec policies of this host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies(pub(super) Vec<Policy>);

impl Policies {
    /// Returns those that can apply to TCP connections.
    pub(crate) fn for_tcp(mut self) -> Self {
        self.0.retain(Policy::is_for_tcp);
        self
    }

    /// Returns a policy that forbids an unprotected connection, if there is one that is not met
    /// otherwise. `links` are those that carry it.
    pub(crate) fn on_connection(
        &self,
        links: &[u32],
        local: SocketAddr,
        remote: SocketAddr,
        is_met: impl Fn(&Policy) -> bool,
    ) -> Option<&Policy> {
        let selects = |policy: &&Policy| policy.is_for_link(links) && policy.selects(local, remote);
        let first = |demand: &&Policy| {
            let mut selecting = self.0.iter().filter(selects);
            !selecting.any(|other| other.precedes(demand))
        };
        let demands = self
            .0
            .iter()
            .filter(selects)
            .filter(|policy| policy.is_demand() && !is_met(policy));
        demands.filter(first).min_by_key(|policy| !policy.outgoing)
    }

    /// Returns a policy that forbids a listener to talk unprotected to some of its peers, if there
    /// is one that is not met otherwise.
    pub(crate) fn on_listener(
        &self,
        links: &[u32],
        local: SocketAddr,
        peers: &Peers,
        is_met: impl Fn(&Policy) -> bool,
    ) -> Option<&Policy> {
        let any_address = local.ip().is_unspecified();
        let is_here = |policy: &Policy| {
            policy.local.is_ipv4() == local.is_ipv4()
                && (any_address || policy.local.contains(local.ip()))
                && policy.local_ports.contains(local.port())
        };
        // The peers that a policy selects, one range of addresses after the other.
        let shares = |demand: &Policy| peers.shared_with(demand.remote);
        let is_shadowed = |demand: &Policy, share: Prefix| {
            self.0.iter().any(|other| {
                let here = match any_address {
                    true => other.local.covers(demand.local),
                    false => other.local.contains(local.ip()),
                };
                other.precedes(demand)
                    && !other.is_demand()
                    && other.link.is_none()
                    && here
                    && other.local_ports.contains(local.port())
                    && other.remote.covers(share)
                    && other.remote_ports.covers(demand.remote_ports)
            })
        };
        let demands = self
            .0
            .iter()
            .filter(|policy| policy.is_demand() && policy.is_for_link(links) && !is_met(policy));
        demands.filter(|demand| is_here(demand)).find(|demand| {
            let mut shares = shares(demand).into_iter();
            shares.any(|share| !is_shadowed(demand, share))
        })
    }

    /// Returns the links that some are for.
    pub(crate) fn links(&self) -> impl Iterator<Item = u32> {
        self.0.iter().filter_map(|policy| policy.link)
    }

    /// Returns those that block packets or demand protection.
    pub(crate) fn demands(&self) -> impl Iterator<Item = &Policy> {
        self.0.iter().filter(|policy| policy.is_demand())
    }
}

/// Reads and follows the policies of a network namespace.
#[derive(Debug)]
pub(crate) struct PolicySocket(Socket);

impl PolicySocket {
    /// Opens a socket in the network namespace of this thread. Returns `None` if the kernel has no
    /// IPsec.
    pub(crate) fn open(groups: Groups) -> Result<Option<Self>, NetlinkError> {
        match Socket::open(netlink::XFRM, groups) {
            Ok(socket) => Ok(Some(Self(socket))),
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(None),
            Err(source) => Err(NetlinkError::Socket {
                doing: "open a socket for IPsec policies",
                source,
            }),
        }
    }

    /// Reads all policies that can apply to TCP connections of this host, and are of this xfrm
    /// interface: of none if that is 0, with the kernel's default for what they do not select.
    pub(crate) fn read(&mut self, if_id: u32) -> Result<Policies, NetlinkError> {
        Ok(self.read_all(if_id)?.for_tcp())
    }

    /// The same, with policies for other protocols.
    pub(crate) fn read_all(&mut self, if_id: u32) -> Result<Policies, NetlinkError> {
        let doing = "list the IPsec policies";
        let messages = self.0.request(doing, ReplyMode::Dump, |flags| {
            // `struct xfrm_userpolicy_id`: all of them.
            Builder::new(GET_POLICY, flags, &[0u64; 8])
        })?;
        let policies = messages
            .iter()
            .filter_map(|message| Policy::from_message(message, if_id));
        let mut policies: Vec<_> = policies.collect();
        if if_id != 0 {
            return Ok(Policies(policies));
        }
        let defaults = self
            .0
            .request("read the default IPsec policy", ReplyMode::One, |flags| {
                Builder::new(GET_DEFAULT, flags, &[0u8; 4])
            });
        match defaults {
            Ok(messages) => policies.extend(messages.iter().flat_map(Policy::defaults)),
            // Kernels before 5.14 have none.
            Err(NetlinkError::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(Policies(policies))
    }

    /// Returns whether policies have changed since the last call.
    pub(crate) fn has_changed(&mut self) -> bool {
        // Or notifications were lost.
        !matches!(self.0.notifications(), Ok(Some(messages)) if messages.is_empty())
    }
}

impl std::os::fd::AsFd for PolicySocket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests;
