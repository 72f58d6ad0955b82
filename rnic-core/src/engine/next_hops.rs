//! Next hops, as the kernel's routes and neighbours give them.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::connection::{AddressPair, NextHop};
use crate::time::Instant;

/// How long a narrow path is remembered (RFC 1191 section 6.3, RFC 8201 section 4).
const NARROW_FOR: Duration = Duration::from_secs(600);

/// What the engine asks of the worker, which follows routes and neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHopRequest {
    /// Report the next hop of a path, and every change of it.
    Follow(AddressPair),
    /// No connection needs the next hop of this path any more.
    Forget(AddressPair),
}

/// The most paths without a connection that are remembered, for the next connection.
const MAX_UNUSED: usize = 1024;

/// What is known of a path: destinations alone do not say it, since routes may depend on the
/// source.
#[derive(Default)]
struct KnownPath {
    hop: Option<NextHop>,
    /// The path MTU that a router reported, and when.
    narrow: Option<(u16, Instant)>,
    /// Its next hop was requested, and its changes will be reported.
    followed: bool,
    /// The worker found no next hop: the next user asks again.
    unreachable: bool,
    /// Its connections.
    users: Vec<usize>,
    /// Its place among paths without connections, if it has none.
    unused: Option<u64>,
}

impl KnownPath {
    fn narrowed(&self, hop: NextHop) -> NextHop {
        NextHop {
            mtu: self.narrow.map_or(hop.mtu, |(mtu, _)| hop.mtu.min(mtu)),
            ..hop
        }
    }
}

/// What is known of next hops, and the requests to the worker. All paths of connections are here;
/// of the others, the last [`MAX_UNUSED`] that had one.
#[derive(Default)]
pub(crate) struct NextHops {
    paths: HashMap<AddressPair, KnownPath>,
    /// Where each connection stands among the users of its path.
    positions: Vec<usize>,
    /// Paths without connections, the longest unused first.
    unused: BTreeMap<u64, AddressPair>,
    next_unused: u64,
    requests: VecDeque<NextHopRequest>,
}

impl NextHops {
    /// Adds a connection to a path.
    pub(crate) fn join(&mut self, connection: usize, path: AddressPair) {
        let known = self.paths.entry(path).or_default();
        if let Some(unused) = known.unused.take() {
            self.unused.remove(&unused);
        }
        if self.positions.len() <= connection {
            self.positions.resize(connection + 1, 0);
        }
        self.positions[connection] = known.users.len();
        known.users.push(connection);
    }

    /// Removes a connection from a path.
    pub(crate) fn leave(&mut self, connection: usize, path: AddressPair) {
        let Some(known) = self.paths.get_mut(&path) else {
            return;
        };
        let position = self.positions[connection];
        known.users.swap_remove(position);
        if let Some(moved) = known.users.get(position) {
            self.positions[*moved] = position;
        }
        if !known.users.is_empty() {
            return;
        }
        if known.hop.is_none() && known.narrow.is_none() {
            return self.forget(path);
        }
        known.users = Vec::new();
        self.set_unused(path);
    }

    /// Remembers a path without connections, in place of the longest unused one if there are too
    /// many.
    fn set_unused(&mut self, path: AddressPair) {
        let Some(known) = self.paths.get_mut(&path) else {
            return;
        };
        known.unused = Some(self.next_unused);
        self.unused.insert(self.next_unused, path);
        self.next_unused += 1;
        if self.unused.len() > MAX_UNUSED
            && let Some((_, longest)) = self.unused.pop_first()
        {
            self.forget(longest);
        }
    }

    /// Asks for the next hop of a path that may have no connection yet. Returns whether it is
    /// known.
    pub(crate) fn inquire(&mut self, now: Instant, path: AddressPair) -> bool {
        if !self.paths.contains_key(&path) {
            self.paths.entry(path).or_default();
            self.set_unused(path);
        }
        self.find(now, path).is_some()
    }

    fn forget(&mut self, path: AddressPair) {
        let known = self.paths.remove(&path);
        if known.is_some_and(|known| known.followed) {
            self.requests.push_back(NextHopRequest::Forget(path));
        }
    }

    /// Returns the next hop for the path of a connection. The first call for a path makes a request
    /// to the worker.
    pub(crate) fn find(&mut self, now: Instant, path: AddressPair) -> Option<NextHop> {
        let known = self.paths.get_mut(&path)?;
        if !known.followed || known.unreachable {
            known.followed = true;
            known.unreachable = false;
            self.requests.push_back(NextHopRequest::Follow(path));
        }
        self.peek(now, path)
    }

    /// Returns the next hop for a path, if it is known already.
    pub(crate) fn peek(&mut self, now: Instant, path: AddressPair) -> Option<NextHop> {
        let known = self.paths.get_mut(&path)?;
        known
            .narrow
            .take_if(|(_, since)| now.since(*since) >= NARROW_FOR);
        Some(known.narrowed(known.hop?))
    }

