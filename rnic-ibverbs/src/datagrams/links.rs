//! The connections that carry datagrams: one to each process that datagrams go to or come from.
//! Whoever calls has locked the service.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rnic_verbs::{
    ConnectRequest, ConnectionOptions, Cq, Keepalive, Pd, Qp, QpCaps, QpNumber, SendRequest, Sge,
    Srq,
};
use tracing::debug;

use crate::datagrams::endpoint::{Id, Request};
use crate::errno::{Errno, ToErrno};
use crate::hello::{Hello, Kind};
use crate::interface::gid_of;
use crate::numbers::port_of;

/// Datagrams of a link that the engine has not taken yet.
const MOST_POSTED: u32 = 1024;

/// The most links, and the most with one address.
const MOST_LINKS: usize = 1024;
const MOST_OF_ADDRESS: usize = 256;

/// How long an attempt to connect lasts. Datagrams wait for it.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(5);

/// How long a program waits for an attempt. Then its requests complete, and datagrams that find no
/// slot are lost: others that it sends are not to wait for a host that is away.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// How long a peer may leave datagrams unacknowledged.
const PATIENCE: Duration = Duration::from_secs(4);

/// How long a link that carries nothing stays.
pub(super) const LONGEST_IDLE: Duration = Duration::from_secs(60);

/// How long datagrams to a process that could not be reached are dropped, before another attempt.
const PAUSE: Duration = Duration::from_millis(20);

/// When a silent peer is probed.
const PROBES: Keepalive = Keepalive {
    idle: Duration::from_secs(5),
    interval: Duration::from_secs(5),
    count: u8::MAX,
};

/// A process on another host, or on this one: an address, and the port at which it listens.
pub(super) type Peer = (IpAddr, u16);

/// A connection.
pub(super) struct Link {
    qp: Qp,
    pub(super) peer: Peer,
    pub(super) local: IpAddr,
    pub(super) stage: Stage,
    /// Datagrams that were posted and are not complete.
    posted: u32,
    /// Requests that wait for the attempt to connect.
    waiting: Vec<(Id, Request)>,
    /// Since when it connects.
    since: Instant,
    /// When it carried something last.
    used: Instant,
}

/// How far a link has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    Open,
    /// It is over, and here only until what was posted is complete.
    Over,
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    /// The request completes with the datagram.
    Waits,
    /// So it does if the link stands soon; [overdue](Links::overdue) requests do not wait.
    WaitsForLink,
    /// The datagram is on its way, and the request does not wait for that.
    Left,
    /// The link cannot take it.
    Refused,
}

/// The links of an adapter.
#[derive(Default)]
pub(super) struct Links {
    by_qp: HashMap<u32, Link>,
    /// The link by which datagrams go to a process.
    to: HashMap<Peer, QpNumber>,
    /// Processes that could not be reached, and until when none tries.
    paused: HashMap<Peer, Instant>,
}

/// What makes the queue pairs of links.
#[derive(Clone, Copy)]
pub(super) struct Maker<'a> {
    pub(super) pd: &'a Pd,
    pub(super) cq: &'a Cq,
    pub(super) srq: &'a Srq,
}

impl Maker<'_> {
    fn qp(self) -> Result<Qp, Errno> {
        let caps = QpCaps {
            max_send_wr: MOST_POSTED,
            max_sge: 1,
            signal_all: true,
            ..QpCaps::default()
        };
        let made = self.pd.qp_with_srq(self.cq, self.cq, self.srq, caps);
        made.map_err(|why| why.errno())
    }
}

