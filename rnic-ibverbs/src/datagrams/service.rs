//! What carries the datagrams of an adapter: its queue pairs, the links to other processes, and the
//! receives in which datagrams arrive there.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use rnic_core::wire::datagram::{self, Header, MOST};
use rnic_verbs::{
    Access, AsyncEvent, Completion, Cq, HugePages, Mr, Pd, QpNumber, Sge, Srq, SrqCaps, WcOpcode,
    WcStatus,
};

use crate::adapter::Adapter;
use crate::datagrams::destination::Destination;
use crate::datagrams::endpoint::{Endpoint, Held, Id, NewEndpoint, Request};
use crate::datagrams::links::{LONGEST_WAIT, Links, Maker, Outbound};
use crate::errno::{Errno, ToErrno};
use crate::numbers::port_of;

/// Datagrams that may have arrived and were not looked at yet. Peers wait if there are more.
const RECEIVES: u32 = 1024;

/// Octets of a receive.
const RECEIVE: usize = (datagram::LEN + MOST).next_multiple_of(64);

/// Completions of links that wait in the queue at most; more wait in the engine.
const COMPLETIONS: u32 = 8192;

/// What is looked at in one go. The program posts receives anew between two looks.
const BATCH: usize = 16;

/// The goes in which all is looked at that has come.
const ALL: usize = RECEIVES as usize / BATCH + 1;

/// How long a program that polls may do something else before what has come is dropped where there
/// is no receive for it.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The datagrams of an adapter.
pub(super) struct Service {
    pub(super) links: Links,
    endpoints: HashMap<u32, Endpoint>,
    /// By their numbers, as peers know them.
    numbers: BTreeMap<u32, Id>,
    next: u32,
    /// Those with completions that wait for room.
    unsettled: Vec<Id>,
    /// What programs are to be told beside completions.
    events: Vec<AsyncEvent>,
    /// A datagram that is being sent or has come: header and payload.
    octets: Vec<u8>,
    pd: Pd,
    cq: Cq,
    srq: Srq,
    receives: Mr,
    /// Has the dispatcher look at the links.
    dispatcher: Waker,
    /// When it does so next, as far as it knows.
    tends_at: Option<Instant>,
    /// When a program has polled last.
    polled: Instant,
    /// Links are sockets of the kernel.
    is_on_sockets: bool,
}

/// A datagram that the program sends.
pub(super) struct Outgoing<'a> {
    pub(super) wr_id: u64,
    pub(super) signaled: bool,
    pub(super) destination: Destination,
    pub(super) header: Header,
    pub(super) payload: Payload<'a>,
}

/// What a datagram carries.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    Memory(&'a [Sge]),
    Inline(&'a [u8]),
}

impl Payload<'_> {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Memory(pieces) => pieces.iter().map(|piece| u64::from(piece.length())).sum(),
            Self::Inline(octets) => octets.len() as u64,
        }
    }
}

impl Service {
    /// Makes it. `arrived` is woken for completions that nobody has polled, once that is
    /// [armed](Self::arm).
    pub(super) fn new(adapter: &'static Adapter, arrived: Waker) -> Result<Self, Errno> {
        let device = adapter.device()?;
        let pd = device.pd();
        let cq = device.cq_notifying(COMPLETIONS, arrived.clone());
        let caps = SrqCaps {
            max_wr: RECEIVES,
            max_sge: 1,
            ..SrqCaps::default()
        };
        let region = device.allocate(RECEIVE * RECEIVES as usize, HugePages::None);
        let region = Arc::new(region.map_err(|_| Errno::ENOMEM)?);
        let receives = pd.register(&region, Access::LOCAL_WRITE);
        let mut new = Self {
            links: Links::default(),
            endpoints: HashMap::new(),
            numbers: BTreeMap::new(),
            next: 0,
            unsettled: Vec::new(),
            events: Vec::new(),
            octets: Vec::with_capacity(RECEIVE),
            cq: cq.map_err(|why| why.errno())?,
            srq: pd.srq(caps).map_err(|why| why.errno())?,
            receives: receives.map_err(|why| why.errno())?,
            pd,
            dispatcher: arrived,
            tends_at: None,
            polled: Instant::now(),
            is_on_sockets: device.kernel().is_some(),
        };
        for slot in 0..RECEIVES {
            new.post(slot);
        }
        Ok(new)
    }

    fn post(&mut self, slot: u32) {
        let at = slot as usize * RECEIVE;
        let piece = self.receives.sge(at, RECEIVE as u32);
        // There are as many as the queue takes.
        let _ = self.srq.post_recv(slot.into(), &[piece]);
    }

