//! Raw AF_XDP: frames over the same port, steering program and veth pair, without a protocol.

use std::collections::VecDeque;
use std::hint::{black_box, spin_loop};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rnic_core::connection::PortReservation;
use rnic_core::engine::Net;
use rnic_core::memory::frames::{FrameId, TxFrames};
use rnic_core::memory::region::{HugePages, Region};
use rnic_core::wire::{checksum::Checksums, crc, tcp::TcpHeader, template::NetHeader};
use rnic_xdp::{InterfaceConfig, TxSide, XdpInterface, XdpNet};

use crate::bed::{Bed, Cores, Host};
use crate::effort::{Effort, REGION, Shape, idle};
use crate::failure::Failure;
use crate::pace::{Bandwidth, Pace};
use crate::pingpong::{Latency, PingPong, ping_pong, until};
use crate::sealing::{self, Sealing};

/// Octets before a payload: Ethernet, IPv4, TCP without options.
const HEADERS: usize = LINK_HEADER + 40;
const LINK_HEADER: usize = 14;
/// Octets of an ACK: those, and TCP's timestamps.
const ACK: usize = HEADERS + 12;
/// Frames sent at once.
const BATCH: usize = 32;
/// The most frames in flight: few, so that they stay in cache, and none is lost.
const IN_FLIGHT: u64 = 128;
/// How long to wait for a frame before it counts as lost.
const LOST_AFTER: Duration = Duration::from_millis(20);
const PORT: u16 = 4791;

/// The work on the octets besides moving frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Nothing.
    None,
    /// Copy on transmit; CRC, then copy, on receive.
    CopyAndCrc,
    /// All that the protocols demand: also the CRC on transmit and the TCP checksum on both ends,
    /// and room for their headers.
    Everything,
    /// All of that, and an ACK for each message, in a frame of its own. Until then the frames of
    /// the message are kept: TCP might have to send them again. For one of 64 KiB TCP asks for many
    /// more ACKs, one for every second segment.
    Acknowledged,
    /// All of that, and what is in each frame is sealed, and opened in a buffer. Nobody needs a
    /// checksum of what was opened.
    Sealed,
}

impl Work {
    /// Returns whether CRCs and checksums are computed on both ends.
    fn is_all(self) -> bool {
        matches!(self, Self::Everything) || self.is_acknowledged()
    }

    fn is_acknowledged(self) -> bool {
        matches!(self, Self::Acknowledged | Self::Sealed)
    }

    /// Returns the number of octets behind the headers that are no payload.
    fn overhead(self) -> usize {
        match self {
            Self::None | Self::CopyAndCrc => 0,
            Self::Everything | Self::Acknowledged => PROTOCOLS,
            Self::Sealed => PROTOCOLS + sealing::OVERHEAD,
        }
    }

    /// Returns the number of octets behind the headers of a frame that carries so many of payload.
    fn carrying(self, payload: usize) -> usize {
        payload + self.overhead()
    }

    /// Returns the payload in a number of octets.
    fn counted(self, octets: usize) -> usize {
        octets.saturating_sub(self.overhead())
    }

    /// Returns where the octets are that the work is on, of those behind the headers.
    fn range(self, octets: usize) -> Range<usize> {
        match self {
            Self::Sealed => sealing::inside_of(octets),
            _ => 0..octets,
        }
    }
}

/// Of a frame's octets behind a TCP header without options, those that are no payload of a Write:
/// TCP's timestamps, MPA's length and CRC, the tagged DDP header.
const PROTOCOLS: usize = 12 + 2 + 4 + 14;

/// Octets of the frames that a message fills: full ones, then the rest.
#[derive(Clone, Copy, Debug)]
struct Message {
    full: usize,
    /// Octets of a full one.
    frame: usize,
    rest: usize,
}

impl Message {
    fn new(size: usize, frame: usize) -> Self {
        Self {
            full: size / frame,
            frame,
            rest: size % frame,
        }
    }

