//! One end of a stream without TCP and MPA: a queue pair with its rings, DDP, RDMAP, and memory.

use std::sync::Arc;
use std::task::Waker;

use rnic_core::ddp::{Ddp, DdpError, Delivery, Placed, Segmenter, Supply};
use rnic_core::memory::epoch::Worker;
use rnic_core::memory::region::{HugePages, Region};
use rnic_core::memory::ring::{Consumer, Producer, ring};
use rnic_core::memory::table::{Access, Scope, StagTable};
use rnic_core::rdmap::{self, Outbound, Rdmap, RdmapError, Source};
use rnic_core::verbs::cq::{Arming, CqTable};
use rnic_core::verbs::{
    Completion, CqId, PdId, QpNumber, QpState, QueuePair, RecvWr, SendWr, Sge, StreamId, WcStatus,
};
use rnic_core::wire::ddp::{
    DdpHeader, DdpSegment, MessageOffset, Msn, QueueNumber, Stag, TaggedHeader, TaggedOffset,
    UntaggedHeader,
};
use rnic_core::wire::rdmap::{Control, Opcode};

pub(crate) const PD: PdId = PdId(7);
pub(crate) const OTHER_PD: PdId = PdId(8);
pub(crate) const QP: QpNumber = QpNumber(3);
pub(crate) const STREAM: StreamId = StreamId(33);
/// Octets of memory of each end.
pub(crate) const MEMORY: usize = 1 << 20;
/// The tagged offset of the first octet of memory.
pub(crate) const BASE: u64 = 0x1000;
pub(crate) const SEND_CQ: CqId = CqId(0);
pub(crate) const RECV_CQ: CqId = CqId(1);

/// Any error that an inbound segment can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Ddp(DdpError),
    Rdmap(RdmapError),
}

impl From<DdpError> for Refused {
    fn from(error: DdpError) -> Self {
        Self::Ddp(error)
    }
}

impl From<RdmapError> for Refused {
    fn from(error: RdmapError) -> Self {
        Self::Rdmap(error)
    }
}

/// Octets of one segment as they would stand in an FPDU.
pub(crate) type Ulpdu = Vec<u8>;

pub(crate) struct End {
    pub(crate) table: Arc<StagTable>,
    pub(crate) worker: Worker,
    pub(crate) region: Arc<Region>,
    /// All of the memory, with every right.
    pub(crate) stag: Stag,
    pub(crate) qp: QueuePair,
    pub(crate) cqs: CqTable,
    pub(crate) ddp: Ddp,
    pub(crate) rdmap: Rdmap,
    /// Whether completions notify.
    pub(crate) arming: Arc<Arming>,
    sq: Producer<SendWr>,
    rq: Producer<RecvWr>,
    send_done: Consumer<Completion>,
    recv_done: Consumer<Completion>,
    /// The message being sent.
    sending: Option<(Outbound, Segmenter)>,
    /// Octets handed to the layers below.
    pub(crate) stream: u64,
    /// An error ended the stream; the first one counts.
    pub(crate) refused: Option<Refused>,
}

pub(crate) fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

/// DDP with RDMAP's queues, which have come to message `msn`.
pub(crate) fn queues(ird: u16, ord: u16, msn: Msn) -> Ddp {
    let mut ddp = Ddp::new((PD, STREAM).into());
    ddp.open_at(QueueNumber::SEND, Supply::Posted, msn);
    for (queue, count, size) in rdmap::own_queues(ird, ord) {
        ddp.open_at(queue, Supply::Kept { count, size }, msn);
    }
    ddp
}

impl End {
    /// An end that answers `ird` Reads at once and has `ord` of its own outstanding.
    pub(crate) fn new(ird: u16, ord: u16) -> Self {
        Self::with_rings(ird, ord, 64, 256)
    }

    pub(crate) fn with_rings(ird: u16, ord: u16, queue: u32, completions: u32) -> Self {
        let (table, region, stag) = Self::new_memory();
        Self::over(table, region, stag, (ird, ord), (queue, completions))
    }