    /// Adds a queue pair.
    pub(super) fn add(&mut self, new: NewEndpoint) -> Result<Id, Errno> {
        let number = new.number;
        let endpoint = Endpoint::new(new, &self.pd)?;
        let id = Id(self.next);
        self.next += 1;
        self.endpoints.insert(id.0, endpoint);
        self.numbers.insert(number, id);
        Ok(id)
    }

    /// Removes a queue pair. No completion of it is written any more.
    pub(super) fn remove(&mut self, id: Id) {
        let Some(endpoint) = self.endpoints.get_mut(&id.0) else {
            return;
        };
        let number = endpoint.made_of.number;
        self.numbers.remove(&number);
        endpoint.go();
        // As the port is closed there.
        if self.is_on_sockets && !self.listens_at(port_of(number)) {
            self.links.end_accepted_at(port_of(number));
        }
        self.drop_if_over(id);
    }

    fn drop_if_over(&mut self, id: Id) {
        if self.endpoints.get(&id.0).is_some_and(Endpoint::is_over) {
            self.endpoints.remove(&id.0);
            if self.is_on_sockets && self.endpoints.is_empty() {
                self.links.end_opened();
            }
        }
    }

    pub(super) fn endpoint(&self, id: Id) -> Result<&Endpoint, Errno> {
        self.endpoints.get(&id.0).ok_or(Errno::EINVAL)
    }

    fn endpoint_mut(&mut self, id: Id) -> Result<&mut Endpoint, Errno> {
        self.endpoints.get_mut(&id.0).ok_or(Errno::EINVAL)
    }

    /// Returns whether peers can send to a queue pair with this port in its number.
    pub(super) fn listens_at(&self, port: u16) -> bool {
        let first = u32::from(port) << 8;
        let mut behind = self.numbers.range(first..=first | 0xff);
        behind.any(|(_, id)| self.endpoints.get(&id.0).is_some_and(Endpoint::is_there))
    }

    /// Moves a queue pair to another state, with its Q_Key.
    pub(super) fn move_to(&mut self, id: Id, state: u32, qkey: u32) -> Result<(), Errno> {
        let endpoint = self.endpoint_mut(id)?;
        endpoint.qkey = qkey;
        endpoint.move_to(state);
        while let Some(held) = self.next_held(id) {
            match held.octets {
                Ok(octets) => {
                    self.octets = octets;
                    self.carry(id, held.request, &held.destination);
                }
                Err(status) => self.end(id, held.request, status),
            }
        }
        self.note_unsettled(id);
        Ok(())
    }

    /// Returns the next request that has waited for a queue pair to leave SQD. Behind one that
    /// failed all are flushed.
    fn next_held(&mut self, id: Id) -> Option<Held> {
        let endpoint = self.endpoints.get_mut(&id.0)?;
        let mut held = endpoint.next_held()?;
        if endpoint.is_flushing() {
            held.octets = Err(WcStatus::WrFlushed);
        }
        Some(held)
    }

    /// Posts a receive.
    pub(super) fn post_recv(&mut self, id: Id, wr_id: u64, pieces: &[Sge]) -> Result<(), Errno> {
        self.endpoint_mut(id)?.post_recv(wr_id, pieces)?;
        self.note_unsettled(id);
        Ok(())
    }

    /// Sends a datagram.
    pub(super) fn send(&mut self, id: Id, outgoing: &Outgoing<'_>) -> Result<(), Errno> {
        let endpoint = self.endpoints.get_mut(&id.0).ok_or(Errno::EINVAL)?;
        let request = endpoint.begin_send(outgoing.wr_id, outgoing.signaled)?;
        let gathered = match endpoint.is_flushing() {
            true => Err(WcStatus::WrFlushed),
            false => gather(&mut self.octets, endpoint, outgoing),
        };
        match gathered {
            // The memory of a request that waits is the device's as well: it may be copied now.
            gathered if endpoint.is_stopped() => endpoint.hold(Held {
                request,
                destination: outgoing.destination,
                octets: gathered.map(|()| self.octets.clone()),
            }),
            Ok(()) => self.carry(id, request, &outgoing.destination),
            Err(status) => endpoint.end_send(request, status),
        }
        self.note_unsettled(id);
        Ok(())
    }

    /// Has a datagram go its way.
    fn carry(&mut self, id: Id, request: Request, destination: &Destination) {
        if let Some(to) = self.here(destination) {
            // Not before it is there: the receive comes first.
            self.deliver_here(to, destination);
            self.end(id, request, WcStatus::Success);
        } else if !self.hand_over(id, request, destination) {
            self.end(id, request, WcStatus::Success);
        }
    }

