//! Two hosts, and the frames between them.

use std::collections::VecDeque;
use std::time::Duration;

use rnic_core::connection::{EndReason, Event};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::fast_paths::FastPaths;
use rnic_core::ids::PdId;
use rnic_core::memory::{binding::Binding, table::Access};
use rnic_core::testing::host::{Host, PD, QpSettings, SharedRegion, TestQp, TestSrq};
use rnic_core::time::Instant;
use rnic_core::verbs::{
    sge::Sge,
    status::WcStatus,
    wr::{Completion, RecvWr, SendWr, WrOpcode},
};
use rnic_core::wire::checksum::sum;
use rnic_core::wire::ddp::{Stag, TaggedOffset};
use rnic_core::wire::icmp::TooBig;
use rnic_core::wire::packet::{Checksums, addresses, parse};
use rnic_core::wire::rdmap::AtomicOperation;

use super::Reached;
use super::case::{Act, Mishap, Operation, Request, Terms, Told};
use super::twist::{Twist, begin_checksum};

const PORT: u16 = 7174;
/// Octets of the first region of a host, and of the others.
const ROOM: usize = 64 << 10;
const LITTLE: usize = 4096;
/// Where receives are in the first region.
const RECEIVES_AT: u64 = 48 << 10;

/// What can be seen of a world, in its order.
#[derive(Clone, PartialEq)]
pub(crate) enum Seen {
    Sent {
        host: usize,
        now: Instant,
        frame: Vec<u8>,
    },
    Completed {
        host: usize,
        connection: usize,
        completion: Completion,
    },
    Told {
        host: usize,
        event: Event,
    },
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sent { host, now, frame } => {
                let header =
                    parse(frame, Checksums::Unnecessary).map(|packet| packet.segment.header);
                write!(f, "{host} sends at {now:?} {header:?}, {frame:02x?}")
            }
            Self::Completed {
                host,
                connection,
                completion,
            } => {
                write!(f, "{host} completes on {connection}: {completion:?}")
            }
            Self::Told { host, event } => write!(f, "{host} tells {event:?}"),
        }
    }
}

/// A host, and what its applications have.
struct Side {
    host: Host,
    qps: Vec<TestQp>,
    shared: Option<TestSrq>,
    regions: [SharedRegion; 3],
    window: Stag,
    /// Frames on their way here.
    coming: VecDeque<Vec<u8>>,
    /// Changes of those that will be sent here, and of the how many-th.
    armed: Vec<(usize, Twist)>,
    told: Told,
    arrived: usize,
    /// The last frame with a payload that it sent.
    latest: Option<Vec<u8>>,
}

pub(crate) struct World {
    now: Instant,
    sides: [Side; 2],
    log: Vec<Seen>,
    requests: u64,
    tagged: bool,
    unfinished: bool,
    completes_checksums: [bool; 2],
    reached: Reached,
}

impl Side {
    fn new(index: usize, terms: &Terms, config: EngineConfig) -> Self {
        let mut host = Host::new(index as u8, config, 7);
        // Where frames are short, what a connection may hold depends on how many wait in the line.
        host.set_frames(if terms.connections > 1 {
            2048
        } else {
            terms.frames[index]
        });
        if terms.completes_checksums[index] {
            host.complete_checksums();
        }
        let settings = QpSettings {
            ring: 64,
            cq: terms.cq,
            signal_all: terms.signal_all,
            ..QpSettings::default()
        };
        let mut shared = terms.shared_receives[index].then(|| host.create_srq(64, 32));
        let mut qps: Vec<_> = (0..terms.connections)
            .map(|_| match &shared {
                Some(srq) => host.create_qp_on(srq, settings),
                None => host.create_qp_with(settings),
            })
            .collect();
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND;
        let content: Vec<_> = (0..ROOM).map(|at| (at * 7 + index) as u8).collect();
        let regions = [
            host.share(&content, all),
            host.share(
                &content[..LITTLE],
                Access::LOCAL_WRITE | Access::REMOTE_READ,
            ),
            host.share_with(&content[..LITTLE], all, PdId(77)),
        ];
        let window = host
            .table()
            .allocate_window(PD)
            .expect("the table has room");
        for (number, qp) in qps.iter_mut().enumerate() {
            for at in 0..16 {
                let wr = receive(&regions[0], 100 + at + 1000 * number as u64, 12_000);
                match &mut shared {
                    Some(srq) if number == 0 => host.post_shared(srq, wr),
                    Some(_) => {}
                    None => host.post_recv(qp, wr),
                }
            }
        }
        Self {
            host,
            qps,
            shared,
            regions,
            window,
            coming: VecDeque::new(),
            armed: Vec::new(),
            told: terms.told[index],
            arrived: 0,
            latest: None,
        }
    }

