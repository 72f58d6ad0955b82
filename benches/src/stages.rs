//! Each stage of a segment's path by itself: a function for each, which profilers find by its name.
//! No stage reads a clock or gets the machine's time, so that each run does the same.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant as Clock};

use rnic_core::connection::FlowKey;
use rnic_core::ddp::Segmenter;
use rnic_core::engine::{Flows, Keyed};
use rnic_core::ids::{CqId, PdId};
use rnic_core::memory::{
    epoch::{Guard, Worker},
    frames::{FrameId, TxFrames},
    place::Placement,
    region::{HugePages, Region},
    ring::{Consumer, ring},
    table::{Access, StagTable},
};
use rnic_core::mpa::{Deframer, frame};
use rnic_core::tcp::{Payload, Seq, State, Tcp, TcpConfig};
use rnic_core::time::Instant;
use rnic_core::verbs::{
    cq::{Arming, CqTable},
    wr::Completion,
};
use rnic_core::wire::{
    checksum, crc,
    ddp::{DdpHeader, DdpSegment, Stag, TAGGED_LEN, TaggedHeader, TaggedOffset},
    ethernet::MacAddr,
    mpa::LENGTH_LEN,
    packet::{self, Checksums, Packet},
    template::NetHeader,
};

use crate::failure::Failure;
use crate::pool::Pool;
use crate::stats::Samples;

/// The stages, in the order of a segment's path.
pub(crate) const NAMES: [&str; 10] = [
    "segment",
    "crc",
    "emit",
    "parse",
    "flow-lookup",
    "tcp-receive",
    "deframe",
    "stag-check",
    "place",
    "completion",
];

/// Nanoseconds for a segment, a sample for each batch, stage by stage.
#[derive(Clone, Debug, Default)]
pub(crate) struct StageTimes([Samples; NAMES.len()]);

impl StageTimes {
    /// Returns the samples of a stage by its name.
    pub(crate) fn of(&self, name: &str) -> &Samples {
        let index = NAMES.iter().position(|known| *known == name);
        &self.0[index.unwrap_or_default()]
    }

    fn clock<R>(&mut self, name: &str, stage: impl FnOnce() -> R) -> R {
        let began = Clock::now();
        let result = stage();
        let time = began.elapsed().as_nanos() as f64 / BATCH as f64;
        if let Some(index) = NAMES.iter().position(|known| *known == name) {
            self.0[index].push(time);
        }
        result
    }
}

/// Segments in a batch.
pub(crate) const BATCH: usize = 64;
/// Connections among which one is looked up.
const FLOWS: u16 = 10_000;
const FRAMES: u32 = 1024;
const REGION: usize = 256 * 1024;
const MTU: u16 = 1500;
const PD: PdId = PdId(1);
const CQ: CqId = CqId(0);
const ETHERNET_AND_IPV4: usize = 14 + 20;
/// The time between two batches.
const STEP: Duration = Duration::from_micros(50);

/// One end of a TCP connection.
struct StageEnd {
    address: Ipv4Addr,
    tcp: Tcp,
    pool: Pool,
}

impl StageEnd {
    fn new(last: u8, tcp: Tcp) -> Self {
        Self {
            address: Ipv4Addr::new(192, 0, 2, last),
            tcp,
            pool: Pool::new(FRAMES, BATCH),
        }
    }

    fn net(&self, peer: Ipv4Addr) -> NetHeader {
        NetHeader {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan: None,
            source: self.address.into(),
            destination: peer.into(),
            hop_limit: 64,
            traffic_class: 0,
        }
    }
}

/// What the stages work on.
pub(crate) struct Stages {
    now: Instant,
    sender: StageEnd,
    receiver: StageEnd,
    worker: Worker,
    stag: Stag,
    flows: Flows,
    /// The keys of all connections of `flows`.
    keys: Vec<FlowKey>,
    cqs: CqTable,
    cq: Consumer<Completion>,
    /// Where the payload of a data segment begins.
    payload_at: usize,
    fpdus: Vec<(FrameId, usize)>,
}

