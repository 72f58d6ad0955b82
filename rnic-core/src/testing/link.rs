//! A link on virtual time that loses, reorders, duplicates, corrupts and re-segments frames, from a
//! seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use fastrand::Rng;

use crate::time::Instant;
use crate::wire::{
    checksum::sum,
    ethernet::EthernetHeader,
    packet::{Checksums, Packet, parse},
    tcp::{Flags, Seq, TcpHeader},
    template::NetHeader,
};

/// What a link does to frames. Probabilities are in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Impairments {
    /// One-way delay.
    pub delay: Duration,
    /// Probability that a frame is lost.
    pub loss: u32,
    /// Probability that a frame arrives twice.
    pub duplication: u32,
    /// Probability that one bit of a frame is inverted.
    pub corruption: u32,
    /// Probability that a frame is delayed by up to `jitter` more, so that others overtake it.
    pub reordering: u32,
    /// The greatest additional delay.
    pub jitter: Duration,
    /// Probability that a data segment is cut in two, as a middlebox may do.
    pub cutting: u32,
}

/// A middlebox: sees each frame, and to which end it goes, may change it, and returns whether it
/// goes on.
pub type Middlebox = Box<dyn FnMut(Instant, usize, &mut Vec<u8>) -> bool>;

/// A frame on the link.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FrameInFlight {
    arrives: Instant,
    /// Keeps frames that arrive at the same time in order.
    number: u64,
    to: usize,
    frame: Vec<u8>,
}

/// A link between two ends, 0 and 1.
pub struct Link {
    impairments: Impairments,
    rng: Rng,
    in_flight: BinaryHeap<Reverse<FrameInFlight>>,
    numbered: u64,
    sent: u64,
    lost: u64,
    /// Frames sent so far, if they are captured.
    captured: Option<Vec<(Instant, Vec<u8>)>>,
    middlebox: Option<Middlebox>,
}

impl Link {
    /// Makes a link. The same seed gives the same behaviour.
    pub fn new(impairments: Impairments, seed: u64) -> Self {
        let rng = Rng::with_seed(seed);
        Self {
            impairments,
            rng,
            in_flight: BinaryHeap::new(),
            numbered: 0,
            sent: 0,
            lost: 0,
            captured: None,
            middlebox: None,
        }
    }

    /// Sets the middlebox that sees all frames from now on, except those that the link itself
    /// loses.
    pub fn set_middlebox(&mut self, middlebox: Middlebox) {
        self.middlebox = Some(middlebox);
    }

    /// Changes what the link does to frames from now on.
    pub fn set_impairments(&mut self, impairments: Impairments) {
        self.impairments = impairments;
    }

    /// Returns how many frames were sent so far, and how many of them were lost.
    pub fn sent_and_lost(&self) -> (u64, u64) {
        (self.sent, self.lost)
    }

    fn happens(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && self.rng.u32(0..1000) < thousandths
    }

    /// Captures every frame from now on, as it was sent.
    pub fn capture(&mut self) {
        self.captured = Some(Vec::new());
    }

    /// Returns the captured frames, with the times at which they were sent.
    pub fn captured(&self) -> &[(Instant, Vec<u8>)] {
        self.captured.as_deref().unwrap_or_default()
    }

    /// Sends a frame to an end.
    pub fn send(&mut self, now: Instant, to: usize, frame: Vec<u8>) {
        if let Some(captured) = &mut self.captured {
            captured.push((now, frame.clone()));
        }
        if self.happens(self.impairments.cutting)
            && let Some((first, second)) = cut(&frame, &mut self.rng)
        {
            self.send_piece(now, to, first);
            self.send_piece(now, to, second);
        } else {
            self.send_piece(now, to, frame);
        }
    }

    fn send_piece(&mut self, now: Instant, to: usize, mut frame: Vec<u8>) {
        self.sent += 1;
        if self.happens(self.impairments.loss) {
            self.lost += 1;
            return;
        }
        if let Some(middlebox) = &mut self.middlebox
            && !middlebox(now, to, &mut frame)
        {
            self.lost += 1;
            return;
        }
        if self.happens(self.impairments.duplication) {
            self.schedule_arrival(now, to, frame.clone());
        }
        if self.happens(self.impairments.corruption) {
            let bit = self.rng.usize(0..frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        self.schedule_arrival(now, to, frame);
    }

    fn schedule_arrival(&mut self, now: Instant, to: usize, frame: Vec<u8>) {
        let mut arrives = now + self.impairments.delay;
        if self.happens(self.impairments.reordering) {
            let jitter = self.impairments.jitter.as_nanos() as u64;
            arrives = arrives + Duration::from_nanos(self.rng.u64(0..=jitter));
        }
        self.numbered += 1;
        let number = self.numbered;
        self.in_flight.push(Reverse(FrameInFlight {
            arrives,
            number,
            to,
            frame,
        }));
    }

    /// Returns when the next frame arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.in_flight.peek().map(|Reverse(next)| next.arrives)
    }

    /// Removes and returns a frame that has arrived, and the end at which it did.
    pub fn receive(&mut self, now: Instant) -> Option<(usize, Vec<u8>)> {
        if self.next_arrival()? > now {
            return None;
        }
        self.in_flight
            .pop()
            .map(|Reverse(next)| (next.to, next.frame))
    }
}

/// Cuts a data segment in two at a random octet, with correct headers on both.
fn cut(frame: &[u8], rng: &mut Rng) -> Option<(Vec<u8>, Vec<u8>)> {
    let packet = parse(frame, Checksums::None).ok()?;
    let payload = packet.segment.payload;
    if payload.len() < 2 {
        return None;
    }
    let at = rng.usize(1..payload.len());
    let mut first = packet.segment.header;
    let mut second = first;
    first.flags = Flags(first.flags.0 & !(Flags::FIN.0 | Flags::PSH.0));
    second.seq = Seq(second.seq.0.wrapping_add(at as u32));
    let build = |header, piece| built(frame, &packet, header, piece);
    Some((
        build(first, &payload[..at])?,
        build(second, &payload[at..])?,
    ))
}

/// Changes the TCP header of a frame. Returns whether it has one.
pub fn rewrite(frame: &mut Vec<u8>, change: impl FnOnce(&mut TcpHeader)) -> bool {
    let Ok(packet) = parse(frame, Checksums::None) else {
        return false;
    };
    let mut header = packet.segment.header;
    change(&mut header);
    let new = built(frame, &packet, header, packet.segment.payload);
    new.map(|new| *frame = new).is_some()
}

/// Builds a frame like another one, with another TCP header and payload.
fn built(frame: &[u8], packet: &Packet<'_>, header: TcpHeader, payload: &[u8]) -> Option<Vec<u8>> {
    let (link, _) = EthernetHeader::parse(frame).ok()?;
    let net = NetHeader {
        source_mac: link.source,
        destination_mac: link.destination,
        vlan: link.vlan,
        source: packet.source.ip(),
        destination: packet.destination.ip(),
        hop_limit: 64,
        traffic_class: packet.ecn,
    };
    let headers_len = net.len() + header.len();
    let mut frame = vec![0; headers_len + payload.len()];
    frame[headers_len..].copy_from_slice(payload);
    net.write(&mut frame, &header, payload.len(), sum(payload));
    Some(frame)
}
