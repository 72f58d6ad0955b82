//! The connections that carry datagrams. A process sends by those that it has opened itself, each
//! to the port of another process: so nobody else gets what it sends. By those that it has accepted
//! it only receives. Whoever calls has locked the service.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rnic_core::wire::hello::{Hello, Kind, Receipts};
use rnic_verbs::{
    ConnectRequest, ConnectionOptions, Cq, Keepalive, Pd, Qp, QpCaps, QpNumber, SendRequest, Sge,
    Srq,
};
use tracing::debug;

use crate::datagrams::destination::Destination;
use crate::datagrams::endpoint::{AHEAD, Id, Request};
use crate::errno::{Errno, ToErrno};
use crate::numbers::port_of;
use rnic_verbs::rdma::gid_of;

/// Datagrams of a link that are posted at most. More wait.
const MOST_POSTED: usize = 1024;

/// The most links that this process opens, that it accepts, and that it accepts from one address.
const MOST_OPENED: usize = 1024;
const MOST_ACCEPTED: usize = 1024;
const MOST_OF_ADDRESS: usize = 256;

/// How long an attempt to connect lasts.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(5);

/// How long a request waits for its datagram to be acknowledged. Then it completes all the same: a
/// program sends to several peers, and one that does not answer is not to hold up the others. A
/// program that has no more requests on their way than it may loses nothing before that, so this is
/// longer than a busy host keeps a process from its processor.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How long a peer may leave a datagram unacknowledged.
const PATIENCE: Duration = Duration::from_secs(4);

/// How long a link that carries nothing stays, and one by which nothing has come yet.
const LONGEST_IDLE: Duration = Duration::from_secs(60);
const LONGEST_SILENCE: Duration = Duration::from_secs(5);

/// How long datagrams to a process that could not be reached are dropped, before another attempt.
const PAUSE: Duration = Duration::from_millis(20);

/// When a silent peer is probed.
const PROBES: Keepalive = Keepalive {
    idle: Duration::from_secs(5),
    interval: Duration::from_secs(1),
    count: u8::MAX,
};

/// Two addresses, and the TCP port of the process at the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ends {
    pub(super) local: IpAddr,
    pub(super) remote: IpAddr,
    pub(super) port: u16,
}

/// Who has begun a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Opened,
    /// At this port.
    Accepted(u16),
}

/// A connection.
pub(super) struct Link {
    qp: Qp,
    pub(super) ends: Ends,
    side: Side,
    stage: Stage,
    /// Datagrams that are not posted yet: there is no connection, or its send queue is full.
    waiting: VecDeque<Outbound>,
    /// Datagrams that were posted. They complete in their order.
    posted: VecDeque<Outbound>,
    /// A datagram has waited for [`LONGEST_WAIT`], and none was acknowledged since: requests do not
    /// wait for their datagrams.
    is_stalled: bool,
    /// A datagram for a queue pair of this process has come by it.
    has_carried: bool,
    /// Since when it exists, when it carried something last, and when the peer has accepted or
    /// acknowledged something last.
    since: Instant,
    used: Instant,
    heard: Instant,
}

/// How far a link has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    Open,
    /// It is over, and here only until what was posted is complete.
    Over,
}

/// A datagram on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outbound {
    /// The queue pair that sends it, its slot there, and its request.
    pub(super) id: Id,
    pub(super) slot: u32,
    pub(super) request: Request,
    pub(super) datagram: Sge,
    pub(super) since: Instant,
}

/// What a look at the links has found.
#[derive(Default)]
pub(super) struct Overdue {
    /// Their requests complete, and they stay on their way.
    pub(super) late: Vec<Outbound>,
    /// They are lost.
    pub(super) lost: Vec<Outbound>,
    /// When to look again.
    pub(super) next: Option<Instant>,
}

