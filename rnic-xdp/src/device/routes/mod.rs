//! Next hops: the kernel's routes and neighbours, resolved for the engine and followed as they
//! change.
//!
//! The kernel does all the work: it chooses the route, resolves the neighbour (ARP, neighbour
//! discovery) and confirms it now and then, as for a packet of its own. This module requests that,
//! and passes on the results.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rnic_core::connection::{AddressPair, NextHop};
use rnic_core::time::Instant;
pub use rnic_manager::LinkState;
use tracing::debug;

use crate::device::lingering::Lingering;
use crate::device::netlink::{
    Address, Groups, Link, LinkChange, Message, Neighbour, NetlinkError, Route, RouteSocket,
    Socket, addresses, ask_for_neighbour, link_by_index, neighbour,
};

use crate::device::steering::SteeredLinks;
use crate::device::vlans::{Untagged, untagged};

mod device_route;
#[cfg(test)]
mod tests;

pub(crate) use device_route::DeviceRoute;

/// How often to look up a path without a next hop: requests can fail, and notifications can be
/// lost.
const RETRY: Duration = Duration::from_secs(1);
/// Changes of routes, addresses and links within this time are handled together.
const SETTLE: Duration = Duration::from_millis(50);
/// Paths looked up at once. Each takes some requests to the kernel, and notifications wait
/// meanwhile.
const LOOKUPS_PER_POLL: usize = 16;

/// An update for the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    /// Frames on this path go to this next hop.
    Set(AddressPair, NextHop),
    /// There is no route, or the neighbour does not answer.
    Unreachable(AddressPair),
}

fn state_of(link: &Link) -> LinkState {
    match link.active {
        true => LinkState::Active,
        false => LinkState::Inactive,
    }
}

/// The state of a path.
#[derive(Clone, Copy, Debug, Default)]
struct KnownPath {
    route: Option<DeviceRoute>,
    /// The next hop that the engine has.
    reported: Option<NextHop>,
    /// It was reported as unreachable.
    unreachable: bool,
    /// It waits to be looked up.
    queued: bool,
}

/// The next hops that the engine asked for.
#[derive(Debug)]
pub(crate) struct Routes {
    device: u32,
    /// Whether the device can send, as last reported.
    state: LinkState,
    /// A new state that was not reported yet.
    changed_to: Option<LinkState>,
    max_mtu: u32,
    /// The steering program's table of links, if these routes keep it up to date, and whether to
    /// read all links again.
    links: Option<SteeredLinks>,
    links_unknown: bool,
    /// The addresses of this host that the program knows: those of other devices behind those of
    /// this one.
    locals: Lingering<(bool, IpAddr)>,
    /// The local addresses whose frames arrive without a tag, whether to read them again, and
    /// whether they have changed since they were reported.
    untagged: Untagged,
    untagged_unknown: bool,
    untagged_changed: bool,
    requests: RouteSocket,
    changes: Socket,
    paths: HashMap<AddressPair, KnownPath>,
    /// Paths to be looked up, in order.
    queue: VecDeque<AddressPair>,
    updates: VecDeque<Update>,
    /// When to look up again the paths without a next hop.
    retry_at: Option<Instant>,
    /// When to look up all routes again.
    refresh_at: Option<Instant>,
}

impl Routes {
    /// Follows the routes through a device, in the network namespace of this thread. Keeps `links`
    /// up to date.
    pub(crate) fn open(
        device: &Link,
        max_mtu: u32,
        links: Option<SteeredLinks>,
    ) -> Result<Self, NetlinkError> {
        let changes = Socket::open(None, Groups::ALL);
        let mut routes = Self {
            device: device.index,
            state: state_of(device),
            changed_to: None,
            max_mtu,
            // They may have changed since they were read.
            links_unknown: true,
            locals: Lingering::default(),
            untagged: Untagged::new(),
            untagged_unknown: true,
            untagged_changed: false,
            refresh_at: links.is_some().then_some(Instant::ZERO),
            links,
            requests: RouteSocket::open()?,
            changes: changes.map_err(|source| NetlinkError::Socket {
                doing: "follow routes and neighbours",
                source,
            })?,
            paths: HashMap::new(),
            queue: VecDeque::new(),
            updates: VecDeque::new(),
            retry_at: None,
        };
        routes.look_at_addresses(Instant::ZERO);
        Ok(routes)
    }

