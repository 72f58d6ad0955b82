//! Two ends of a TCP connection and a link in the hands of an adversary, who drops, holds back,
//! duplicates, damages and forges segments, and decides how time passes. Nothing panics; each
//! stream is what was sent; windows are kept to and never taken back; a timer runs while anything
//! is in flight; no frame is lost. While the adversary only drops, duplicates and reorders, both
//! streams arrive whole in the end, or the connection has failed by a timeout.
#![no_main]

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rnic_core::memory::frames::{CONTROL_FRAMES, TxFrames};
use rnic_core::tcp::{Outgoing, Payload, Seq, SpilledOctets, State, Tcp, TcpConfig, TcpFailure};
use rnic_core::testing::VecFrames;
use rnic_core::time::Instant;
use rnic_core::wire::checksum;
use rnic_core::wire::tcp::{
    Flags, HEADER_LEN, SackBlocks, TcpHeader, TcpOptions, TcpSegment, Timestamps,
};

const FRAMES: usize = 24 + CONTROL_FRAMES;
/// Where payloads stand in frames: the longest TCP header fits in front.
const PAYLOAD_AT: usize = 64;
const MAX_OCTETS: u64 = 30_000;
const MAX_ACTIONS: usize = 200;
/// Longer than a connection takes to give up.
const LONG: Duration = Duration::from_secs(4 * 3600);

#[derive(Arbitrary, Debug)]
struct Input {
    /// The adversary comes after the handshake.
    connected: bool,
    isns: [u32; 2],
    settings: [Settings; 2],
    actions: Vec<Action>,
}

#[derive(Arbitrary, Debug)]
struct Settings {
    mss: u8,
    window: u16,
    timestamps: bool,
    sack: bool,
}

impl Settings {
    fn config(&self) -> TcpConfig {
        TcpConfig {
            mss: 88 + 6 * u16::from(self.mss),
            receive_window: 300 + 4 * u32::from(self.window),
            timestamps: self.timestamps,
            sack: self.sack,
            ..TcpConfig::default()
        }
    }
}

/// `end` names the sender of segments by its lowest bit.
#[derive(Arbitrary, Debug)]
enum Action {
    Write { end: u8, octets: u16 },
    Deliver { end: u8, count: u8 },
    Drop { end: u8, count: u8 },
    Duplicate { end: u8 },
    HoldBack { end: u8, places: u8 },
    Damage { end: u8, bit: u16 },
    Forge { end: u8, segment: Forged },
    Refuse { end: u8, segments: u8 },
    Wait { microseconds: u32 },
    Timer,
    Close { end: u8 },
    Abort { end: u8 },
}

/// A segment that neither end sent, near enough to be looked at.
#[derive(Arbitrary, Debug)]
struct Forged {
    flags: u8,
    seq: i16,
    ack: i16,
    window: u16,
    octets: u8,
    sack: Option<[(i16, i16); 2]>,
    timestamps: Option<(i16, i16)>,
    replace: bool,
}

fn octet(end: usize, offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ end as u8
}

/// The window of a segment. It is scaled if both ends have stated a shift count, but never in a SYN
/// (RFC 7323 section 2.2).
fn scaled(header: &TcpHeader, shift: Option<u8>, of_peer: Option<u8>) -> u32 {
    let scales = of_peer.is_some() && !header.flags.syn();
    u32::from(header.window) << shift.filter(|_| scales).unwrap_or(0)
}

struct End {
    number: usize,
    tcp: Option<Tcp>,
    config: TcpConfig,
    isn: Seq,
    frames: VecFrames,
    spilled: SpilledOctets,
    /// Octets to send, and those that are queued.
    total: u64,
    queued: u64,
    /// The end of what has left, and the right edge that the peer offered, as offsets.
    sent: u64,
    offered: u64,
    /// The octets that were taken, and where the first is missing.
    taken: Vec<bool>,
    next: u64,
    refusals: u8,
    closed: bool,
    /// The right edge that it offered; the shift counts that both ends stated.
    edge: Option<Seq>,
    shift: Option<u8>,
    peer_shift: Option<u8>,
}

impl End {
    fn new(number: usize, config: TcpConfig, isn: u32) -> Self {
        Self {
            number,
            tcp: None,
            config,
            isn: Seq(isn),
            frames: VecFrames::new(FRAMES),
            spilled: SpilledOctets::default(),
            total: 0,
            queued: 0,
            sent: 0,
            offered: 0,
            taken: vec![false; MAX_OCTETS as usize],
            next: 0,
            refusals: 0,
            closed: false,
            edge: None,
            shift: None,
            peer_shift: None,
        }
    }

