//! The client's thread that speaks with rnicd: for the worker, about next hops and the link, and
//! for the application, about leases.
//!
//! Frames do not depend on rnicd. If it goes away, requests wait, and connections go on. When it is
//! back, the thread connects again, and shows what it holds.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rnic_core::connection::{AddressPair, NextHop};
use rnic_core::engine::{Found, NextHopRequest};
use rnic_core::esp::{Request as Need, Required, SaId};
use rnic_core::time::Instant;
use rnic_core::wire::icmp::Report;
use rnic_manager::channel::{Channel, ChannelError};
use rnic_manager::protocol::{
    Answer, Ask, FromDaemon, Notice, OLDEST, Reason, Refused, Reply, UntaggedAddress, VERSION,
};
use rnic_manager::{Inspection, Token};
use tracing::{debug, info, warn};

use super::connection::{Connection, LOCATED_WITHIN, Waiting, refuse};
use super::protection::PortProtection;
use super::worker_news::WorkerNews;
use crate::device::clock::clock;
use crate::device::interface::{Joining, Request as WorkerRequest};
use crate::device::routes::{LinkState, Update};
use crate::device::vlans::Untagged;
use rnic_manager::Bell;

/// How long to wait before connecting again.
const CONNECT_EVERY: Duration = Duration::from_millis(200);
/// How long to wait for rnicd to accept a connection: the worker's notices wait as well.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How soon to look again whether the worker has taken its notices.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// The most questions about peers that wait for a connection.
const MAX_QUESTIONS: usize = 64;
/// Messages read at a time, so that requests have their turn.
const MESSAGES_PER_TURN: usize = 64;

/// What the application's side asks of the thread.
pub(super) enum Errand {
    /// Reserve a local port.
    Reserve(Ask, Sender<Result<(SocketAddr, bool), Refused>>),
    /// Give a local port back.
    Release(SocketAddr),
    /// Do something, or say whether a peer may connect.
    Do(Ask, Sender<Result<(), Refused>>),
    /// Tell port mappers no more of a listener.
    Unmap(SocketAddr),
    /// Ask where a listener really is: there, unless rnicd says otherwise.
    Locate(Ask, (SocketAddr, Found)),
}

/// A port, and what its client has of it.
pub(super) struct Session {
    pub(super) path: PathBuf,
    pub(super) program: String,
    pub(super) port: u32,
    pub(super) token: Token,
    pub(super) errands: Receiver<Errand>,
    /// Those who answer inspections, if there are any.
    inspections: Option<Sender<Inspection>>,
    connection: Option<Connection>,
    connect_at: Instant,
    worker: WorkerNews,
    /// The local addresses whose frames arrive without a tag.
    untagged: Untagged,
    paths: HashSet<AddressPair>,
    /// What it has leased. What speaks protected or not at all does so as long as it is here.
    leases: HashMap<SocketAddr, Option<Required>>,
    /// What protects its frames, if anything may.
    protection: Option<PortProtection>,
    /// What waits for a connection.
    postponed: VecDeque<Waiting>,
    /// rnicd does not know the port any more.
    ended: bool,
}

impl Session {
    /// Continues with a connection on which the port was granted.
    pub(super) fn new(
        (path, program): (PathBuf, String),
        (port, token, untagged): (u32, Token, Untagged),
        (channel, next_id): (Channel, u64),
        (errands, inspections): (Receiver<Errand>, Option<Sender<Inspection>>),
        protection: Option<PortProtection>,
    ) -> Self {
        Self {
            path,
            program,
            port,
            token,
            errands,
            inspections,
            connection: Some(Connection::new(channel, next_id)),
            connect_at: Instant::ZERO,
            worker: WorkerNews::default(),
            untagged,
            paths: HashSet::new(),
            leases: HashMap::new(),
            protection,
            postponed: VecDeque::new(),
            ended: false,
        }
    }

    /// Serves until the port closes.
    pub(super) fn run(mut self, requests: &Receiver<WorkerRequest>, bell: &Bell) {
        while self.serve_worker(requests) {
            self.serve_application();
            self.connect_again();
            if let Err(error) = self.exchange() {
                self.lose_connection(&error);
            }
            self.worker.pass_on(self.protection.as_mut());
            if let Some(connection) = &mut self.connection {
                connection.give_up_locating(Instant::from_nanos(clock()));
            }
            self.sleep(bell);
        }
    }

