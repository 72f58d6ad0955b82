//! Next hops, as the kernel's routes and neighbours give them.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::wire::ethernet::MacAddr;

/// How frames for a destination leave this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// This host's address on the link.
    pub source_mac: MacAddr,
    /// The neighbour's address: the destination's, or its gateway's.
    pub destination_mac: MacAddr,
    /// The VLAN tag to write, if any.
    pub vlan: Option<u16>,
    /// Path MTU as far as the route tells: octets of an IP packet.
    pub mtu: u16,
}

/// What is known of next hops, and what the worker is asked to find out.
#[derive(Default)]
pub(crate) struct NextHops {
    known: HashMap<IpAddr, Option<NextHop>>,
    requests: VecDeque<IpAddr>,
}

impl NextHops {
    /// The next hop for a destination. The first question about one becomes a request to the worker.
    pub(crate) fn find(&mut self, destination: IpAddr) -> Option<NextHop> {
        *self.known.entry(destination).or_insert_with(|| {
            self.requests.push_back(destination);
            None
        })
    }

    /// The next hop for a destination, if it is known already.
    pub(crate) fn peek(&self, destination: IpAddr) -> Option<NextHop> {
        self.known.get(&destination).copied().flatten()
    }

    pub(crate) fn set(&mut self, destination: IpAddr, hop: NextHop) {
        self.known.insert(destination, Some(hop));
    }

    /// Forgets a destination: it is asked for again when a connection needs it.
    pub(crate) fn forget(&mut self, destination: IpAddr) {
        self.known.remove(&destination);
    }

    pub(crate) fn poll_request(&mut self) -> Option<IpAddr> {
        self.requests.pop_front()
    }
}