fn options(hello: &Hello, traffic_class: u8) -> ConnectionOptions {
    ConnectionOptions {
        private_data: hello.octets(None).to_vec(),
        peer_to_peer: true,
        ird: 0,
        ord: 0,
        traffic_class,
        keepalive: Some(PROBES),
        user_timeout: Some(PATIENCE),
        connect_timeout: LONGEST_ATTEMPT,
        // A receive is missing only until this process looks at what has come.
        min_rnr_timer: Duration::from_secs(1),
        rc: true,
        ..ConnectionOptions::default()
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    /// The address that the program has chosen, with port 0.
    pub(crate) local: SocketAddr,
    /// The address of the process that is to get it, with the port in the number.
    pub(crate) remote: SocketAddr,
    pub(crate) traffic_class: u8,
    /// The number of the queue pair that is to get it.
    pub(crate) number: u32,
    /// The address is one of this host.
    pub(crate) is_here: bool,
}

impl Links {
    pub(super) fn get(&self, qp: QpNumber) -> Option<&Link> {
        self.by_qp.get(&qp.0)
    }

    /// Returns the link to a process, which begins to connect if there is none. `from` is the number
    /// of the queue pair that sends. Returns `None` if there can be none now.
    pub(super) fn to(
        &mut self,
        destination: &Destination,
        from: u32,
        make: Maker<'_>,
    ) -> Option<QpNumber> {
        let peer = (destination.remote.ip(), destination.remote.port());
        if let Some(known) = self.to.get(&peer) {
            return Some(*known);
        }
        let now = Instant::now();
        if self.paused.get(&peer).is_some_and(|until| now < *until) {
            return None;
        }
        self.paused.remove(&peer);
        match self.connect(destination, from, make, now) {
            Ok(qp) => Some(qp),
            Err(errno) => {
                debug!(
                    "no connection for datagrams to {}: {errno}",
                    destination.remote
                );
                self.pause(peer, now);
                None
            }
        }
    }

    fn connect(
        &mut self,
        destination: &Destination,
        from: u32,
        make: Maker<'_>,
        now: Instant,
    ) -> Result<QpNumber, Errno> {
        let Destination {
            local,
            remote,
            traffic_class,
            number,
            ..
        } = *destination;
        let peer = (remote.ip(), remote.port());
        self.check_room(peer.0)?;
        let mut qp = make.qp()?;
        let hello = Hello {
            kind: Kind::Datagrams,
            own: from,
            peer: number,
            rq_psn: 0,
            gid: gid_of(local.ip()),
        };
        qp.open_sends(true);
        let begun = qp.connect(remote, Some(local), options(&hello, traffic_class));
        begun.map_err(|why| why.errno())?;
        let of = qp.number();
        debug!("{of} connects to {remote} for datagrams");
        let stage = Stage::Connecting;
        self.add(qp, peer, local.ip(), stage, now);
        Ok(of)
    }

    fn add(&mut self, qp: Qp, peer: Peer, local: IpAddr, stage: Stage, now: Instant) {
        let number = qp.number();
        self.to.entry(peer).or_insert(number);
        let link = Link {
            qp,
            peer,
            local,
            stage,
            posted: 0,
            waiting: Vec::new(),
            since: now,
            used: now,
        };
        self.by_qp.insert(number.0, link);
    }

    fn check_room(&self, address: IpAddr) -> Result<(), Errno> {
        let links = self.by_qp.values();
        let of_address = links.filter(|link| link.peer.0 == address).count();
        let has_room = self.by_qp.len() < MOST_LINKS && of_address < MOST_OF_ADDRESS;
        has_room.then_some(()).ok_or(Errno::ENOMEM)
    }

    fn pause(&mut self, peer: Peer, now: Instant) {
        self.paused.retain(|_, until| now < *until);
        self.paused.insert(peer, now + PAUSE);
    }

    /// Accepts the link that a process asks for, or returns the request if there is no room for it.
    pub(super) fn accept(
        &mut self,
        request: ConnectRequest,
        hello: &Hello,
        make: Maker<'_>,
    ) -> Result<(), ConnectRequest> {
        let peer = (request.peer().ip(), port_of(hello.own));
        let made = self.check_room(peer.0).and_then(|()| make.qp());
        let Ok(mut qp) = made else {
            return Err(request);
        };
        let local = request.local().ip();
        let answer = Hello {
            own: hello.peer,
            peer: hello.own,
            gid: gid_of(local),
            ..*hello
        };
        qp.open_sends(true);
        match request.accept(&mut qp, options(&answer, 0)) {
            Ok(()) => {
                debug!("{} accepts {:?} for datagrams", qp.number(), peer);
                self.add(qp, peer, local, Stage::Connecting, Instant::now());
            }
            // The peer was rejected, and may ask again.
            Err(why) => debug!("cannot accept {peer:?} for datagrams: {why}"),
        }
        Ok(())
    }

    /// Posts the datagram of a request. If the link takes it, `wr_id` completes.
    pub(super) fn post(
        &mut self,
        qp: QpNumber,
        request: (Id, Request),
        wr_id: u64,
        datagram: Sge,
    ) -> Posted {
        let Some(link) = self.by_qp.get_mut(&qp.0) else {
            return Posted::Refused;
        };
        let now = Instant::now();
        link.used = now;
        let send = SendRequest::send().wr_id(wr_id);
        if link.qp.post_send(&send.memory(&[datagram])).is_err() {
            return Posted::Refused;
        }
        link.posted += 1;
        match link.stage {
            Stage::Open => Posted::Waits,
            Stage::Connecting if now < link.since + LONGEST_WAIT => {
                link.waiting.push(request);
                Posted::WaitsForLink
            }
            Stage::Connecting | Stage::Over => Posted::Left,
        }
    }

    /// Returns the requests that have waited too long for an attempt, and when the next have.
    pub(super) fn overdue(&mut self, now: Instant) -> (Vec<(Id, Request)>, Option<Instant>) {
        let waiting = |link: &&mut Link| !link.waiting.is_empty();
        let (mut overdue, mut next) = (Vec::new(), None);
        for link in self.by_qp.values_mut().filter(waiting) {
            let until = link.since + LONGEST_WAIT;
            match now >= until {
                true => overdue.append(&mut link.waiting),
                false => next = Some(next.map_or(until, |next: Instant| next.min(until))),
            }
        }
        (overdue, next)
    }

    /// Notes that a datagram that was posted is complete.
    pub(super) fn completed(&mut self, qp: QpNumber) {
        if let Some(link) = self.by_qp.get_mut(&qp.0) {
            link.posted = link.posted.saturating_sub(1);
        }
        self.remove_if_over(qp);
    }

    /// Notes that a datagram has come by a link, which is returned.
    pub(super) fn carried(&mut self, qp: QpNumber) -> Option<&Link> {
        let link = self.by_qp.get_mut(&qp.0)?;
        link.used = Instant::now();
        Some(link)
    }

    /// Notes that a link is connected.
    pub(super) fn open(&mut self, qp: QpNumber) {
        if let Some(link) = self.by_qp.get_mut(&qp.0)
            && link.stage == Stage::Connecting
        {
            link.stage = Stage::Open;
            // Each completes now once the peer has it.
            link.waiting.clear();
        }
    }

    /// Ends a link. What was posted there completes, and is lost.
    pub(super) fn end(&mut self, qp: QpNumber) {
        let Some(link) = self.by_qp.get_mut(&qp.0) else {
            return;
        };
        let (peer, before) = (link.peer, link.stage);
        link.stage = Stage::Over;
        // Fails only where there is no engine any more.
        let _ = link.qp.fail();
        if self.to.get(&peer) == Some(&qp) {
            self.to.remove(&peer);
            if let Some(other) = self.other_to(peer) {
                self.to.insert(peer, other);
            }
        }
        if before == Stage::Connecting {
            self.pause(peer, Instant::now());
        }
        self.remove_if_over(qp);
    }

    /// Returns another link with a process: both sides may have connected at once.
    fn other_to(&self, peer: Peer) -> Option<QpNumber> {
        let usable = |link: &&Link| link.peer == peer && link.stage != Stage::Over;
        let other = self.by_qp.values().find(usable)?;
        Some(other.qp.number())
    }

    fn remove_if_over(&mut self, qp: QpNumber) {
        let is_over = |link: &Link| link.stage == Stage::Over && link.posted == 0;
        if self.by_qp.get(&qp.0).is_some_and(is_over) {
            self.by_qp.remove(&qp.0);
        }
    }

    /// Ends the links that have carried nothing for a while, and returns when the next of them is to
    /// be looked at.
    pub(super) fn end_idle(&mut self, now: Instant) -> Option<Instant> {
        let live = |link: &&Link| link.stage == Stage::Open;
        let idle: Vec<_> = self
            .by_qp
            .values()
            .filter(live)
            .filter(|link| now >= link.used + LONGEST_IDLE)
            .map(|link| link.qp.number())
            .collect();
        for qp in idle {
            self.end(qp);
        }
        let used = self.by_qp.values().filter(live).map(|link| link.used);
        used.min().map(|used| used + LONGEST_IDLE)
    }

    /// Tells all peers that this process ends.
    pub(super) fn fail_all(&mut self) {
        for link in self.by_qp.values_mut() {
            let _ = link.qp.fail();
        }
    }
}
