//! What a port mapper has: listeners, the sockets at which peers ask for them, and its own questions.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rnic_core::engine::{Found, InUse, NetError};
use rnic_core::time::Instant;
use tracing::debug;

use super::mappings::{Entry, Mappings};
use super::query::{Outcome, Query};
use super::responder::Responder;
use super::watch::Watch;
use crate::device::locals::{Locals, other};
use crate::device::netlink::Iwpmd;

/// The most questions that are asked at a time, each by a socket. Others wait.
const MAX_QUERIES: usize = 256;
/// How long a host that has not answered is not asked again, and for how many this is known.
const SILENT_FOR: Duration = Duration::from_secs(60);
const MAX_SILENT: usize = 1024;
/// How often to look for new addresses of a device on which somebody listens at any address, and for
/// an `iwpmd` that was started again.
const REFRESH_EVERY: Duration = Duration::from_secs(10);

/// What waits to be asked.
struct Asked {
    remote: SocketAddr,
    local: Option<SocketAddr>,
    found: Found,
}

/// What a port mapper has.
pub(super) struct State {
    watch: Arc<Watch>,
    mappings: Mappings,
    responders: BTreeMap<IpAddr, Responder>,
    /// The listeners that an `iwpmd` has been told of.
    told: BTreeSet<u64>,
    asked: VecDeque<Asked>,
    queries: Vec<(Query, Asked)>,
    silent: HashMap<IpAddr, Instant>,
    refresh_at: Option<Instant>,
}

impl State {
    pub(super) fn new(watch: Arc<Watch>) -> Self {
        Self {
            watch,
            mappings: Mappings::default(),
            responders: BTreeMap::new(),
            told: BTreeSet::new(),
            asked: VecDeque::new(),
            queries: Vec::new(),
            silent: HashMap::new(),
            refresh_at: None,
        }
    }

    /// Adds a listener, and returns its id.
    pub(super) fn map(
        &mut self,
        locals: &Locals,
        owner: u32,
        local: SocketAddr,
        mapped: u16,
    ) -> Result<u64, NetError> {
        let added = self.mappings.add(owner, local, mapped);
        let id = added.ok_or_else(|| NetError::from(InUse::from(local)))?;
        let entry = Entry {
            id,
            owner,
            local,
            mapped,
        };
        if let Err(error) = self.make_known(locals, entry) {
            self.unmap(id);
            return Err(error);
        }
        self.refresh_at.get_or_insert(Instant::ZERO);
        Ok(id)
    }

    /// Removes a listener.
    pub(super) fn unmap(&mut self, id: u64) {
        let Some(removed) = self.mappings.remove(id) else {
            return;
        };
        let mut others = self.mappings.entries().iter();
        let is_last = !others.any(|entry| entry.local == removed.local);
        if self.told.remove(&id) && is_last {
            Iwpmd::find()
                .into_iter()
                .for_each(|iwpmd| iwpmd.forget(removed.local));
        }
        if self.mappings.entries().is_empty() {
            self.responders.clear();
            self.refresh_at = None;
        }
    }