impl Stages {
    /// Makes a connection whose windows have room for a batch.
    pub(crate) fn new() -> Result<Self, Failure> {
        let table = Arc::new(StagTable::new(64, [1; 32]));
        let region = Arc::new(Region::allocate_unlocked(REGION, HugePages::None)?);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let stag = table.register(region, 0..REGION, TaggedOffset(0), access, PD)?;
        let mut cqs = CqTable::new();
        let (producer, cq) = ring(BATCH as u32)?;
        cqs.add(CQ, producer, Waker::noop().clone(), Arc::new(Arming::new()))?;
        let mut flows = Flows::new(Keyed::new(&[7; 16]));
        let key = |number: u16| {
            let local = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 2).into(), 4791);
            let remote = Ipv4Addr::new(198, 51, (number >> 8) as u8, 1);
            FlowKey::new(local, SocketAddr::new(remote.into(), 40_000 + number))
        };
        let keys: Vec<_> = (0..FLOWS).map(key).collect();
        for (number, key) in keys.iter().enumerate() {
            flows.insert(key, number);
        }
        let (sender, receiver) = establish()?;
        let payload_at = ETHERNET_AND_IPV4 + sender.tcp.data_header_len();
        let mut stages = Self {
            now: Instant::ZERO,
            sender,
            receiver,
            worker: table.worker(),
            stag,
            flows,
            keys,
            cqs,
            cq,
            payload_at,
            fpdus: Vec::with_capacity(BATCH),
        };
        // Until the windows have room for a batch.
        while stages.turn(&mut StageTimes::default())? < BATCH {}
        Ok(stages)
    }

    /// Runs a batch of segments through all stages. Returns how many there were.
    pub(crate) fn turn(&mut self, times: &mut StageTimes) -> Result<usize, Failure> {
        self.now = self.now + STEP;
        let guard = self.worker.enter();
        let (sender, receiver) = (&mut self.sender, &mut self.receiver);
        let header = DdpHeader::Tagged(TaggedHeader {
            last: false,
            ulp: 0x40,
            stag: self.stag,
            offset: TaggedOffset(0),
        });
        let mulpdu = frame::mulpdu(sender.tcp.max_payload());
        let len = mulpdu - header.len();
        let segmenter = Segmenter::new(header, (BATCH * len) as u32);
        let (at, fpdus) = (self.payload_at, &mut self.fpdus);
        fpdus.clear();
        let source = (&guard, self.stag);
        times.clock("segment", || {
            segment(&mut sender.pool, segmenter, source, (at, mulpdu), fpdus);
        });
        times.clock("crc", || crc(&mut sender.pool, fpdus, at));
        let net = sender.net(receiver.address);
        let sent = times.clock("emit", || emit(sender, self.now, &net, fpdus, at));
        // What the windows have no room for yet.
        for (frame, _) in &fpdus[sent..] {
            sender.pool.release(*frame);
        }

        times.clock("parse", || parse(&sender.pool));
        times.clock("flow-lookup", || look_up(&self.flows, &self.keys));
        let packets: Result<Vec<Packet<'_>>, _> = sender
            .pool
            .sent()
            .map(|frame| packet::parse(frame, Checksums::None))
            .collect();
        let packets = packets?;
        times.clock("tcp-receive", || receive(receiver, self.now, &packets));
        times.clock("deframe", || deframe(&packets));
        let headers: Result<Vec<TaggedHeader>, Failure> = packets.iter().map(header_of).collect();
        let headers = headers?;
        times.clock("stag-check", || check(&guard, &headers, len));
        let need = Access::REMOTE_WRITE;
        let placements: Result<Vec<Placement<'_>>, _> = headers
            .iter()
            .map(|header| guard.for_placement(header.stag, header.offset, len, PD, need))
            .collect();
        let placements = placements?;
        times.clock("place", || place(&placements, &packets));
        times.clock("completion", || complete(&mut self.cqs, &mut self.cq));
        acknowledge(receiver, sender, self.now)?;
        Ok(sent)
    }
}

/// Makes two connected ends.
fn establish() -> Result<(StageEnd, StageEnd), Failure> {
    let config = TcpConfig {
        mss: MTU - 40,
        ..TcpConfig::default()
    };
    let now = Instant::ZERO;
    let mut client = StageEnd::new(1, Tcp::connect(now, &config, 40_000, 4791, Seq(1)));
    send(&mut client, now, Ipv4Addr::new(192, 0, 2, 2));
    let syn = client.pool.sent().next().ok_or("there is no SYN")?.to_vec();
    let syn = packet::parse(&syn, Checksums::None)?;
    let mut server = StageEnd::new(2, Tcp::accept(now, &config, Seq(2), &syn.segment));
    client.pool.delivered();
    acknowledge(&mut server, &mut client, now)?;
    acknowledge(&mut client, &mut server, now)?;
    match (client.tcp.state(), server.tcp.state()) {
        (State::Established, State::Established) => Ok((client, server)),
        other => Err(format!("the two ends are {other:?}").into()),
    }
}

/// Sends the segments that have no payload.
fn send(end: &mut StageEnd, now: Instant, peer: Ipv4Addr) {
    let net = end.net(peer);
    while let Some(outgoing) = end.tcp.poll_transmit(now, &mut end.pool) {
        let Some(frame) = end.pool.allocate() else {
            return;
        };
        let len = net.write(end.pool.bytes_mut(frame), &outgoing.header, 0, 0);
        end.pool.transmit(frame, len);
        end.pool.release(frame);
    }
}

/// Sends the ACKs of `from`, which `to` receives. Then no frame is in flight.
fn acknowledge(from: &mut StageEnd, to: &mut StageEnd, now: Instant) -> Result<(), Failure> {
    send(from, now, to.address);
    to.pool.delivered();
    for frame in from.pool.sent() {
        let packet = packet::parse(frame, Checksums::None)?;
        let _ = to.tcp.receive(now, &packet.segment, false, &mut to.pool);
    }
    from.pool.delivered();
    Ok(())
}

fn header_of(packet: &Packet<'_>) -> Result<TaggedHeader, Failure> {
    let fpdu = &packet.segment.payload[LENGTH_LEN..];
    match DdpSegment::parse(fpdu)?.header {
        DdpHeader::Tagged(header) => Ok(header),
        DdpHeader::Untagged(_) => Err("a segment is not what was sent".into()),
    }
}