    /// The names that its memory has.
    fn stags(&self) -> [u32; 4] {
        let [one, two, three] = self.regions.each_ref().map(|region| region.stag.0);
        [one, two, three, self.window.0]
    }

    /// A frame is sent here.
    fn enqueue(&mut self, mut frame: Vec<u8>) {
        if frame[12..].starts_with(&[0x81, 0]) {
            // Changes are made where headers stand without; it is put back when the frame arrives.
            frame.drain(12..16);
        }
        let mut frames = vec![frame];
        let stags = self.stags();
        self.armed.retain_mut(|(ahead, twist)| {
            if *ahead > 0 {
                *ahead -= 1;
                return true;
            }
            frames = std::mem::take(&mut frames)
                .into_iter()
                .flat_map(|frame| twist.change(frame, &stags))
                .collect();
            false
        });
        self.coming.extend(frames);
    }

    /// The frames that arrive next, and what the device says of them.
    fn arrive(&mut self, most: usize, tagged: bool, unfinished: bool) -> Vec<(Vec<u8>, Checksums)> {
        let most = most.min(self.coming.len());
        let frames: Vec<_> = self.coming.drain(..most).collect();
        let told = |mut frame: Vec<u8>| {
            self.arrived += 1;
            if unfinished && !self.arrived.is_multiple_of(3) {
                begin_checksum(&mut frame);
            }
            if tagged {
                frame.splice(12..12, [0x81, 0, 0, 5]);
            }
            let checksums = match self.told {
                Told::Verify => Checksums::None,
                Told::Summed => Checksums::Complete(sum(&frame)),
                Told::Vouched => Checksums::Unnecessary,
                Told::Mixed if self.arrived.is_multiple_of(4) => Checksums::Unnecessary,
                Told::Mixed if self.arrived % 4 == 1 => Checksums::None,
                Told::Mixed => Checksums::Complete(sum(&frame)),
            };
            (frame, checksums)
        };
        frames.into_iter().map(told).collect()
    }

    fn post_receive(&mut self, connection: usize, wr: RecvWr) {
        match &mut self.shared {
            Some(srq) if srq.posted() < 64 => self.host.post_shared(srq, wr),
            None if self.qps[connection].room().1 > 0 => {
                self.host.post_recv(&mut self.qps[connection], wr);
            }
            _ => {}
        }
    }
}

impl World {
    /// Two hosts with connections.
    pub(crate) fn new(terms: &Terms, fast_paths: FastPaths) -> Self {
        let config = EngineConfig {
            fast_paths,
            ..terms.config()
        };
        let mut world = Self {
            now: Instant::ZERO + Duration::from_secs(1),
            sides: [0, 1].map(|index| Side::new(index, terms, config.clone())),
            log: Vec::new(),
            requests: 0,
            tagged: terms.tagged,
            unfinished: terms.unfinished,
            completes_checksums: terms.completes_checksums,
            reached: Reached::default(),
        };
        world.sides[1].host.listen(PORT);
        for connection in 0..terms.connections {
            let [active, passive] = &world.sides;
            let port = 40_000 + connection as u16;
            let remote = passive.host.socket(PORT);
            active
                .host
                .connect(&active.qps[connection], port, remote, &terms.options(0));
            world.exchange(8, 64, Duration::from_micros(10));
            let [_, passive] = &world.sides;
            let asked = passive.host.connect_requests().last();
            if let Some(request) = asked {
                passive
                    .host
                    .accept(request, &passive.qps[connection], &terms.options(1));
            }
            world.exchange(8, 64, Duration::from_micros(10));
        }
        for side in &mut world.sides {
            for number in side.qps.iter().map(|qp| qp.number) {
                assert!(
                    side.host.is_established(number),
                    "a connection does not come to be: {terms:?}"
                );
            }
        }
        world
    }