    /// Lets peers ask for a listener: at each of its addresses, or by an `iwpmd`.
    fn make_known(&mut self, locals: &Locals, entry: Entry) -> Result<(), NetError> {
        let addresses = match entry.local.ip() {
            ip if ip.is_unspecified() => locals.addresses(ip.is_ipv4())?,
            ip => vec![ip],
        };
        for address in addresses.into_iter().filter(|ip| !ip.is_loopback()) {
            if self.responders.contains_key(&address) {
                continue;
            }
            match Responder::open(locals, address) {
                Ok(responder) => {
                    let watched = self.watch.add(&responder.socket);
                    watched.map_err(|error| other(entry.local, error))?;
                    self.responders.insert(address, responder);
                }
                Err(NetError::InUse(_)) => return self.tell_iwpmd(entry),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes a listener known to an `iwpmd`, which has the mappers' UDP port.
    fn tell_iwpmd(&mut self, entry: Entry) -> Result<(), NetError> {
        let Entry { local, mapped, .. } = entry;
        let iwpmd = Iwpmd::find().ok_or_else(|| {
            other(
                local,
                "another program has UDP port 3935, and is no iwpmd (`ss -ulnp 'sport = 3935'`), so that peers cannot ask for \
                 the TCP port of RDMA; end it, or choose a number that no TCP socket has",
            )
        })?;
        let is_new = self.told.insert(entry.id);
        match iwpmd.tell(local, mapped, is_new) {
            Ok(true) => Ok(()),
            Ok(false) => Err(other(
                local,
                "iwpmd does not take it: another listener for RDMA has the number, or iwpmd is not one of version 4 (it is none \
                 outside of the kernel's first network namespace)",
            )),
            Err(error) => Err(other(local, format!("iwpmd does not take it: {error}"))),
        }
    }

    /// Asks where a listener is, as soon as there is room.
    pub(super) fn ask(&mut self, remote: SocketAddr, local: Option<SocketAddr>, found: Found) {
        self.asked.push_back(Asked {
            remote,
            local,
            found,
        });
    }

    /// Does what is to be done. Returns who is to be told of which address.
    pub(super) fn poll(&mut self, locals: &Locals, now: Instant) -> Vec<(Found, SocketAddr)> {
        for (address, responder) in &self.responders {
            if let Err(error) = responder.poll(&self.mappings) {
                debug!("cannot read questions of port mappers at {address}: {error}");
            }
        }
        if self.refresh_at.is_some_and(|at| at <= now) {
            self.refresh(locals);
            self.refresh_at = Some(now + REFRESH_EVERY);
        }
        let mut answers = Vec::new();
        for (mut query, asked) in std::mem::take(&mut self.queries) {
            match query.poll(now) {
                Some(outcome) => answers.push(self.finish(query.host(), asked, outcome, now)),
                None => self.queries.push((query, asked)),
            }
        }
        while self.queries.len() < MAX_QUERIES
            && let Some(asked) = self.asked.pop_front()
        {
            match self.begin(locals, &asked, now) {
                Some(query) => self.queries.push((query, asked)),
                None => answers.push((asked.found, asked.remote)),
            }
        }
        answers
    }

    /// Begins a question. Returns `None` if nobody can be asked.
    fn begin(&mut self, locals: &Locals, asked: &Asked, now: Instant) -> Option<Query> {
        let remote = asked.remote;
        self.silent.retain(|_, until| now < *until);
        if self.silent.contains_key(&remote.ip()) {
            return None;
        }
        // One that has no route is said so when it is connected to.
        let source = match locals.is_own(remote.ip()) {
            true => remote.ip(),
            false => locals.source_for(remote, asked.local).ok()?.ip(),
        };
        let asked = locals
            .datagram(SocketAddr::new(source, 0))
            .map_err(|error| error.to_string())
            .and_then(|socket| {
                let query = Query::ask(socket.into(), source, remote, now);
                let query = query.map_err(|error| error.to_string())?;
                let watched = self.watch.add(&query.socket);
                watched.map_err(|error| error.to_string())?;
                Ok(query)
            });
        asked
            .inspect_err(|error| debug!("cannot ask the port mapper of {remote}: {error}"))
            .ok()
    }

    /// Says what came of a question.
    fn finish(
        &mut self,
        host: IpAddr,
        asked: Asked,
        outcome: Outcome,
        now: Instant,
    ) -> (Found, SocketAddr) {
        let mut remote = asked.remote;
        match outcome {
            Outcome::Mapped(port) => {
                if port != remote.port() {
                    debug!(
                        "{remote} listens for RDMA at TCP port {port}, says the port mapper there"
                    );
                }
                remote.set_port(port);
            }
            Outcome::Unknown => debug!("the port mapper of {host} knows no listener at {remote}"),
            Outcome::NoMapper => {
                debug!("{host} has no port mapper: {remote} is connected to itself")
            }
            Outcome::Silence => {
                debug!(
                    "{host} does not answer at UDP port {}, so that a listener at {remote} which shares its number with a TCP socket is \
                     not found; let the port through a firewall between",
                    rnic_core::wire::port_mapper::PORT
                );
                if self.silent.len() < MAX_SILENT {
                    self.silent.insert(host, now + SILENT_FOR);
                }
            }
        }
        (asked.found, remote)
    }

    /// Makes listeners known again: at addresses that are new, or to an `iwpmd` that is.
    fn refresh(&mut self, locals: &Locals) {
        let entries = self.mappings.entries().to_vec();
        for entry in entries {
            let changes = entry.local.ip().is_unspecified() || self.told.contains(&entry.id);
            if changes && let Err(error) = self.make_known(locals, entry) {
                debug!("{} is not known to port mappers: {error}", entry.local);
            }
        }
    }

    /// Returns when to [`poll`](Self::poll) if nothing comes.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let begins = !self.asked.is_empty() && self.queries.len() < MAX_QUERIES;
        let queries = self.queries.iter().map(|(query, _)| query.next_timeout());
        queries
            .chain(begins.then_some(Instant::ZERO))
            .chain(self.refresh_at)
            .min()
    }
}