    /// An end on the memory of another, as if it were another worker's.
    pub(crate) fn sharing(
        table: Arc<StagTable>,
        region: Arc<Region>,
        stag: Stag,
        ird: u16,
        ord: u16,
    ) -> Self {
        Self::over(table, region, stag, (ird, ord), (64, 256))
    }

    fn new_memory() -> (Arc<StagTable>, Arc<Region>, Stag) {
        let table = Arc::new(StagTable::new(64, [42; 32]));
        let region = Arc::new(Region::allocate_unlocked(MEMORY, HugePages::None).unwrap());
        let stag = table
            .register(
                region.clone(),
                0..MEMORY,
                TaggedOffset(BASE),
                all_rights(),
                PD,
            )
            .unwrap();
        (table, region, stag)
    }

    fn over(
        table: Arc<StagTable>,
        region: Arc<Region>,
        stag: Stag,
        (ird, ord): (u16, u16),
        (queue, completions): (u32, u32),
    ) -> Self {
        let (sq, sq_end) = ring(queue).unwrap();
        let (rq, rq_end) = ring(queue).unwrap();
        let (send_cq, send_done) = ring(completions).unwrap();
        let (recv_cq, recv_done) = ring(completions).unwrap();
        let mut cqs = CqTable::new();
        let arming = Arc::new(Arming::new());
        for (id, producer) in [(SEND_CQ, send_cq), (RECV_CQ, recv_cq)] {
            cqs.add(id, producer, Waker::noop().clone(), arming.clone())
                .unwrap();
        }
        let qp = QueuePair {
            number: QP,
            stream: STREAM,
            pd: PD,
            sq: sq_end,
            rq: rq_end.into(),
            send_cq: SEND_CQ,
            recv_cq: RECV_CQ,
            state: QpState::Rts,
            signal_all: false,
        };
        Self {
            worker: table.worker(),
            table,
            region,
            stag,
            qp,
            cqs,
            ddp: queues(ird, ord, Msn::FIRST),
            rdmap: Rdmap::new(ird, ord, queue),
            arming,
            sq,
            rq,
            send_done,
            recv_done,
            sending: None,
            stream: 0,
            refused: None,
        }
    }

    /// Registers part of the memory once more.
    pub(crate) fn register(
        &self,
        start: usize,
        len: usize,
        access: Access,
        scope: impl Into<Scope>,
    ) -> Stag {
        let base = TaggedOffset(BASE + start as u64);
        self.table
            .register(self.region.clone(), start..start + len, base, access, scope)
            .unwrap()
    }

    pub(crate) fn sge(&self, start: usize, len: usize) -> Sge {
        Sge {
            offset: BASE + start as u64,
            length: len as u32,
            lkey: self.stag.0,
        }
    }

    pub(crate) fn fill(&self, start: usize, octets: &[u8]) {
        self.region.write(start, octets).unwrap();
    }

    pub(crate) fn memory(&self, start: usize, len: usize) -> Vec<u8> {
        let mut octets = vec![0; len];
        self.region.read(start, &mut octets).unwrap();
        octets
    }

    pub(crate) fn post(&mut self, wr: SendWr) {
        self.sq.push(wr).unwrap();
    }

    pub(crate) fn can_post(&self) -> bool {
        self.sq.free() > 0
    }

    /// Posts a receive of `len` octets at `start`.
    pub(crate) fn post_receive(&mut self, wr_id: u64, start: usize, len: usize) {
        let sge = self.sge(start, len);
        self.post_receive_wr(RecvWr::new(wr_id, &[sge]).unwrap());
    }

    pub(crate) fn post_receive_wr(&mut self, wr: RecvWr) {
        self.rq.push(wr).unwrap();
    }

    /// Completions of the send queue.
    pub(crate) fn sent(&mut self) -> Vec<Completion> {
        self.cqs.flush();
        std::iter::from_fn(|| self.send_done.pop()).collect()
    }

    /// Their names and statuses.
    pub(crate) fn sent_ids(&mut self) -> Vec<(u64, WcStatus)> {
        self.sent().iter().map(|c| (c.wr_id, c.status())).collect()
    }