    fn build(&mut self, now: Instant) {
        let Some(tcp) = &mut self.tcp else { return };
        while self.queued < self.total && tcp.wants_data(now) {
            if self.frames.available() <= CONTROL_FRAMES {
                return;
            }
            let Some(frame) = self.frames.allocate() else {
                return;
            };
            let len = (self.total - self.queued).min(tcp.max_payload() as u64) as usize;
            let payload = &mut self.frames.bytes_mut(frame)[PAYLOAD_AT..PAYLOAD_AT + len];
            for (offset, to) in (self.queued..).zip(payload.iter_mut()) {
                *to = octet(self.number, offset);
            }
            let sum = checksum::sum(payload);
            self.queued = tcp.queue(frame, PAYLOAD_AT as u16, len as u16, sum);
        }
    }

    /// The next segment. `honest`: the peer alone has said what is offered.
    fn poll(&mut self, now: Instant, honest: bool) -> Option<Vec<u8>> {
        self.build(now);
        let Outgoing {
            header, payload, ..
        } = self.tcp.as_mut()?.poll_transmit(now, &mut self.frames)?;
        let mut octets = vec![0; header.len()];
        header.emit(&mut octets);
        match payload {
            Payload::None => {}
            Payload::Whole {
                frame,
                payload_at,
                len,
                sum,
            } => {
                let at = usize::from(payload_at);
                let payload = &self.frames.bytes(frame)[at..at + usize::from(len)];
                assert_eq!(checksum::sum(payload), sum);
                octets.extend_from_slice(payload);
            }
            Payload::Part { frame, range } => {
                octets.extend_from_slice(&self.frames.bytes(frame)[range]);
            }
            Payload::Spilled(range) => octets.extend_from_slice(self.tcp.as_ref()?.spilled(range)),
        }
        let segment = TcpSegment::parse(&octets).expect("what is sent can be read");
        self.check_edge(&segment.header);
        self.check_data(&segment, honest);
        Some(octets)
    }

    /// The right edge of the window never moves back.
    fn check_edge(&mut self, header: &TcpHeader) {
        if header.flags.syn() {
            self.shift = header.options.window_scale;
        }
        if !header.flags.ack() || header.flags.rst() {
            return;
        }
        let window = scaled(header, self.shift, self.peer_shift);
        let edge = header.ack + window;
        if let Some(last) = self.edge {
            // A SYN that is sent again cannot state more than 65535.
            if header.flags.syn() {
                return;
            }
            assert!(
                edge.after_eq(last),
                "the window's right edge moves back from {last:?}: {header:?}"
            );
        }
        self.edge = Some(edge);
    }

    /// The octets are those of their place, and inside the window but for a probe.
    fn check_data(&mut self, segment: &TcpSegment<'_>, honest: bool) {
        if segment.payload.is_empty() || segment.header.flags.syn() {
            return;
        }
        let start = u64::from((segment.header.seq - self.isn.0.wrapping_add(1)).0);
        let end = start + segment.payload.len() as u64;
        assert!(end <= self.queued, "octets that were never queued");
        for (offset, sent) in (start..).zip(segment.payload) {
            assert_eq!(*sent, octet(self.number, offset));
        }
        if honest && end > self.offered {
            assert!(
                segment.payload.len() == 1,
                "{end} is beyond {}",
                self.offered
            );
        }
        self.sent = self.sent.max(end);
    }

    fn receive(&mut self, now: Instant, octets: &[u8], peer: &Self) {
        let Ok(segment) = TcpSegment::parse(octets) else {
            return;
        };
        self.note_offer(&segment.header);
        let Some(tcp) = &mut self.tcp else {
            if segment.header.flags.syn() && !segment.header.flags.ack() {
                self.tcp = Some(Tcp::accept(now, &self.config, self.isn, &segment));
            }
            return;
        };
        if tcp.state() == State::Closed {
            return;
        }
        let Ok(Some(data)) = tcp.receive(now, &segment, false, &mut self.frames) else {
            return;
        };
        let range = data.offset..data.offset + data.bytes.len() as u64;
        assert!(
            range.end <= MAX_OCTETS,
            "octets beyond all that can be sent"
        );
        for (offset, found) in range.clone().zip(data.bytes) {
            assert_eq!(*found, octet(peer.number, offset));
            assert!(!self.taken[offset as usize], "{offset} is offered again");
        }
        if self.refusals > 0 {
            self.refusals -= 1;
            return;
        }
        self.taken[range.start as usize..range.end as usize].fill(true);
        tcp.mark_received(now, range);
        let more = self.taken[self.next as usize..]
            .iter()
            .position(|taken| !taken);
        self.next = more.map_or(MAX_OCTETS, |more| self.next + more as u64);
    }

