//! Policies (RFC 4301 section 4.4.1): what becomes of packets, by their addresses and ports.

use core::net::{IpAddr, SocketAddr};

use crate::wire::prefix::Prefix;

use super::sa::{Mode, Sa};

/// Ports that are equal in the bits of the mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The bits.
    pub port: u16,
    /// Those that count.
    pub mask: u16,
}

impl Ports {
    /// All ports.
    pub const ALL: Self = Self { port: 0, mask: 0 };

    /// Returns whether it has a port.
    pub fn contains(self, port: u16) -> bool {
        (port ^ self.port) & self.mask == 0
    }

    /// Returns whether it has all ports of the other.
    pub fn covers(self, other: Self) -> bool {
        self.mask & other.mask == self.mask && self.contains(other.port)
    }

    /// Returns all its ports, in order.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        // What is free counts through the bits that do not count.
        let (fixed, free) = (self.port & self.mask, !self.mask);
        let next = move |bits: &u16| Some(bits.wrapping_sub(free) & free).filter(|next| *next != 0);
        std::iter::successors(Some(0), next).map(move |bits| fixed | bits)
    }

    /// Returns whether both have a port in common.
    pub fn meets(self, other: Self) -> bool {
        (self.port ^ other.port) & self.mask & other.mask == 0
    }
}

/// Selects packets by both their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Addresses of this host.
    pub local: Prefix,
    /// Ports of this host.
    pub local_ports: Ports,
    /// Addresses of peers.
    pub remote: Prefix,
    /// Ports of peers.
    pub remote_ports: Ports,
}

impl Selector {
    /// Returns whether it selects the packets between two ends.
    pub fn selects(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.selects_some(local.ip(), remote.ip())
            && self.local_ports.contains(local.port())
            && self.remote_ports.contains(remote.port())
    }

    /// Returns whether it selects some packets between two hosts.
    pub fn selects_some(&self, local: IpAddr, remote: IpAddr) -> bool {
        self.local.contains(local) && self.remote.contains(remote)
    }

    /// Returns whether it selects all that the other does.
    pub fn covers(&self, other: &Self) -> bool {
        self.local.covers(other.local)
            && self.remote.covers(other.remote)
            && self.local_ports.covers(other.local_ports)
            && self.remote_ports.covers(other.remote_ports)
    }

    /// Returns whether both select some packet.
    pub fn meets(&self, other: &Self) -> bool {
        let meet = |one: Prefix, other: Prefix| one.covers(other) || other.covers(one);
        meet(self.local, other.local)
            && meet(self.remote, other.remote)
            && self.local_ports.meets(other.local_ports)
            && self.remote_ports.meets(other.remote_ports)
    }
}

/// Which associations a policy can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    /// The one in the name of which they were negotiated.
    pub request: u32,
    /// Their mode.
    pub mode: Mode,
    /// The end of a tunnel on this host.
    pub local: IpAddr,
    /// The end of a tunnel at the peer.
    pub remote: IpAddr,
}

impl Template {
    /// Returns the ends of the packets that it demands between two hosts.
    pub(super) fn ends(&self, local: IpAddr, remote: IpAddr) -> (IpAddr, IpAddr) {
        match self.mode {
            Mode::Transport => (local, remote),
            Mode::Tunnel => (self.local, self.remote),
        }
    }

    /// Returns it with the ends of an association for the packets between two hosts.
    pub fn between(self, local: IpAddr, remote: IpAddr) -> Self {
        let (local, remote) = self.ends(local, remote);
        Self {
            local,
            remote,
            ..self
        }
    }

    /// Returns whether it demands an association like this, which seals. Its ends are those of
    /// the association.
    pub fn is_met_by(&self, sa: &Sa) -> bool {
        self.admits(sa, (self.local, self.remote))
    }

    /// Returns whether an association is of its kind. `ends` are where that begins and ends.
    pub(super) fn admits(&self, sa: &Sa, (source, destination): (IpAddr, IpAddr)) -> bool {
        sa.request == self.request
            && sa.mode == self.mode
            && sa.source == source
            && sa.id.destination == destination
    }

    /// Returns whether it demands what an association has protected on the way here: that begins at
    /// the peer.
    pub(super) fn admits_inbound(&self, sa: &Sa, local: IpAddr, remote: IpAddr) -> bool {
        let (local, remote) = self.ends(local, remote);
        self.admits(sa, (remote, local))
    }
}

/// What becomes of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// They go as they are.
    Bypass,
    /// They are dropped.
    Discard,
    /// They are protected by one of these associations.
    Protect(Template),
}

/// A policy for packets of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// It is for what this host sends.
    pub outgoing: bool,
    /// The packets that it is for.
    pub selector: Selector,
    /// What becomes of them.
    pub action: Action,
}

/// Returns what becomes of the packets between two ends by the policies for their direction, those
/// with precedence first.
pub(super) fn action<'a>(
    demands: impl IntoIterator<Item = &'a Demand>,
    local: SocketAddr,
    remote: SocketAddr,
) -> Action {
    let mut demands = demands.into_iter();
    let first = demands.find(|demand| demand.selector.selects(local, remote));
    first.map_or(Action::Bypass, |demand| demand.action)
}