    pub(crate) fn next_timeout(&mut self) -> Option<Instant> {
        let timers = self
            .sides
            .iter_mut()
            .filter_map(|side| side.host.next_timeout());
        timers.min()
    }

    pub(crate) fn reached(&self) -> Reached {
        self.reached
    }

    /// What was seen since the last call.
    pub(crate) fn take_log(&mut self) -> Vec<Seen> {
        for (host, side) in self.sides.iter_mut().enumerate() {
            side.host.events.sort_by_key(Event::qp);
            for event in side.host.events.drain(..) {
                let orderly = matches!(
                    &event,
                    Event::Disconnected {
                        reason: EndReason::Local,
                        ..
                    }
                );
                self.reached.ended +=
                    u64::from(matches!(event, Event::Disconnected { .. }) && !orderly);
                self.log.push(Seen::Told { host, event });
            }
        }
        std::mem::take(&mut self.log)
    }

    /// All state that engines and applications have.
    pub(crate) fn states(&self) -> Vec<String> {
        let state = |(index, side): (usize, &Side)| {
            let mut layers = String::new();
            let engine = side.host.driver().engine();
            engine
                .write_state(&mut layers)
                .expect("a text takes all that is written to it");
            // The switch itself is no state of the protocol.
            let layers = layers.replace("sole_ack: true", "sole_ack: false");
            // Where the device completes checksums nobody reads the sum of a payload: a short message has it all the same.
            let layers = match self.completes_checksums[index] {
                true => without_numbers_behind(&layers, "payload_sum: "),
                false => layers,
            };
            // All free frames are alike.
            let layers = without_numbers_behind(&layers, "FrameId(");
            let mut counters = *engine.counters();
            // Whoever waits in the line while the device has no room counts, also who has nothing to send in the end.
            counters.engine.no_transmit_frame = 0;
            // What comes behind an error, in the same batch, is dropped or buffered by when the end is seen.
            if counters.rdma.terminates_sent > 0 {
                counters.rdma.octets_buffered = 0;
            }
            let valid = side.stags().map(|stag| side.host.is_valid(Stag(stag)));
            let queues: Vec<_> = side
                .qps
                .iter()
                .map(|qp| (qp.room(), qp.notified()))
                .collect();
            let shared = side.shared.as_ref().map(TestSrq::posted);
            // Not how many checksums the device completed: a short message leaves with its own.
            let host = (side.host.frames_in_use(), side.host.leases());
            [
                format!("{:?} {valid:?} {queues:?} {shared:?} {host:?}", counters),
                layers,
            ]
        };
        self.sides.iter().enumerate().flat_map(state).collect()
    }

    /// What all memory holds.
    pub(crate) fn memory(&self) -> Vec<Vec<u8>> {
        let regions = self.sides.iter().flat_map(|side| &side.regions);
        regions.map(SharedRegion::content).collect()
    }