    fn frames(&self) -> usize {
        self.full + usize::from(self.rest > 0)
    }

    /// Returns the octets of frame `number` of a message.
    fn payload(&self, number: usize) -> usize {
        if number == self.full {
            self.rest
        } else {
            self.frame
        }
    }
}

/// The received frames.
#[derive(Clone, Copy, Debug, Default)]
struct Received {
    frames: usize,
    octets: usize,
}

/// One end.
struct RawEnd {
    port: XdpInterface,
    region: Region,
    message: Message,
    /// Frames of the current message that were sent.
    number: usize,
    at: usize,
    /// Frames that were sent and wait for their ACK, in order.
    kept: VecDeque<FrameId>,
    sealing: Sealing,
    _reservation: PortReservation,
}

impl RawEnd {
    /// Opens a port whose frames are addressed to `peer`, and steers those for `host` to it. Frames
    /// are as large as those of rnic: as the port allows.
    fn open(host: &Host, peer: &Host, size: usize) -> Result<Self, Failure> {
        host.run(|| {
            let mut port = XdpInterface::open(&InterfaceConfig::new(host.netdev))?;
            let (_, reservation) = XdpNet::new(&port)?.listen(host.at(PORT))?;
            let message = Message::new(size, port.report().mtu as usize + LINK_HEADER - HEADERS);
            write_headers(&mut port.tx, host, peer, message.frame);
            Ok(Self {
                port,
                region: Region::allocate(REGION, HugePages::Prefer)?,
                message,
                number: 0,
                at: 0,
                kept: VecDeque::new(),
                sealing: Sealing::new()?,
                _reservation: reservation,
            })
        })
    }

    /// Makes a pair, client and server.
    fn pair(bed: &Bed, size: usize) -> Result<(Self, Self), Failure> {
        Ok((
            Self::open(&bed.client, &bed.server, size)?,
            Self::open(&bed.server, &bed.client, size)?,
        ))
    }

    /// Returns the octets of the next frame.
    fn next_payload(&mut self) -> usize {
        let payload = self.message.payload(self.number);
        self.number = (self.number + 1) % self.message.frames();
        payload
    }

    /// Returns the next address in memory for some octets. Memory is used cyclically.
    fn next_place(&mut self, octets: usize) -> usize {
        if self.at + octets > REGION {
            self.at = 0;
        }
        let place = self.at;
        self.at += octets;
        place
    }

    /// Sends up to `count` frames; returns how many.
    fn send(&mut self, count: usize, work: Work) -> usize {
        let mut sent = 0;
        while sent < count && self.port.tx.can_transmit() {
            let Some(frame) = self.port.tx.allocate() else {
                break;
            };
            let payload = self.next_payload();
            let place = self.next_place(payload);
            let packet = &mut self.port.tx.bytes_mut(frame)[HEADERS..HEADERS + payload];
            let octets = &mut packet[work.range(payload)];
            if work != Work::None {
                // The place is within the region.
                let _ = self.region.read(place, octets);
            }
            if work.is_all() {
                black_box(crc::crc_and_sum(octets));
            }
            if work == Work::Sealed {
                self.sealing.seal(packet);
            }
            self.port.tx.transmit(frame, HEADERS + payload);
            match work.is_acknowledged() {
                true => self.kept.push_back(frame),
                false => self.port.tx.release(frame),
            }
            sent += 1;
        }
        self.port.tx.kick();
        sent
    }

    /// Acknowledges the messages that are whole with `frames` more frames received.
    fn acknowledge(&mut self, frames: usize, work: Work) {
        self.number += frames;
        let whole = self.message.frames();
        while self.number >= whole && self.port.tx.can_transmit() {
            let Some(frame) = self.port.tx.allocate() else {
                break;
            };
            let mut len = ACK;
            if work == Work::Sealed {
                len += sealing::OVERHEAD;
                self.sealing
                    .seal(&mut self.port.tx.bytes_mut(frame)[HEADERS..len]);
            }
            self.port.tx.transmit(frame, len);
            self.port.tx.release(frame);
            self.number -= whole;
        }
        self.port.tx.kick();
    }