/// Cuts a message into segments, and builds the FPDU of each in its frame, without CRC.
#[inline(never)]
fn segment(
    pool: &mut Pool,
    mut segmenter: Segmenter,
    (guard, stag): (&Guard<'_>, Stag),
    (at, mulpdu): (usize, usize),
    fpdus: &mut Vec<(FrameId, usize)>,
) {
    while let Some(cut) = segmenter.next(mulpdu) {
        let Some(frame) = pool.allocate() else { return };
        let fpdu = &mut pool.bytes_mut(frame)[at..];
        let header_len = cut.header.emit(&mut fpdu[LENGTH_LEN..]);
        let from = TaggedOffset(u64::from(cut.offset) % (REGION / 2) as u64);
        let source = guard.for_reading(stag, from, cut.len, PD, Access::LOCAL_READ);
        if let Ok(source) = source {
            let _ = source.read(&mut fpdu[LENGTH_LEN + header_len..][..cut.len]);
        }
        fpdus.push((frame, frame::seal(fpdu, header_len + cut.len, false)));
    }
}

/// Computes the CRC of each FPDU, and writes it behind it.
#[inline(never)]
fn crc(pool: &mut Pool, fpdus: &[(FrameId, usize)], at: usize) {
    for (frame, len) in fpdus {
        let fpdu = &mut pool.bytes_mut(*frame)[at..at + len];
        let (covered, field) = fpdu.split_at_mut(len - 4);
        field.copy_from_slice(&crc::to_wire(crc::crc(covered)));
    }
}

/// Queues FPDUs and their sums at TCP, and sends the segments that it allows. Returns how many.
#[inline(never)]
fn emit(
    sender: &mut StageEnd,
    now: Instant,
    net: &NetHeader,
    fpdus: &[(FrameId, usize)],
    at: usize,
) -> usize {
    let mut sent = 0;
    for (frame, len) in fpdus {
        if !sender.tcp.wants_data(now) {
            break;
        }
        let sum = checksum::sum(&sender.pool.bytes(*frame)[at..at + len]);
        sender.tcp.queue(*frame, at as u16, *len as u16, sum);
        let Some(outgoing) = sender.tcp.poll_transmit(now, &mut sender.pool) else {
            break;
        };
        if let Payload::Whole {
            frame, len, sum, ..
        } = outgoing.payload
        {
            let octets = sender.pool.bytes_mut(frame);
            let len = net.write(octets, &outgoing.header, usize::from(len), sum);
            sender.pool.transmit(frame, len);
            sent += 1;
        }
    }
    sent
}

/// Parses the headers of frames, and verifies their checksums.
#[inline(never)]
fn parse(pool: &Pool) {
    for frame in pool.sent() {
        let _ = black_box(&packet::parse(frame, Checksums::None));
    }
}

/// Looks up connections by their addresses, each time another one.
#[inline(never)]
fn look_up(flows: &Flows, keys: &[FlowKey]) {
    for key in keys.iter().step_by(151).take(BATCH) {
        black_box(flows.find(key, |index| keys[index] == *key));
    }
}

/// Hands TCP segments in order.
#[inline(never)]
fn receive(receiver: &mut StageEnd, now: Instant, packets: &[Packet<'_>]) {
    for packet in packets {
        let data = receiver
            .tcp
            .receive(now, &packet.segment, false, &mut receiver.pool);
        if let Ok(Some(data)) = data {
            let end = data.offset + data.bytes.len() as u64;
            receiver.tcp.mark_received(now, data.offset..end);
        }
    }
}

/// Finds FPDUs and their DDP headers in a stream, without CRC.
#[inline(never)]
fn deframe(packets: &[Packet<'_>]) {
    let mut deframer = Deframer::new(false);
    for packet in packets {
        let mut input = packet.segment.payload;
        while let Ok(Some(ulpdu)) = deframer.next(&mut input) {
            let _ = black_box(&DdpSegment::parse(ulpdu));
        }
    }
}

/// Looks up STags, and makes all checks that a placement needs.
#[inline(never)]
fn check(guard: &Guard<'_>, headers: &[TaggedHeader], len: usize) {
    for header in headers {
        let placement =
            guard.for_placement(header.stag, header.offset, len, PD, Access::REMOTE_WRITE);
        let _ = black_box(&placement);
    }
}

/// Copies payloads to their places.
#[inline(never)]
fn place(placements: &[Placement<'_>], packets: &[Packet<'_>]) {
    for (placement, packet) in placements.iter().zip(packets) {
        let payload = &packet.segment.payload[LENGTH_LEN + TAGGED_LEN..];
        let _ = placement.write(&payload[..placement.len()]);
    }
}

/// Writes completions, and polls them.
#[inline(never)]
fn complete(cqs: &mut CqTable, cq: &mut Consumer<Completion>) {
    for _ in 0..BATCH {
        cqs.complete(CQ, Completion::default(), false);
        black_box(cq.pop());
    }
    cqs.notify_all();
}
