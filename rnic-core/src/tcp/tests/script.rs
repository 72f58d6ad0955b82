//! A connection that a script drives.
//!
//! Segments are written as packetdrill writes them, with sequence numbers relative to each side's
//! SYN:
//!
//! ```text
//! SE. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,TS val 7 ecr 0,wscale 7>
//! P. 1:1001(1000) ack 1 win 500
//! . 1:1(0) ack 1001 <sack 2001:3001 4001:5001>
//! ```
//!
//! E is ECE and W is CWR; `[ect0]` and `[ce]` stand in front for the ECN field of the IP header.
//!
//! An expected segment is compared in the parts that the script writes: without `win` any window
//! will do, and without options it may have none but timestamps.

use core::ops::Range;
use core::time::Duration;

use crate::memory::frames::{FrameId, TxFrames};
use crate::tcp::{
    CongestionAlgorithm, DataWithSoleAck, NextData, Outgoing, Payload, Seq, State, Tcp, TcpConfig,
};
use crate::testing::VecFrames;
use crate::time::Instant;
use crate::wire::checksum;
use crate::wire::tcp::{Flags, TcpHeader, TcpOptions, TcpSegment, Timestamps};

/// Our initial sequence number, and the peer's: both wrap soon.
pub(super) const OUR_ISN: Seq = Seq(0xffff_f000);
pub(super) const PEER_ISN: Seq = Seq(0xffff_fc00);
pub(super) const PAYLOAD_AT: u16 = 100;

