//! The engine without I/O: two engines whose frames stay where they were built.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant as Clock};

use rnic_core::connection::{ConnectionOptions, Event, NextHop};
use rnic_core::engine::{Command, Driver, EngineConfig, HostEnd, NextHopRequest, Peers, mailbox};
use rnic_core::fast_paths::FastPaths;
use rnic_core::ids::{CqId, ListenerId, PdId, QpNumber, StreamId};
use rnic_core::memory::{
    region::{HugePages, Region},
    ring::{Consumer, Producer, RingError, ring},
    table::{Access, StagTable},
};
use rnic_core::time::Instant;
use rnic_core::verbs::{
    cq::Arming,
    qp::{QpState, QueuePair},
    sge::Sge,
    wr::{Completion, RecvWr, SendWr, WrOpcode, send_flags},
};
use rnic_core::wire::ddp::{Stag, TaggedOffset};
use rnic_core::wire::ethernet::MacAddr;
use rnic_core::wire::packet::Checksums;
use rnic_core::wire::{checksum, crc};

use crate::failure::Failure;
use crate::pool::Pool;
use crate::stats::Samples;

/// Octets of a message.
const MESSAGE: usize = 64 * 1024;
/// Messages that may be posted ahead, and receives for them.
const QUEUE: u32 = 8;
/// Octets of each side's memory: few enough to stay in the second-level cache.
const REGION: usize = 4 * MESSAGE;
/// Segments in one step: sent, then received, then acknowledged.
const STEP: usize = 64;
/// Ethernet, IPv4 and TCP with timestamps.
const TCP_AT: usize = 14 + 20;
const FPDU_AT: usize = TCP_AT + 32;
/// MPA's length and CRC, and DDP's header of a Write.
const FPDU_OVERHEAD: usize = 2 + 14 + 4;
const PD: PdId = PdId(1);
const CQ: CqId = CqId(1);
/// The time between two steps if no clock is read.
const VIRTUAL_STEP: Duration = Duration::from_micros(50);
/// Connections that are set up at the same time.
const AT_ONCE: u32 = 64;
const PORT: u16 = 4791;

/// What the messages of a pair are. Reads are posted by the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    Send,
    Read,
}

/// One engine and its application.
struct EngineHost {
    address: Ipv4Addr,
    end: HostEnd,
    driver: Driver,
    pool: Pool,
    region: Arc<Region>,
    stag: Stag,
    qps: Vec<Queues>,
    /// Queue pairs that have a connection.
    taken: u32,
    cq: Consumer<Completion>,
}

/// The application's ends of a queue pair.
pub(crate) struct Queues {
    sq: Producer<SendWr>,
    /// Empty where nothing is sent to this queue pair.
    rq: Producer<RecvWr>,
}

impl EngineHost {
    fn new(
        index: u8,
        connections: u32,
        receives: u32,
        fast_paths: FastPaths,
    ) -> Result<Self, Failure> {
        let config = EngineConfig {
            fast_paths,
            ..EngineConfig::default()
        };
        let table = Arc::new(StagTable::new(64, [index; 32]));
        let (end, engine_end) = mailbox(table, connections, Waker::noop().clone());
        let region = Arc::new(Region::allocate(REGION, HugePages::Prefer)?);
        let stag = end.table.register(
            region.clone(),
            0..REGION,
            TaggedOffset(0),
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            PD,
        )?;
        let (cq_end, cq) = ring(64)?;
        end.send(Command::CreateCq {
            cq: CQ,
            producer: cq_end,
            arming: Arc::new(Arming::new()),
            notify: Waker::noop().clone(),
        })?;
        let qps: Result<Vec<_>, Failure> = (0..connections)
            .map(|number| {
                let rings = (ring(QUEUE)?, ring(receives)?);
                Queues::create_of(&end, QpNumber(number), rings)
            })
            .collect();
        Ok(Self {
            address: Ipv4Addr::new(192, 0, 2, index),
            end,
            driver: Driver::new(config, [index; 32], engine_end),
            pool: Pool::new(1024, STEP),
            region,
            stag,
            qps: qps?,
            taken: 0,
            cq,
        })
    }

    fn resolve_next_hops(&mut self) {
        while let Some(request) = self.driver.poll_next_hop_request() {
            let NextHopRequest::Follow(path) = request else {
                continue;
            };
            let mac = MacAddr([2, 0, 0, 0, 0, 1]);
            let hop = NextHop {
                source_mac: mac,
                destination_mac: mac,
                vlan: None,
                mtu: 1500,
                advertised_mss: None,
            };
            self.driver.set_next_hop(path, hop);
        }
    }

