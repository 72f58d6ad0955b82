//! The kernel's TCP with MPA, DDP and their CRCs above it in user space: what siw's data path
//! costs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rnic_core::memory::region::{HugePages, Region};
use rnic_core::mpa::{Deframer, frame};
use rnic_core::wire::ddp::{DdpHeader, DdpSegment, Stag, TAGGED_LEN, TaggedHeader, TaggedOffset};
use rnic_core::wire::mpa::LENGTH_LEN;
use rnic_core::wire::rdmap::{Control, Opcode};

use crate::bed::{Bed, Cores};
use crate::effort::{Effort, REGION, Shape};
use crate::failure::Failure;
use crate::kernel::{self, READ, unless_blocked};
use crate::pace::{Bandwidth, Pace};
use crate::pingpong::{Latency, PingPong, ping_pong};

/// IPv4 and TCP headers with timestamps, as the kernel's TCP sends them: FPDUs fill segments.
const TCP_HEADERS: usize = 20 + 32;
/// Octets of FPDUs given to the kernel at once.
const PIECE: usize = 64 * 1024;
/// Octets sent and octets read by one call with [`Calls::Full`]. rnic over sockets has the same.
const FULL_PIECE: usize = 128 * 1024;
const FULL_READ: usize = 256 * 1024;
const STAG: Stag = Stag(0x100);

/// What is given to the kernel by one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// A message, or a piece of one.
    EachMessage,
    /// As many messages as there is room for.
    Full,
}

impl Calls {
    /// Returns how many octets are written at once, without the last FPDU.
    fn piece(self) -> usize {
        match self {
            Self::EachMessage => PIECE,
            Self::Full => FULL_PIECE,
        }
    }

    /// Returns how many octets are read at once.
    fn read(self) -> usize {
        match self {
            Self::EachMessage => READ,
            Self::Full => FULL_READ,
        }
    }
}

/// Makes messages into FPDUs, as for RDMA Writes, in a buffer for the kernel.
struct Sender {
    region: Region,
    size: usize,
    calls: Calls,
    mulpdu: usize,
    /// Octets of the current message that are in FPDUs.
    framed: usize,
    /// The address of the message.
    at: usize,
    buffer: Vec<u8>,
    filled: usize,
    written: usize,
}

impl Sender {
    fn new(shape: Shape, calls: Calls) -> Result<Self, Failure> {
        let mulpdu = frame::mulpdu(usize::from(shape.mtu) - TCP_HEADERS);
        Ok(Self {
            region: Region::allocate(REGION, HugePages::Prefer)?,
            size: shape.size,
            calls,
            mulpdu,
            framed: 0,
            at: 0,
            buffer: vec![0; calls.piece() + frame::fpdu_len(mulpdu)],
            filled: 0,
            written: 0,
        })
    }

    /// Writes FPDUs, of which it makes new ones if there are none. Returns whether the end of a
    /// message was written.
    fn send(&mut self, stream: &TcpStream) -> Result<bool, Failure> {
        Ok(self.write(stream)? && self.framed == 0)
    }

    /// The same. Returns whether all that it has made is written.
    fn write(&mut self, mut stream: &TcpStream) -> Result<bool, Failure> {
        if self.written == self.filled {
            self.fill()?;
        }
        let rest = &self.buffer[self.written..self.filled];
        self.written += unless_blocked(stream.write(rest))?;
        Ok(self.written == self.filled)
    }