/// The links of an adapter.
#[derive(Default)]
pub(super) struct Links {
    by_qp: HashMap<u32, Link>,
    /// The link by which datagrams go to a process.
    to: HashMap<Ends, QpNumber>,
    /// Processes that could not be reached, and until when none tries.
    paused: HashMap<Ends, Instant>,
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
            max_send_wr: MOST_POSTED as u32,
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

impl Ends {
    /// Returns the ends of the link that leads to a destination.
    fn to(destination: &Destination) -> Self {
        Self {
            local: destination.local.ip(),
            remote: destination.remote.ip(),
            port: destination.remote.port(),
        }
    }
}

impl Link {
    fn new(qp: Qp, ends: Ends, side: Side) -> Self {
        let now = Instant::now();
        Self {
            qp,
            ends,
            side,
            stage: Stage::Connecting,
            waiting: VecDeque::new(),
            posted: VecDeque::new(),
            is_stalled: false,
            has_carried: false,
            since: now,
            used: now,
            heard: now,
        }
    }

    /// Posts what waits, as far as there is room.
    fn pump(&mut self) {
        while self.stage == Stage::Open
            && self.posted.len() < MOST_POSTED
            && let Some(next) = self.waiting.front().copied()
        {
            let send = SendRequest::send();
            if self.qp.post_send(&send.memory(&[next.datagram])).is_err() {
                break;
            }
            self.waiting.pop_front();
            self.posted.push_back(next);
        }
    }

    /// Returns the datagram behind so many others on their way.
    fn behind(&self, others: usize) -> Option<Outbound> {
        let mut all = self.posted.iter().chain(&self.waiting);
        all.nth(others).copied()
    }

    fn is_accepted(&self) -> bool {
        matches!(self.side, Side::Accepted(_))
    }

    /// Returns until when it stays if nothing happens.
    fn ends_at(&self) -> Instant {
        let oldest = self.posted.front();
        let oldest = oldest.map(|oldest| oldest.since.max(self.heard) + PATIENCE);
        let idle = match self.is_accepted() && !self.has_carried {
            true => self.since + LONGEST_SILENCE,
            false => self.used + LONGEST_IDLE,
        };
        oldest.map_or(idle, |oldest| oldest.min(idle))
    }

    /// Finds the requests that have waited too long.
    fn find_overdue(&mut self, now: Instant, into: &mut Overdue) {
        for queue in [&self.posted, &self.waiting] {
            let late = queue.partition_point(|one| now >= one.since + LONGEST_WAIT);
            into.late.extend(queue.range(..late));
            self.is_stalled |= late > 0;
            if let Some(next) = queue.get(late) {
                into.add(next.since + LONGEST_WAIT);
            }
        }
    }
}

impl Overdue {
    fn add(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}

impl Links {
    /// Returns whether a queue pair is that of a link, and whether this process has opened it.
    pub(super) fn has_opened(&self, qp: QpNumber) -> Option<bool> {
        let link = self.by_qp.get(&qp.0)?;
        Some(link.side == Side::Opened)
    }

    pub(super) fn ends_of(&self, qp: QpNumber) -> Option<Ends> {
        Some(self.by_qp.get(&qp.0)?.ends)
    }

    /// Returns the link to a process, which begins to connect if there is none. `from` is the number
    /// of the queue pair that sends. Returns `None` if there can be none now.
    pub(super) fn to(
        &mut self,
        destination: &Destination,
        from: u32,
        make: Maker<'_>,
    ) -> Option<QpNumber> {
        let ends = Ends::to(destination);
        if let Some(known) = self.to.get(&ends) {
            return Some(*known);
        }
        let now = Instant::now();
        if self.paused.get(&ends).is_some_and(|until| now < *until) {
            return None;
        }
        self.paused.remove(&ends);
        match self.connect(destination, from, make) {
            Ok(qp) => Some(qp),
            Err(errno) => {
                debug!("no connection for datagrams to {ends:?}: {errno}");
                self.pause(ends, now);
                None
            }
        }
    }