    /// One step of a case. `alarm` is when the next timer goes off.
    pub(crate) fn carry_out(&mut self, act: &Act, alarm: Option<Instant>) {
        match act {
            Act::Post {
                host,
                connection,
                request,
                times,
            } => {
                for time in 0..*times {
                    self.post(*host, *connection, request, time);
                }
            }
            Act::Receive {
                host,
                connection,
                len,
                times,
            } => {
                for _ in 0..*times {
                    self.requests += 1;
                    let wr = receive(&self.sides[*host].regions[0], self.requests, *len);
                    self.sides[*host].post_receive(*connection, wr);
                }
            }
            Act::Poll {
                host,
                connection,
                most,
            } => self.poll(*host, *connection, *most),
            Act::Deliver { to, most } => {
                self.turn(*to, *most);
            }
            Act::Exchange {
                rounds,
                batch,
                apart,
            } => self.exchange(*rounds, *batch, *apart),
            Act::PingPong {
                connection,
                rounds,
                requests,
                apart,
            } => {
                self.play(*connection, *rounds, requests, *apart);
            }
            Act::Wait(time) => self.now = self.now + *time,
            Act::Alarm => self.wait_for(alarm),
            Act::Mishap { to, at, mishap } => {
                let coming = &mut self.sides[*to].coming;
                let at = (*at).min(coming.len().saturating_sub(1));
                match mishap {
                    Mishap::Lose => drop(coming.remove(at)),
                    Mishap::Twice => {
                        if let Some(frame) = coming.get(at).cloned() {
                            coming.insert(at, frame);
                        }
                    }
                    Mishap::Swap if at + 1 < coming.len() => coming.swap(at, at + 1),
                    Mishap::Swap => {}
                    Mishap::LoseAll => coming.clear(),
                    Mishap::Reverse => coming.make_contiguous().reverse(),
                }
            }
            Act::Twist { to, at, twist } => {
                let side = &mut self.sides[*to];
                let at = (*at).min(side.coming.len().saturating_sub(1));
                if let Some(frame) = side.coming.remove(at) {
                    let changed = twist.change(frame, &side.stags());
                    for frame in changed.into_iter().rev() {
                        side.coming.insert(at, frame);
                    }
                }
            }
            Act::Arm { to, ahead, twist } => self.sides[*to].armed.push((*ahead, *twist)),
            Act::Boast {
                host,
                connection,
                request,
            } => {
                for _ in 0..4 {
                    self.sides[*host].armed.push((0, Twist::Window(u16::MAX)));
                    self.post(*host, *connection, request, 0);
                    self.exchange(2, 64, Duration::from_micros(300));
                }
            }
            Act::Revoke { host, region } => {
                let Side { host, regions, .. } = &mut self.sides[*host];
                let region = &mut regions[region % 3];
                if host.table().revoke(region.stag).is_ok() {
                    let content = region.content();
                    *region = host.share(&content, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
                }
            }
            Act::End {
                host,
                connection,
                abort,
            } => {
                let side = &self.sides[*host];
                let qp = side.qps[*connection].number;
                side.host.command(match abort {
                    true => Command::Abort(qp),
                    false => Command::Disconnect(qp),
                });
            }
            Act::Hold { host } => self.sides[*host].host.device().hold(),
            Act::Complete { host } => self.sides[*host].host.device().complete(),
            Act::Queue { host, len } => self.sides[*host].host.device().set_queue_len(*len),
            Act::Route { host, mtu } => {
                let [one, other] = &mut self.sides;
                let (from, to) = if *host == 0 {
                    (one, other)
                } else {
                    (other, one)
                };
                from.host.set_route(to.host.address.into(), *mtu);
            }
            Act::TooBig { host, mtu } => self.hear_too_big(*host, *mtu),
        }
    }

    /// Time passes until the next alarm, devices give frames back, applications take completions, and all that comes
    /// of it happens. Says whether there was an alarm to wait for, or frames are on their way.
    pub(crate) fn come_to_rest(&mut self, alarm: Option<Instant>) -> bool {
        for host in 0..2 {
            let device = self.sides[host].host.device();
            device.complete();
            device.set_queue_len(usize::MAX);
            for connection in 0..self.sides[host].qps.len() {
                self.poll(host, connection, usize::MAX);
            }
        }
        self.exchange(64, 16, Duration::from_micros(1));
        // What an alarm an hour away is for is of no interest.
        let alarm = alarm.filter(|at| *at < self.now + Duration::from_secs(100));
        self.wait_for(alarm);
        alarm.is_some() || self.sides.iter().any(|side| !side.coming.is_empty())
    }

    fn wait_for(&mut self, alarm: Option<Instant>) {
        self.now = self.now.max(alarm.unwrap_or(self.now));
        for host in 0..2 {
            self.turn(host, 0);
        }
    }

    /// Batches arrive until nothing is under way.
    fn exchange(&mut self, rounds: usize, batch: usize, apart: Duration) {
        let mut quiet = 0;
        for _ in 0..rounds {
            let mut any = false;
            for host in 0..2 {
                any |= !self.sides[host].coming.is_empty();
                any |= self.turn(host, batch) > 0;
                self.now = self.now + apart;
            }
            quiet = if any { 0 } else { quiet + 1 };
            // What was owed in the one turn is sent in the next.
            if quiet == 2 {
                break;
            }
        }
    }

    /// Each side waits for what the other says.
    fn play(&mut self, connection: usize, rounds: usize, requests: &[Request; 2], apart: Duration) {
        for round in 0..rounds {
            for (host, request) in requests.iter().enumerate() {
                // Writes and Sends follow each other.
                let request = &match (round % 3, request.operation) {
                    (2, Operation::Write) => Request {
                        operation: Operation::Send,
                        ..*request
                    },
                    (2, _) => Request {
                        operation: Operation::Write,
                        ..*request
                    },
                    _ => *request,
                };
                self.post(host, connection, request, round);
                self.turn(host, usize::MAX);
                self.now = self.now + apart;
                self.turn(1 - host, usize::MAX);
                self.poll(host, connection, 4);
                self.poll(1 - host, connection, 4);
            }
        }
    }

    /// Turns of a host, in the first of which frames arrive, until it has sent all that it can. Returns how many it sent.
    ///
    /// In which order connections have their turn is not compared: one with a fast path may wait in the line, or have its
    /// timer looked at, where it has nothing to do in the end, and the other way round.
    fn turn(&mut self, host: usize, most: usize) -> usize {
        let side = &mut self.sides[host];
        let frames = side.arrive(most, self.tagged, self.unfinished);
        let frames = frames.iter().map(|(frame, told)| (frame.as_slice(), *told));
        let (_, mut sent) = side.host.turn_with(self.now, frames);
        loop {
            let (_, more) = side.host.turn_with(self.now, std::iter::empty());
            if more.is_empty() {
                break;
            }
            sent.extend(more);
        }
        sent.sort_by_key(|frame| connection_of(frame));
        let count = sent.len();
        self.reached.frames += count as u64;
        for frame in sent {
            self.log.push(Seen::Sent {
                host,
                now: self.now,
                frame: frame.clone(),
            });
            if parse(&frame, Checksums::Unnecessary)
                .is_ok_and(|packet| !packet.segment.payload.is_empty())
            {
                self.sides[host].latest = Some(frame.clone());
            }
            self.sides[1 - host].enqueue(frame);
        }
        count
    }

    fn poll(&mut self, host: usize, connection: usize, most: usize) {
        for _ in 0..most {
            let Some(completion) = self.sides[host].qps[connection].poll_one() else {
                break;
            };
            self.reached.completions += u64::from(completion.status() == WcStatus::Success);
            self.log.push(Seen::Completed {
                host,
                connection,
                completion,
            });
        }
    }

    fn post(&mut self, host: usize, connection: usize, request: &Request, time: usize) {
        self.requests += 1;
        let wr = self.request(host, request, time);
        let waits = matches!(
            request.operation,
            Operation::Send
                | Operation::SendInvalidate
                | Operation::WriteImmediate
                | Operation::Immediate
        );
        if waits && !self.requests.is_multiple_of(16) {
            let other = &mut self.sides[1 - host];
            let wr = receive(&other.regions[0], self.requests, 12_000);
            other.post_receive(connection, wr);
        }
        let Side { host, qps, .. } = &mut self.sides[host];
        let qp = &mut qps[connection];
        if qp.room().0 > 0 {
            host.post_send(qp, wr);
        }
    }

    fn request(&self, host: usize, request: &Request, time: usize) -> SendWr {
        let (ours, theirs) = (&self.sides[host], &self.sides[1 - host]);
        let (id, len) = (self.requests, request.len);
        let of = |stags: [u32; 4], which: usize| stags.get(which).copied().unwrap_or(0x0a0b_0c0d);
        let (lkey, remote) = (
            of(ours.stags(), request.local),
            of(theirs.stags(), request.remote),
        );
        let opcode = match request.operation {
            Operation::Write => WrOpcode::Write,
            Operation::Send => WrOpcode::Send,
            Operation::Read => WrOpcode::Read,
            Operation::SendInvalidate => WrOpcode::SendInvalidate,
            Operation::WriteImmediate => WrOpcode::WriteImmediate,
            Operation::Immediate => WrOpcode::Immediate,
            Operation::LocalInvalidate => WrOpcode::LocalInvalidate,
            Operation::FetchAdd | Operation::CmpSwap | Operation::BindWindow => {
                return self.special(host, request, lkey, remote);
            }
        };
        let piece = |from: usize, len: usize| Sge {
            offset: (id * 64 % 4096) + from as u64,
            length: len as u32,
            lkey,
        };
        let half = len / 2;
        let octets = [id as u8; 64];
        let wr = SendWr {
            invalidate_stag: match request.operation {
                Operation::LocalInvalidate => ours.window.0,
                _ => theirs.window.0,
            },
            ..SendWr::new(id, opcode)
        };
        let wr = match request.inline {
            true => wr.with_inline(&octets[..len]),
            false if request.gathered => {
                wr.with_sges(&[piece(0, half), piece(half + 100, len - half)])
            }
            false => wr.with_sges(&[piece(0, len)]),
        };
        let step = (time * len % 4096) as u64;
        wr.expect("no longer than there may be")
            .with_remote(
                Stag(remote),
                TaggedOffset(request.offset.wrapping_add(step)),
            )
            .with_immediate([id as u8; 8])
            .with_flags(request.flags)
    }

    /// Atomics, and what is done without a message.
    fn special(&self, host: usize, request: &Request, lkey: u32, remote: u32) -> SendWr {
        let ours = &self.sides[host];
        let id = self.requests;
        let wr = match request.operation {
            Operation::BindWindow => {
                let binding = Binding {
                    stag: ours.window.0,
                    region: ours.regions[0].stag.0,
                    length: 8192,
                    access: (Access::REMOTE_WRITE | Access::REMOTE_READ).0,
                    ..Binding::default()
                };
                SendWr::bind(id, WrOpcode::BindWindow, &binding)
            }
            operation => {
                let sink = Sge {
                    offset: RECEIVES_AT - 8,
                    length: 8,
                    lkey,
                };
                let operation = match operation {
                    Operation::FetchAdd => AtomicOperation::FetchAdd { add: id, mask: 0 },
                    _ => AtomicOperation::CmpSwap {
                        swap: id,
                        swap_mask: u64::MAX,
                        compare: 0,
                        compare_mask: 0,
                    },
                };
                SendWr::atomic(id, operation, sink)
            }
        };
        wr.with_remote(Stag(remote), TaggedOffset(request.offset & !7))
            .with_flags(request.flags)
    }

    /// A router says that the last frame with a payload was too big.
    fn hear_too_big(&mut self, host: usize, mtu: u16) {
        let side = &mut self.sides[host];
        let Some(frame) = &side.latest else { return };
        let (Some((local, remote)), Ok(packet)) =
            (addresses(frame), parse(frame, Checksums::Unnecessary))
        else {
            return;
        };
        let seq = packet.segment.header.seq;
        side.host.handle_too_big(
            self.now,
            &TooBig {
                local,
                remote,
                seq,
                mtu,
            },
        );
    }
}

/// The port that only one connection has.
fn connection_of(frame: &[u8]) -> Option<u16> {
    addresses(frame).map(|(one, other)| one.port().max(other.port()))
}

fn receive(region: &SharedRegion, id: u64, len: usize) -> RecvWr {
    let piece = Sge {
        offset: RECEIVES_AT + id * 64 % 2048,
        length: len as u32,
        lkey: region.stag.0,
    };
    // Few have no room: a connection seldom survives one.
    let pieces = if id.is_multiple_of(199) {
        &[][..]
    } else {
        &[piece][..]
    };
    RecvWr::new(id, pieces).expect("one piece fits")
}

/// A text without the numbers that stand behind this.
fn without_numbers_behind(text: &str, front: &str) -> String {
    let pieces = text.split(front);
    let cut = |piece: &str| {
        piece
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .to_owned()
    };
    pieces.map(cut).collect::<Vec<_>>().join(front)
}
