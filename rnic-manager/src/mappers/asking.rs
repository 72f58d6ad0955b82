//! The questions of a port mapper to those of peers' hosts.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rnic_core::engine::Found;
use rnic_core::time::Instant;
use rnic_core::wire::port_mapper::PORT;
use tracing::debug;

use super::query::{Outcome, Query};
use super::watch::Watch;
use super::ways::Ways;

/// The most questions that wait for their turn.
const MAX_WAITING: usize = 4096;
/// How long a question waits for its turn.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a host that has not answered is not asked again from the same address, and for how many
/// this is known.
const SILENT_FOR: Duration = Duration::from_secs(60);
const MAX_SILENT: usize = 1024;

/// A question.
pub struct Asked {
    /// Where the listener is said to be.
    pub remote: SocketAddr,
    /// The address to ask from, if one is stated.
    pub local: Option<SocketAddr>,
    /// Is told.
    pub found: Found,
    /// Since when it is asked.
    pub since: Instant,
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Asked");
        shown.field("remote", &self.remote).finish_non_exhaustive()
    }
}

/// Who is to be told of which address.
pub type Told = (Found, SocketAddr);

/// The questions that are asked, and those that wait.
#[derive(Debug)]
pub struct Questions {
    watch: Arc<Watch>,
    /// The most that are asked at a time, each by a socket.
    most: usize,
    waiting: VecDeque<Asked>,
    queries: Vec<(Query, Asked)>,
    /// By the address that has asked, and the host that did not answer.
    silent: HashMap<(IpAddr, IpAddr), Instant>,
}

impl Questions {
    /// Makes a place for questions, of which so many are asked at a time, each by a socket. `watch`
    /// wakes who is to [`poll`](Self::poll).
    pub fn new(watch: Arc<Watch>, most: usize) -> Self {
        Self {
            watch,
            most,
            waiting: VecDeque::new(),
            queries: Vec::new(),
            silent: HashMap::new(),
        }
    }

    /// Asks as soon as there is room. Gives the question back if too many wait.
    pub fn ask(&mut self, asked: Asked) -> Result<(), Asked> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(asked);
        }
        self.waiting.push_back(asked);
        Ok(())
    }

    /// Reads what has come, and asks what waits.
    pub fn poll(&mut self, ways: &impl Ways, now: Instant) -> Vec<Told> {
        let mut told = Vec::new();
        for (mut query, asked) in std::mem::take(&mut self.queries) {
            match query.poll(now) {
                Some(outcome) => {
                    // A process that was forked meanwhile may have a copy of the socket.
                    self.watch.remove(&query.socket);
                    told.push(self.finish(&query, asked, outcome, now));
                }
                None => self.queries.push((query, asked)),
            }
        }
        while self.queries.len() < self.most
            && let Some(asked) = self.waiting.pop_front()
        {
            match self.begin(ways, &asked, now) {
                Some(query) => self.queries.push((query, asked)),
                None => told.push((asked.found, asked.remote)),
            }
        }
        // They stand in the order in which they came.
        let is_late = |asked: &Asked| now.since(asked.since) >= PATIENCE;
        while self.waiting.front().is_some_and(is_late) {
            let late = self.waiting.pop_front();
            told.extend(late.map(|late| (late.found, late.remote)));
        }
        told
    }

    /// Begins a question. Returns `None` if nobody can be asked, or it is known that nobody answers.
    fn begin(&mut self, ways: &impl Ways, asked: &Asked, now: Instant) -> Option<Query> {
        let remote = asked.remote;
        let host = remote.ip();
        // One that has no route is said so when it is connected to.
        let mut source = ways.source(remote, asked.local)?;
        source.set_port(0);
        self.silent.retain(|_, until| now < *until);
        if self.silent.contains_key(&(source.ip(), host)) {
            return None;
        }
        let query = || -> Result<Query, String> {
            let socket = ways.datagram(source)?;
            let query = Query::ask(socket.into(), source.ip(), remote, now);
            let query = query.map_err(|error| error.to_string())?;
            let watched = self.watch.add(&query.socket);
            watched.map_err(|error| error.to_string())?;
            Ok(query)
        };
        query()
            .inspect_err(|error| debug!("cannot ask the port mapper of {remote}: {error}"))
            .ok()
    }

    /// Says what came of a question.
    fn finish(&mut self, query: &Query, asked: Asked, outcome: Outcome, now: Instant) -> Told {
        let mut remote = asked.remote;
        let (source, host) = query.path();
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
            Outcome::NoMapper => debug!("{host} has no port mapper: {remote} itself is taken"),
            Outcome::Silence => {
                debug!(
                    "{host} does not answer at UDP port {PORT}, so that a listener at {remote} which shares its number with a TCP \
                     socket is not found; let the port through a firewall between"
                );
                self.note_silence((source, host), now);
            }
        }
        (asked.found, remote)
    }

    /// Notes that a host does not answer. The one that was noted first makes room.
    fn note_silence(&mut self, path: (IpAddr, IpAddr), now: Instant) {
        if self.silent.len() >= MAX_SILENT {
            let first = self.silent.iter().min_by_key(|(_, until)| **until);
            if let Some(first) = first.map(|(path, _)| *path) {
                self.silent.remove(&first);
            }
        }
        self.silent.insert(path, now + SILENT_FOR);
    }

    /// Returns when to [`poll`](Self::poll) if nothing comes.
    pub fn next_timeout(&self) -> Option<Instant> {
        let begins = self.queries.len() < self.most;
        let first = self.waiting.front().map(|asked| match begins {
            true => Instant::ZERO,
            false => asked.since + PATIENCE,
        });
        let queries = self.queries.iter().map(|(query, _)| query.next_timeout());
        queries.chain(first).min()
    }
}
