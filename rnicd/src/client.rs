//! A connection of a client.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime};

use rnic_core::connection::AddressPair;
use rnic_manager::Closer;
use rnic_manager::channel::{Channel, ChannelError, Peer};
use rnic_manager::protocol::{DecodeError, FromDaemon, Notice, Reply, Request};
use rnic_manager::states::Event;

use crate::config::Limits;
use crate::listeners::{Listener, Role};
use crate::policy::Policy;
use crate::record::Record;

/// Notices about segments that were too big, at most, for a client that does not read.
const MAX_NOTICES: usize = 64;
/// Events, at most, for a client that does not read.
const MAX_EVENTS: usize = 256;

/// How long a connection may stand that has not said hello.
const SILENCE: Duration = Duration::from_secs(10);
/// How soon to look whether what was sent is read, at first and at last.
const LOOK_FIRST: Duration = Duration::from_millis(2);
const LOOK_AT_MOST: Duration = Duration::from_millis(128);

/// Inspections, at most, that a client has not taken. Each holds a descriptor.
const MAX_INSPECTIONS: usize = 4;

/// A connected client. It is sent nothing that it has not asked for beyond what is bounded: it may
/// not read at all.
pub(crate) struct Client {
    channel: Channel,
    /// Who closes what it was not given any more.
    closer: Closer,
    /// Who it is.
    pub(crate) peer: Peer,
    /// What it may beyond the rules.
    pub(crate) role: Role,
    /// The user as whom it counts.
    pub(crate) account: u32,
    /// Whether the rules for its groups count: whoever is of a class chooses them itself.
    has_groups: bool,
    /// When it connected.
    since: Instant,
    /// Until when nothing is done for it.
    rests_until: Option<Instant>,
    /// When to look again whether it has read what has descriptors, and how long was waited for
    /// that last.
    look_again: Option<(Instant, Duration)>,
    /// The name of its program, once it has said hello.
    pub(crate) program: Option<String>,
    outgoing: VecDeque<(FromDaemon, Vec<OwnedFd>)>,
    /// Paths of ports whose next hop has changed since it was told.
    pub(crate) changed: BTreeSet<(u32, AddressPair)>,
    /// Ports whose link has changed since it was told.
    pub(crate) links_changed: BTreeSet<u32>,
    /// Ports of whose device the addresses without tags have changed since it was told.
    pub(crate) untagged_changed: BTreeSet<u32>,
    /// Ports of which something else protects what they send and receive since it was told.
    pub(crate) protection_changed: BTreeSet<u32>,
    /// The newest version of the protocol that it knows, once it has said hello.
    pub(crate) version: u32,
    /// What it does not know that it has leased no more.
    revoked: BTreeSet<(u32, SocketAddr)>,
    /// A request that waits, and until when. No other is read before it is answered.
    pub(crate) waiting: Option<(Request, Instant)>,
    /// If it is sent events: how many it has missed since it was told.
    missed: Option<u64>,
}

/// What a client does next.
pub(crate) enum Received {
    /// It asks for something.
    Request(Request),
    /// Something that is no request. The connection can be used on.
    Malformed(DecodeError),
    /// Nothing now.
    Nothing,
    /// Its connection has ended, or it does not keep to the protocol.
    End(ChannelError),
}

impl Client {
    /// Takes over a connection that was accepted.
    pub(crate) fn new(
        socket: OwnedFd,
        listener: &Listener,
        closer: &Closer,
    ) -> Result<Self, ChannelError> {
        let channel = Channel::from(socket);
        let channel = match listener.brings_no_descriptors {
            true => channel,
            false => channel.without_descriptors(closer),
        };
        channel.set_nonblocking()?;
        let peer = channel.peer()?;
        Ok(Self {
            account: peer.uid,
            peer,
            channel,
            closer: closer.clone(),
            role: Role::Client,
            has_groups: true,
            since: Instant::now(),
            rests_until: None,
            look_again: None,
            program: None,
            outgoing: VecDeque::new(),
            changed: BTreeSet::new(),
            links_changed: BTreeSet::new(),
            untagged_changed: BTreeSet::new(),
            protection_changed: BTreeSet::new(),
            version: 0,
            revoked: BTreeSet::new(),
            waiting: None,
            missed: None,
        })
    }