    /// Carries out what the worker asks for. Returns false once the port closes.
    fn serve_worker(&mut self, requests: &Receiver<WorkerRequest>) -> bool {
        for request in requests.try_iter() {
            match request {
                WorkerRequest::Join(Joining { worker, joined }) => {
                    self.worker.join(worker);
                    self.worker.set_untagged(self.untagged.clone());
                    self.worker.pass_on(None);
                    // A worker that has ended needs no answer.
                    // Nothing is leased yet that would be protected.
                    let _ = joined.send(Ok(Vec::new()));
                }
                WorkerRequest::NextHop(_, NextHopRequest::Follow(path)) => {
                    self.paths.insert(path);
                    self.follow(path);
                }
                WorkerRequest::NextHop(_, NextHopRequest::Forget(path)) => {
                    self.paths.remove(&path);
                    self.worker.forget_hop(path);
                    let ask = Ask::Forget {
                        port: self.port,
                        source: Some(path.local),
                        destination: path.remote,
                    };
                    if let Some(connection) = &mut self.connection {
                        connection.ask(ask, Waiting::Follow);
                    }
                }
                WorkerRequest::Protection(Need::Numbers(id)) => self.begin(Waiting::Numbers(id)),
                WorkerRequest::Protection(Need::Acquire {
                    template,
                    local,
                    remote,
                }) => {
                    let port = self.port;
                    let ask = Ask::Acquire {
                        port,
                        request: template.request,
                        local,
                        remote,
                    };
                    if let Some(connection) = &mut self.connection {
                        connection.ask(ask, Waiting::Follow);
                    }
                }
                // No rules are installed for a granted port: it has one queue.
                WorkerRequest::Release(rule) => drop(rule),
                WorkerRequest::End => return false,
            }
        }
        true
    }

    /// Hands numbers of an association to the worker, or says that there are none now.
    fn add_numbers(&mut self, id: SaId, (first, end): (u64, u64)) {
        if let Some(protection) = &mut self.protection {
            protection.add_numbers(id, first..end);
        }
    }

    fn follow(&mut self, path: AddressPair) {
        let ask = Ask::Follow {
            port: self.port,
            source: Some(path.local),
            destination: path.remote,
        };
        if let Some(connection) = &mut self.connection {
            connection.ask(ask, Waiting::Follow);
        }
    }

    /// Passes on the next hop of a path. An rnicd that knows no sources means all paths to the
    /// destination.
    fn tell_hop(&mut self, source: Option<IpAddr>, destination: IpAddr, hop: Option<NextHop>) {
        let paths: Vec<_> = match source {
            Some(local) => vec![AddressPair {
                local,
                remote: destination,
            }],
            None => {
                let paths = self.paths.iter();
                paths
                    .filter(|path| path.remote == destination)
                    .copied()
                    .collect()
            }
        };
        for path in paths {
            let update = match hop {
                Some(hop) => Update::Set(path, hop),
                None => Update::Unreachable(path),
            };
            if self.paths.contains(&path) {
                self.worker.set_hop(path, update);
            }
        }
    }

    fn serve_application(&mut self) {
        while let Ok(errand) = self.errands.try_recv() {
            let waiting = match errand {
                Errand::Reserve(ask, reply) => Waiting::Reserve(ask, reply),
                Errand::Release(local) => Waiting::Release(local),
                Errand::Do(ask, reply) => Waiting::Do(ask, reply),
                Errand::Unmap(local) => Waiting::Unmap(local),
                Errand::Locate(ask, found) => {
                    Waiting::Locate(ask, found, Instant::from_nanos(clock()))
                }
            };
            self.begin(waiting);
        }
    }

    /// Asks rnicd, now or when it is back.
    fn begin(&mut self, waiting: Waiting) {
        if self.ended {
            return refuse(waiting, &port_is_gone());
        }
        // What was revoked is rnicd's already.
        if let Waiting::Release(local) = &waiting
            && !self.leases.contains_key(local)
        {
            return;
        }
        let Some(connection) = &mut self.connection else {
            return self.postpone(waiting);
        };
        let ask = match &waiting {
            Waiting::Reserve(ask, _) | Waiting::Do(ask, _) | Waiting::Locate(ask, ..) => {
                ask.clone()
            }
            // Answered only if it is refused.
            Waiting::Unmap(local) => {
                let (port, local) = (self.port, *local);
                return connection.ask(Ask::Unmap { port, local }, Waiting::Follow);
            }
            Waiting::Numbers(id) => Ask::TakeNumbers {
                port: self.port,
                spi: id.spi,
                destination: id.destination,
            },
            Waiting::Release(local) => Ask::Release {
                port: self.port,
                local: *local,
            },
            // Both belong to one connection.
            Waiting::Hello | Waiting::Adopt | Waiting::Follow => return,
        };
        connection.ask(ask, waiting);
    }

