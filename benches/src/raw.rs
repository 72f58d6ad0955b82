//! Raw AF_XDP: frames over the same port, steering program and veth pair, without a protocol.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rnic_core::engine::{Net, PortLease};
use rnic_core::memory::frames::TxFrames;
use rnic_core::memory::region::{HugePages, Region};
use rnic_core::mpa::crc;
use rnic_core::wire::checksum;
use rnic_core::wire::ethernet::MacAddr;
use rnic_core::wire::packet::NetHeader;
use rnic_core::wire::tcp::TcpHeader;
use rnic_xdp::{PortConfig, TxSide, XdpNet, XdpPort};

use crate::Failure;
use crate::bed::{Bed, Cores, Host};
use crate::effort::{Effort, MESSAGE, REGION, idle};
use crate::pace::{Bandwidth, Pace};
use crate::pingpong::{Game, Latency, ping_pong};

/// Octets in front of a payload: Ethernet, IPv4, TCP without options.
const HEADERS: usize = 54;
/// Octets of payload that fill an MTU of 1500.
const PAYLOAD: usize = 1460;
/// Frames sent at once.
const BATCH: usize = 32;
/// Frames under way at most: few, so that they stay in cache, and none is lost.
const IN_FLIGHT: u64 = 128;
/// A frame that has not arrived by then is lost.
const LOST_AFTER: Duration = Duration::from_millis(20);
const PORT: u16 = 4791;

/// What is done with the octets besides moving frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Nothing.
    None,
    /// Copy on transmit; CRC, then copy, on receive.
    CopyAndCrc,
    /// All that the protocols demand: also the CRC on transmit and the TCP checksum on both ends.
    Everything,
}

/// One end.
struct End {
    port: XdpPort,
    region: Region,
    at: usize,
    _lease: PortLease,
}

impl End {
    /// Opens a port whose frames are addressed to `peer`, and steers those for `host` to it.
    fn open(host: &Host, peer: &Host) -> Result<Self, Failure> {
        host.run(|| {
            let mut port = XdpPort::open(&PortConfig::new(host.netdev))?;
            let (_, lease) = XdpNet::new(&port)?.listen(host.at(PORT))?;
            write_headers(&mut port.tx, host, peer);
            Ok(Self {
                port,
                region: Region::allocate(REGION, HugePages::Prefer)?,
                at: 0,
                _lease: lease,
            })
        })
    }

    /// The next place in memory: message by message, again and again.
    fn next_place(&mut self) -> usize {
        self.at += PAYLOAD;
        if self.at + PAYLOAD > REGION - MESSAGE {
            self.at = 0;
        }
        self.at
    }

    /// Sends up to `count` frames; returns how many.
    fn send(&mut self, count: usize, payload: usize, work: Work) -> usize {
        let mut sent = 0;
        while sent < count && self.port.tx.can_transmit() {
            let Some(frame) = self.port.tx.allocate() else {
                break;
            };
            let place = self.next_place();
            let octets = &mut self.port.tx.bytes_mut(frame)[HEADERS..HEADERS + payload];
            if work != Work::None {
                // The place is within the region.
                let _ = self.region.read(place, octets);
            }
            if work == Work::Everything {
                black_box((crc::crc(octets), checksum::sum(octets)));
            }
            self.port.tx.transmit(frame, HEADERS + payload);
            self.port.tx.release(frame);
            sent += 1;
        }
        self.port.tx.kick();
        sent
    }

    /// Receives what has arrived; returns how many frames.
    fn receive(&mut self, work: Work) -> usize {
        let mut received = 0;
        let mut at = self.at;
        for queue in self.port.rx.queues_mut() {
            let count = queue.receive();
            for index in 0..count {
                let octets = &queue.frame(index)[HEADERS..];
                if work == Work::Everything {
                    black_box(checksum::sum(octets));
                }
                if work != Work::None {
                    black_box(crc::crc(octets));
                    at = (at + PAYLOAD) % (REGION - MESSAGE);
                    let _ = self.region.write(at, octets);
                }
            }
            queue.refill();
            received += count;
        }
        self.at = at;
        received
    }
}

/// Every frame has its headers before the first is sent.
fn write_headers(tx: &mut TxSide, host: &Host, peer: &Host) {
    let net = NetHeader {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        // Received whatever the address: the XDP program sees it first.
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
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
        net.write(tx.bytes_mut(frame), &header, PAYLOAD, 0);
        tx.release(frame);
    }
}

/// Payload in frames of 1460 octets, one way.
pub(crate) fn bandwidth(
    bed: &Bed,
    cores: Cores,
    effort: &Effort,
    work: Work,
) -> Result<Bandwidth, Failure> {
    let mut client = End::open(&bed.client, &bed.server)?;
    let mut server = End::open(&bed.server, &bed.client)?;
    match cores {
        Cores::One => bed.on_one(|| {
            let mut pace = Pace::new();
            let end = Instant::now() + effort.duration;
            while Instant::now() < end {
                client.send(BATCH, PAYLOAD, work);
                while let received @ 1.. = server.receive(work) {
                    pace.add(received * PAYLOAD);
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
                        if received == 0 {
                            idle();
                            continue;
                        }
                        frames += received as u64;
                        arrived.store(frames, Ordering::Release);
                        pace.add(received * PAYLOAD);
                    }
                    Ok(pace.end())
                },
            )?;
            Ok(bandwidth)
        }
    }
}

/// Sends as much as is received, with few frames under way.
fn send_for(client: &mut End, duration: Duration, work: Work, arrived: &AtomicU64) {
    let (began, mut sent) = (Instant::now(), 0);
    let (mut now, mut moved) = (began, began);
    while now - began < duration {
        let under_way = sent - arrived.load(Ordering::Acquire).min(sent);
        let room = IN_FLIGHT.saturating_sub(under_way).min(BATCH as u64);
        if room >= BATCH as u64 / 2 {
            sent += client.send(room as usize, PAYLOAD, work) as u64;
            moved = now;
        } else if now - moved > LOST_AFTER {
            sent -= under_way;
        } else {
            spin_loop();
        }
        now = Instant::now();
    }
}

/// Round trips of `payload` octets.
pub(crate) fn latency(
    bed: &Bed,
    cores: Cores,
    effort: &Effort,
    payload: usize,
) -> Result<Latency, Failure> {
    let mut client = End::open(&bed.client, &bed.server)?;
    let mut server = End::open(&bed.server, &bed.client)?;
    let game = Game {
        ping: |client: &mut End| {
            client.send(1, payload, Work::None);
            Ok(0)
        },
        pong: |client: &mut End, _| Ok(client.receive(Work::None) > 0),
        answer: |server: &mut End| {
            if server.receive(Work::None) > 0 {
                server.send(1, payload, Work::None);
            }
            Ok(())
        },
    };
    ping_pong(bed, cores, effort, (&mut client, &mut server), game)
}