    /// Sets the role and the account that those have who connect at such a socket. A socket for
    /// administrators is for root of rnicd's own user namespace: root of another one is a client.
    pub(crate) fn enter(&mut self, listener: &Listener, policy: &Policy) {
        let is_root = || self.peer.uid == 0 && self.channel.shares_user_namespace();
        self.role = match listener.role {
            Role::Administrator if !is_root() => Role::Client,
            role => role,
        };
        match listener.class {
            Some(class) => (self.account, self.has_groups) = (class, false),
            None => self.account = policy.account(self.peer.uid),
        }
    }

    /// Returns what the rules give it.
    pub(crate) fn limits(&self, policy: &Policy) -> Limits {
        policy.limits(self.account, self.gids())
    }

    /// Returns the groups of which the rules count for it.
    pub(crate) fn gids(&self) -> &[u32] {
        match self.has_groups {
            true => &self.peer.gids,
            false => &[],
        }
    }

    /// Returns whether a port is one of its user.
    pub(crate) fn is_user_of(&self, record: &Record) -> bool {
        record.uid == self.peer.uid && record.account() == self.account
    }

    /// Ends the connection, and waits for nothing: not for what it was to be given either, whose
    /// last close can take long.
    pub(crate) fn close(self) {
        let given = self.outgoing.into_iter();
        self.closer
            .close(given.flat_map(|(_, descriptors)| descriptors));
        self.channel.close();
    }

    /// Returns whether all its requests are answered, and it has taken the replies and knows of all
    /// leases that have ended. Only then is another request read: what it is sent stays bounded.
    pub(crate) fn is_ready(&self) -> bool {
        let may_ask = self.waiting.is_none() && self.rests_until.is_none();
        may_ask && self.can_be_told() && self.revoked.is_empty()
    }

    /// Returns whether it has taken all that it was sent. Only then is put into words what has
    /// changed for it.
    pub(crate) fn can_be_told(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Returns whether it has not said hello for too long.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        self.program.is_none() && now.saturating_duration_since(self.since) >= SILENCE
    }

    /// Lets the client rest: nothing is done for it until the time is over.
    pub(crate) fn rest(&mut self, time: Duration) {
        self.rests_until = (!time.is_zero()).then(|| Instant::now() + time);
    }

    /// Returns whether its end is noticed: not while it waits for something else, which would wake
    /// the loop again and again.
    pub(crate) fn is_watched(&self) -> bool {
        self.waiting.is_none() && self.rests_until.is_none() && self.look_again.is_none()
    }

