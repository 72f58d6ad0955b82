//! What carries the datagrams of an adapter: its queue pairs, the links to other processes, and the
//! receives in which datagrams arrive there.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use rnic_verbs::{
    Access, Completion, Cq, HugePages, Mr, Pd, QpNumber, Sge, Srq, SrqCaps, WcOpcode, WcStatus,
};

use crate::adapter::Adapter;
use crate::datagrams::endpoint::{Endpoint, Id, NewEndpoint, Request};
use crate::datagrams::header::{self, Header, MOST};
use crate::datagrams::links::{Destination, Links, Maker, Posted};
use crate::errno::{Errno, ToErrno};
use crate::numbers::port_of;

/// Datagrams that may have arrived and were not looked at yet. Peers wait if there are more.
const RECEIVES: u32 = 1024;

/// Octets of a receive.
const RECEIVE: usize = (header::LEN + MOST).next_multiple_of(64);

/// Completions of links that wait in the queue at most; more wait in the engine.
const COMPLETIONS: u32 = 8192;

/// What is looked at in one go. The program posts receives anew between two looks.
const BATCH: usize = 16;

/// The datagrams of an adapter.
pub(super) struct Service {
    pub(super) links: Links,
    endpoints: HashMap<u32, Endpoint>,
    /// By their numbers, as peers know them.
    numbers: BTreeMap<u32, Id>,
    next: u32,
    /// Those with completions that wait for room.
    unsettled: Vec<Id>,
    /// A datagram that is being sent or has come: header and payload.
    octets: Vec<u8>,
    pd: Pd,
    cq: Cq,
    srq: Srq,
    receives: Mr,
    /// Has the dispatcher look at the links.
    dispatcher: Waker,
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
    fn len(&self) -> u64 {
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
            octets: Vec::with_capacity(RECEIVE),
            cq: cq.map_err(|why| why.errno())?,
            srq: pd.srq(caps).map_err(|why| why.errno())?,
            receives: receives.map_err(|why| why.errno())?,
            pd,
            dispatcher: arrived,
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
        self.numbers.remove(&endpoint.made_of.number);
        endpoint.move_to(crate::abi::IBV_QPS_RESET);
        endpoint.is_gone = true;
        self.drop_if_over(id);
    }

    fn drop_if_over(&mut self, id: Id) {
        if self.endpoints.get(&id.0).is_some_and(Endpoint::is_over) {
            self.endpoints.remove(&id.0);
        }
    }

    pub(super) fn endpoint(&mut self, id: Id) -> Result<&mut Endpoint, Errno> {
        self.endpoints.get_mut(&id.0).ok_or(Errno::EINVAL)
    }

    /// Returns whether peers can send to a queue pair of this number.
    pub(super) fn has(&self, number: u32) -> bool {
        let id = self.numbers.get(&number);
        id.and_then(|id| self.endpoints.get(&id.0))
            .is_some_and(Endpoint::is_there)
    }

    /// Sends a datagram.
    pub(super) fn send(&mut self, id: Id, outgoing: &Outgoing<'_>) -> Result<(), Errno> {
        if outgoing.payload.len() > MOST as u64 {
            return Err(Errno::EINVAL);
        }
        let endpoint = self.endpoints.get_mut(&id.0).ok_or(Errno::EINVAL)?;
        let request = endpoint.begin_send(outgoing.wr_id, outgoing.signaled)?;
        let status = match endpoint.is_flushing() {
            true => Err(WcStatus::WrFlushed),
            false => gather(&mut self.octets, endpoint, outgoing),
        };
        if let Err(status) = status {
            endpoint.end_send(request, status);
        } else if let Some(to) = self.here(outgoing) {
            // Not before it is there: the receive comes first.
            self.deliver_here(to, outgoing);
            self.end(id, request);
        } else if !self.hand_over(id, request, outgoing) {
            self.end(id, request);
        }
        self.note_unsettled(id);
        Ok(())
    }

    fn end(&mut self, id: Id, request: Request) {
        if let Some(endpoint) = self.endpoints.get_mut(&id.0) {
            endpoint.end_send(request, WcStatus::Success);
        }
    }

    /// Returns the queue pair of this process for which a datagram is.
    fn here(&self, outgoing: &Outgoing<'_>) -> Option<Id> {
        let to = self.numbers.get(&outgoing.destination.number);
        to.filter(|_| outgoing.destination.is_here).copied()
    }

    /// Gives a datagram to a queue pair of this process.
    fn deliver_here(&mut self, to: Id, outgoing: &Outgoing<'_>) {
        let Destination { local, remote, .. } = outgoing.destination;
        if let Some((header, payload)) = Header::parse(&self.octets)
            && let Some(endpoint) = self.endpoints.get_mut(&to.0)
        {
            endpoint.receive(&header, payload, local.ip(), remote.ip());
            self.note_unsettled(to);
        }
    }

