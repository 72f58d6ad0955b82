//! The queues of a datagram queue pair. Whoever calls has locked the service.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use rnic_core::wire::datagram::{self, GRH_LEN, Header, MOST};
use rnic_verbs::{
    Access, AsyncEvent, Completion, Copier, CqWriter, Datagram, HugePages, Mr, Pd, QpNumber, Sge,
    Source, SrqId, WcStatus,
};

use crate::abi::{
    IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE,
};
use crate::datagrams::destination::Destination;
use crate::datagrams::receives::{Receive, Receives, Taker};
use crate::errno::{Errno, ToErrno};

/// The most requests that have their slots, which are pinned memory (34 MB for these). A longer send
/// queue is taken too.
const MOST_WITH_SLOTS: u32 = 4096;

/// Datagrams of a link that may be on their way without a request that waits for them: as with an
/// adapter, a program sees that its datagram is sent before it can see the answer.
pub(super) const AHEAD: usize = 16;

/// Octets of a slot: a whole datagram, and the next one in another cache line.
const SLOT: usize = (datagram::LEN + MOST).next_multiple_of(64);

/// Names a datagram queue pair in this process. It is not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id(pub(super) u32);

/// What a datagram queue pair is made of.
pub(crate) struct NewEndpoint {
    pub(crate) qp: QpNumber,
    /// Its number, as peers know it.
    pub(crate) number: u32,
    /// What copies to and from the program's memory.
    pub(crate) copier: Copier,
    pub(crate) send_cq: CqWriter,
    pub(crate) recv_cq: CqWriter,
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_recv_sge: u32,
    /// Where its receives come from, if it shares them.
    pub(crate) shared: Option<Taker>,
    /// The most octets of a datagram: the MTU of the port.
    pub(crate) mtu: usize,
}

/// A datagram queue pair.
pub(super) struct Endpoint {
    pub(super) made_of: NewEndpoint,
    /// One of `IBV_QPS_*`.
    pub(super) state: u32,
    pub(super) qkey: u32,
    /// The program has destroyed it: it is here only as long as datagrams of it are on their way.
    pub(super) is_gone: bool,
    receives: Receives,
    sends: VecDeque<Sent>,
    /// How many requests were taken from `sends` since the queue pair was made.
    reported: u64,
    /// The last of `sends`, which wait in SQD.
    held: VecDeque<Held>,
    /// What is left of `sends` in SQD has been told.
    is_drained: bool,
    /// The shared receive queue whose limit was reached, with what was left in it.
    low: Option<(SrqId, u32)>,
    /// That it takes no more shared receives is to be told.
    is_last_due: bool,
    slots: Slots,
}

/// A request that was posted in SQD, and begins when the program moves the queue pair to RTS.
pub(super) struct Held {
    pub(super) request: Request,
    pub(super) destination: Destination,
    /// Header and payload, or why there are none.
    pub(super) octets: Result<Vec<u8>, WcStatus>,
}

/// A request of the send queue. They complete in their order.
struct Sent {
    wr_id: u64,
    signaled: bool,
    /// How it ended, once it has.
    end: Option<WcStatus>,
}

/// Registered memory for datagrams on their way: the program may change its own once a request is
/// complete, and a connection may send them again later than that.
///
/// There are twice as many as can be on their way by one link: requests up to a limit, and those
/// [ahead](AHEAD). A link has at most half of them: one whose peer does not answer leaves the others
/// enough.
struct Slots {
    memory: Mr,
    /// Requests up to that limit.
    sends: usize,
    free: Vec<u32>,
    /// The link that has each.
    links: Vec<Option<QpNumber>>,
    /// How many each link has.
    of_link: HashMap<u32, usize>,
}

impl Slots {
    fn new(pd: &Pd, sends: u32) -> Result<Self, Errno> {
        let sends = sends.clamp(1, MOST_WITH_SLOTS);
        let count = 2 * (sends + AHEAD as u32);
        let region = pd.device().allocate(SLOT * count as usize, HugePages::None);
        let region = Arc::new(region.map_err(|_| Errno::ENOMEM)?);
        let memory = pd.register(&region, Access::LOCAL_WRITE);
        Ok(Self {
            memory: memory.map_err(|why| why.errno())?,
            sends: sends as usize,
            free: (0..count).rev().collect(),
            links: vec![None; count as usize],
            of_link: HashMap::new(),
        })
    }

    fn take(&mut self, link: QpNumber) -> Option<u32> {
        let used = self.of_link.entry(link.0).or_default();
        if *used >= self.links.len() / 2 {
            return None;
        }
        let slot = self.free.pop()?;
        *used += 1;
        self.links[slot as usize] = Some(link);
        Some(slot)
    }

    fn give_back(&mut self, slot: u32) {
        let Some(link) = self.links.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        self.free.push(slot);
        if let Some(used) = self.of_link.get_mut(&link.0) {
            *used -= 1;
            if *used == 0 {
                self.of_link.remove(&link.0);
            }
        }
    }
}