    /// Requests the next hop of a path, from whichever source the route prefers if that is
    /// unspecified. It comes as an update, with the next [`poll`](Self::poll) or when the neighbour
    /// has replied.
    pub(crate) fn request(&mut self, path: AddressPair) {
        let known = self.paths.entry(path).or_default();
        if let Some(hop) = known.reported {
            return self.updates.push_back(Update::Set(path, hop));
        }
        // A new request gets a new update, also if the peer is still unreachable.
        known.unreachable = false;
        if !known.queued {
            known.queued = true;
            self.queue.push_back(path);
        }
    }

    /// Forgets a path, on which the engine has no connection any more. So the engine's connections
    /// bound the number of paths.
    pub(crate) fn forget(&mut self, path: AddressPair) {
        self.paths.remove(&path);
    }

    /// Handles notifications, and then looks up some paths: in this order, so that an old
    /// notification on a neighbour is not taken for the result of a new request.
    pub(crate) fn poll(&mut self, now: Instant) {
        match self.changes.notifications() {
            Ok(Some(messages)) => self.handle_changes(now, &messages),
            // Some were lost, or the socket failed once: look up everything again.
            Ok(None) | Err(_) => {
                self.refresh_at = Some(now);
                self.links_unknown = true;
                self.untagged_unknown = true;
            }
        }
        if self.state == LinkState::Gone {
            return self.end();
        }
        if self.refresh_at.is_some_and(|at| at <= now) {
            self.refresh_at = None;
            self.look_at_links(now);
            self.look_at_addresses(now);
            self.look_at_device();
            self.enqueue(|_| true);
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.enqueue(|path| path.reported.is_none());
        }
        if self.locals.expire(now) {
            self.untagged_unknown |= self.tell_locals().is_err();
        }
        let mut left = LOOKUPS_PER_POLL;
        while left > 0
            && let Some(path) = self.queue.pop_front()
        {
            // It may have been forgotten meanwhile, and asked for again.
            let known = self.paths.get_mut(&path);
            if known.is_some_and(|known| std::mem::take(&mut known.queued)) {
                left -= 1;
                self.resolve(now, path);
            }
        }
    }

    /// Returns the next update for the engine.
    pub(crate) fn poll_update(&mut self) -> Option<Update> {
        self.updates.pop_front()
    }

    /// Returns the new state of the device, if it has changed since the last call.
    pub(crate) fn poll_device(&mut self) -> Option<LinkState> {
        self.changed_to.take()
    }

    /// Returns the local addresses whose frames arrive without a tag, if they have changed since
    /// the last call. At first there are none.
    pub(crate) fn poll_untagged(&mut self) -> Option<Untagged> {
        std::mem::take(&mut self.untagged_changed).then(|| self.untagged.clone())
    }

    /// Returns the local addresses whose frames arrive without a tag.
    pub(crate) fn untagged(&self) -> &Untagged {
        &self.untagged
    }

    /// Returns whether the device can send, as far as known.
    pub(crate) fn link_state(&self) -> LinkState {
        self.state
    }