/// Returns the octet at an offset of either stream.
pub(super) fn pattern(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub(super) fn pattern_of(range: Range<u64>) -> Vec<u8> {
    range.map(pattern).collect()
}

pub(super) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns a configuration that keeps scripts short: only the options that the script's SYN asks
/// for, and windows that are easy to calculate.
pub(super) fn plain() -> TcpConfig {
    TcpConfig {
        mss: 1000,
        timestamps: false,
        receive_window: 60_000,
        receive_window_limit: 0,
        congestion: CongestionAlgorithm::NewReno,
        ..TcpConfig::default()
    }
}

pub(super) struct Script {
    pub(super) tcp: Tcp,
    pub(super) frames: VecFrames,
    pub(super) now: Instant,
    /// Whether offered data is taken.
    pub(super) take: bool,
    /// Octets that the application has yet to send, and those it has queued.
    pub(super) unqueued: u64,
    pub(super) queued: u64,
}

/// A segment as the script has it.
struct Written {
    header: TcpHeader,
    payload: Vec<u8>,
}

impl Script {
    fn over(tcp: Tcp, now: Instant) -> Self {
        Self {
            tcp,
            frames: VecFrames::new(256),
            now,
            take: true,
            unqueued: 0,
            queued: 0,
        }
    }

    /// Opens a connection actively; the SYN is not polled yet.
    pub(super) fn connect(config: &TcpConfig) -> Self {
        let now = Instant::ZERO + Duration::from_secs(1000);
        Self::over(Tcp::connect(now, config, 1000, 2000, OUR_ISN), now)
    }

    /// Opens a connection passively; the SYN-ACK is not polled yet.
    pub(super) fn accept(config: &TcpConfig, syn: &str) -> Self {
        let now = Instant::ZERO + Duration::from_secs(1000);
        let syn = parse(syn);
        let segment = TcpSegment {
            header: syn.header,
            payload: &syn.payload,
        };
        Self::over(Tcp::accept(now, config, OUR_ISN, &segment), now)
    }

    /// Makes an established connection with segments of 1000 octets, SACK if the peer has it, and
    /// the given window.
    pub(super) fn established(config: &TcpConfig, options: &str, window: u32) -> Self {
        let mut script = Self::connect(config);
        script.next().expect("a SYN");
        script.inject(&format!("S. 0:0(0) ack 1 win {window} <{options}>"));
        script.expect(". 1:1(0) ack 1");
        script
    }

    /// Makes an established connection over a path with this round-trip time, which has been
    /// measured.
    pub(super) fn over_path(config: &TcpConfig, options: &str, round_trip: Duration) -> Self {
        let mut script = Self::connect(config);
        script.next().expect("a SYN");
        script.pass(round_trip);
        script.inject(&format!("S. 0:0(0) ack 1 win 60000 <{options}>"));
        script.expect(". 1:1(0) ack 1");
        script
    }

    /// Expects segments of 1000 octets that begin at these thousands.
    #[track_caller]
    pub(super) fn expect_segments(&mut self, thousands: impl IntoIterator<Item = u64>) {
        for n in thousands {
            let start = n * 1000 + 1;
            self.expect(&format!(". {start}:{}(1000) ack 1", start + 1000));
        }
    }

    /// Injects a segment from the peer. Returns what was offered of it.
    pub(super) fn inject(&mut self, text: &str) -> Option<Range<u64>> {
        self.inject_by(text, true)
    }

    /// Injects a segment from the peer, which takes no fast path.
    pub(super) fn inject_long(&mut self, text: &str) -> Option<Range<u64>> {
        self.inject_by(text, false)
    }

    fn inject_by(&mut self, text: &str, short: bool) -> Option<Range<u64>> {
        let (text, congested) = match text.strip_prefix("[ce] ") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let Written { header, payload } = parse(text);
        let segment = TcpSegment {
            header,
            payload: &payload,
        };
        let next = self.tcp.receive_offset();
        let (now, frames) = (self.now, &mut self.frames);
        let may = short && self.take && !congested;
        if may && let Some(header) = header.of_data() {
            let range = next..next + payload.len() as u64;
            let (tcp, len) = (&mut self.tcp, payload.len());
            let took = if let Some(whole) = DataWithSoleAck::eligible(tcp, now, &header, len) {
                whole.commit(tcp, now, frames);
                true
            } else if let Some(next) = NextData::eligible(tcp, now, &header, len) {
                next.commit(tcp, now, frames);
                tcp.mark_next_received(now, len);
                true
            } else {
                false
            };
            if took {
                assert_eq!(payload, pattern_of(range.clone()), "of {range:?}");
                return Some(range);
            }
        }
        let data = self
            .tcp
            .receive(self.now, &segment, congested, &mut self.frames)
            .ok()??;
        let range = data.offset..data.offset + data.bytes.len() as u64;
        assert_eq!(
            data.bytes,
            pattern_of(range.clone()),
            "the offered octets are those at {range:?}"
        );
        if self.take {
            self.tcp.mark_received(self.now, range.clone());
        }
        Some(range)
    }

    /// Injects a segment from the peer if header prediction takes it. Returns whether it does.
    pub(super) fn inject_next(&mut self, text: &str) -> bool {
        let Written { header, payload } = parse(text);
        let Some(header) = header.of_data() else {
            return false;
        };
        let Some(next) = NextData::eligible(&self.tcp, self.now, &header, payload.len()) else {
            return false;
        };
        next.commit(&mut self.tcp, self.now, &mut self.frames);
        self.tcp.mark_next_received(self.now, payload.len());
        true
    }

    /// Returns the least initial sequence number with which a SYN may replace the connection, if it
    /// may.
    pub(super) fn yields_to(&self, text: &str) -> Option<u32> {
        let Written { header, payload } = parse(text);
        let segment = TcpSegment {
            header,
            payload: &payload,
        };
        let least = self.tcp.yields_to(&segment)?;
        Some(least.distance_from(OUR_ISN))
    }

    /// Makes the connection of a peer whose SYN got a cookie. Returns it with the SYN-ACK.
    pub(super) fn accept_cookie(
        config: &TcpConfig,
        syn: &str,
        mss: u16,
        ack: impl FnOnce(&str) -> String,
    ) -> (Self, String) {
        let now = Instant::ZERO + Duration::from_secs(1000);
        let syn = parse(syn);
        let segment = TcpSegment {
            header: syn.header,
            payload: &syn.payload,
        };
        let header = Tcp::cookie_syn_ack(now, config, OUR_ISN, &segment);
        let answer = Sent {
            header,
            len: 0,
            ecn_capable: false,
        }
        .show("win <>");
        let ack = ack(&answer);
        let Written { header, payload } = parse(&ack);
        let segment = TcpSegment {
            header,
            payload: &payload,
        };
        let tcp = Tcp::accept_cookie(now, config, OUR_ISN, mss, &segment);
        let mut script = Self::over(tcp, now);
        script.inject(&ack);
        (script, answer)
    }

    /// Adds so many octets to what the application has to send. They are queued as the connection
    /// wants them.
    pub(super) fn write(&mut self, octets: u64) {
        self.unqueued += octets;
    }

    pub(super) fn close(&mut self) {
        self.tcp.close(self.now);
    }

    /// Queues one segment, if the connection wants it: one by one, as a caller would that sends
    /// each segment as it is built.
    pub(super) fn pump(&mut self) {
        if self.unqueued > 0 && self.tcp.wants_data(self.now) {
            let len = self.unqueued.min(self.tcp.max_payload() as u64);
            self.unqueued -= len;
            self.queue(len);
        }
    }

    /// Queues a segment that the connection does not ask for.
    pub(super) fn queue(&mut self, len: u64) {
        let (frame, sum) = self.build(len);
        let end = self.tcp.queue(frame, PAYLOAD_AT, len as u16, sum);
        assert_eq!(end, self.queued);
    }

    /// Builds a frame with the next octets. Returns it and their checksum.
    pub(super) fn build(&mut self, len: u64) -> (FrameId, u16) {
        let frame = self.frames.allocate().expect("a free frame");
        let payload = pattern_of(self.queued..self.queued + len);
        let at = usize::from(PAYLOAD_AT);
        self.frames.bytes_mut(frame)[at..at + payload.len()].copy_from_slice(&payload);
        self.queued += len;
        (frame, checksum::sum(&payload))
    }

    /// Returns the next segment to send.
    pub(super) fn next(&mut self) -> Option<Sent> {
        if let Some(sent) = self.next_idle().or_else(|| self.next_in_burst()) {
            return Some(sent);
        }
        self.pump();
        let outgoing = self.tcp.poll_transmit(self.now, &mut self.frames)?;
        let payload = self.payload(&outgoing);
        if !payload.is_empty() {
            // The last offset, at or before the end of what was queued, that the sequence number
            // can stand for.
            let end = OUR_ISN + 1 + self.queued as u32;
            let offset = self.queued - u64::from(end.distance_from(outgoing.header.seq));
            assert_eq!(payload, pattern_of(offset..offset + payload.len() as u64));
        }
        Some(Sent {
            header: outgoing.header,
            len: payload.len() as u64,
            ecn_capable: outgoing.ecn_capable,
        })
    }

    /// Returns the next segment, the least time later.
    pub(super) fn next_turn(&mut self) -> Option<Sent> {
        self.pass(Duration::from_nanos(1));
        self.next()
    }

    fn payload(&self, outgoing: &Outgoing) -> Vec<u8> {
        match &outgoing.payload {
            Payload::None => Vec::new(),
            Payload::Whole {
                frame, len, sum, ..
            } => {
                let at = usize::from(PAYLOAD_AT);
                let payload = &self.frames.bytes(*frame)[at..at + usize::from(*len)];
                assert_eq!(checksum::sum(payload), *sum);
                payload.to_vec()
            }
            Payload::Part { frame, range } => self.frames.bytes(*frame)[range.clone()].to_vec(),
            Payload::Spilled(range) => self.tcp.spilled(range.clone()).to_vec(),
        }
    }

    /// Expects this segment next, now or in the next turn, where an ACK for pushed octets waits.
    #[track_caller]
    pub(super) fn expect(&mut self, text: &str) {
        let Some(sent) = self.next().or_else(|| self.next_turn()) else {
            panic!("expected {text}, but nothing is sent");
        };
        assert_eq!(sent.show(text), text);
    }

    /// Expects that nothing is sent now.
    #[track_caller]
    pub(super) fn expect_nothing(&mut self) {
        if let Some(sent) = self.next() {
            panic!("expected nothing, but {} is sent", sent.show("win <>"));
        }
    }

    /// Expects that nothing is sent for this long, and then this segment.
    #[track_caller]
    pub(super) fn expect_after(&mut self, wait: Duration, text: &str) {
        self.expect_nothing();
        let end = self.now + wait;
        while let Some(at) = self.tcp.next_timeout().filter(|at| *at < end) {
            self.now = self.now.max(at);
            self.tcp.handle_timeout(self.now);
            if let Some(sent) = self.next() {
                let early = end.since(self.now);
                panic!("{} is sent {early:?} too early", sent.show("win <>"));
            }
        }
        self.now = end;
        self.tcp.handle_timeout(self.now);
        self.expect(text);
    }

    /// Lets time pass, and timers expire. What they would send waits.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.tcp.next_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.tcp.handle_timeout(self.now);
        }
        self.now = end;
    }

    pub(super) fn frames_free(&self) -> usize {
        self.frames.available()
    }

    /// Returns the frame of the first segment not acknowledged.
    pub(super) fn first_frame(&self) -> FrameId {
        self.tcp.send.first().expect("a segment is held").frame
    }

    #[track_caller]
    pub(super) fn expect_state(&self, state: State) {
        assert_eq!(self.tcp.state(), state);
    }
}