/// A request of the send queue, by its place among all since the queue pair was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request(u64);

impl Endpoint {
    /// Makes it. `pd` is that of the connections which carry its datagrams.
    pub(super) fn new(mut made_of: NewEndpoint, pd: &Pd) -> Result<Self, Errno> {
        let (max_wr, max_sge) = (made_of.max_recv_wr, made_of.max_recv_sge);
        Ok(Self {
            state: IBV_QPS_RESET,
            qkey: 0,
            is_gone: false,
            receives: Receives::new(max_wr, max_sge, made_of.shared.take()),
            sends: VecDeque::with_capacity(made_of.max_send_wr as usize),
            reported: 0,
            held: VecDeque::new(),
            is_drained: true,
            low: None,
            is_last_due: false,
            slots: Slots::new(pd, made_of.max_send_wr)?,
            made_of,
        })
    }

    /// Moves it to another state. From the error state all of its requests complete flushed, and
    /// with a reset they are forgotten.
    pub(super) fn move_to(&mut self, state: u32) {
        let former = std::mem::replace(&mut self.state, state);
        if state == IBV_QPS_ERR && former != state {
            self.is_last_due = self.receives.is_shared();
        }
        if state == IBV_QPS_RESET {
            self.receives.clear_own();
            self.reported += self.sends.len() as u64;
            self.sends.clear();
            self.qkey = 0;
        }
        if matches!(state, IBV_QPS_RESET | IBV_QPS_ERR) {
            self.held.clear();
        }
        self.is_drained = state != IBV_QPS_SQD || (former == state && self.is_drained);
        self.settle();
    }

    /// Returns whether it may be dropped: its slots are memory of requests.
    pub(super) fn is_over(&self) -> bool {
        self.is_gone && self.slots.of_link.is_empty()
    }

    /// Posts a receive.
    pub(super) fn post_recv(&mut self, wr_id: u64, pieces: &[Sge]) -> Result<(), Errno> {
        if self.state == IBV_QPS_RESET {
            return Err(Errno::EINVAL);
        }
        self.receives.post(wr_id, pieces)?;
        if self.state == IBV_QPS_ERR {
            self.settle();
        }
        Ok(())
    }

    /// Fails unless so many requests of the send queue can be posted.
    pub(super) fn check_sends(&self, count: usize) -> Result<(), Errno> {
        match self.state {
            IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE | IBV_QPS_ERR => {}
            _ => return Err(Errno::EINVAL),
        }
        match self.sends.len() + count <= self.made_of.max_send_wr as usize {
            true => Ok(()),
            false => Err(Errno::ENOMEM),
        }
    }

    /// Begins a request of the send queue.
    pub(super) fn begin_send(&mut self, wr_id: u64, signaled: bool) -> Result<Request, Errno> {
        self.check_sends(1)?;
        let request = Request(self.reported + self.sends.len() as u64);
        self.sends.push_back(Sent {
            wr_id,
            signaled,
            end: None,
        });
        Ok(request)
    }

    /// Ends a request. One that has ended, or was forgotten, is none any more. After one that fails
    /// the queue pair sends nothing until the program moves it to RTS again.
    pub(super) fn end_send(&mut self, request: Request, status: WcStatus) {
        let place = request.0.checked_sub(self.reported);
        let sent = place.and_then(|place| self.sends.get_mut(place as usize));
        if let Some(sent) = sent {
            sent.end.get_or_insert(status);
        }
        if status != WcStatus::Success && self.state == IBV_QPS_RTS {
            self.state = IBV_QPS_SQE;
        }
        self.settle();
    }

    /// Returns whether requests wait until the program moves the queue pair to RTS.
    pub(super) fn is_stopped(&self) -> bool {
        self.state == IBV_QPS_SQD
    }

    /// Has a request wait so long.
    pub(super) fn hold(&mut self, held: Held) {
        self.held.push_back(held);
    }

    /// Returns the next request that has waited, once the queue pair is in RTS.
    pub(super) fn next_held(&mut self) -> Option<Held> {
        match self.is_stopped() {
            true => None,
            false => self.held.pop_front(),
        }
    }

    /// Returns whether requests that had begun before SQD are not finished.
    pub(super) fn is_draining(&self) -> bool {
        self.is_stopped() && self.sends.len() > self.held.len()
    }

    /// Removes and returns something that the program is to be told.
    pub(super) fn next_event(&mut self) -> Option<AsyncEvent> {
        let qp = self.made_of.qp;
        if !self.is_drained && !self.is_draining() {
            self.is_drained = true;
            return Some(AsyncEvent::SqDrained { qp });
        }
        if std::mem::take(&mut self.is_last_due) {
            return Some(AsyncEvent::QpLastWqeReached { qp });
        }
        let (srq, left) = self.low.take()?;
        Some(AsyncEvent::SrqLimitReached {
            srq,
            left,
            taken: 0,
            greediest: None,
        })
    }

