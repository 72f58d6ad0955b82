//! Two ends against each other over a link that loses, reorders and duplicates, on virtual time.

use core::time::Duration;
use std::collections::BTreeMap;

use super::script::{ms, pattern, plain, seconds};
use crate::memory::frames::{FrameId, RESERVED_FRAMES, TxFrames};
use crate::tcp::ranges::RangeSet;
use crate::tcp::{BurstSegments, Outgoing, Payload, Seq, SpilledOctets, State, Tcp, TcpConfig};
use crate::testing::VecFrames;
use crate::time::Instant;
use crate::wire::checksum;
use crate::wire::tcp::{TcpHeader, TcpSegment};

/// SplitMix64: the same numbers for the same seed, everywhere.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// What the link and the applications do to the connection.
#[derive(Clone)]
struct Trouble {
    loss: u64,
    duplication: u64,
    reordering: u64,
    delay: Duration,
    /// Probability that the owner does not take what it is offered.
    refusal: u64,
    /// Probability that the owner keeps (almost) a whole window buffered for a while.
    held: u64,
    /// The device keeps frames busy for some time.
    slow_device: bool,
}

const CLEAN: Trouble = Trouble {
    loss: 0,
    duplication: 0,
    reordering: 0,
    delay: ms(5),
    refusal: 0,
    held: 0,
    slow_device: false,
};

const BAD: Trouble = Trouble {
    loss: 5,
    duplication: 3,
    reordering: 10,
    ..CLEAN
};

struct End {
    tcp: Option<Tcp>,
    config: TcpConfig,
    isn: Seq,
    frames: VecFrames,
    spill: SpilledOctets,
    /// Octets to send, and those queued.
    total: u64,
    queued: u64,
    acked: u64,
    taken: RangeSet,
    released_at: Option<Instant>,
    /// Right edges advertised so far, as sequence numbers scaled by what our SYN offered.
    scale: u32,
    edge: Option<Seq>,
    closed: bool,
    salt: u64,
}

impl End {
    fn new(config: &TcpConfig, isn: u64, total: u64, salt: u64, trouble: &Trouble) -> Self {
        let mut frames = VecFrames::new(400);
        if trouble.slow_device {
            frames.hold();
        }
        Self {
            tcp: None,
            config: config.clone(),
            isn: Seq(isn as u32),
            frames,
            spill: SpilledOctets::default(),
            total,
            queued: 0,
            acked: 0,
            taken: RangeSet::default(),
            released_at: None,
            scale: 0,
            edge: None,
            closed: false,
            salt,
        }
    }

    fn octet(&self, offset: u64) -> u8 {
        pattern(offset ^ self.salt)
    }

    /// Queues what the connection wants, closes after the last octet.
    fn build(&mut self, now: Instant) {
        let Some(tcp) = self.tcp.as_mut() else { return };
        if self.queued < self.total
            && tcp.wants_data(now)
            && self.frames.available() > RESERVED_FRAMES
        {
            let most = tcp.max_payload();
            let (frame, len, sum) = self.build_frame(most);
            let Some(tcp) = self.tcp.as_mut() else { return };
            assert_eq!(tcp.queue(frame, 74, len, sum), self.queued);
        }
        let Some(tcp) = self.tcp.as_mut() else { return };
        if self.queued == self.total && !self.closed && !tcp.state().is_opening() {
            tcp.close(now);
            self.closed = true;
        }
    }

    /// A frame with the next octets, `most` at most.
    fn build_frame(&mut self, most: usize) -> (FrameId, u16, u16) {
        let len = (self.total - self.queued).min(most as u64) as usize;
        let frame = self.frames.allocate().unwrap();
        let payload = &mut self.frames.bytes_mut(frame)[74..74 + len];
        for (offset, octet) in (self.queued..).zip(payload.iter_mut()) {
            *octet = pattern(offset ^ self.salt);
        }
        let sum = checksum::sum(payload);
        self.queued += len as u64;
        (frame, len as u16, sum)
    }

    /// Returns the next segment as a burst of one, for half of those that may be sent so.
    fn burst(&mut self, now: Instant) -> Option<Vec<u8>> {
        let tcp = self.tcp.as_mut()?;
        let most = tcp.max_payload();
        let chosen = (self.queued / most as u64).is_multiple_of(2);
        if !chosen || self.queued == self.total || self.frames.available() <= 2 {
            return None;
        }
        let mut burst = BurstSegments::eligible(tcp, now)?;
        let (frame, len, sum) = self.build_frame(most);
        let tcp = self.tcp.as_mut()?;
        burst.send(tcp, now, frame, 74..74 + len, sum, false);
        let header = TcpHeader::from(*burst.header());
        let mut octets = vec![0; header.len()];
        header.emit(&mut octets);
        burst.commit(tcp, now);
        octets.extend_from_slice(&self.frames.bytes(frame)[74..74 + usize::from(len)]);
        self.transmit(frame);
        Some(octets)
    }