    /// Receives ACKs, and releases what they acknowledge.
    fn receive_acks(&mut self, work: Work) {
        let acks = match work {
            Work::Sealed => self.receive(Work::Sealed),
            _ => self.receive(Work::None),
        };
        let acks = acks.frames;
        let acked = acks * self.message.frames();
        self.release_kept(acked);
    }

    /// Releases the frames that were kept longest.
    fn release_kept(&mut self, count: usize) {
        for frame in self.kept.drain(..count.min(self.kept.len())) {
            self.port.tx.release(frame);
        }
    }

    /// Sends a whole message.
    fn send_message(&mut self, work: Work) {
        let mut left = self.message.frames();
        while left > 0 {
            left -= self.send(left, work);
        }
    }

    /// Receives what has arrived.
    fn receive(&mut self, work: Work) -> Received {
        let mut received = Received::default();
        let mut at = self.at;
        for queue in self.port.rx.queues_mut() {
            let count = queue.receive();
            for (frame, checksums) in queue.frames() {
                let packet = &frame.as_ref()[HEADERS..];
                let octets = match work {
                    Work::Sealed => self.sealing.open(packet).expect("nobody changes packets"),
                    _ => packet,
                };
                if work != Work::Sealed && work.is_all() && checksums == Checksums::None {
                    black_box(crc::crc_and_sum(octets));
                } else if work != Work::None {
                    black_box(crc::crc(octets));
                }
                if work != Work::None {
                    if at + octets.len() > REGION {
                        at = 0;
                    }
                    let _ = self.region.write(at, octets);
                    at += octets.len();
                }
                received.octets += work.counted(packet.len());
            }
            queue.refill();
            received.frames += count;
        }
        self.at = at;
        received
    }

    /// Receives; returns whether the last frame of a message has come.
    fn has_received(&mut self, work: Work) -> bool {
        self.number += self.receive(work).frames;
        let whole = self.number >= self.message.frames();
        if whole {
            self.number = 0;
            // A reply acknowledges what it answers.
            self.release_kept(usize::MAX);
        }
        whole
    }
}

/// Writes the headers of all frames, before the first is sent.
fn write_headers(tx: &mut TxSide, host: &Host, peer: &Host, payload: usize) {
    let net = NetHeader {
        source_mac: host.mac,
        destination_mac: peer.mac,
        vlan: None,
        source: host.address.into(),
        destination: peer.address.into(),
        hop_limit: 64,
        traffic_class: 0,
    };
    let header = TcpHeader {
        source_port: PORT,
        destination_port: PORT,
        ..TcpHeader::default()
    };
    let frames: Vec<_> = std::iter::from_fn(|| tx.allocate()).collect();
    for frame in frames {
        net.write(tx.bytes_mut(frame), &header, payload, 0);
        tx.release(frame);
    }
}

/// Measures messages in one direction.
pub(crate) fn bandwidth(
    bed: &Bed,
    shape: Shape,
    effort: &Effort,
    work: Work,
) -> Result<Bandwidth, Failure> {
    let (mut client, mut server) = RawEnd::pair(bed, shape.size)?;
    match shape.cores {
        Cores::One => bed.on_one(|| {
            let mut pace = Pace::new();
            let end = Instant::now() + effort.duration;
            while Instant::now() < end {
                client.send(BATCH, work);
                while let Received {
                    octets: octets @ 1..,
                    frames,
                } = server.receive(work)
                {
                    pace.add(octets);
                    if work.is_acknowledged() {
                        server.acknowledge(frames, work);
                    }
                }
                if work.is_acknowledged() {
                    client.receive_acks(work);
                }
            }
            Ok(pace.end())
        }),
        Cores::Two => {
            let (arrived, over) = (AtomicU64::new(0), AtomicBool::new(false));
            let ((), bandwidth) = bed.on_two(
                || {
                    send_for(&mut client, effort.duration, work, &arrived);
                    over.store(true, Ordering::Release);
                    Ok(())
                },
                || {
                    let (mut pace, mut frames) = (Pace::new(), 0);
                    while !over.load(Ordering::Acquire) {
                        let received = server.receive(work);
                        if received.frames == 0 {
                            idle();
                            continue;
                        }
                        frames += received.frames as u64;
                        arrived.store(frames, Ordering::Release);
                        pace.add(received.octets);
                        if work.is_acknowledged() {
                            server.acknowledge(received.frames, work);
                        }
                    }
                    Ok(pace.end())
                },
            )?;
            Ok(bandwidth)
        }
    }
}