    /// Sets the next hop for a path that is followed. Returns it with the path MTU that is known,
    /// and the connections that it is for.
    pub(crate) fn set(&mut self, path: AddressPair, hop: NextHop) -> Option<(NextHop, &[usize])> {
        // The path may have been forgotten meanwhile.
        let known = self.paths.get_mut(&path)?;
        if !known.followed {
            return None;
        }
        known.unreachable = false;
        known.hop = Some(hop);
        Some((known.narrowed(hop), &known.users))
    }

    /// Marks the peer as unreachable by a path: the worker is asked again when a connection needs
    /// it. Returns the connections on it.
    pub(crate) fn set_unreachable(&mut self, path: AddressPair) -> &[usize] {
        let known = self.paths.get_mut(&path);
        if let Some(unused) = known.and_then(|known| known.unused) {
            self.unused.remove(&unused);
            self.forget(path);
        }
        let Some(known) = self.paths.get_mut(&path) else {
            return &[];
        };
        known.unreachable = true;
        known.hop = None;
        &known.users
    }

    /// Remembers the MTU of a path, so that new connections need not discover it again. The caller
    /// has validated it. Returns the connections on it.
    pub(crate) fn narrow(&mut self, now: Instant, path: AddressPair, mtu: u16) -> &[usize] {
        let Some(known) = self.paths.get_mut(&path) else {
            return &[];
        };
        let is_known =
            |(narrow, since): (u16, Instant)| narrow <= mtu && now.since(since) < NARROW_FOR;
        // Messages that say more do not keep it alive.
        if !known.narrow.is_some_and(is_known) {
            known.narrow = Some((mtu, now));
        }
        &known.users
    }

    #[inline]
    pub(crate) fn has_request(&self) -> bool {
        !self.requests.is_empty()
    }