    fn next_qp(&mut self) -> QpNumber {
        self.taken += 1;
        QpNumber(self.taken - 1)
    }

    /// Accepts connection requests. Returns how many connections were established.
    fn handle_events(&mut self) -> Result<usize, Failure> {
        let mut established = 0;
        while let Some(notice) = self.end.events.next() {
            match notice.event {
                Event::ConnectRequest { request, .. } => {
                    let qp = self.next_qp();
                    self.end.send(Command::Accept {
                        request,
                        qp,
                        options: ConnectionOptions::default(),
                    })?;
                }
                Event::Established { .. } => established += 1,
                other => return Err(format!("the engines did not connect: {other:?}").into()),
            }
        }
        Ok(established)
    }

    /// Fills every send queue.
    fn fill(&mut self, kind: Kind, to: Stag) {
        for number in 0..self.qps.len() as u32 {
            while self.post(QpNumber(number), kind, to) {}
        }
    }

    /// Polls completions, and posts a message for each.
    fn post_more(&mut self, kind: Kind, to: Stag) {
        while let Some(completion) = self.cq.pop() {
            self.post(QpNumber(completion.qp), kind, to);
        }
    }

    /// The memory of a message.
    fn sge(&self) -> Sge {
        Sge {
            offset: 0,
            length: MESSAGE as u32,
            lkey: self.stag.0,
        }
    }

    /// Posts a message. Returns false if the send queue is full.
    fn post(&mut self, qp: QpNumber, kind: Kind, to: Stag) -> bool {
        let sges = [self.sge()];
        let message = match kind {
            Kind::Write => SendWr::new(0, WrOpcode::Write).with_remote(to, TaggedOffset(0)),
            Kind::Send => SendWr::new(0, WrOpcode::Send),
            Kind::Read => SendWr::new(0, WrOpcode::Read).with_remote(to, TaggedOffset(0)),
        };
        let message = message.with_flags(send_flags::SIGNALED).with_sges(&sges);
        let sq = &mut self.qps[qp.0 as usize].sq;
        let posted = message.is_some_and(|message| sq.push(message).is_ok());
        if posted {
            self.end.ring(qp);
        }
        posted
    }

    /// Fills every receive queue.
    fn fill_receives(&mut self) {
        for number in 0..self.qps.len() as u32 {
            while self.post_receive(QpNumber(number)) {}
        }
    }

    /// Polls completions of receives, and posts another for each.
    fn post_receives(&mut self) {
        while let Some(completion) = self.cq.pop() {
            self.post_receive(QpNumber(completion.qp));
        }
    }

    /// Posts a receive. Returns false if the queue is full.
    fn post_receive(&mut self, qp: QpNumber) -> bool {
        let receive = RecvWr::new(0, &[self.sge()]);
        let rq = &mut self.qps[qp.0 as usize].rq;
        receive.is_some_and(|receive| rq.push(receive).is_ok())
    }
}

/// Both ends of the rings of a queue pair.
type Rings = (
    (Producer<SendWr>, Consumer<SendWr>),
    (Producer<RecvWr>, Consumer<RecvWr>),
);

impl Queues {
    /// Returns the rings of one.
    pub(crate) fn rings() -> Result<Rings, RingError> {
        Ok((ring(QUEUE)?, ring(1)?))
    }

    /// Makes a queue pair, and gives it to the engine.
    pub(crate) fn create(end: &HostEnd, number: QpNumber) -> Result<Self, Failure> {
        Self::create_of(end, number, Self::rings()?)
    }

    fn create_of(end: &HostEnd, number: QpNumber, rings: Rings) -> Result<Self, Failure> {
        let ((sq, sq_end), (rq, rq_end)) = rings;
        end.send(Command::CreateQp(Box::new(QueuePair {
            number,
            stream: StreamId(u64::from(number.0) + 1),
            pd: PD,
            sq: sq_end,
            rq: rq_end.into(),
            send_cq: CQ,
            recv_cq: CQ,
            state: QpState::Idle,
            signal_all: false,
            rnr_retry: 7,
            is_stopped: false,
            remote_access: Access::REMOTE,
        })))?;
        Ok(Self { sq, rq })
    }
}

type Receive = fn(&mut EngineHost, &Pool, Instant);
type Transmit = fn(&Pool, &mut EngineHost, Instant);

/// Runs the receiver's turn. A function of its own, for profilers.
#[inline(never)]
fn receive_batch(receiver: &mut EngineHost, sender: &Pool, now: Instant) {
    turn(receiver, sender, now);
}

