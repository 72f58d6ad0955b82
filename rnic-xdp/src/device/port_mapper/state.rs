//! The listeners of a port mapper, and the sockets at which peers ask for them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rnic_core::engine::{InUse, NetError};
use rnic_core::time::Instant;
use rnic_manager::{Questions, Told, Watch};
use tracing::{debug, warn};

use super::mappings::{Entry, Listening, Mappings};
use super::responder::Responder;
use crate::device::listening::users_listening;
use crate::device::locals::{Locals, other};
use crate::device::netlink::Iwpmd;

/// The most questions that are asked at a time, each by a socket.
const MAX_QUERIES: usize = 256;
/// How often to look for new addresses, and for an `iwpmd` that was started again.
const REFRESH_EVERY: Duration = Duration::from_secs(10);
/// How often to look whether the TCP sockets that share a number with a listener are those of its
/// user.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long an `iwpmd` that does not take a listener is let alone.
const IWPMD_RESTS: Duration = Duration::from_secs(60);

/// What a port mapper has.
pub(super) struct State {
    watch: Arc<Watch>,
    /// It answers at all addresses of the device, whether anybody listens or not, so that nobody else
    /// answers in its place.
    always: bool,
    mappings: Mappings,
    responders: BTreeMap<IpAddr, Responder>,
    /// Addresses at which another program has the mappers' UDP port.
    taken: BTreeSet<IpAddr>,
    /// The listeners that an `iwpmd` has been told of.
    told: BTreeSet<u64>,
    iwpmd_rests_until: Instant,
    pub(super) questions: Questions,
    refresh_at: Option<Instant>,
    check_at: Instant,
}

impl State {
    pub(super) fn new(watch: Arc<Watch>, always: bool) -> Self {
        Self {
            questions: Questions::new(watch.clone(), MAX_QUERIES),
            watch,
            always,
            mappings: Mappings::default(),
            responders: BTreeMap::new(),
            taken: BTreeSet::new(),
            told: BTreeSet::new(),
            iwpmd_rests_until: Instant::ZERO,
            refresh_at: always.then_some(Instant::ZERO),
            check_at: Instant::ZERO,
        }
    }

    /// Adds a listener, and returns its id. Fails if another owner has its number, or if it has
    /// another TCP port than its number and nobody could be told.
    pub(super) fn map(
        &mut self,
        locals: &Locals,
        listening: Listening,
        now: Instant,
    ) -> Result<u64, NetError> {
        let local = listening.local;
        let added = self.mappings.add(listening);
        let id = added.ok_or_else(|| NetError::from(InUse::from(local)))?;
        self.open_responders(locals);
        let entry = Entry { id, listening };
        let known = match self.answers_for(locals, local.ip()) {
            true => Ok(()),
            false => self.tell_iwpmd(entry, now),
        };
        match known {
            Err(error) if listening.is_mapped() => {
                self.unmap(id);
                return Err(error);
            }
            // Peers find it by its number.
            Err(error) => debug!("port mappers do not know {local} yet: {error}"),
            Ok(()) => {}
        }
        self.refresh_at.get_or_insert(now + REFRESH_EVERY);
        Ok(id)
    }

    /// Removes a listener.
    pub(super) fn unmap(&mut self, id: u64) {
        let Some(Entry { listening, .. }) = self.mappings.remove(id) else {
            return;
        };
        let local = listening.local;
        let mut others = self.mappings.entries().iter();
        let is_last = !others.any(|entry| entry.listening.local == local);
        if self.told.remove(&id) && is_last {
            Iwpmd::find()
                .into_iter()
                .for_each(|iwpmd| iwpmd.forget(local));
        }
        if self.mappings.entries().is_empty() && !self.always {
            self.responders.clear();
            self.refresh_at = None;
        }
    }

    /// Returns the addresses at which peers may ask.
    fn addresses(&self, locals: &Locals) -> BTreeSet<IpAddr> {
        let listeners = self.mappings.entries().iter();
        let mut addresses: BTreeSet<_> =
            listeners.map(|entry| entry.listening.local.ip()).collect();
        if self.always {
            addresses.extend([IpAddr::from([0; 4]), IpAddr::from([0; 16])]);
        }
        for any in addresses.clone().into_iter().filter(IpAddr::is_unspecified) {
            addresses.remove(&any);
            let own = locals.addresses(any.is_ipv4());
            addresses.extend(own.into_iter().flatten());
        }
        addresses.retain(|address| !address.is_loopback());
        addresses
    }

    /// Opens a socket at each address at which peers may ask, and closes the others.
    fn open_responders(&mut self, locals: &Locals) {
        let addresses = self.addresses(locals);
        self.responders
            .retain(|address, _| addresses.contains(address));
        self.taken.retain(|address| addresses.contains(address));
        for address in addresses {
            if self.responders.contains_key(&address) {
                continue;
            }
            let opened = Responder::open(locals, address).and_then(|responder| {
                let watched = self.watch.add(&responder.socket);
                watched.map_err(|error| other(SocketAddr::new(address, 0), error))?;
                Ok(responder)
            });
            match opened {
                Ok(responder) => {
                    self.taken.remove(&address);
                    self.responders.insert(address, responder);
                }
                Err(NetError::InUse(_)) => self.note_taken(address),
                // One that is tentative, for example, is tried again.
                Err(error) => debug!("no port mapper at {address} yet: {error}"),
            }
        }
    }