    pub(crate) fn poll_request(&mut self) -> Option<NextHopRequest> {
        self.requests.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::wire::ethernet::MacAddr;

    const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 100));
    const PEER: AddressPair = AddressPair {
        local: OWN,
        remote: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    };
    const HOP: NextHop = NextHop {
        source_mac: MacAddr([2; 6]),
        destination_mac: MacAddr([4; 6]),
        vlan: None,
        mtu: 1500,
        advertised_mss: None,
    };

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn address(number: usize) -> AddressPair {
        AddressPair {
            remote: IpAddr::V4((0x0a00_0000 + number as u32).into()),
            ..PEER
        }
    }

    #[test]
    fn a_path_without_a_connection_is_asked_for_once_and_remembered() {
        let mut hops = NextHops::default();
        assert!(!hops.inquire(at(0), PEER) && !hops.inquire(at(0), PEER));
        assert_eq!(hops.poll_request(), Some(NextHopRequest::Follow(PEER)));
        assert_eq!(hops.poll_request(), None);
        assert!(
            hops.set(PEER, HOP)
                .is_some_and(|(_, users)| users.is_empty())
        );
        assert!(hops.inquire(at(1), PEER));
        // One that cannot be reached is asked for anew.
        assert!(hops.set_unreachable(PEER).is_empty());
        assert_eq!(hops.poll_request(), Some(NextHopRequest::Forget(PEER)));
        assert!(!hops.inquire(at(2), PEER));
        assert_eq!(hops.poll_request(), Some(NextHopRequest::Follow(PEER)));
        // Those that are asked for do not fill the memory.
        for number in 0..2 * MAX_UNUSED {
            hops.inquire(at(3), address(number));
        }
        assert_eq!(hops.paths.len(), MAX_UNUSED);
    }

    /// Next hops with one connection, number 0, to a destination that has been asked for.
    fn followed(path: AddressPair) -> NextHops {
        let mut hops = NextHops::default();
        hops.join(0, path);
        assert_eq!(hops.find(at(1), path), None);
        let request = hops.poll_request();
        assert_eq!(request, Some(NextHopRequest::Follow(path)));
        hops
    }

    fn set(hops: &mut NextHops, hop: NextHop) -> Option<NextHop> {
        hops.set(PEER, hop).map(|(hop, _)| hop)
    }

    #[test]
    fn a_narrow_path_is_remembered_for_ten_minutes() {
        let mut hops = followed(PEER);
        assert_eq!(set(&mut hops, HOP), Some(HOP));
        hops.narrow(at(2), PEER, 1400);
        hops.leave(0, PEER);
        hops.join(7, PEER);
        let narrow = Some(NextHop { mtu: 1400, ..HOP });
        assert_eq!(hops.find(at(601), PEER), narrow);
        // A new next hop does not mean that the path behind it is another.
        assert_eq!(set(&mut hops, HOP), narrow);
        assert_eq!(hops.peek(at(602), PEER), Some(HOP));
        assert_eq!(set(&mut hops, HOP), Some(HOP));
    }

    #[test]
    fn a_destination_has_a_next_hop_for_each_source() {
        let mut hops = followed(PEER);
        let other = AddressPair {
            local: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)),
            ..PEER
        };
        hops.join(1, other);
        assert_eq!(hops.find(at(1), other), None);
        let request = hops.poll_request();
        assert_eq!(request, Some(NextHopRequest::Follow(other)));
        let way = NextHop {
            destination_mac: MacAddr([6; 6]),
            mtu: 1400,
            ..HOP
        };
        set(&mut hops, HOP);
        let (hop, users) = hops.set(other, way).expect("it is followed");
        assert_eq!((hop, users), (way, &[1][..]));
        assert_eq!(hops.set_unreachable(PEER), [0]);
        assert_eq!(hops.peek(at(1), other), Some(way));
    }

    #[test]
    fn a_path_is_never_wider_than_its_first_link() {
        let mut hops = followed(PEER);
        set(&mut hops, HOP);
        hops.narrow(at(2), PEER, 9000);
        assert_eq!(hops.peek(at(2), PEER), Some(HOP));
    }

    #[test]
    fn a_change_concerns_the_connections_to_its_destination_alone() {
        let mut hops = followed(PEER);
        for connection in 1..10 {
            hops.join(connection, address(connection % 2));
        }
        hops.join(10, PEER);
        hops.join(11, PEER);
        hops.leave(0, PEER);
        let (_, users) = hops.set(PEER, HOP).expect("it is followed");
        assert_eq!(users, [11, 10]);
        hops.leave(11, PEER);
        hops.join(0, PEER);
        assert_eq!(hops.set_unreachable(PEER), [10, 0]);
        assert_eq!(hops.set_unreachable(address(0)), [2, 4, 6, 8]);
    }

    #[test]
    fn nobody_is_asked_for_strangers_and_nothing_is_kept_of_them() {
        let mut hops = NextHops::default();
        for number in 0..10 * MAX_UNUSED {
            hops.join(number, address(number));
        }
        assert_eq!(hops.set(address(3), HOP), None);
        for number in 0..10 * MAX_UNUSED {
            hops.leave(number, address(number));
        }
        assert!(hops.paths.is_empty() && !hops.has_request());
    }

    #[test]
    fn destinations_without_connections_are_forgotten_the_oldest_first() {
        let mut hops = followed(PEER);
        set(&mut hops, HOP);
        for number in 1..=MAX_UNUSED + 2 {
            hops.join(number, address(number));
            assert_eq!(hops.find(at(1), address(number)), None);
            let request = hops.poll_request();
            assert_eq!(request, Some(NextHopRequest::Follow(address(number))));
            hops.set(address(number), HOP);
        }
        // The first gets a connection and loses it again.
        hops.leave(1, address(1));
        hops.join(1, address(1));
        assert_eq!(hops.find(at(1), address(1)), Some(HOP));
        for number in (2..=MAX_UNUSED).chain([1]) {
            hops.leave(number, address(number));
        }
        assert!(!hops.has_request());
        hops.leave(MAX_UNUSED + 1, address(MAX_UNUSED + 1));
        let request = hops.poll_request();
        assert_eq!(request, Some(NextHopRequest::Forget(address(2))));
        hops.leave(MAX_UNUSED + 2, address(MAX_UNUSED + 2));
        let request = hops.poll_request();
        assert_eq!(request, Some(NextHopRequest::Forget(address(3))));
        // A forgotten destination is asked for again; a late response to the request before is
        // ignored.
        assert_eq!(hops.set(address(2), HOP), None);
        hops.join(2, address(2));
        assert_eq!(hops.find(at(1), address(2)), None);
        let request = hops.poll_request();
        assert_eq!(request, Some(NextHopRequest::Follow(address(2))));
        // The destination of a connection is never forgotten.
        assert_eq!(hops.peek(at(1), PEER), Some(HOP));
        assert_eq!(hops.paths.len(), MAX_UNUSED + 2);
        assert!(hops.unused.len() <= MAX_UNUSED);
    }

    #[test]
    fn what_cannot_be_reached_is_asked_for_again() {
        let mut hops = followed(PEER);
        assert_eq!(hops.set_unreachable(PEER), [0]);
        hops.join(1, PEER);
        assert_eq!(hops.find(at(1), PEER), None);
        let request = hops.poll_request();
        assert_eq!(request, Some(NextHopRequest::Follow(PEER)));
        assert_eq!(hops.find(at(1), PEER), None);
        assert_eq!(hops.poll_request(), None);
        // It becomes known, and unreachable while no connection needs it.
        set(&mut hops, HOP);
        hops.leave(0, PEER);
        hops.leave(1, PEER);
        assert_eq!(hops.poll_request(), None);
        assert!(hops.set_unreachable(PEER).is_empty());
        let request = hops.poll_request();
        assert_eq!(request, Some(NextHopRequest::Forget(PEER)));
        assert!(hops.paths.is_empty() && hops.unused.is_empty());
    }

    #[test]
    fn a_destination_that_nobody_reached_is_forgotten_with_its_connections() {
        let mut hops = followed(PEER);
        hops.join(1, PEER);
        assert_eq!(hops.set_unreachable(PEER), [0, 1]);
        hops.leave(0, PEER);
        hops.leave(1, PEER);
        let request = hops.poll_request();
        assert_eq!(request, Some(NextHopRequest::Forget(PEER)));
        assert!(hops.paths.is_empty());
    }
}