/// Runs the sender's turn. Its arguments have another order, or the compiler would merge the two
/// functions.
#[inline(never)]
fn transmit_batch(receiver: &Pool, sender: &mut EngineHost, now: Instant) {
    turn(sender, receiver, now);
}

/// The same for Sends. Without `black_box` the compiler would merge the functions.
#[inline(never)]
fn receive_sends(receiver: &mut EngineHost, sender: &Pool, now: Instant) {
    black_box(Kind::Send);
    turn(receiver, sender, now);
}

#[inline(never)]
fn transmit_sends(receiver: &Pool, sender: &mut EngineHost, now: Instant) {
    black_box(Kind::Send);
    turn(sender, receiver, now);
}

/// The same for Reads, whose responses the receiver gets.
#[inline(never)]
fn receive_reads(receiver: &mut EngineHost, sender: &Pool, now: Instant) {
    black_box(Kind::Read);
    turn(receiver, sender, now);
}

#[inline(never)]
fn transmit_reads(receiver: &Pool, sender: &mut EngineHost, now: Instant) {
    black_box(Kind::Read);
    turn(sender, receiver, now);
}

/// Runs one turn of `host`, on the frames that `peer` sent.
#[inline(always)]
fn turn(host: &mut EngineHost, peer: &Pool, now: Instant) {
    let mut batch = host.driver.begin(now);
    batch.prefetch(peer.sent());
    let frames = peer.sent().map(|frame| (frame, Checksums::None));
    batch.handle_frames(frames, &mut host.pool);
    batch.finish(&mut host.pool);
}

/// Does the work on received octets alone: CRC, and copy into the region.
fn receive_octets(frame: &[u8], region: &Region, at: usize, with_sum: bool) -> u32 {
    let (header, fpdu) = frame[TCP_AT..].split_at(FPDU_AT - TCP_AT);
    let digest = if with_sum {
        let (crc, sum) = crc::crc_and_sum(fpdu);
        crc ^ u32::from(checksum::combine(sum, checksum::sum_of_header(header)))
    } else {
        crc::crc(fpdu)
    };
    // The region has room for a frame from every place.
    let _ = region.write(at, &fpdu[FPDU_OVERHEAD..]);
    digest
}

/// Does the work on octets to be sent alone: copy, and CRC.
fn transmit_octets(frame: &mut [u8], region: &Region, at: usize, with_sum: bool) -> u32 {
    let fpdu = &mut frame[FPDU_AT..];
    let _ = region.read(at, &mut fpdu[FPDU_OVERHEAD..]);
    if with_sum {
        let (crc, sum) = crc::crc_and_sum(fpdu);
        crc ^ u32::from(sum)
    } else {
        crc::crc(fpdu)
    }
}

/// Nanoseconds for a segment, one sample for each step. All are for the same segments.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineTimes {
    /// The engine receives them and builds its acknowledgements.
    pub(crate) receive: Samples,
    /// The engine handles the acknowledgements and builds as many segments.
    pub(crate) transmit: Samples,
    /// Copy and CRC alone, without and with the TCP checksum.
    pub(crate) octets_received: [Samples; 2],
    /// The same on transmit.
    pub(crate) octets_sent: [Samples; 2],
}

/// The clock of the engines.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timing {
    /// The clock of the machine.
    Real(Clock),
    /// Each step takes the same time, so that each run does the same.
    Virtual,
}

/// A sender and a receiver of messages.
pub(crate) struct Pair {
    sender: EngineHost,
    receiver: EngineHost,
    kind: Kind,
    timing: Timing,
    /// Memory from which the octets alone are sent.
    frames: Box<[[u8; 2048]]>,
    steps: u32,
}

impl Pair {
    /// Makes two engines with this many connections between them, all busy.
    pub(crate) fn connect(
        connections: u32,
        kind: Kind,
        timing: Timing,
        fast_paths: FastPaths,
    ) -> Result<Self, Failure> {
        let receives = if kind == Kind::Send { 2 * QUEUE } else { 1 };
        let mut pair = Self {
            sender: EngineHost::new(1, connections, 1, fast_paths)?,
            receiver: EngineHost::new(2, connections, receives, fast_paths)?,
            kind,
            timing,
            frames: vec![[0; 2048]; STEP].into_boxed_slice(),
            steps: 0,
        };
        pair.receiver.end.send(Command::Listen {
            listener: ListenerId(1),
            local: SocketAddr::new(pair.receiver.address.into(), PORT),
            peers: Peers::all(),
            reservation: Arc::new(()),
            refusals: Arc::default(),
        })?;
        while pair.sender.taken < connections {
            let count = AT_ONCE.min(connections - pair.sender.taken);
            pair.add_connections(count)?;
        }
        if kind == Kind::Send {
            pair.receiver.fill_receives();
        }
        match kind {
            Kind::Write | Kind::Send => pair.sender.fill(kind, pair.receiver.stag),
            Kind::Read => {
                pair.receiver.fill(kind, pair.sender.stag);
                // MPA's responder sends nothing before the initiator's first FPDU.
                pair.sender.fill(Kind::Write, pair.receiver.stag);
            }
        }
        Ok(pair)
    }