/// A segment that was sent.
pub(super) struct Sent {
    pub(super) header: TcpHeader,
    pub(super) len: u64,
    pub(super) ecn_capable: bool,
}

impl Sent {
    /// Returns the segment as the script would write it, with the parts that `like` has.
    pub(super) fn show(&self, like: &str) -> String {
        let header = &self.header;
        let flags = header.flags;
        let mut text = String::from(if self.ecn_capable { "[ect0] " } else { "" });
        for (flag, letter) in [
            (Flags::SYN, 'S'),
            (Flags::FIN, 'F'),
            (Flags::RST, 'R'),
            (Flags::PSH, 'P'),
            (Flags::ECE, 'E'),
            (Flags::CWR, 'W'),
            (Flags::ACK, '.'),
        ] {
            if flags.contains(flag) {
                text.push(letter);
            }
        }
        let start = u64::from(header.seq.distance_from(OUR_ISN));
        text += &format!(" {start}:{}({})", start + self.len, self.len);
        if flags.ack() {
            text += &format!(" ack {}", header.ack.distance_from(PEER_ISN));
        }
        if like.contains("win") {
            text += &format!(" win {}", header.window);
        }
        let TcpOptions {
            mss,
            window_scale,
            sack_permitted,
            timestamps,
            sack,
        } = header.options;
        let mut options = Vec::new();
        options.extend(mss.map(|mss| format!("mss {mss}")));
        options.extend(sack_permitted.then(|| "sackOK".to_owned()));
        options.extend(window_scale.map(|scale| format!("wscale {scale}")));
        if like.contains('<')
            && let Some(Timestamps { value, echo }) = timestamps
        {
            options.push(format!("TS val {value} ecr {echo}"));
        }
        let blocks: Vec<_> = sack
            .iter()
            .map(|(left, right)| {
                format!(
                    "{}:{}",
                    left.distance_from(PEER_ISN),
                    right.distance_from(PEER_ISN)
                )
            })
            .collect();
        options.extend((!blocks.is_empty()).then(|| format!("sack {}", blocks.join(" "))));
        if !options.is_empty() {
            text += &format!(" <{}>", options.join(","));
        }
        text
    }
}