    /// Returns when to [`poll`](Self::poll) without a notification.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let at_once = (!self.queue.is_empty()).then_some(Instant::ZERO);
        let gone = self.locals.next_timeout();
        let timers = [at_once, self.refresh_at, self.retry_at, gone];
        timers.into_iter().flatten().min()
    }

    fn handle_changes(&mut self, now: Instant, messages: &[Message]) {
        // Of several messages on a neighbour the last one counts.
        let mut last = HashMap::new();
        for message in messages {
            if let (Some(links), Some(change)) = (&self.links, LinkChange::from_message(message)) {
                self.links_unknown |= links.follow(&change).is_err();
            }
            self.take_address(message);
            if Link::is_end_of(message, self.device) {
                self.set_state(LinkState::Gone);
            } else if let Some(neighbour) = Neighbour::from_message(message) {
                last.insert((neighbour.link, neighbour.address), neighbour);
            } else if Link::is_link_message(message) || Address::is_address_message(message) {
                // An offload that goes on or off is a change of the link.
                self.untagged_unknown = true;
                self.refresh_at.get_or_insert(now + SETTLE);
            } else if Route::is_of_routing(message) {
                self.refresh_at.get_or_insert(now + SETTLE);
            }
        }
        if last.is_empty() {
            return;
        }
        let concerned = |path: &KnownPath| {
            let route = path.route?;
            last.get(&(route.link, route.neighbour)).copied()
        };
        let found = self.paths.iter();
        let found: Vec<_> = found
            .filter_map(|(path, known)| Some((*path, concerned(known)?)))
            .collect();
        for (path, neighbour) in found {
            self.apply(now, path, Some(neighbour), true);
        }
    }

    /// Reads all links, if notifications on them were lost.
    fn look_at_links(&mut self, now: Instant) {
        if !std::mem::take(&mut self.links_unknown) {
            return;
        }
        let Some(links) = &self.links else {
            return;
        };
        if !matches!(links.read(&mut self.requests), Ok(Ok(()))) {
            // The kernel lacks a resource.
            self.links_unknown = true;
            self.refresh_at.get_or_insert(now + RETRY);
        }
    }

    /// Tells the program of an address that this host has got at once: whoever connects there would
    /// be refused by the kernel.
    fn take_address(&mut self, message: &Message) {
        if self.links.is_none() {
            return;
        }
        if let Some(own) = Address::from_message(message) {
            self.locals.add((own.index != self.device, own.address));
            self.untagged_unknown |= self.tell_locals().is_err();
        }
    }

    /// Reads the addresses of this host for the program.
    fn look_at_locals(&mut self, now: Instant) -> Result<io::Result<()>, NetlinkError> {
        if self.links.is_none() {
            return Ok(Ok(()));
        }
        let all = addresses(&mut self.requests)?.into_iter();
        let all = all.map(|own| (own.index != self.device, own.address));
        self.locals.set(now, all.collect());
        Ok(self.tell_locals())
    }

    fn tell_locals(&self) -> io::Result<()> {
        let mut told = BTreeSet::new();
        let all = self.locals.members().map(|(_, address)| *address);
        // No frame for a loopback address may come from a network. One that two devices have counts
        // once.
        let own = all.filter(|address| !address.is_loopback() && told.insert(*address));
        let own: Vec<_> = own.collect();
        let links = self.links.as_ref();
        links.map_or(Ok(()), |links| links.set_locals(&own))
    }

    /// Reads the addresses of this host, and which of them get their frames without a tag, if that
    /// may have changed.
    fn look_at_addresses(&mut self, now: Instant) {
        if !std::mem::take(&mut self.untagged_unknown) {
            return;
        }
        let has_locals = matches!(self.look_at_locals(now), Ok(Ok(())));
        let told = untagged(&mut self.requests, self.device).map(|found| {
            self.untagged_changed |= found != self.untagged;
            self.untagged = found;
            let links = self.links.as_ref();
            links.map_or(Ok(()), |links| links.set_untagged(&self.untagged))
        });
        if !has_locals || !matches!(told, Ok(Ok(()))) {
            // The kernel lacks a resource.
            self.untagged_unknown = true;
            self.refresh_at.get_or_insert(now + RETRY);
        }
    }

    /// Reads the state of the device. A failure is left to the next look.
    fn look_at_device(&mut self) {
        if let Ok(link) = link_by_index(&mut self.requests, self.device) {
            self.set_state(link.map_or(LinkState::Gone, |link| state_of(&link)));
        }
    }

    fn set_state(&mut self, state: LinkState) {
        if state != self.state && self.state != LinkState::Gone {
            self.state = state;
            self.changed_to = Some(state);
        }
    }

    /// Forgets all paths: the device is gone.
    fn end(&mut self) {
        self.paths.clear();
        self.queue.clear();
        (self.retry_at, self.refresh_at) = (None, None);
    }

    /// Queues some paths for lookup, unless they are queued already.
    fn enqueue(&mut self, which: impl Fn(&KnownPath) -> bool) {
        for (path, known) in &mut self.paths {
            if !known.queued && which(known) {
                known.queued = true;
                self.queue.push_back(*path);
            }
        }
    }

    /// Looks up route and neighbour again.
    fn resolve(&mut self, now: Instant, path: AddressPair) {
        let Ok((route, neighbour)) = self.look_up(path) else {
            // The kernel lacks a resource: that is no reason to change the next hop.
            self.refresh_at.get_or_insert(now + RETRY);
            return;
        };
        if let Some(known) = self.paths.get_mut(&path) {
            known.route = route;
        }
        self.apply(now, path, neighbour, false);
        let known = self.paths.get(&path);
        if known.is_some_and(|known| known.reported.is_none()) {
            self.retry_at.get_or_insert(now + RETRY);
        }
    }

    fn look_up(
        &mut self,
        path: AddressPair,
    ) -> Result<(Option<DeviceRoute>, Option<Neighbour>), NetlinkError> {
        let requests = &mut self.requests;
        let source = Some(path.local).filter(|local| !local.is_unspecified());
        let route = DeviceRoute::find(requests, self.device, self.max_mtu, path.remote, source)?;
        let neighbour = match route {
            Some(route) => neighbour(requests, route.link, route.neighbour)?,
            None => None,
        };
        Ok((route, neighbour))
    }

    /// Updates a path from the kernel's entry for its neighbour, from a notification or a lookup.
    fn apply(
        &mut self,
        now: Instant,
        path: AddressPair,
        neighbour: Option<Neighbour>,
        is_notification: bool,
    ) {
        let Some(known) = self.paths.get_mut(&path) else {
            return;
        };
        let Some(route) = known.route else {
            return self.set_unreachable(now, path);
        };
        let mac = neighbour.and_then(|neighbour| neighbour.mac);
        if let Some(hop) = mac.map(|mac| route.next_hop(mac)) {
            known.unreachable = false;
            if known.reported.replace(hop) != Some(hop) {
                debug!(
                    "{} is reached through {} at {}, MTU {}",
                    path.remote, route.neighbour, hop.destination_mac, hop.mtu
                );
                self.updates.push_back(Update::Set(path, hop));
            }
        }
        // For a neighbour that failed before our request, the kernel must try again.
        if is_notification && neighbour.is_some_and(|neighbour| neighbour.failed) {
            return self.set_unreachable(now, path);
        }
        if mac.is_none() || neighbour.is_some_and(|neighbour| neighbour.stale) {
            // If it fails, for example because the kernel's table is full, it is tried again.
            let _ = ask_for_neighbour(&mut self.requests, route.link, route.neighbour);
        }
    }

    /// Reports that a peer is unreachable by a path. It is looked up again until the engine forgets
    /// it, for connections that still exist.
    fn set_unreachable(&mut self, now: Instant, path: AddressPair) {
        let Some(known) = self.paths.get_mut(&path) else {
            return;
        };
        self.retry_at.get_or_insert(now + RETRY);
        if known.unreachable {
            return; // it was reported already
        }
        known.unreachable = true;
        known.reported = None;
        match known.route {
            Some(route) => debug!(
                "{}: the neighbour {} does not answer",
                path.remote, route.neighbour
            ),
            None => debug!(
                "{}: no route from {} through the device",
                path.remote, path.local
            ),
        }
        self.updates.push_back(Update::Unreachable(path));
    }
}

impl AsFd for Routes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}