    fn connect(
        &mut self,
        destination: &Destination,
        from: u32,
        make: Maker<'_>,
    ) -> Result<QpNumber, Errno> {
        let opened = self.by_qp.values().filter(|link| link.side == Side::Opened);
        if opened.count() >= MOST_OPENED {
            return Err(Errno::ENOMEM);
        }
        let Destination { local, remote, .. } = *destination;
        let mut qp = make.qp()?;
        let hello = Hello {
            kind: Kind::Datagrams,
            own: from,
            peer: destination.number,
            rq_psn: 0,
            sq_psn: None,
            gid: gid_of(local.ip()),
            receipts: Receipts::Unknown,
        };
        let options = options(&hello, destination.traffic_class);
        let begun = qp.connect(remote, Some(local), options);
        begun.map_err(|why| why.errno())?;
        let (number, ends) = (qp.number(), Ends::to(destination));
        debug!("{number} connects for datagrams: {ends:?}");
        self.to.insert(ends, number);
        let link = Link::new(qp, ends, Side::Opened);
        self.by_qp.insert(number.0, link);
        Ok(number)
    }

    fn pause(&mut self, ends: Ends, now: Instant) {
        self.paused.retain(|_, until| now < *until);
        self.paused.insert(ends, now + PAUSE);
    }

    /// Accepts the link that a process asks for, or returns the request if there is no room for it.
    /// Links by which nothing has come make room.
    pub(super) fn accept(
        &mut self,
        request: ConnectRequest,
        hello: &Hello,
        make: Maker<'_>,
    ) -> Result<(), ConnectRequest> {
        let ends = Ends {
            local: request.local().ip(),
            remote: request.peer().ip(),
            port: port_of(hello.own),
        };
        if !self.make_room(ends.remote) {
            return Err(request);
        }
        let Ok(mut qp) = make.qp() else {
            return Err(request);
        };
        let port = request.local().port();
        let answer = Hello {
            own: hello.peer,
            peer: hello.own,
            gid: gid_of(ends.local),
            // Of this side, and not the peer's: it sends nothing by this link.
            receipts: Receipts::Unknown,
            ..*hello
        };
        match request.accept(&mut qp, options(&answer, 0)) {
            Ok(()) => {
                let number = qp.number();
                debug!("{number} accepts for datagrams: {ends:?}");
                let link = Link::new(qp, ends, Side::Accepted(port));
                self.by_qp.insert(number.0, link);
            }
            // The peer was rejected, and may ask again.
            Err(why) => debug!("cannot accept for datagrams: {ends:?}: {why}"),
        }
        Ok(())
    }

    /// Makes room for one more link that is accepted. Returns false if there is none.
    fn make_room(&mut self, from: IpAddr) -> bool {
        let accepted = |link: &&Link| link.is_accepted() && link.stage != Stage::Over;
        let mut counts = HashMap::<IpAddr, usize>::new();
        for link in self.by_qp.values().filter(accepted) {
            *counts.entry(link.ends.remote).or_default() += 1;
        }
        let of_address = counts.get(&from).copied().unwrap_or(0);
        let is_full = counts.values().sum::<usize>() >= MOST_ACCEPTED;
        if of_address < MOST_OF_ADDRESS && !is_full {
            return true;
        }
        let greediest = match of_address >= MOST_OF_ADDRESS {
            true => Some(from),
            false => counts
                .iter()
                .max_by_key(|(_, count)| **count)
                .map(|(at, _)| *at),
        };
        let silent = self.by_qp.values().filter(accepted);
        let silent = silent.filter(|link| !link.has_carried && Some(link.ends.remote) == greediest);
        let Some(oldest) = silent.min_by_key(|link| link.since) else {
            return false;
        };
        let oldest = oldest.qp.number();
        // Nothing is sent by it.
        self.end(oldest);
        true
    }

    /// Sends a datagram by a link. Returns whether its request waits for it: `ahead` says whether
    /// it need not behind few others.
    pub(super) fn send(&mut self, qp: QpNumber, outbound: Outbound, ahead: bool) -> bool {
        let Some(link) = self.by_qp.get_mut(&qp.0) else {
            return false;
        };
        link.used = outbound.since;
        link.waiting.push_back(outbound);
        link.pump();
        !link.is_stalled && (!ahead || link.behind(AHEAD).is_some())
    }