/// Reads a segment of the peer's.
fn parse(text: &str) -> Written {
    let (text, options) = match text.split_once(" <") {
        Some((text, options)) => (text, parse_options(options.trim_end_matches('>'))),
        None => (text, TcpOptions::default()),
    };
    let mut words = text.split(' ');
    let mut flags = Flags::NONE;
    for letter in words.next().expect("flags").chars() {
        flags |= match letter {
            'S' => Flags::SYN,
            'F' => Flags::FIN,
            'R' => Flags::RST,
            'P' => Flags::PSH,
            'U' => Flags::URG,
            'E' => Flags::ECE,
            'W' => Flags::CWR,
            '.' => Flags::ACK,
            other => panic!("no flag {other}"),
        };
    }
    let range = words.next().expect("start:end(len)");
    let (start, rest) = range.split_once(':').expect("start:end(len)");
    let (end, len) = rest
        .trim_end_matches(')')
        .split_once('(')
        .expect("start:end(len)");
    let [start, end, len] = [start, end, len].map(|n| n.parse::<i64>().expect("a number"));
    assert_eq!(start + len, end, "{text}");
    let mut header = TcpHeader {
        source_port: 2000,
        destination_port: 1000,
        seq: PEER_ISN + start as u32,
        flags,
        window: 60_000,
        options,
        ..TcpHeader::default()
    };
    while let Some(word) = words.next() {
        let number: u32 = words.next().expect("a number").parse().expect("a number");
        match word {
            "ack" => header.ack = OUR_ISN + number,
            "win" => header.window = number as u16,
            "urg" => header.urgent = number as u16,
            other => panic!("no field {other}"),
        }
    }
    let payload = (start - 1..end - 1)
        .map(|offset| pattern(offset.cast_unsigned()))
        .collect();
    Written { header, payload }
}

fn parse_options(text: &str) -> TcpOptions {
    let mut options = TcpOptions::default();
    for option in text.split(',').filter(|option| !option.is_empty()) {
        let words: Vec<&str> = option.split(' ').collect();
        let number = |text: &str| text.parse::<u32>().expect("a number");
        match words[..] {
            ["mss", mss] => options.mss = Some(number(mss) as u16),
            ["wscale", scale] => options.window_scale = Some(number(scale) as u8),
            ["sackOK"] => options.sack_permitted = true,
            ["TS", "val", value, "ecr", echo] => {
                options.timestamps = Some(Timestamps {
                    value: number(value),
                    echo: number(echo),
                });
            }
            ["sack", ref blocks @ ..] => {
                for block in blocks {
                    let (left, right) = block.split_once(':').expect("left:right");
                    options
                        .sack
                        .push(OUR_ISN + number(left), OUR_ISN + number(right));
                }
            }
            _ => panic!("no option {option}"),
        }
    }
    options
}