    /// Completions of the receive queue.
    pub(crate) fn received(&mut self) -> Vec<Completion> {
        self.cqs.flush();
        std::iter::from_fn(|| self.recv_done.pop()).collect()
    }

    pub(crate) fn received_ids(&mut self) -> Vec<(u64, WcStatus)> {
        self.received()
            .iter()
            .map(|c| (c.wr_id, c.status()))
            .collect()
    }

    /// The next message, as the owner asks for it.
    pub(crate) fn next_message(&mut self) -> Result<Option<Outbound>, RdmapError> {
        let guard = self.worker.enter();
        self.rdmap.next_message(&mut self.qp, &mut self.cqs, &guard)
    }

    /// The octets of a message.
    pub(crate) fn octets(&self, message: &Outbound) -> Vec<u8> {
        let mut octets = vec![0; message.length as usize];
        let guard = self.worker.enter();
        message
            .source
            .read(&guard, self.qp.origin(), 0, &mut octets)
            .unwrap();
        octets
    }

    /// The next segment to be sent, of at most `mulpdu` octets. Errors end the stream as a connection would end it.
    pub(crate) fn next_segment(&mut self, mulpdu: usize) -> Option<Ulpdu> {
        if self.rdmap.is_ending() {
            self.sending = None;
        }
        if self.sending.is_none() {
            let message = match self.next_message() {
                Ok(message) => message?,
                Err(error) => {
                    self.refuse(error.into(), None);
                    self.next_message().unwrap()?
                }
            };
            let segmenter = self.ddp.start_message(message.header, message.length);
            self.sending = Some((message, segmenter));
        }
        let (message, mut segmenter) = self.sending.take()?;
        let cut = segmenter.next(mulpdu).unwrap();
        let header_len = cut.header.len();
        let mut ulpdu = vec![0; header_len + cut.len];
        cut.header.emit(&mut ulpdu);
        let read = message.source.read(
            &self.worker.enter(),
            self.qp.origin(),
            cut.offset,
            &mut ulpdu[header_len..],
        );
        if let Err(error) = read {
            let error = self.rdmap.source_failed(message.token, cut.offset, error);
            self.refuse(error.into(), None);
            return self.next_segment(mulpdu);
        }
        self.stream += ulpdu.len() as u64;
        if cut.last {
            self.rdmap.sent(message.token, self.stream);
        } else {
            self.sending = Some((message, segmenter));
        }
        Some(ulpdu)
    }

    /// Ends the stream with an error.
    pub(crate) fn refuse(&mut self, error: Refused, ulpdu: Option<&[u8]>) {
        let cause = match &error {
            Refused::Rdmap(error) => error.cause(),
            Refused::Ddp(error) => {
                let (error_type, code) = error.number();
                let control = rnic_core::wire::rdmap::TerminateControl {
                    layer: 1,
                    error_type,
                    code,
                };
                rnic_core::rdmap::TerminateCause::new(control)
                    .with_receive_status(error.receive_status())
            }
        };
        let header =
            ulpdu.and_then(|ulpdu| Some((rnic_core::wire::ddp::header_octets(ulpdu)?, ulpdu)));
        self.rdmap.terminate(match header {
            Some((header, ulpdu)) => cause.with_segment(header, ulpdu.len()),
            None => cause,
        });
        self.refused.get_or_insert(error);
    }

    /// Admits and places a segment.
    pub(crate) fn place(&mut self, ulpdu: &[u8]) -> Result<Placed, Refused> {
        let segment = DdpSegment::parse(ulpdu).unwrap();
        let destination = self.rdmap.admit(&segment)?;
        let guard = self.worker.enter();
        Ok(self
            .ddp
            .place(&segment, destination, &mut self.qp, &guard)?)
    }