    /// What the peer, or a forger, allows to be sent.
    fn note_offer(&mut self, header: &TcpHeader) {
        // Later it may come again, or something damaged that looks like one.
        let opens = |tcp: &Tcp| tcp.state() == State::SynSent;
        if header.flags.syn() && self.tcp.as_ref().is_none_or(opens) {
            self.peer_shift = header.options.window_scale;
        }
        if header.flags.ack() {
            let acked = (header.ack - self.isn.0.wrapping_add(1)).0;
            let window = scaled(header, self.peer_shift, self.shift);
            let edge = u64::from(acked) + u64::from(window);
            // From the place of the SYN: of no use to data.
            if acked < u32::MAX {
                self.offered = self.offered.max(edge);
            }
        }
    }

    /// What holds between any two events.
    fn check(&self) {
        let Some(tcp) = &self.tcp else { return };
        assert_eq!(tcp.receive_offset(), self.next);
        let acked = tcp.acked_offset();
        assert!(acked <= self.queued);
        let over = matches!(tcp.state(), State::Closed | State::TimeWait);
        if !over && acked < self.sent {
            assert!(tcp.next_timeout().is_some(), "in flight without a timer");
        }
    }

    fn is_over(&self) -> bool {
        self.tcp.as_ref().is_some_and(|tcp| {
            let done = self.queued == self.total && tcp.acked_offset() == self.total;
            tcp.state() == State::Closed || done
        })
    }
}

struct World {
    now: Instant,
    ends: [End; 2],
    /// Segments on their way, by their sender.
    links: [VecDeque<Vec<u8>>; 2],
    honest: bool,
}

impl World {
    fn collect(&mut self) {
        for (end, link) in self.ends.iter_mut().zip(&mut self.links) {
            while let Some(octets) = end.poll(self.now, self.honest) {
                link.push_back(octets);
            }
            end.check();
        }
    }

    fn deliver(&mut self, from: usize) -> bool {
        let Some(octets) = self.links[from].pop_front() else {
            return false;
        };
        let [a, b] = &mut self.ends;
        let (sender, receiver) = if from == 0 { (a, b) } else { (b, a) };
        receiver.receive(self.now, &octets, sender);
        self.collect();
        true
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        for end in &mut self.ends {
            if let Some(tcp) = &mut end.tcp {
                tcp.handle_timeout(self.now);
                tcp.spill(&mut end.frames, &end.spilled);
            }
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let tcps = self.ends.iter().filter_map(|end| end.tcp.as_ref());
        tcps.filter_map(Tcp::next_timeout).min()
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Write { end, octets } => {
                let end = &mut self.ends[usize::from(end & 1)];
                if !end.closed {
                    end.total = (end.total + u64::from(octets)).min(MAX_OCTETS);
                }
            }
            Action::Deliver { end, count } => {
                let _ = (0..=count).all(|_| self.deliver(usize::from(end & 1)));
            }
            Action::Drop { end, count } => {
                let link = &mut self.links[usize::from(end & 1)];
                link.drain(..link.len().min(usize::from(count) + 1));
            }
            Action::Duplicate { end } => {
                let link = &mut self.links[usize::from(end & 1)];
                link.extend(link.front().cloned());
            }
            Action::HoldBack { end, places } => {
                let link = &mut self.links[usize::from(end & 1)];
                if let Some(octets) = link.pop_front() {
                    link.insert(link.len().min(usize::from(places)), octets);
                }
            }
            Action::Damage { end, bit } => self.damage(usize::from(end & 1), bit.into()),
            Action::Forge { end, segment } => self.forge(usize::from(end & 1), &segment),
            Action::Refuse { end, segments } => {
                self.ends[usize::from(end & 1)].refusals = segments % 8;
            }
            Action::Wait { microseconds } => self.pass(Duration::from_micros(microseconds.into())),
            Action::Timer => {
                if let Some(at) = self.next_timeout() {
                    self.pass(at.since(self.now));
                }
            }
            Action::Close { end } => {
                let end = &mut self.ends[usize::from(end & 1)];
                if let Some(tcp) = &mut end.tcp {
                    end.total = end.queued;
                    end.closed = true;
                    tcp.close(self.now);
                }
            }
            Action::Abort { end } => {
                self.honest = false;
                if let Some(tcp) = &mut self.ends[usize::from(end & 1)].tcp {
                    tcp.abort();
                }
            }
        }
        self.collect();
    }

    /// Changes a bit of the next segment's header.
    fn damage(&mut self, from: usize, bit: usize) {
        let Some(octets) = self.links[from].front_mut() else {
            return;
        };
        self.honest = false;
        // Its length may be what an earlier change has damaged.
        let header = (usize::from(octets[12] >> 4) * 4).clamp(HEADER_LEN, octets.len());
        octets[bit / 8 % header] ^= 1 << (bit % 8);
        // Data may now stand at another place: it is that place's.
        restore(octets, from, self.ends[from].isn);
    }