    fn add_connections(&mut self, count: u32) -> Result<(), Failure> {
        for _ in 0..count {
            let qp = self.sender.next_qp();
            self.sender.end.send(Command::Connect {
                qp,
                local: SocketAddr::new(self.sender.address.into(), 40_000 + qp.0 as u16),
                remote: SocketAddr::new(self.receiver.address.into(), PORT),
                options: ConnectionOptions::default(),
                reservation: Arc::new(()),
            })?;
        }
        let mut established = 0;
        while established < 2 * count as usize {
            self.step(&mut EngineTimes::default());
            for host in [&mut self.sender, &mut self.receiver] {
                established += host.handle_events()?;
            }
        }
        Ok(())
    }

    fn now(&self) -> Instant {
        Instant::ZERO
            + match self.timing {
                Timing::Real(started) => started.elapsed(),
                Timing::Virtual => VIRTUAL_STEP * self.steps,
            }
    }

    /// Moves a batch of segments to the receiver, and its ACKs back.
    fn step(&mut self, times: &mut EngineTimes) {
        let now = self.now();
        let (transmit, receive): (Transmit, Receive) = match self.kind {
            Kind::Write => (transmit_batch, receive_batch),
            Kind::Send => (transmit_sends, receive_sends),
            Kind::Read => (transmit_reads, receive_reads),
        };
        let transmit = clocked(|| transmit(&self.receiver.pool, &mut self.sender, now));
        self.receiver.pool.delivered();
        let full = self.sender.pool.sent().count() == STEP;
        // Alternately first and second, so that neither always finds the frames warmer.
        self.steps += 1;
        if full && self.steps.is_multiple_of(2) {
            self.octets_alone(times);
        }
        let receive = clocked(|| receive(&mut self.receiver, &self.sender.pool, now));
        if full && !self.steps.is_multiple_of(2) {
            self.octets_alone(times);
        }
        if full {
            times.transmit.push(transmit);
            times.receive.push(receive);
        }
        self.sender.pool.delivered();
        self.sender.resolve_next_hops();
        self.receiver.resolve_next_hops();
    }

    /// Does the work on the octets of the segments on the wire, without a protocol.
    fn octets_alone(&mut self, times: &mut EngineTimes) {
        let place = |number: usize| number * 1460 % (REGION - 2048);
        let data = |frame: &&[u8]| frame.len() > FPDU_AT + FPDU_OVERHEAD;
        for (index, with_sum) in [(0, false), (1, true)] {
            let (from, to) = (&self.sender.region, &self.receiver.region);
            times.octets_received[index].push(clocked(|| {
                for (number, frame) in self.sender.pool.sent().filter(data).enumerate() {
                    black_box(receive_octets(frame, to, place(number), with_sum));
                }
            }));
            let frames = &mut self.frames;
            times.octets_sent[index].push(clocked(|| {
                for (number, sent) in self.sender.pool.sent().filter(data).enumerate() {
                    let frame = &mut frames[number % STEP][..sent.len()];
                    black_box(transmit_octets(frame, from, place(number), with_sum));
                }
            }));
        }
    }

    /// Polls completions, and posts a request for each.
    fn post_more(&mut self) {
        let kind = self.kind;
        match kind {
            Kind::Write | Kind::Send => self.sender.post_more(kind, self.receiver.stag),
            Kind::Read => self.receiver.post_more(kind, self.sender.stag),
        }
        if kind == Kind::Send {
            self.receiver.post_receives();
        }
    }

    /// Measures some batches of 64 segments in full flow.
    pub(crate) fn measure(&mut self, batches: usize) -> EngineTimes {
        let mut times = EngineTimes::default();
        while times.receive.values().len() < batches {
            self.post_more();
            self.step(&mut times);
        }
        times
    }
}

/// Returns nanoseconds for each segment of a step.
fn clocked(what: impl FnOnce()) -> f64 {
    let began = Clock::now();
    what();
    began.elapsed().as_nanos() as f64 / STEP as f64
}