/// Sends as much as is received, with few frames under way.
fn send_for(client: &mut RawEnd, duration: Duration, work: Work, arrived: &AtomicU64) {
    let (began, mut sent) = (Instant::now(), 0);
    let (mut now, mut moved) = (began, began);
    while now - began < duration {
        let under_way = sent - arrived.load(Ordering::Acquire).min(sent);
        let room = IN_FLIGHT.saturating_sub(under_way).min(BATCH as u64);
        if room >= BATCH as u64 / 2 {
            sent += client.send(room as usize, work) as u64;
            moved = now;
        } else if now - moved > LOST_AFTER {
            sent -= under_way;
            client.release_kept(usize::MAX);
        } else {
            spin_loop();
        }
        if work.is_acknowledged() {
            client.receive_acks(work);
        }
        now = Instant::now();
    }
}

/// Measures round trips of messages.
pub(crate) fn latency(
    bed: &Bed,
    shape: Shape,
    effort: &Effort,
    work: Work,
) -> Result<Latency, Failure> {
    let (mut client, mut server) = RawEnd::pair(bed, work.carrying(shape.size))?;
    let game = PingPong {
        ping: |client: &mut RawEnd| {
            client.send_message(work);
            Ok(0)
        },
        pong: |client: &mut RawEnd, _| Ok(client.has_received(work)),
        answer: |server: &mut RawEnd| {
            if server.has_received(work) {
                server.send_message(work);
            }
            Ok(())
        },
    };
    let cores = shape.cores;
    ping_pong(bed, cores, effort, (&mut client, &mut server), game)
}

/// Two ends, for frames within another measurement.
pub(crate) struct Wire([RawEnd; 2]);

impl Wire {
    pub(crate) fn open(bed: &Bed, size: usize) -> Result<Self, Failure> {
        let (client, server) = RawEnd::pair(bed, size)?;
        Ok(Self([client, server]))
    }

    /// Sends a message from this end, and waits until the other has it.
    pub(crate) fn carry(&mut self, from: usize) -> Result<(), Failure> {
        self.0[from].send_message(Work::None);
        until(|| Ok(self.0[1 - from].has_received(Work::None)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_protocols_add_is_no_payload() {
        // What rnic sends at MTU 1500 and 9000.
        assert_eq!(Work::Everything.counted(1460), 1428);
        assert_eq!(Work::Acknowledged.counted(1460), 1428);
        assert_eq!(Work::Sealed.counted(1460), 1394);
        assert_eq!(Work::Everything.counted(8960), 8928);
        assert_eq!(Work::CopyAndCrc.counted(1460), 1460);
        for work in [Work::None, Work::CopyAndCrc, Work::Everything, Work::Sealed] {
            assert_eq!(work.counted(work.carrying(64)), 64);
        }
    }

    #[test]
    fn a_message_is_full_frames_and_the_rest() {
        let sizes = |size| {
            let message = Message::new(size, 1460);
            let frames = 0..message.frames();
            frames
                .map(|number| message.payload(number))
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(64), [64]);
        assert_eq!(sizes(1460), [1460]);
        assert_eq!(sizes(2 * 1460), [1460, 1460]);
        assert_eq!(sizes(4096), [1460, 1460, 1176]);
    }
}