    /// Returns the next segment as octets.
    fn poll(&mut self, now: Instant) -> Option<Vec<u8>> {
        if let Some(octets) = self.burst(now) {
            self.check_edge(&TcpSegment::parse(&octets).unwrap());
            return Some(octets);
        }
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
                assert_eq!(payload_at, 74);
                assert!(
                    !self.frames.busy(frame),
                    "a frame is sent again while the device has it"
                );
                let payload = &self.frames.bytes(frame)[74..74 + usize::from(len)];
                assert_eq!(checksum::sum(payload), sum);
                octets.extend_from_slice(payload);
                self.transmit(frame);
            }
            Payload::Part { frame, range } => {
                octets.extend_from_slice(&self.frames.bytes(frame)[range])
            }
            Payload::Spilled(range) => octets.extend_from_slice(self.tcp.as_ref()?.spilled(range)),
        }
        self.check_edge(&TcpSegment::parse(&octets).unwrap());
        Some(octets)
    }

    fn transmit(&mut self, frame: FrameId) {
        self.frames.transmit(frame, 1);
        self.frames.take_transmitted();
    }

    /// The right edge of the window never moves back.
    fn check_edge(&mut self, segment: &TcpSegment<'_>) {
        let header = &segment.header;
        if let Some(scale) = header.options.window_scale {
            self.scale = u32::from(scale);
        }
        if !header.flags.ack() || header.flags.rst() {
            return;
        }
        let scale = if header.flags.syn() { 0 } else { self.scale };
        let edge = header.ack + (u32::from(header.window) << scale);
        if let Some(last) = self.edge {
            assert!(edge.after_eq(last), "the window's right edge moved back");
        }
        self.edge = Some(edge);
    }

    fn receive(
        &mut self,
        now: Instant,
        octets: &[u8],
        peer: &End,
        random: &mut Random,
        trouble: &Trouble,
    ) {
        let segment = TcpSegment::parse(octets).unwrap();
        let tcp = match &mut self.tcp {
            Some(tcp) => tcp,
            None if segment.header.flags.syn() => {
                self.tcp = Some(Tcp::accept(now, &self.config, self.isn, &segment));
                return;
            }
            None => return,
        };
        if tcp.state() == State::Closed {
            return;
        }
        if let Ok(Some(data)) = tcp.receive(now, &segment, false, &mut self.frames) {
            let range = data.offset..data.offset + data.bytes.len() as u64;
            assert!(range.end <= peer.queued, "data that was never sent");
            for (offset, octet) in range.clone().zip(data.bytes) {
                assert_eq!(*octet, peer.octet(offset), "the octet at {offset}");
            }
            assert_eq!(
                self.taken.first_gap(range.clone()),
                range,
                "offered what was taken"
            );
            if !random.percent(trouble.refusal) {
                tcp.mark_received(now, range.clone());
                self.taken.insert(range);
            }
        }
        if random.percent(trouble.held) && self.released_at.is_none() {
            tcp.set_buffered(self.config.receive_window - random.below(3) as u32 * 700, 0);
            self.released_at = Some(now + Duration::from_millis(random.below(1500)));
        }
        let acked = tcp.acked_offset();
        assert!(acked >= self.acked && acked <= self.queued);
        self.acked = acked;
    }

    fn next_timeout(&self) -> Option<Instant> {
        let timer = self.tcp.as_ref().and_then(Tcp::next_timeout);
        [timer, self.released_at].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.frames.complete();
        let Some(tcp) = self.tcp.as_mut() else { return };
        if self.released_at.is_some_and(|at| at <= now) {
            self.released_at = None;
            tcp.set_buffered(0, 0);
        }
        tcp.handle_timeout(now);
        tcp.spill(&mut self.frames, &self.spill);
    }

    fn is_over(&self) -> bool {
        self.tcp
            .as_ref()
            .is_some_and(|tcp| matches!(tcp.state(), State::Closed | State::TimeWait))
    }
}