    /// Notes that the oldest datagram of a link is complete. Returns it, and the one whose request
    /// need no longer wait.
    pub(super) fn completed(&mut self, qp: QpNumber) -> [Option<Outbound>; 2] {
        let Some(link) = self.by_qp.get_mut(&qp.0) else {
            return [None; 2];
        };
        let oldest = link.posted.pop_front();
        let next = link.behind(AHEAD - 1);
        link.is_stalled = false;
        link.heard = Instant::now();
        link.pump();
        self.remove_if_over(qp);
        [oldest, next]
    }

    /// Notes that a datagram for a queue pair of this process has come by a link.
    pub(super) fn carried(&mut self, qp: QpNumber) {
        if let Some(link) = self.by_qp.get_mut(&qp.0) {
            link.used = Instant::now();
            link.has_carried = true;
        }
    }

    /// Notes that a link is connected.
    pub(super) fn open(&mut self, qp: QpNumber) {
        if let Some(link) = self.by_qp.get_mut(&qp.0)
            && link.stage == Stage::Connecting
        {
            link.stage = Stage::Open;
            link.heard = Instant::now();
            link.pump();
        }
    }

    /// Ends a link. What was posted there completes, and is lost; so is what is returned.
    pub(super) fn end(&mut self, qp: QpNumber) -> VecDeque<Outbound> {
        let Some(link) = self.by_qp.get_mut(&qp.0) else {
            return VecDeque::new();
        };
        let (ends, before) = (link.ends, link.stage);
        link.stage = Stage::Over;
        // Fails only where there is no engine any more.
        let _ = link.qp.fail();
        let lost = std::mem::take(&mut link.waiting);
        if self.to.get(&ends) == Some(&qp) {
            self.to.remove(&ends);
            if before == Stage::Connecting {
                self.pause(ends, Instant::now());
            }
        }
        self.remove_if_over(qp);
        lost
    }

    /// Ends the links that were accepted at a port, because nobody is behind it any more. Another
    /// process may have the port next, and their peers are to find that.
    pub(super) fn end_accepted_at(&mut self, port: u16) {
        self.end_all(|link| link.side == Side::Accepted(port));
    }

    /// Ends the links that this process has opened, because nobody is there any more who sends.
    pub(super) fn end_opened(&mut self) {
        self.end_all(|link| link.side == Side::Opened);
    }

    /// Ends links by which nothing is to be sent.
    fn end_all(&mut self, which: impl Fn(&Link) -> bool) {
        let links = self.by_qp.values().filter(|link| which(link));
        let ended: Vec<_> = links.map(|link| link.qp.number()).collect();
        for qp in ended {
            self.end(qp);
        }
    }

    fn remove_if_over(&mut self, qp: QpNumber) {
        let is_over = |link: &Link| link.stage == Stage::Over && link.posted.is_empty();
        if self.by_qp.get(&qp.0).is_some_and(is_over) {
            self.by_qp.remove(&qp.0);
        }
    }

    /// Finds what has waited too long, and ends links that carry nothing, or whose peers do not
    /// answer.
    pub(super) fn tend(&mut self, now: Instant) -> Overdue {
        let mut found = Overdue::default();
        let mut over = Vec::new();
        for link in self.by_qp.values_mut() {
            if link.stage == Stage::Over {
                continue;
            }
            link.find_overdue(now, &mut found);
            let ends_at = link.ends_at();
            match now >= ends_at && link.stage == Stage::Open {
                true => over.push(link.qp.number()),
                false => found.add(ends_at.max(now + LONGEST_WAIT)),
            }
        }
        for qp in over {
            found.lost.extend(self.end(qp));
        }
        found
    }

    /// Returns whether datagrams are on their way.
    pub(super) fn are_busy(&self) -> bool {
        let is_busy = |link: &Link| !link.waiting.is_empty() || !link.posted.is_empty();
        self.by_qp.values().any(is_busy)
    }

    /// Tells all peers that this process ends.
    pub(super) fn fail_all(&mut self) {
        for link in self.by_qp.values_mut() {
            let _ = link.qp.fail();
        }
    }
}