    fn end(&mut self, id: Id, request: Request, status: WcStatus) {
        if let Some(endpoint) = self.endpoints.get_mut(&id.0) {
            endpoint.end_send(request, status);
        }
    }

    /// Returns the queue pair of this process for which a datagram is.
    fn here(&self, destination: &Destination) -> Option<Id> {
        let to = self.numbers.get(&destination.number);
        to.filter(|_| destination.is_here).copied()
    }

    /// Gives a datagram to a queue pair of this process.
    fn deliver_here(&mut self, to: Id, destination: &Destination) {
        let Destination { local, remote, .. } = *destination;
        if let Some((header, payload)) = Header::parse(&self.octets)
            && let Some(endpoint) = self.endpoints.get_mut(&to.0)
        {
            endpoint.receive(&header, payload, local.ip(), remote.ip());
            self.note_unsettled(to);
        }
    }

    /// Hands a datagram to the link that carries it. Returns whether the request waits for it. A
    /// datagram that nobody can carry is lost.
    fn hand_over(&mut self, id: Id, request: Request, destination: &Destination) -> bool {
        let make = Maker {
            pd: &self.pd,
            cq: &self.cq,
            srq: &self.srq,
        };
        let Some(endpoint) = self.endpoints.get_mut(&id.0) else {
            return false;
        };
        let from = endpoint.made_of.number;
        let Some(link) = self.links.to(destination, from, make) else {
            return false;
        };
        let Some((slot, datagram)) = endpoint.put(&self.octets, link) else {
            return false;
        };
        let ahead = !endpoint.lacks_slots();
        let since = Instant::now();
        if self.tends_at.is_none_or(|at| at > since + LONGEST_WAIT) {
            self.tends_at = Some(since);
            self.dispatcher.wake_by_ref();
        }
        let outbound = Outbound {
            id,
            slot,
            request,
            datagram,
            since,
        };
        self.links.send(link, outbound, ahead)
    }

    /// Completes requests that have waited too long, and ends links that carry nothing. Returns when
    /// to call it again.
    pub(super) fn tend_links(&mut self, now: Instant) -> Option<Instant> {
        let found = self.links.tend(now);
        for late in &found.late {
            self.end(late.id, late.request, WcStatus::Success);
            self.note_unsettled(late.id);
        }
        found.lost.iter().for_each(|lost| self.drop_outbound(lost));
        self.tends_at = found.next;
        found.next
    }

    /// Ends a link. What has come by it is looked at before.
    pub(super) fn end_link(&mut self, qp: QpNumber) {
        for _ in 0..ALL {
            if !self.progress() {
                break;
            }
        }
        let lost = self.links.end(qp);
        lost.iter().for_each(|lost| self.drop_outbound(lost));
    }

    /// Handles that a datagram is on its way no more. If it was lost, the program does not learn of
    /// it.
    fn drop_outbound(&mut self, outbound: &Outbound) {
        let Outbound {
            id, slot, request, ..
        } = *outbound;
        if let Some(endpoint) = self.endpoints.get_mut(&id.0) {
            endpoint.free(slot);
            endpoint.end_send(request, WcStatus::Success);
            self.note_unsettled(id);
            self.drop_if_over(id);
        }
    }

    /// Looks at some of what has come, for a program that polls.
    pub(super) fn poll(&mut self) {
        self.polled = Instant::now();
        self.progress();
    }

    /// Looks at what has come where no program does. A program that does other things finds its
    /// receives filled and nothing dropped, if it polls again soon: only where one waits for a
    /// notification, or none has polled for long, more is looked at than there are receives for.
    /// Returns whether there is more.
    pub(super) fn catch_up(&mut self, now: Instant) -> bool {
        let is_left = now >= self.polled + LONGEST_PAUSE;
        for _ in 0..ALL {
            if !self.progress() {
                return !self.unsettled.is_empty();
            }
            let has_receives = |endpoint: &Endpoint| endpoint.has_receives(BATCH);
            if !is_left && !self.is_waited_for() && !self.endpoints.values().all(has_receives) {
                break;
            }
        }
        true
    }

    /// Looks at some of what has come by the links. Returns whether there was anything.
    pub(super) fn progress(&mut self) -> bool {
        let mut batch = [Completion::default(); BATCH];
        let taken = self.cq.take(&mut batch);
        for completion in &batch[..taken] {
            match completion.opcode() {
                WcOpcode::Send => self.sent(completion.qp()),
                _ => self.arrived(completion),
            }
        }
        self.settle();
        taken > 0
    }