    /// Frames what the next call has: one copy from memory, then the CRC.
    fn fill(&mut self) -> Result<(), Failure> {
        (self.filled, self.written) = (0, 0);
        while self.filled < self.calls.piece() {
            let len = (self.size - self.framed).min(self.mulpdu - TAGGED_LEN);
            let last = self.framed + len == self.size;
            let header = DdpHeader::Tagged(TaggedHeader {
                last,
                ulp: Control::new(Opcode::Write).into(),
                stag: STAG,
                offset: TaggedOffset((self.at + self.framed) as u64),
            });
            let fpdu = &mut self.buffer[self.filled..];
            header.emit(&mut fpdu[LENGTH_LEN..]);
            let payload = &mut fpdu[LENGTH_LEN + TAGGED_LEN..][..len];
            self.region.read(self.at + self.framed, payload)?;
            self.filled += frame::seal(fpdu, TAGGED_LEN + len, true);
            self.framed += len;
            if last {
                self.framed = 0;
                self.at = (self.at + self.size) % (REGION - self.size + 1);
                if self.calls == Calls::EachMessage {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Makes FPDUs into messages: reads, deframes, checks CRCs, copies to memory.
struct Receiver {
    region: Region,
    deframer: Deframer,
    buffer: Vec<u8>,
}

/// What one read brought.
#[derive(Clone, Copy, Debug, Default)]
struct Arrived {
    /// Octets placed. None may have been although something came: a part of an FPDU.
    octets: usize,
    messages: usize,
    /// There was nothing to read, now or at all.
    idle: bool,
    /// There may be more to read.
    more: bool,
}

impl Receiver {
    fn new(calls: Calls) -> Result<Self, Failure> {
        Ok(Self {
            region: Region::allocate(REGION, HugePages::Prefer)?,
            deframer: Deframer::new(true),
            buffer: vec![0; calls.read()],
        })
    }

    fn receive(&mut self, mut stream: &TcpStream) -> Result<Arrived, Failure> {
        let read = unless_blocked(stream.read(&mut self.buffer))?;
        let mut input = &self.buffer[..read];
        let mut arrived = Arrived {
            idle: read == 0,
            more: read == self.buffer.len(),
            ..Arrived::default()
        };
        while let Some(ulpdu) = self.deframer.next(&mut input)? {
            let segment = DdpSegment::parse(ulpdu)?;
            let DdpHeader::Tagged(header) = segment.header else {
                return Err("an FPDU is not what was sent".into());
            };
            if header.stag != STAG {
                return Err("an FPDU names no region".into());
            }
            self.region
                .write(header.offset.0 as usize, segment.payload)?;
            arrived.octets += segment.payload.len();
            arrived.messages += usize::from(header.last);
        }
        Ok(arrived)
    }

    /// Receives what has arrived of one of many connections. Returns how many octets it placed.
    fn receive_all(
        &mut self,
        stream: &TcpStream,
        deframer: &mut Deframer,
    ) -> Result<usize, Failure> {
        std::mem::swap(&mut self.deframer, deframer);
        let mut octets = 0;
        loop {
            let arrived = self.receive(stream)?;
            octets += arrived.octets;
            if !arrived.more {
                break;
            }
        }
        std::mem::swap(&mut self.deframer, deframer);
        Ok(octets)
    }
}

/// Measures messages in one direction.
pub(crate) fn bandwidth(
    bed: &Bed,
    shape: Shape,
    effort: &Effort,
    offloads: bool,
    calls: Calls,
) -> Result<Bandwidth, Failure> {
    bed.set_offloads(offloads)?;
    let (client, server) = kernel::connect(bed)?;
    let one_core = shape.cores == Cores::One;
    for stream in [&client, &server] {
        stream.set_nonblocking(one_core)?;
    }
    let mut sender = Sender::new(shape, calls)?;
    let mut receiver = Receiver::new(calls)?;
    if one_core {
        return bed.on_one(|| {
            let mut pace = Pace::new();
            let end = Instant::now() + effort.duration;
            while Instant::now() < end {
                sender.send(&client)?;
                loop {
                    let arrived = receiver.receive(&server)?;
                    if arrived.idle {
                        break;
                    }
                    pace.add(arrived.octets);
                }
            }
            Ok(pace.end())
        });
    }
    let ((), bandwidth) = bed.on_two(
        || send_for(client, sender, effort.duration),
        || {
            let mut pace = Pace::new();
            loop {
                let arrived = receiver.receive(&server)?;
                if arrived.idle {
                    return Ok(pace.end());
                }
                pace.add(arrived.octets);
            }
        },
    )?;
    Ok(bandwidth)
}

/// Sends for a time, then closes.
fn send_for(stream: TcpStream, mut sender: Sender, duration: Duration) -> Result<(), Failure> {
    let end = Instant::now() + duration;
    while Instant::now() < end {
        sender.send(&stream)?;
    }
    Ok(())
}

/// Measures messages of many connections, one of each in turn, on one core and with offloads. One
/// connection alone has many messages in a call.
pub(crate) fn bandwidth_of_many(
    bed: &Bed,
    connections: usize,
    shape: Shape,
    duration: Duration,
) -> Result<Bandwidth, Failure> {
    bed.set_offloads(true)?;
    let mut streams = Vec::with_capacity(connections);
    for _ in 0..connections {
        let (client, server) = kernel::connect(bed)?;
        client.set_nonblocking(true)?;
        server.set_nonblocking(true)?;
        streams.push((client, server, Deframer::new(true)));
    }
    let calls = match connections {
        1 => Calls::Full,
        _ => Calls::EachMessage,
    };
    let (mut sender, mut receiver) = (Sender::new(shape, calls)?, Receiver::new(calls)?);
    bed.on_one(|| {
        let round = connections * shape.size;
        let (mut pace, end) = (Pace::of_rounds(round), Instant::now() + duration);
        while Instant::now() < end {
            for (client, server, deframer) in &mut streams {
                while !sender.write(client)? {
                    pace.add(receiver.receive_all(server, deframer)?);
                }
            }
            for (_, server, deframer) in &mut streams {
                pace.add(receiver.receive_all(server, deframer)?);
            }
        }
        Ok(pace.end())
    })
}

/// One end of round trips.
struct FramedEnd {
    stream: TcpStream,
    sender: Sender,
    receiver: Receiver,
}

impl FramedEnd {
    fn new(stream: TcpStream, shape: Shape) -> Result<Self, Failure> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            sender: Sender::new(shape, Calls::EachMessage)?,
            receiver: Receiver::new(Calls::EachMessage)?,
        })
    }

    fn send(&mut self) -> Result<(), Failure> {
        while !self.sender.send(&self.stream)? {}
        Ok(())
    }

    fn has_received(&mut self) -> Result<bool, Failure> {
        Ok(self.receiver.receive(&self.stream)?.messages > 0)
    }
}

/// Measures round trips, without sleeping.
pub(crate) fn latency(bed: &Bed, shape: Shape, effort: &Effort) -> Result<Latency, Failure> {
    bed.set_offloads(false)?;
    let (client, server) = kernel::connect(bed)?;
    let (mut client, mut server) = (
        FramedEnd::new(client, shape)?,
        FramedEnd::new(server, shape)?,
    );
    let game = PingPong {
        ping: |client: &mut FramedEnd| client.send().map(|()| 0),
        pong: |client: &mut FramedEnd, _| client.has_received(),
        answer: |server: &mut FramedEnd| {
            if server.has_received()? {
                server.send()?;
            }
            Ok(())
        },
    };
    let cores = shape.cores;
    ping_pong(bed, cores, effort, (&mut client, &mut server), game)
}