    /// Keeps what waits for the next connection.
    fn postpone(&mut self, waiting: Waiting) {
        let is_question = |waiting: &Waiting| matches!(waiting, Waiting::Do(..));
        let keeps = match waiting {
            Waiting::Reserve(..)
            | Waiting::Release(_)
            | Waiting::Unmap(_)
            | Waiting::Numbers(_) => true,
            // Whoever asked may have given up long ago.
            Waiting::Do(..) => {
                let questions = self.postponed.iter().filter(|waiting| is_question(waiting));
                questions.count() < MAX_QUESTIONS
            }
            // Whoever asked does without an answer.
            Waiting::Locate(_, (remote, found), _) => return found(remote),
            Waiting::Hello | Waiting::Adopt | Waiting::Follow => false,
        };
        if keeps {
            self.postponed.push_back(waiting);
        }
    }

    /// Connects again, if it is time.
    fn connect_again(&mut self) {
        let now = Instant::from_nanos(clock());
        if self.ended || self.connection.is_some() || now < self.connect_at {
            return;
        }
        self.connect_at = now + CONNECT_EVERY;
        let channel = Channel::connect(&self.path, CONNECT_WITHIN);
        let channel = channel.and_then(|channel| channel.set_nonblocking().map(|()| channel));
        let channel = match channel {
            Ok(channel) => channel,
            Err(error) => return debug!("rnicd is still away: {error}"),
        };
        info!("connected to rnicd again");
        let mut connection = Connection::new(channel, 1);
        let (version, program) = (VERSION, self.program.clone());
        connection.ask(Ask::Hello { version, program }, Waiting::Hello);
        let adopt = Ask::Adopt {
            port: self.port,
            token: self.token,
            leases: self.leases.keys().copied().collect(),
        };
        connection.ask(adopt, Waiting::Adopt);
        self.connection = Some(connection);
        for path in self.paths.clone() {
            self.follow(path);
        }
        for waiting in std::mem::take(&mut self.postponed) {
            self.begin(waiting);
        }
    }

    fn lose_connection(&mut self, error: &ChannelError) {
        let Some(lost) = self.connection.take() else {
            return;
        };
        warn!("lost the connection to rnicd: {error}; connections of RDMA go on");
        if let Some(known) = &mut self.protection {
            known.forget_parts();
        }
        let mut again: Vec<_> = lost.waiting.into_iter().collect();
        again.sort_by_key(|(id, _)| *id);
        for (_, waiting) in again {
            self.postpone(waiting);
        }
    }