    /// Delivers and handles a segment that was placed.
    pub(crate) fn deliver(&mut self, placed: Placed) -> Result<(), Refused> {
        let guard = self.worker.enter();
        match self.ddp.deliver(placed)? {
            None => {}
            Some(Delivery::Tagged { header, len }) => {
                let (qp, cqs) = (&mut self.qp, &mut self.cqs);
                self.rdmap.handle_tagged(&header, len, qp, cqs)?;
            }
            Some(Delivery::Untagged {
                header,
                length,
                octets,
            }) => {
                let (qp, cqs) = (&mut self.qp, &mut self.cqs);
                self.rdmap
                    .handle_untagged(&header, length, octets, qp, cqs, &guard)?;
            }
        }
        Ok(())
    }

    /// A segment comes in its turn.
    pub(crate) fn receive(&mut self, ulpdu: &[u8]) -> Result<(), Refused> {
        if self.rdmap.is_ending() {
            return Ok(());
        }
        let placed = match self.place(ulpdu) {
            Ok(placed) => placed,
            Err(error) => {
                self.refuse(error, Some(ulpdu));
                return Err(error);
            }
        };
        self.deliver(placed).inspect_err(|&error| {
            self.refuse(error, Some(ulpdu));
        })
    }

    /// The peer acknowledged the stream up to `offset`.
    pub(crate) fn acked(&mut self, offset: u64) {
        self.rdmap.acked(offset, &mut self.qp, &mut self.cqs);
    }

    pub(crate) fn flush(&mut self) {
        self.rdmap.flush(&mut self.qp, &mut self.cqs);
    }

    /// Takes all messages that can be sent now, without sending them.
    pub(crate) fn messages(&mut self) -> Vec<Outbound> {
        let mut messages = Vec::new();
        while let Some(message) = self.next_message().unwrap() {
            self.stream += 100;
            self.rdmap.sent(message.token, self.stream);
            messages.push(message);
        }
        messages
    }
}

/// Carries segments both ways until neither end has any, and acknowledges them.
pub(crate) fn pump(a: &mut End, b: &mut End, mulpdu: usize) {
    loop {
        let (to_b, to_a) = (a.next_segment(mulpdu), b.next_segment(mulpdu));
        if to_b.is_none() && to_a.is_none() {
            return;
        }
        if let Some(ulpdu) = to_b {
            let _ = b.receive(&ulpdu);
        }
        if let Some(ulpdu) = to_a {
            let _ = a.receive(&ulpdu);
        }
        a.acked(a.stream);
        b.acked(b.stream);
    }
}

pub(crate) fn ulp(opcode: Opcode) -> u8 {
    Control::new(opcode).into()
}

/// A segment to a tagged buffer.
pub(crate) fn tagged(opcode: Opcode, last: bool, stag: Stag, offset: u64, payload: &[u8]) -> Ulpdu {
    let header = TaggedHeader {
        last,
        ulp: ulp(opcode),
        stag,
        offset: TaggedOffset(offset),
    };
    segment(DdpHeader::Tagged(header), payload)
}

/// A segment to a queue.
pub(crate) fn untagged(
    opcode: Opcode,
    last: bool,
    queue: QueueNumber,
    msn: u32,
    offset: u32,
    payload: &[u8],
) -> Ulpdu {
    let header = UntaggedHeader {
        last,
        ulp: ulp(opcode),
        ulp32: 0,
        queue,
        msn: Msn(msn),
        offset: MessageOffset(offset),
    };
    segment(DdpHeader::Untagged(header), payload)
}

/// A Send in one segment.
pub(crate) fn send(msn: u32, payload: &[u8]) -> Ulpdu {
    untagged(Opcode::Send, true, QueueNumber::SEND, msn, 0, payload)
}

pub(crate) fn segment(header: DdpHeader, payload: &[u8]) -> Ulpdu {
    let mut ulpdu = vec![0; header.len()];
    header.emit(&mut ulpdu);
    ulpdu.extend_from_slice(payload);
    ulpdu
}

/// The inline octets of a message.
pub(crate) fn inline(message: &Outbound) -> &[u8] {
    match &message.source {
        Source::Octets(octets) => &octets[..message.length as usize],
        other => panic!("{other:?} holds no octets"),
    }
}

/// Octets that differ from place to place.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