    /// Handles a receive of the links.
    fn arrived(&mut self, completion: &Completion) {
        let slot = completion.wr_id() as u32;
        match completion.opcode() {
            WcOpcode::Recv if completion.is_success() => {
                self.deliver(completion.qp(), slot, completion.byte_len() as usize);
            }
            // Who sends anything else than datagrams is no rnic.
            _ if completion.is_success() => {
                let lost = self.links.end(completion.qp());
                lost.iter().for_each(|lost| self.drop_outbound(lost));
            }
            _ => {}
        }
        // Those of a link that has ended come back flushed.
        self.post(slot);
    }

    /// Gives a datagram that has come to its queue pair.
    fn deliver(&mut self, by: QpNumber, slot: u32, len: usize) {
        let Some(ends) = self.links.ends_of(by) else {
            return;
        };
        self.octets.resize(len.min(RECEIVE), 0);
        let at = slot as usize * RECEIVE;
        if self.receives.read(at, &mut self.octets).is_err() {
            return;
        }
        // A process has the numbers of its own port only.
        let parsed = Header::parse(&self.octets);
        let Some((header, payload)) =
            parsed.filter(|(header, _)| port_of(header.from) == ends.port)
        else {
            return;
        };
        let Some(id) = self.numbers.get(&header.to).copied() else {
            return;
        };
        if let Some(endpoint) = self.endpoints.get_mut(&id.0)
            && endpoint.receive(&header, payload, ends.remote, ends.local)
        {
            self.links.carried(by);
            self.note_unsettled(id);
        }
    }

    /// Handles the end of the oldest datagram on a link.
    fn sent(&mut self, by: QpNumber) {
        let [oldest, next] = self.links.completed(by);
        if let Some(oldest) = oldest {
            self.drop_outbound(&oldest);
        }
        if let Some(next) = next {
            self.end(next.id, next.request, WcStatus::Success);
            self.note_unsettled(next.id);
        }
    }

    fn note_unsettled(&mut self, id: Id) {
        self.note_events(id);
        let has_more = self.endpoints.get(&id.0).is_some_and(Endpoint::has_more);
        if has_more && !self.unsettled.contains(&id) {
            if self.unsettled.is_empty() {
                // It may be that nobody polls any more.
                self.dispatcher.wake_by_ref();
            }
            self.unsettled.push(id);
        }
    }

    /// Has the program told what has happened to a queue pair.
    fn note_events(&mut self, id: Id) {
        while let Some(endpoint) = self.endpoints.get_mut(&id.0)
            && let Some(event) = endpoint.next_event()
        {
            self.events.push(event);
            self.dispatcher.wake_by_ref();
        }
    }

    /// Removes and returns what programs are to be told.
    pub(super) fn take_events(&mut self) -> Vec<AsyncEvent> {
        std::mem::take(&mut self.events)
    }

    /// Writes completions for which there may be room by now.
    fn settle(&mut self) {
        for id in std::mem::take(&mut self.unsettled) {
            if let Some(endpoint) = self.endpoints.get_mut(&id.0) {
                endpoint.settle();
                if endpoint.has_more() {
                    self.unsettled.push(id);
                }
            }
            self.note_events(id);
        }
    }

    /// Asks to be woken by the next completion of the links. Look once more behind it.
    pub(super) fn arm(&self) {
        self.cq.arm(false);
    }

    /// Returns whether a program waits for the notification of a queue.
    pub(super) fn is_waited_for(&self) -> bool {
        self.endpoints.values().any(Endpoint::is_waited_for)
    }

    /// Returns what makes the queue pairs of links, beside the links.
    pub(super) fn linking(&mut self) -> (&mut Links, Maker<'_>) {
        let make = Maker {
            pd: &self.pd,
            cq: &self.cq,
            srq: &self.srq,
        };
        (&mut self.links, make)
    }
}

/// Makes a datagram of what the program sends.
fn gather(
    octets: &mut Vec<u8>,
    endpoint: &Endpoint,
    outgoing: &Outgoing<'_>,
) -> Result<(), WcStatus> {
    octets.clear();
    octets.extend_from_slice(&outgoing.header.octets());
    match outgoing.payload {
        Payload::Inline(payload) => octets.extend_from_slice(payload),
        Payload::Memory(pieces) => {
            octets.resize(datagram::LEN + outgoing.payload.len() as usize, 0);
            let copier = &endpoint.made_of.copier;
            copier.gather(pieces, &mut octets[datagram::LEN..])?;
        }
    }
    Ok(())
}