    /// Sends and receives messages.
    fn exchange(&mut self) -> Result<(), ChannelError> {
        if let Some(connection) = &mut self.connection {
            connection.flush()?;
        }
        for _ in 0..MESSAGES_PER_TURN {
            let Some(connection) = &self.connection else {
                return Ok(());
            };
            match connection.channel.receive() {
                Ok((message, descriptors)) => self.handle(message, descriptors),
                Err(ChannelError::TimedOut { .. }) => return Ok(()),
                // A newer rnicd may say more than this client understands.
                Err(ChannelError::Decode(error)) => debug!("rnicd: {error}"),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn handle(&mut self, message: FromDaemon, descriptors: Vec<OwnedFd>) {
        match message {
            FromDaemon::Answer(Reply { id, answer }) => {
                // Who waits for the answer finds the worker told of what came before it.
                self.worker.pass_on(self.protection.as_mut());
                let connection = self.connection.as_mut();
                match connection.and_then(|connection| connection.waiting.remove(&id)) {
                    Some(waiting) => self.handle_answer(waiting, answer),
                    None => debug!("rnicd did not do what was asked for: {answer:?}"),
                }
            }
            FromDaemon::Notice(notice) => self.handle_notice(notice, descriptors),
        }
    }

    fn handle_answer(&mut self, waiting: Waiting, answer: Answer) {
        match (waiting, answer) {
            (Waiting::Adopt, Answer::Adopted) => debug!("rnicd knows the port again"),
            (Waiting::Adopt, Answer::Refused(refused)) if refused.reason == Reason::NotReady => {
                self.lose_connection(&ChannelError::Closed);
            }
            (Waiting::Adopt, Answer::Refused(refused)) => {
                warn!("rnicd does not know the port any more: {}", refused.message);
                self.end();
            }
            // What the worker has there would end with what it had before.
            (Waiting::Reserve(_, reply), Answer::Lease { local, .. })
                if self.worker.is_revoked(local) =>
            {
                let why = "an administrator has just revoked it; try again";
                let _ = reply.send(Err(Refused::new(Reason::NotReady, why)));
                let port = self.port;
                if let Some(connection) = &mut self.connection {
                    connection.ask(Ask::Release { port, local }, Waiting::Follow);
                }
            }
            (Waiting::Reserve(_, reply), Answer::Lease { local, protected }) => {
                let protection = self.protection.as_ref().filter(|_| protected);
                let required = protection.map(|all| all.required.require(local.port()));
                self.leases.insert(local, required);
                // Nobody waits any more: it is given back.
                if reply.send(Ok((local, protected))).is_err() {
                    self.begin(Waiting::Release(local));
                }
            }
            (Waiting::Release(local), _) => {
                self.leases.remove(&local);
            }
            // It may be upgraded again; until then its leases are none for this version.
            (Waiting::Hello, Answer::Welcome { version, .. }) if version < OLDEST => {
                self.lose_connection(&ChannelError::Outdated { version });
            }
            (Waiting::Numbers(id), Answer::Numbers { first, end }) => {
                self.add_numbers(id, (first, end));
            }
            // It may ask again.
            (Waiting::Numbers(id), _) => self.add_numbers(id, (0, 0)),
            (Waiting::Locate(_, (_, found), _), Answer::Located { remote }) => found(remote),
            (Waiting::Do(_, reply), Answer::Done) => {
                let _ = reply.send(Ok(()));
            }
            (waiting, Answer::Refused(refused)) => refuse(waiting, &refused),
            (Waiting::Hello, _) => {}
            (waiting, _) => refuse(
                waiting,
                &Refused::new(Reason::Other, "rnicd gave a wrong answer"),
            ),
        }
    }

    fn handle_notice(&mut self, notice: Notice, descriptors: Vec<OwnedFd>) {
        match notice {
            Notice::NextHop {
                source,
                destination,
                hop,
                ..
            } => self.tell_hop(source, destination, hop.map(Into::into)),
            Notice::Link {
                state: LinkState::Gone,
                ..
            } => self.end(),
            Notice::Link { state, .. } => self.worker.set_link(state),
            Notice::Untagged { addresses, .. } => {
                self.untagged = UntaggedAddress::all(&addresses);
                self.worker.set_untagged(self.untagged.clone());
            }
            Notice::TooBig { segment, .. } => {
                self.worker.mention(Report::Segment(segment.into()));
            }
            Notice::ProtectedTooBig { packet, .. } => {
                self.worker.mention(Report::Protected(packet.into()));
            }
            Notice::Protection {
                protection, more, ..
            } => {
                if let Some(known) = &mut self.protection {
                    known.add(protection, more);
                }
            }
            Notice::Revoked { local, .. } => {
                warn!("an administrator has revoked {local}: its listener and connections end");
                if self.leases.remove(&local).is_some() {
                    self.worker.revoke(local);
                }
            }
            Notice::Describe { what, within, .. } => {
                let inspections = self
                    .inspections
                    .as_ref()
                    .zip(descriptors.into_iter().next());
                if let Some((inspections, answer)) = inspections {
                    let within = Duration::from_millis(within.into());
                    // Without room, closing the socket says that there is no answer.
                    let _ = inspections.try_send(Inspection {
                        what,
                        within,
                        answer,
                    });
                }
            }
            // For those that asked for them.
            Notice::Event { .. } => {}
        }
    }

    /// Ends the port: rnicd has taken it away.
    fn end(&mut self) {
        self.ended = true;
        self.worker.set_link(LinkState::Gone);
        let lost = self.connection.take();
        let waiting = lost.into_iter().flat_map(|lost| lost.waiting.into_values());
        for waiting in waiting.chain(std::mem::take(&mut self.postponed)) {
            refuse(waiting, &port_is_gone());
        }
    }

    /// Sleeps until there is something to do.
    fn sleep(&self, bell: &Bell) {
        let mut fds = vec![PollFd::new(bell.as_fd(), PollFlags::POLLIN)];
        let mut timeout = None;
        match &self.connection {
            Some(connection) => {
                let mut events = PollFlags::POLLIN;
                events.set(PollFlags::POLLOUT, !connection.outgoing.is_empty());
                timeout = connection.locates().then_some(LOCATED_WITHIN);
                fds.push(PollFd::new(connection.channel.as_fd(), events));
            }
            None if self.ended => {}
            None => timeout = Some(CONNECT_EVERY),
        }
        let looks = self.worker.waits(self.protection.as_ref());
        let timeout = timeout.into_iter().chain(looks.then_some(LOOK_AGAIN)).min();
        // A signal wakes it too.
        let _ = ppoll(&mut fds, timeout.map(TimeSpec::from_duration), None);
        bell.silence();
    }
}

fn port_is_gone() -> Refused {
    Refused::new(
        Reason::NotPermitted,
        "rnicd has taken the port away; open the device again, or ask the administrator (`journalctl -u rnicd`)",
    )
}