    /// Hands a datagram to the link that carries it. Returns false if the request is complete by
    /// that. A datagram that nobody can carry is lost.
    fn hand_over(&mut self, id: Id, request: Request, outgoing: &Outgoing<'_>) -> bool {
        let make = Maker {
            pd: &self.pd,
            cq: &self.cq,
            srq: &self.srq,
        };
        let from = outgoing.header.from;
        let Some(link) = self.links.to(&outgoing.destination, from, make) else {
            return false;
        };
        let Some(endpoint) = self.endpoints.get_mut(&id.0) else {
            return false;
        };
        let Some((slot, datagram)) = endpoint.put(&self.octets, request) else {
            return false;
        };
        match self
            .links
            .post(link, (id, request), wr_id_of(id, slot), datagram)
        {
            Posted::Waits => true,
            Posted::WaitsForLink => {
                self.dispatcher.wake_by_ref();
                true
            }
            Posted::Left => false,
            Posted::Refused => {
                endpoint.free(slot);
                false
            }
        }
    }

    /// Completes requests that have waited too long for a link, and ends links that carry nothing.
    /// Returns when to call it again.
    pub(super) fn tend_links(&mut self, now: Instant) -> Option<Instant> {
        let (overdue, next) = self.links.overdue(now);
        for (id, request) in overdue {
            self.end(id, request);
            self.note_unsettled(id);
        }
        let idle = self.links.end_idle(now);
        next.into_iter().chain(idle).min()
    }

    /// Looks at some of what has come by the links. Returns whether there was anything.
    pub(super) fn progress(&mut self) -> bool {
        let mut batch = [Completion::default(); BATCH];
        let taken = self.cq.take(&mut batch);
        for completion in &batch[..taken] {
            match completion.opcode() {
                WcOpcode::Recv => self.arrived(completion),
                _ => self.sent(completion),
            }
        }
        self.settle();
        taken > 0
    }

    /// Handles a receive of the links.
    fn arrived(&mut self, completion: &Completion) {
        let slot = completion.wr_id() as u32;
        if completion.is_success() {
            self.deliver(completion.qp(), slot, completion.byte_len() as usize);
        }
        // Those of a link that has ended come back flushed.
        self.post(slot);
    }

    /// Gives a datagram that has come to its queue pair.
    fn deliver(&mut self, by: QpNumber, slot: u32, len: usize) {
        let Some(link) = self.links.carried(by) else {
            return;
        };
        self.octets.resize(len.min(RECEIVE), 0);
        if self
            .receives
            .read(slot as usize * RECEIVE, &mut self.octets)
            .is_err()
        {
            return;
        }
        let Some((header, payload)) = Header::parse(&self.octets) else {
            return;
        };
        // A process has the numbers of its own port only.
        if port_of(header.from) != link.peer.1 {
            return;
        }
        let Some(id) = self.numbers.get(&header.to).copied() else {
            return;
        };
        if let Some(endpoint) = self.endpoints.get_mut(&id.0) {
            endpoint.receive(&header, payload, link.peer.0, link.local);
            self.note_unsettled(id);
        }
    }

    /// Handles the end of a datagram on a link. If it was lost, the program does not learn of it.
    fn sent(&mut self, completion: &Completion) {
        let (id, slot) = parts_of(completion.wr_id());
        if let Some(endpoint) = self.endpoints.get_mut(&id.0) {
            let request = endpoint.free(slot);
            endpoint.end_send(request, WcStatus::Success);
            self.note_unsettled(id);
            self.drop_if_over(id);
        }
        self.links.completed(completion.qp());
    }

    fn note_unsettled(&mut self, id: Id) {
        let has_more = self.endpoints.get(&id.0).is_some_and(Endpoint::has_more);
        if has_more && !self.unsettled.contains(&id) {
            self.unsettled.push(id);
        }
    }

    /// Writes completions for which there may be room by now.
    fn settle(&mut self) {
        for id in std::mem::take(&mut self.unsettled) {
            if let Some(endpoint) = self.endpoints.get_mut(&id.0) {
                endpoint.settle();
            }
            self.note_unsettled(id);
        }
    }

    /// Returns whether completions wait for room.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
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
            octets.resize(header::LEN + outgoing.payload.len() as usize, 0);
            let copier = &endpoint.made_of.copier;
            copier.gather(pieces, &mut octets[header::LEN..])?;
        }
    }
    Ok(())
}

/// Returns what names a slot of a queue pair in the requests of the links.
fn wr_id_of(id: Id, slot: u32) -> u64 {
    u64::from(id.0) << 32 | u64::from(slot)
}

fn parts_of(wr_id: u64) -> (Id, u32) {
    (Id((wr_id >> 32) as u32), wr_id as u32)
}
