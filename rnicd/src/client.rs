//! A connection of a client.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rnic_xdp::manager::channel::{Channel, ChannelError, Peer};
use rnic_xdp::manager::protocol::{DecodeError, FromDaemon, Notice, Reply, Request};
use rnic_xdp::manager::states::Event;

/// Notices about segments that were too big, at most, for a client that does not read.
const MOST_NOTICES: usize = 64;
/// Events, at most, for a client that does not read.
const MOST_EVENTS: usize = 256;

/// Inspections, at most, that a client has not taken or not answered. Each holds descriptors.
const MOST_INSPECTIONS: usize = 4;

/// A connected client. It is sent nothing that it has not asked for beyond what is bounded: it may not read at all.
pub(crate) struct Client {
    channel: Channel,
    /// Who it is.
    pub(crate) peer: Peer,
    /// The name of its program, once it has said hello.
    pub(crate) program: Option<String>,
    outgoing: VecDeque<(FromDaemon, Vec<OwnedFd>)>,
    /// Destinations of ports whose next hop has changed since it was told.
    pub(crate) changed: BTreeSet<(u32, IpAddr)>,
    /// Ports whose link has changed since it was told.
    pub(crate) links_changed: BTreeSet<u32>,
    /// Ports of whose device the addresses without tags have changed since it was told.
    pub(crate) untagged_changed: BTreeSet<u32>,
    /// The sockets of inspections, as their readers have them, until the client has closed its own.
    inspections: Vec<OwnedFd>,
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
    pub(crate) fn new(socket: OwnedFd) -> Result<Self, ChannelError> {
        let channel = Channel::from(socket);
        channel.set_nonblocking()?;
        Ok(Self {
            peer: channel.peer()?,
            channel,
            program: None,
            outgoing: VecDeque::new(),
            changed: BTreeSet::new(),
            links_changed: BTreeSet::new(),
            untagged_changed: BTreeSet::new(),
            inspections: Vec::new(),
            waiting: None,
            missed: None,
        })
    }

    /// Returns whether all its requests are answered, and it has taken the replies. Only then is another request read: what it is
    /// sent stays bounded.
    pub(crate) fn is_ready(&self) -> bool {
        self.outgoing.is_empty() && self.waiting.is_none()
    }

    /// Returns whether something is to be sent.
    pub(crate) fn has_news(&self) -> bool {
        let changes = [&self.links_changed, &self.untagged_changed];
        !self.outgoing.is_empty()
            || !self.changed.is_empty()
            || changes.iter().any(|ports| !ports.is_empty())
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

    /// Is sent events from now on.
    pub(crate) fn monitor(&mut self) {
        self.missed.get_or_insert(0);
    }

    /// Says an event, if the client has asked for events and reads them; else it is counted.
    pub(crate) fn announce(&mut self, event: &Notice) {
        match &mut self.missed {
            Some(0) if self.outgoing.len() < MOST_EVENTS => self.tell(event.clone()),
            Some(missed) => *missed += 1,
            None => {}
        }
    }

    /// Says something that the client may miss.
    pub(crate) fn mention(&mut self, notice: Notice) {
        if self.outgoing.len() < MOST_NOTICES {
            self.outgoing
                .push_back((FromDaemon::Notice(notice), Vec::new()));
        }
    }

    /// Returns whether another inspection may be sent.
    pub(crate) fn may_be_inspected(&mut self) -> bool {
        self.forget_inspections();
        self.inspections.len() < MOST_INSPECTIONS
    }

    /// Sends an inspection with the client's socket. `watch` is a copy of the reader's.
    pub(crate) fn inspect(&mut self, notice: Notice, theirs: OwnedFd, watch: OwnedFd) {
        self.inspections.push(watch);
        self.outgoing
            .push_back((FromDaemon::Notice(notice), vec![theirs]));
    }

    /// The sockets of inspections, which hang up when the client has closed its own.
    pub(crate) fn inspections(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.inspections.iter().map(AsFd::as_fd)
    }

    /// Closes the sockets of inspections that are over.
    pub(crate) fn forget_inspections(&mut self) {
        self.inspections.retain(|socket| {
            let mut fds = [PollFd::new(socket.as_fd(), PollFlags::empty())];
            let polled = ppoll(
                &mut fds,
                Some(TimeSpec::from_duration(Duration::ZERO)),
                None,
            );
            // A hang-up is reported unasked.
            polled != Ok(1)
        });
    }

    /// Says something that the client must not miss.
    pub(crate) fn tell(&mut self, notice: Notice) {
        self.outgoing
            .push_back((FromDaemon::Notice(notice), Vec::new()));
    }

    /// Sends what the client takes now.
    pub(crate) fn flush(&mut self) -> Result<(), ChannelError> {
        loop {
            self.say_missed();
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

    /// Says how many events were missed, behind those that were not.
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