    /// Notes that another program has the UDP port.
    fn note_taken(&mut self, address: IpAddr) {
        if self.taken.insert(address) && self.always && Iwpmd::find().is_none() {
            warn!(
                "another program has UDP port 3935 at {address}, and is no iwpmd: it tells peers where RDMA listens here; find it by \
                 `ss -ulnp 'sport = 3935'`, and end it"
            );
        }
    }

    /// Returns whether peers can ask for a listener at an address.
    fn answers_for(&self, locals: &Locals, ip: IpAddr) -> bool {
        let mut answering = self.responders.keys();
        match ip.is_unspecified() {
            true => answering.any(|address| address.is_ipv4() == ip.is_ipv4()),
            // At a loopback address of a shared device, no peer asks.
            false => self.responders.contains_key(&ip) || ip.is_loopback() || !locals.is_own(ip),
        }
    }

    /// Makes a listener known to an `iwpmd`, which has the mappers' UDP port.
    fn tell_iwpmd(&mut self, entry: Entry, now: Instant) -> Result<(), NetError> {
        let Listening { local, mapped, .. } = entry.listening;
        let iwpmd = Iwpmd::find().ok_or_else(|| {
            other(
                local,
                "another program has UDP port 3935, and is no iwpmd (`ss -ulnp 'sport = 3935'`), so that peers cannot ask for the TCP \
                 port of RDMA; end it, or choose a number that no TCP socket has",
            )
        })?;
        if now < self.iwpmd_rests_until {
            return Err(other(
                local,
                "iwpmd did not take a listener a moment ago; try again in a minute",
            ));
        }
        let is_new = self.told.insert(entry.id);
        let why = match iwpmd.tell(local, mapped, is_new) {
            Ok(true) => return Ok(()),
            Ok(false) => {
                "another listener for RDMA has the number, or iwpmd is not one of version 4 (it is none outside of the kernel's first \
                 network namespace)"
                    .to_owned()
            }
            Err(error) => {
                self.iwpmd_rests_until = now + IWPMD_RESTS;
                error.to_string()
            }
        };
        Err(other(local, format!("iwpmd does not take it: {why}")))
    }

    /// Does what is to be done. Returns who is to be told of which address.
    pub(super) fn poll(&mut self, locals: &Locals, now: Instant) -> Vec<Told> {
        if self.refresh_at.is_some_and(|at| at <= now) {
            self.refresh(locals, now);
            self.refresh_at = Some(now + REFRESH_EVERY);
        }
        if self.has_mapped() && self.check_at <= now {
            self.check_numbers();
            self.check_at = now + CHECK_EVERY;
        }
        for (address, responder) in &self.responders {
            if let Err(error) = responder.poll(&self.mappings) {
                debug!("cannot read questions of port mappers at {address}: {error}");
            }
        }
        self.questions.poll(locals, now)
    }

    fn has_mapped(&self) -> bool {
        let mut listeners = self.mappings.entries().iter();
        listeners.any(|entry| entry.listening.is_mapped())
    }

    /// Follows the addresses of the device, and an `iwpmd` that was started again.
    fn refresh(&mut self, locals: &Locals, now: Instant) {
        self.open_responders(locals);
        let entries = self.mappings.entries().to_vec();
        for entry in entries {
            let ip = entry.listening.local.ip();
            if !self.answers_for(locals, ip)
                && let Err(error) = self.tell_iwpmd(entry, now)
            {
                debug!(
                    "port mappers do not know {}: {error}",
                    entry.listening.local
                );
            }
        }
    }

    /// Looks for addresses of the device soon.
    pub(super) fn refresh_soon(&mut self) {
        self.refresh_at = self.refresh_at.map(|_| Instant::ZERO);
    }

    /// Forgets listeners whose number is that of a TCP socket of another user now.
    fn check_numbers(&mut self) {
        let entries = self.mappings.entries().to_vec();
        for Entry { id, listening } in entries {
            let Some(user) = listening.user.filter(|_| listening.is_mapped()) else {
                continue;
            };
            let users = users_listening(listening.local).unwrap_or_default();
            if users.iter().any(|listens| *listens != user) {
                warn!(
                    "a TCP socket of another user listens at {}: port mappers are not told of RDMA of uid {user} there any more",
                    listening.local
                );
                self.unmap(id);
            }
        }
    }

    /// Returns when to [`poll`](Self::poll) if nothing comes.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let check_at = self.has_mapped().then_some(self.check_at);
        let questions = self.questions.next_timeout();
        [questions, self.refresh_at, check_at]
            .into_iter()
            .flatten()
            .min()
    }
}
