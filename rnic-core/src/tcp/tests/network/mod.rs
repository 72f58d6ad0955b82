//! Connections that share a bottleneck, on virtual time: how congestion control uses a path.
//!
//! Each connection sends without end in one direction. Segments wait in the bottleneck's queue, are
//! dropped where it is full, and some are lost or delayed by chance. ACKs are only delayed.

mod fairness;
mod grid;

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;

use super::pair::Random;
use crate::memory::frames::{FrameId, TxFrames};
use crate::tcp::{BurstSegments, Outgoing, Payload, Seq, Tcp, TcpConfig};
use crate::time::Instant;
use crate::wire::tcp::{TcpHeader, TcpSegment};

/// Octets of Ethernet, IP and TCP headers, and of preamble and gap between frames.
const OVERHEAD: u64 = 90;
const MAX_PAYLOAD: usize = 9000;
static PAYLOAD: [u8; MAX_PAYLOAD] = [0; MAX_PAYLOAD];

/// A path that all connections share.
#[derive(Clone)]
pub(super) struct Bottleneck {
    /// Bits per second.
    pub(super) bandwidth: u64,
    /// Octets that may wait.
    pub(super) queue: u64,
    /// Chances in a million.
    pub(super) loss: u64,
    pub(super) reordering: u64,
    /// How much later a reordered segment arrives.
    pub(super) late: Duration,
    /// From so many octets in the queue on, ECN-capable segments are marked.
    pub(super) mark_above: Option<u64>,
}

/// Transmit frames whose content is never read.
#[derive(Default)]
struct Blank {
    next: u32,
    free: Vec<FrameId>,
    bytes: Vec<u8>,
}

impl TxFrames for Blank {
    fn allocate(&mut self) -> Option<FrameId> {
        self.free.pop().or_else(|| {
            self.next += 1;
            Some(FrameId(self.next))
        })
    }

    fn available(&self) -> usize {
        usize::MAX
    }

    fn total(&self) -> usize {
        usize::MAX
    }

    fn bytes(&self, _: FrameId) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self, _: FrameId) -> &mut [u8] {
        &mut self.bytes
    }

    fn busy(&self, _: FrameId) -> bool {
        false
    }

    fn can_transmit(&self) -> bool {
        true
    }

    fn transmit(&mut self, _: FrameId, _: usize) {}

    fn release(&mut self, frame: FrameId) {
        self.free.push(frame);
    }
}

/// One end of a connection.
struct End {
    /// `None` until the SYN reaches a listener.
    tcp: Option<Tcp>,
    frames: Blank,
    alarm: Option<Instant>,
}

/// One connection: its sender and its receiver.
struct Flow {
    config: TcpConfig,
    round_trip: Duration,
    ends: [End; 2],
}

/// What happens to an end of a flow.
enum Event {
    Open,
    Arrival {
        header: Box<TcpHeader>,
        len: usize,
        marked: bool,
    },
    Alarm,
}

pub(super) struct Network {
    path: Bottleneck,
    random: Random,
    now: Instant,
    /// When the bottleneck has sent all that waits.
    free_at: Instant,
    flows: Vec<Flow>,
    /// By time, then by the order in which they were made.
    agenda: BinaryHeap<Reverse<(Instant, u64, usize, usize)>>,
    events: Vec<Option<Event>>,
    pub(super) dropped: u64,
    pub(super) marked: u64,
    pub(super) longest_queue: u64,
}

const SENDER: usize = 0;
const RECEIVER: usize = 1;

impl Network {
    pub(super) fn new(path: Bottleneck) -> Self {
        Self {
            path,
            random: Random(1),
            now: Instant::ZERO,
            free_at: Instant::ZERO,
            flows: Vec::new(),
            agenda: BinaryHeap::new(),
            events: Vec::new(),
            dropped: 0,
            marked: 0,
            longest_queue: 0,
        }
    }

    /// Adds a connection over this path, which opens at a time and sends without end. Returns its
    /// number.
    pub(super) fn open(&mut self, config: &TcpConfig, round_trip: Duration, at: Duration) -> usize {
        let end = || End {
            tcp: None,
            frames: Blank {
                bytes: vec![0; MAX_PAYLOAD],
                ..Blank::default()
            },
            alarm: None,
        };
        self.flows.push(Flow {
            config: config.clone(),
            round_trip,
            ends: [end(), end()],
        });
        let flow = self.flows.len() - 1;
        self.plan(Instant::ZERO + at, flow, SENDER, Event::Open);
        flow
    }

    /// Returns the sender of a connection.
    pub(super) fn sender(&self, flow: usize) -> &Tcp {
        self.flows[flow].ends[SENDER].tcp.as_ref().unwrap()
    }