/// Runs two connections from SYN to the end. Returns the time that it took, and both ends.
fn run(
    seed: u64,
    configs: [&TcpConfig; 2],
    totals: [u64; 2],
    trouble: &Trouble,
) -> (Duration, [End; 2]) {
    let mut random = Random(seed);
    let begin = Instant::ZERO + seconds(5000);
    let mut now = begin;
    let [a_isn, b_isn] = [random.next(), random.next()];
    let mut ends = [
        End::new(configs[0], a_isn, totals[0], 0, trouble),
        End::new(configs[1], b_isn, totals[1], 0x5555_5555, trouble),
    ];
    ends[0].tcp = Some(Tcp::connect(now, configs[0], 1, 2, ends[0].isn));
    let mut link: BTreeMap<(Instant, u64), (usize, Vec<u8>)> = BTreeMap::new();
    let mut number = 0;
    while !(ends[0].is_over() && ends[1].is_over()) {
        for (from, end) in ends.iter_mut().enumerate() {
            while let Some(octets) = end.poll(now) {
                for _ in 0..=u64::from(random.percent(trouble.duplication)) {
                    let mut delay = trouble.delay;
                    if random.percent(trouble.reordering) {
                        delay += Duration::from_micros(random.below(20_000));
                    }
                    number += 1;
                    if !random.percent(trouble.loss) {
                        link.insert((now + delay, number), (1 - from, octets.clone()));
                    }
                }
            }
        }
        let arrival = link.keys().next().map(|key| key.0);
        let timers = ends.iter().filter_map(End::next_timeout);
        let next = timers
            .chain(arrival)
            .min()
            .expect("something is still to happen");
        now = now.max(next);
        assert!(
            now.since(begin) < seconds(3600),
            "seed {seed}: no end in sight"
        );
        let [a, b] = &mut ends;
        while let Some(entry) = link.first_entry()
            && entry.key().0 <= now
        {
            match entry.remove() {
                (0, octets) => a.receive(now, &octets, b, &mut random, trouble),
                (_, octets) => b.receive(now, &octets, a, &mut random, trouble),
            }
        }
        ends.iter_mut().for_each(|end| end.handle_timeout(now));
    }
    (now.since(begin), ends)
}

/// Runs two connections, and checks that everything arrived and both ends closed in order.
fn check(seed: u64, configs: [&TcpConfig; 2], totals: [u64; 2], trouble: &Trouble) -> Duration {
    let (time, mut ends) = run(seed, configs, totals, trouble);
    for (end, sent) in ends.iter_mut().zip([totals[1], totals[0]]) {
        let tcp = end.tcp.as_ref().unwrap();
        assert_eq!(tcp.failure(), None, "seed {seed}");
        assert!(tcp.peer_closed());
        assert_eq!(tcp.receive_offset(), sent, "seed {seed}");
        assert_eq!(end.taken.first_gap(0..sent), sent..sent, "seed {seed}");
        assert!(end.taken.len() <= 1);
        assert_eq!(tcp.acked_offset(), end.total, "seed {seed}");
        end.frames.complete();
        assert_eq!(
            end.frames.available(),
            400,
            "seed {seed}: frames are still held"
        );
    }
    time
}

const BOTH: [u64; 2] = [300_000, 300_000];

fn full() -> TcpConfig {
    TcpConfig::default()
}

#[test]
fn a_clean_link_carries_both_streams_without_any_retransmission() {
    let (time, ends) = run(1, [&full(), &full()], BOTH, &CLEAN);
    for end in &ends {
        let counters = end.tcp.as_ref().unwrap().counters();
        assert_eq!(
            (counters.retransmits, counters.timeouts, counters.duplicates),
            (0, 0, 0)
        );
        assert_eq!(
            (counters.octets_sent, counters.octets_received),
            (300_000, 300_000)
        );
    }
    // Six windows from ten segments on, each of 10 ms, with the handshake and the close.
    assert!(time < ms(100), "{time:?}");
}

#[test]
fn loss_reordering_and_duplication_with_sack_and_timestamps() {
    for seed in 0..150 {
        check(seed, [&full(), &full()], BOTH, &BAD);
    }
}

#[test]
fn loss_reordering_and_duplication_without_options() {
    let bare = TcpConfig {
        sack: false,
        timestamps: false,
        ..full()
    };
    for seed in 0..150 {
        check(seed, [&bare, &full()], BOTH, &BAD);
    }
}

#[test]
fn heavy_loss() {
    let trouble = Trouble { loss: 20, ..BAD };
    for seed in 0..60 {
        check(seed, [&full(), &full()], [60_000, 30_000], &trouble);
    }
}

#[test]
fn an_owner_that_refuses_and_windows_that_close() {
    let trouble = Trouble {
        loss: 2,
        refusal: 5,
        held: 3,
        ..BAD
    };
    let small = TcpConfig {
        receive_window: 9_000,
        ..plain()
    };
    for seed in 0..100 {
        check(seed, [&small, &full()], [100_000, 100_000], &trouble);
    }
}

#[test]
fn segments_of_different_sizes_and_odd_windows() {
    for seed in 0..60 {
        let mut random = Random(seed ^ 0xabcd);
        let mut config = || TcpConfig {
            mss: 88 + random.below(2900) as u16,
            receive_window: 300 + random.below(200_000) as u32,
            timestamps: random.percent(50),
            sack: random.percent(50),
            ..full()
        };
        check(seed, [&config(), &config()], [80_000, 50_001], &BAD);
    }
}

#[test]
fn a_device_that_keeps_frames_busy() {
    let trouble = Trouble {
        slow_device: true,
        ..BAD
    };
    for seed in 0..40 {
        check(seed, [&full(), &full()], [100_000, 100_000], &trouble);
    }
}

#[test]
fn one_side_sends_nothing() {
    for seed in 0..40 {
        check(seed, [&full(), &full()], [50_000, 0], &BAD);
        check(seed, [&full(), &full()], [0, 0], &BAD);
    }
}
