//! Next hops, as the kernel's routes and neighbours give them.

use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::time::Instant;
use crate::wire::ethernet::MacAddr;

/// How long a narrow path is remembered (RFC 1191 section 6.3, RFC 8201 section 4).
const NARROW_FOR: Duration = Duration::from_secs(600);

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
    /// Path MTUs that routers on the way told, and when they told it.
    narrow: HashMap<IpAddr, (u16, Instant)>,
}

impl NextHops {
    /// The next hop for a destination. The first question about one becomes a request to the worker.
    pub(crate) fn find(&mut self, now: Instant, destination: IpAddr) -> Option<NextHop> {
        self.known.entry(destination).or_insert_with(|| {
            self.requests.push_back(destination);
            None
        });
        self.peek(now, destination)
    }

    /// The next hop for a destination, if it is known already.
    pub(crate) fn peek(&mut self, now: Instant, destination: IpAddr) -> Option<NextHop> {
        if let Some((_, since)) = self.narrow.get(&destination)
            && now.since(*since) >= NARROW_FOR
        {
            self.narrow.remove(&destination);
        }
        let hop = self.known.get(&destination).copied().flatten()?;
        Some(self.narrowed(destination, hop))
    }

    /// Learns the next hop for a destination. Returns it with what else is known of the path.
    pub(crate) fn set(&mut self, destination: IpAddr, hop: NextHop) -> NextHop {
        self.known.insert(destination, Some(hop));
        self.narrowed(destination, hop)
    }

    /// Somewhere on the way to a destination packets of more than `mtu` octets are dropped: new connections need not
    /// find it out again. The caller believes it.
    pub(crate) fn narrow(&mut self, now: Instant, destination: IpAddr, mtu: u16) {
        self.narrow.insert(destination, (mtu, now));
    }

    fn narrowed(&self, destination: IpAddr, hop: NextHop) -> NextHop {
        let narrow = self.narrow.get(&destination);
        NextHop {
            mtu: narrow.map_or(hop.mtu, |(mtu, _)| hop.mtu.min(*mtu)),
            ..hop
        }
    }

    /// Forgets a destination: it is asked for again when a connection needs it.
    pub(crate) fn forget(&mut self, destination: IpAddr) {
        self.known.remove(&destination);
    }

    #[inline]
    pub(crate) fn has_request(&self) -> bool {
        !self.requests.is_empty()
    }

    pub(crate) fn poll_request(&mut self) -> Option<IpAddr> {
        self.requests.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1));
    const HOP: NextHop = NextHop {
        source_mac: MacAddr([2; 6]),
        destination_mac: MacAddr([4; 6]),
        vlan: None,
        mtu: 1500,
    };

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_narrow_path_is_remembered_for_ten_minutes() {
        let mut hops = NextHops::default();
        assert_eq!(hops.find(at(1), PEER), None);
        assert_eq!(hops.poll_request(), Some(PEER));
        assert_eq!(hops.set(PEER, HOP).mtu, 1500);
        hops.narrow(at(2), PEER, 1400);
        assert_eq!(hops.find(at(601), PEER), Some(NextHop { mtu: 1400, ..HOP }));
        // A new next hop does not say that the rest of the path is another.
        assert_eq!(hops.set(PEER, HOP).mtu, 1400);
        assert_eq!(hops.peek(at(602), PEER), Some(HOP));
        assert_eq!(hops.set(PEER, HOP).mtu, 1500);
    }

    #[test]
    fn a_path_is_never_wider_than_its_first_link() {
        let mut hops = NextHops::default();
        hops.set(PEER, HOP);
        hops.narrow(at(2), PEER, 9000);
        assert_eq!(hops.peek(at(2), PEER), Some(HOP));
    }
}