    /// Returns when to look after it, whatever it does.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        let speaks = self.program.is_none().then(|| self.since + SILENCE);
        let looks = self.look_again.map(|(at, _)| at);
        [speaks, looks, self.rests_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// Ends the rests and waits that are over at `now`.
    pub(crate) fn wake(&mut self, now: Instant) {
        self.rests_until = self.rests_until.filter(|until| now < *until);
        if let Some((at, waited)) = self.look_again
            && at <= now
        {
            // The time stands for how long is waited next.
            self.look_again = self.must_wait_on().then(|| {
                let wait = (2 * waited).min(LOOK_AT_MOST);
                (now + wait, wait)
            });
        }
    }

    /// Returns whether the next message has descriptors, and those before may not have been read.
    /// What is under way counts against the descriptors that rnicd's user may pass.
    fn must_wait_on(&self) -> bool {
        let next = self.outgoing.front();
        next.is_some_and(|(_, descriptors)| !descriptors.is_empty()) && !self.channel.is_read()
    }

    /// Returns whether something is to be sent.
    pub(crate) fn has_news(&self) -> bool {
        let changes = [
            &self.links_changed,
            &self.untagged_changed,
            &self.protection_changed,
        ];
        let has_changes = !self.changed.is_empty()
            || !self.revoked.is_empty()
            || changes.iter().any(|ports| !ports.is_empty());
        self.look_again.is_none() && (!self.outgoing.is_empty() || has_changes)
    }

    /// Notes that a lease has ended, to tell the client when it can.
    pub(crate) fn revoke(&mut self, port: u32, local: SocketAddr) {
        self.revoked.insert((port, local));
    }

    /// Puts into words some of the leases that have ended.
    pub(crate) fn say_revoked(&mut self) {
        for _ in 0..MAX_NOTICES {
            let Some((port, local)) = self.revoked.pop_first() else {
                return;
            };
            self.tell(Notice::Revoked { port, local });
        }
    }

    /// Drops what the client was to be told of a port that another connection has now.
    pub(crate) fn lose(&mut self, port: u32) {
        self.changed.retain(|(of, _)| *of != port);
        self.revoked.retain(|(of, _)| *of != port);
        self.links_changed.remove(&port);
        self.untagged_changed.remove(&port);
        self.protection_changed.remove(&port);
    }

    /// Reads a request.
    pub(crate) fn receive(&mut self) -> Received {
        match self.channel.receive::<Request>() {
            Ok((request, _)) => Received::Request(request),
            Err(ChannelError::TimedOut { .. }) => Received::Nothing,
            Err(ChannelError::Decode(error)) => Received::Malformed(error),
            Err(error) => Received::End(error),
        }
    }

    /// Answers a request.
    pub(crate) fn answer(&mut self, reply: Reply, descriptors: Vec<OwnedFd>) {
        let reply = FromDaemon::Answer(reply);
        self.outgoing.push_back((reply, descriptors));
    }

    /// Sends events to the client from now on.
    pub(crate) fn monitor(&mut self) {
        self.missed.get_or_insert(0);
    }

    /// Sends an event, if the client has asked for events and reads them. Otherwise counts it.
    pub(crate) fn announce(&mut self, event: &Notice) {
        match &mut self.missed {
            Some(0) if self.outgoing.len() < MAX_EVENTS => self.tell(event.clone()),
            Some(missed) => *missed += 1,
            None => {}
        }
    }

    /// Sends a notice that the client may miss.
    pub(crate) fn mention(&mut self, notice: Notice) {
        if self.outgoing.len() < MAX_NOTICES {
            self.outgoing
                .push_back((FromDaemon::Notice(notice), Vec::new()));
        }
    }

    /// Returns whether another inspection may be sent.
    pub(crate) fn may_be_inspected(&self) -> bool {
        let not_taken = self.outgoing.iter();
        not_taken.filter(|(_, ends)| !ends.is_empty()).count() < MAX_INSPECTIONS
    }

    /// Sends an inspection with the client's end of the connection for the answer. rnicd keeps no
    /// end: closing the last copy of a pipe's waits for a write or read that is under way there,
    /// which can last for ever.
    pub(crate) fn inspect(&mut self, notice: Notice, theirs: OwnedFd) {
        self.outgoing
            .push_back((FromDaemon::Notice(notice), vec![theirs]));
    }

    /// Sends a notice that the client must not miss.
    pub(crate) fn tell(&mut self, notice: Notice) {
        self.outgoing
            .push_back((FromDaemon::Notice(notice), Vec::new()));
    }

    /// Sends what the client takes now.
    pub(crate) fn flush(&mut self) -> Result<(), ChannelError> {
        loop {
            self.say_missed();
            if self.must_wait_on() {
                self.look_again = Some((Instant::now() + LOOK_FIRST, LOOK_FIRST));
                return Ok(());
            }
            let Some((message, descriptors)) = self.outgoing.front() else {
                return Ok(());
            };
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            match self.channel.send(message, &descriptors) {
                Ok(()) => drop(self.outgoing.pop_front()),
                Err(ChannelError::TimedOut { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reports how many events were missed, behind those that were not.
    fn say_missed(&mut self) {
        if let Some(missed @ 1..) = &mut self.missed
            && self.outgoing.is_empty()
        {
            let events = std::mem::take(missed);
            self.tell(event(Event::Missed { events }));
        }
    }
}

/// Makes the notice of an event that happens now.
pub(crate) fn event(event: Event) -> Notice {
    let at = u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX);
    Notice::Event { at, event }
}

/// Returns the seconds since 1970-01-01 UTC.
pub(crate) fn now() -> u64 {
    since_1970().as_secs()
}

fn since_1970() -> Duration {
    // A clock that is wrong by that much says 1970.
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