    /// Ends it for the program. Its datagrams may still be on their way.
    pub(super) fn go(&mut self) {
        self.move_to(IBV_QPS_RESET);
        self.receives.leave();
        self.is_gone = true;
    }

    /// Puts a datagram into a slot, for a link, and returns the slot and its memory. Returns `None`
    /// if the link has its share already.
    pub(super) fn put(&mut self, datagram: &[u8], link: QpNumber) -> Option<(u32, Sge)> {
        let slot = self.slots.take(link)?;
        let at = slot as usize * SLOT;
        // The memory is this library's own: it is there, and has room.
        if self.slots.memory.write(at, datagram).is_err() {
            self.slots.give_back(slot);
            return None;
        }
        Some((slot, self.slots.memory.sge(at, datagram.len() as u32)))
    }

    /// Returns whether requests could find no slot unless they wait for their datagrams: many links
    /// have some [ahead](AHEAD).
    pub(super) fn lacks_slots(&self) -> bool {
        self.slots.free.len() < self.slots.sends
    }

    /// Takes a slot back.
    pub(super) fn free(&mut self, slot: u32) {
        self.slots.give_back(slot);
    }

    /// Takes a datagram that has come, if there is a receive for it that is long enough. Returns
    /// whether it is for this queue pair.
    pub(super) fn receive(
        &mut self,
        header: &Header,
        payload: &[u8],
        from: IpAddr,
        to: IpAddr,
    ) -> bool {
        let may_receive = matches!(
            self.state,
            IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE
        );
        if !may_receive || header.qkey != self.qkey {
            return false;
        }
        if self.made_of.recv_cq.has_room()
            && let Some(taken) = self.receives.take(GRH_LEN + payload.len())
        {
            self.place(&taken.receive, header, payload, (from, to));
            self.low = taken.is_low.or(self.low);
        }
        true
    }

    /// Places a datagram into a receive, which is long enough.
    fn place(
        &mut self,
        receive: &Receive,
        header: &Header,
        payload: &[u8],
        (from, to): (IpAddr, IpAddr),
    ) {
        let len = GRH_LEN + payload.len();
        let pieces = receive.pieces();
        let grh = datagram::grh(from, to, header.traffic_class, payload.len());
        let copier = &self.made_of.copier;
        let placed = copier
            .scatter(pieces, 0, &grh)
            .and_then(|()| copier.scatter(pieces, GRH_LEN as u64, payload));
        let (wr_id, qp) = (receive.wr_id, self.made_of.qp);
        let datagram = Datagram {
            source: Source {
                number: header.from,
                is_ipv6: from.to_canonical().is_ipv6(),
            },
            immediate: header.immediate,
            solicited: header.solicited,
        };
        let completion = match placed {
            Ok(()) => Completion::of_received(wr_id, qp, len as u32, datagram),
            Err(status) => Completion::of_failed_receive(wr_id, qp, status),
        };
        self.made_of.recv_cq.write(completion);
        if placed.is_err() {
            self.move_to(IBV_QPS_ERR);
        }
    }

    /// Writes the completions that are due, as far as there is room for them.
    pub(super) fn settle(&mut self) {
        let (qp, is_flushed) = (self.made_of.qp, self.state == IBV_QPS_ERR);
        while let Some(first) = self.sends.front() {
            let status = match first.end {
                Some(status) => status,
                None if is_flushed => WcStatus::WrFlushed,
                None => break,
            };
            let is_told = first.signaled || status != WcStatus::Success;
            let completion = Completion::of_sent(first.wr_id, qp, status);
            if is_told && !self.made_of.send_cq.write(completion) {
                break;
            }
            self.sends.pop_front();
            self.reported += 1;
        }
        while is_flushed && let Some(first) = self.receives.first_own() {
            let flushed = Completion::of_failed_receive(first.wr_id, qp, WcStatus::WrFlushed);
            if !self.made_of.recv_cq.write(flushed) {
                break;
            }
            self.receives.drop_first_own();
        }
    }

    /// Returns whether completions wait for room.
    pub(super) fn has_more(&self) -> bool {
        let is_flushed = self.state == IBV_QPS_ERR;
        let is_due = |sent: &Sent| is_flushed || sent.end.is_some();
        self.sends.front().is_some_and(is_due) || is_flushed && self.receives.first_own().is_some()
    }

    /// Returns whether the program waits for a notification of a completion.
    pub(super) fn is_waited_for(&self) -> bool {
        self.made_of.send_cq.is_armed() || self.made_of.recv_cq.is_armed()
    }

    /// Returns whether requests are flushed because of the state.
    pub(super) fn is_flushing(&self) -> bool {
        matches!(self.state, IBV_QPS_ERR | IBV_QPS_SQE)
    }

    /// Returns whether so many datagrams find receives.
    pub(super) fn has_receives(&self, count: usize) -> bool {
        self.receives.has(count)
    }

    /// Returns whether it may be named to others: it has left RESET.
    pub(super) fn is_there(&self) -> bool {
        !self.is_gone && self.state >= IBV_QPS_INIT
    }
}