    /// Returns the octets of a connection's stream that have arrived in order.
    pub(super) fn received(&self, flow: usize) -> u64 {
        let receiver = &self.flows[flow].ends[RECEIVER];
        receiver.tcp.as_ref().map_or(0, Tcp::receive_offset)
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// Runs the network for this long, or until so many segments have been handled.
    pub(super) fn run(&mut self, time: Duration, segments: u64) {
        let end = self.now + time;
        for _ in 0..segments {
            match self.agenda.peek() {
                Some(&Reverse((at, ..))) if at <= end => self.step(),
                _ => {
                    self.now = end;
                    return;
                }
            }
        }
    }

    fn plan(&mut self, at: Instant, flow: usize, end: usize, event: Event) {
        let number = self.events.len();
        self.events.push(Some(event));
        self.agenda.push(Reverse((at, number as u64, flow, end)));
    }

    fn step(&mut self) {
        let Reverse((at, number, flow, end)) = self.agenda.pop().unwrap();
        self.now = at;
        let event = self.events[number as usize].take().unwrap();
        let now = self.now;
        let Flow { config, ends, .. } = &mut self.flows[flow];
        let End { tcp, frames, alarm } = &mut ends[end];
        match (event, tcp) {
            (Event::Open, tcp) => *tcp = Some(Tcp::connect(now, config, 1, 2, Seq(flow as u32))),
            (Event::Alarm, Some(tcp)) => {
                *alarm = None;
                if tcp.next_timeout().is_some_and(|at| at <= now) {
                    tcp.handle_timeout(now);
                }
            }
            (
                Event::Arrival {
                    header,
                    len,
                    marked,
                },
                tcp,
            ) => {
                let segment = TcpSegment {
                    header: *header,
                    payload: &PAYLOAD[..len],
                };
                match tcp {
                    None => *tcp = Some(Tcp::accept(now, config, Seq(flow as u32), &segment)),
                    Some(tcp) => {
                        if let Ok(Some(data)) = tcp.receive(now, &segment, marked, frames) {
                            let range = data.offset..data.offset + data.bytes.len() as u64;
                            tcp.mark_received(now, range);
                        }
                    }
                }
            }
            (Event::Alarm, None) => {}
        }
        self.send(flow, end);
    }

    /// Sends all that an end of a flow may send now.
    fn send(&mut self, flow: usize, end: usize) {
        let now = self.now;
        loop {
            if end == SENDER {
                for outgoing in self.send_burst(flow) {
                    self.transmit(flow, SENDER, outgoing);
                }
            }
            let End { tcp, frames, .. } = &mut self.flows[flow].ends[end];
            let Some(tcp) = tcp else { return };
            if end == SENDER && tcp.wants_data(now) {
                let frame = frames.allocate().unwrap();
                tcp.queue(frame, 0, tcp.max_payload() as u16, 0);
            }
            let Some(outgoing) = tcp.poll_transmit(now, frames) else {
                break;
            };
            self.transmit(flow, end, outgoing);
        }
        let End { tcp, alarm, .. } = &mut self.flows[flow].ends[end];
        let wanted = tcp.as_ref().and_then(Tcp::next_timeout);
        if let Some(at) = wanted
            && alarm.is_none_or(|set| at < set)
        {
            *alarm = Some(at);
            self.plan(at.max(now), flow, end, Event::Alarm);
        }
    }

    /// Returns what the sender may send in a burst.
    fn send_burst(&mut self, flow: usize) -> Vec<Outgoing> {
        let now = self.now;
        let End { tcp, frames, .. } = &mut self.flows[flow].ends[SENDER];
        let mut sent = Vec::new();
        let Some(tcp) = tcp else { return sent };
        let segment = tcp.max_payload() as u16;
        let Some(mut burst) = BurstSegments::eligible(tcp, now) else {
            return sent;
        };
        let segments = burst.room() / u64::from(segment);
        for _ in 0..segments.min(16) {
            let frame = frames.allocate().unwrap();
            burst.send(tcp, now, frame, 0..segment, 0, false);
            sent.push(Outgoing {
                header: (*burst.header()).into(),
                payload: Payload::Whole {
                    frame,
                    payload_at: 0,
                    len: segment,
                    sum: 0,
                },
                ecn_capable: burst.ecn_capable(),
            });
        }
        burst.commit(tcp, now);
        sent
    }

    fn transmit(&mut self, flow: usize, end: usize, outgoing: Outgoing) {
        let len = match outgoing.payload {
            Payload::None => 0,
            Payload::Whole { len, .. } => usize::from(len),
            Payload::Part { range, .. } => range.len(),
            Payload::Spilled(range) => (range.end - range.start) as usize,
        };
        let half = self.flows[flow].round_trip / 2;
        let arrival = |marked| Event::Arrival {
            header: Box::new(outgoing.header),
            len,
            marked,
        };
        if end == RECEIVER {
            let event = arrival(false);
            return self.plan(self.now + half, flow, SENDER, event);
        }
        let Some((leaves_at, marked)) = self.pass_queue(len as u64, outgoing.ecn_capable) else {
            self.dropped += 1;
            return;
        };
        let late = self.random.below(1_000_000) < self.path.reordering;
        let late = if late { self.path.late } else { Duration::ZERO };
        let event = arrival(marked);
        self.plan(leaves_at + half + late, flow, RECEIVER, event);
    }

    /// Returns when a segment leaves the bottleneck, and whether it is marked there. `None` if it
    /// is dropped.
    fn pass_queue(&mut self, len: u64, capable: bool) -> Option<(Instant, bool)> {
        let time = |octets: u64| Duration::from_nanos(octets * 8_000_000_000 / self.path.bandwidth);
        let waiting = self.free_at.since(self.now).as_nanos() as u64;
        let queued = (u128::from(waiting) * u128::from(self.path.bandwidth) / 8_000_000_000) as u64;
        let size = len + OVERHEAD;
        let lost = self.random.below(1_000_000) < self.path.loss;
        if lost || queued + size > self.path.queue {
            return None;
        }
        self.longest_queue = self.longest_queue.max(queued + size);
        let marked = capable && self.path.mark_above.is_some_and(|limit| queued > limit);
        self.marked += u64::from(marked);
        self.free_at = self.free_at.max(self.now) + time(size);
        Some((self.free_at, marked))
    }
}