    fn forge(&mut self, from: usize, forged: &Forged) {
        self.honest = false;
        let (sender, receiver) = (&self.ends[from], &self.ends[1 - from]);
        let near = |seq: u32, distance: i16| Seq(seq.wrapping_add_signed(distance.into()));
        let seq = sender.isn.0.wrapping_add(1 + sender.sent as u32);
        let ack = receiver.isn.0.wrapping_add(1 + receiver.sent as u32);
        let mut blocks = SackBlocks::EMPTY;
        for (left, right) in forged.sack.into_iter().flatten() {
            blocks.push(near(ack, left), near(ack, right));
        }
        let milliseconds = self.now.as_millis() as u32;
        let header = TcpHeader {
            source_port: 1 + from as u16,
            destination_port: 2 - from as u16,
            seq: near(seq, forged.seq),
            ack: near(ack, forged.ack),
            flags: Flags(forged.flags),
            window: forged.window,
            options: TcpOptions {
                sack: blocks,
                timestamps: forged.timestamps.map(|(value, echo)| Timestamps {
                    value: milliseconds.wrapping_add_signed(value.into()),
                    echo: milliseconds.wrapping_add_signed(echo.into()),
                }),
                ..TcpOptions::default()
            },
            ..TcpHeader::default()
        };
        let mut octets = vec![0; header.len() + usize::from(forged.octets)];
        header.emit(&mut octets);
        restore(&mut octets, from, sender.isn);
        if forged.replace {
            self.links[from].pop_front();
        }
        self.links[from].push_front(octets);
    }

    /// The adversary is gone: everything arrives, and timers run, until nothing is left to be done.
    fn settle(&mut self) {
        let end = self.now + LONG;
        for refusals in self.ends.iter_mut().map(|end| &mut end.refusals) {
            *refusals = 0;
        }
        self.collect();
        while self.now < end {
            while self.deliver(0) | self.deliver(1) {}
            if self.ends.iter().all(End::is_over) {
                return;
            }
            match self.next_timeout() {
                Some(at) => self.pass(at.since(self.now)),
                None => return,
            }
            self.collect();
        }
    }
}

/// Writes the octets of a segment anew, as those of the place that its header states. A place that
/// no stream reaches keeps none: a forger who guesses octets there is believed by any TCP.
fn restore(octets: &mut Vec<u8>, from: usize, isn: Seq) {
    let Ok(segment) = TcpSegment::parse(octets) else {
        return;
    };
    let header = octets.len() - segment.payload.len();
    let syn = u32::from(segment.header.flags.syn());
    let start = (segment.header.seq + syn - isn.0.wrapping_add(1)).0;
    let distance = i64::from(start.cast_signed());
    if distance < 0 || distance as u64 + (octets.len() - header) as u64 > MAX_OCTETS {
        octets.truncate(header);
    }
    for (offset, to) in (u64::from(start)..).zip(&mut octets[header..]) {
        *to = octet(from, offset);
    }
}

fuzz_target!(|input: Input| {
    let now = Instant::ZERO + Duration::from_secs(5000);
    let [one, other] = input.settings.each_ref().map(Settings::config);
    let mut world = World {
        now,
        ends: [
            End::new(0, one, input.isns[0]),
            End::new(1, other, input.isns[1]),
        ],
        links: Default::default(),
        honest: true,
    };
    let first = &mut world.ends[0];
    first.tcp = Some(Tcp::connect(now, &first.config, 1, 2, first.isn));
    world.collect();
    while input.connected && (world.deliver(0) || world.deliver(1)) {}
    for action in input.actions.into_iter().take(MAX_ACTIONS) {
        world.act(action);
    }
    world.settle();
    let both_began = world.ends.iter().all(|end| end.tcp.is_some());
    for (number, end) in world.ends.iter_mut().enumerate() {
        let Some(tcp) = &mut end.tcp else { continue };
        let failed = tcp.failure().is_some();
        if world.honest && both_began && !failed && tcp.state() == State::Established {
            assert_eq!(tcp.acked_offset(), end.total, "end {number} never finished");
        }
        if world.honest {
            let timed_out = matches!(
                tcp.failure(),
                None | Some(TcpFailure::TimedOut | TcpFailure::Reset)
            );
            assert!(timed_out, "{:?}", tcp.failure());
        }
        tcp.abort();
        tcp.release_frames(&mut end.frames);
        assert_eq!(
            end.frames.available(),
            FRAMES,
            "frames of end {number} are lost"
        );
        assert_eq!(end.spilled.load(Ordering::Relaxed), 0);
    }
});
