//! rnic: RDMA over the same veth pair, each end driven by the thread that uses it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rnic_verbs::{
    Access, Completion, ConnectionEvent, ConnectionOptions, Cq, Device, DeviceConfig, HugePages,
    Mr, Qp, QpCaps, Region, RemoteAddress, SendRequest, Via, WcOpcode,
};

use crate::bed::{Bed, Cores, Host, PROTECTED};
use crate::effort::{Effort, REGION, Shape, idle};
use crate::failure::Failure;
use crate::pace::{Bandwidth, Pace};
use crate::pingpong::{Latency, PingPong, ping_pong};

/// Octets posted at once: as many as the receive window has.
pub(crate) const POSTED: usize = 512 * 1024;
/// Requests that may be posted ahead. It takes many short ones to keep the path busy.
pub(crate) const SEND_QUEUE: u32 = 512;
/// Octets that a request itself can carry.
const INLINE: usize = 64;
/// Where messages of round trips are sent from; they arrive at the start.
const SOURCE: usize = REGION / 2;
/// Receives posted ahead of the Sends of a latency measurement.
const RECEIVES: u64 = 16;

/// Returns the port that a way listens on. The kernel keeps that of its own connections for a while
/// after their end.
pub(crate) fn port_of(via: Option<Via>) -> u16 {
    match via {
        Some(Via::Kernel) => 4792,
        _ => 4791,
    }
}

/// What a connection is made for.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    /// What carries connections. `None`: what the environment says.
    pub(crate) via: Option<Via>,
    /// Receives that may be posted ahead.
    pub(crate) receives: u32,
    /// Reads that may be under way.
    pub(crate) reads: u16,
    /// Its frames are [protected](Bed::protect) by ESP.
    pub(crate) protected: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            via: None,
            receives: QpCaps::default().max_recv_wr,
            reads: ConnectionOptions::default().ord,
            protected: false,
        }
    }
}

impl Setup {
    fn options(&self) -> ConnectionOptions {
        ConnectionOptions {
            ird: self.reads,
            ord: self.reads,
            ..ConnectionOptions::default()
        }
    }
}

/// One end of a connection.
pub(crate) struct RdmaEnd {
    pub(crate) device: Device,
    cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) mr: Mr,
    completions: [Completion; 16],
}

impl RdmaEnd {
    fn open(host: &Host, setup: &Setup) -> Result<Self, Failure> {
        // One queue pair, and one for a neighbour beside whom it is measured.
        let device = host.run(|| open_device(host, 2, setup))?;
        let pd = device.pd();
        let cq = device.cq(256.max(2 * setup.receives))?;
        let caps = QpCaps {
            max_send_wr: SEND_QUEUE,
            max_recv_wr: setup.receives,
            ..QpCaps::default()
        };
        let qp = pd.qp(&cq, &cq, caps)?;
        let region = Arc::new(Region::allocate(REGION, HugePages::Prefer)?);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(&region, access)?;
        Ok(Self {
            device,
            cq,
            qp,
            mr,
            completions: Default::default(),
        })
    }

    fn is_established(&mut self) -> Result<bool, Failure> {
        match self.qp.next_event(Duration::ZERO)? {
            None => Ok(false),
            Some(ConnectionEvent::Established(_)) => Ok(true),
            Some(other) => Err(format!("the connection did not come to be: {other:?}").into()),
        }
    }

    /// Polls completions, and drives the engine if there are none. Returns them. All must be
    /// successes.
    pub(crate) fn poll(&mut self) -> Result<&[Completion], Failure> {
        let taken = self.cq.poll(&mut self.completions);
        self.successes(taken)
    }

    /// The same, without driving the engine.
    pub(crate) fn take(&mut self) -> Result<&[Completion], Failure> {
        let taken = self.cq.take(&mut self.completions);
        self.successes(taken)
    }

    fn successes(&self, taken: usize) -> Result<&[Completion], Failure> {
        let completions = &self.completions[..taken];
        match completions.iter().find(|one| !one.is_success()) {
            None => Ok(completions),
            Some(failed) => Err(format!("a request failed: {:?}", failed.status()).into()),
        }
    }

    /// Posts Writes with these numbers of a stream of them, one behind the other in memory. Each
    /// `signal`th makes a completion. Short ones are posted as a list.
    fn write_messages(
        &mut self,
        to: RemoteAddress,
        numbers: Range<usize>,
        size: usize,
        signal: usize,
    ) -> Result<(), Failure> {
        let write = |number: usize| {
            let at = number % (REGION / size) * size;
            let to = RemoteAddress {
                offset: to.offset + at as u64,
                ..to
            };
            let signaled = number.is_multiple_of(signal);
            (at, SendRequest::write(to).signaled(signaled))
        };
        if size <= INLINE {
            let data = &[0x5a; INLINE][..size];
            let writes = numbers.map(|number| write(number).1.inline(data));
            return Ok(self.qp.post_sends(writes)?);
        }
        for number in numbers {
            let (at, write) = write(number);
            let piece = [self.mr.sge(at, size as u32)];
            self.qp.post_send(&write.memory(&piece))?;
        }
        Ok(())
    }

    /// Posts a Write whose last octet is `mark`.
    fn write_mark(&mut self, to: RemoteAddress, mark: u8, octets: usize) -> Result<(), Failure> {
        let write = SendRequest::write(to);
        if octets <= INLINE {
            self.qp
                .post_send(&write.inline(&[mark; INLINE][..octets]))?;
        } else {
            self.mr.write(SOURCE + octets - 1, &[mark])?;
            let piece = [self.mr.sge(SOURCE, octets as u32)];
            self.qp.post_send(&write.memory(&piece))?;
        }
        // Nothing more is to be posted: it may go at once.
        self.device.drive();
        Ok(())
    }

    /// Drives the engine. Returns whether the peer's mark has arrived.
    fn sees_mark(&mut self, mark: u8, octets: usize) -> Result<bool, Failure> {
        self.poll()?;
        Ok(self.mr.load(octets - 1)? == mark)
    }

    fn send(&mut self, octets: usize) -> Result<(), Failure> {
        let send = SendRequest::send();
        if octets <= INLINE {
            self.qp.post_send(&send.inline(&[7; INLINE][..octets]))?;
        } else {
            let piece = [self.mr.sge(SOURCE, octets as u32)];
            self.qp.post_send(&send.memory(&piece))?;
        }
        self.device.drive();
        Ok(())
    }

    /// Posts a buffer. Messages that are not read may share memory.
    fn post_receive(&mut self, slot: u64, octets: usize) -> Result<(), Failure> {
        let piece = [self.mr.sge(0, octets as u32)];
        Ok(self.qp.post_recv(slot, &piece)?)
    }

    /// Drives the engine. Returns whether a Send has arrived, and posts its buffer again.
    fn has_received(&mut self, octets: usize) -> Result<bool, Failure> {
        let slot = |one: &Completion| (one.opcode() == WcOpcode::Recv).then_some(one.wr_id());
        let Some(slot) = self.poll()?.iter().find_map(slot) else {
            return Ok(false);
        };
        self.post_receive(slot, octets)?;
        Ok(true)
    }
}

/// Returns a device that its user drives, with room for so many queue pairs, for a purpose.
pub(crate) fn open_device(host: &Host, qps: u32, setup: &Setup) -> Result<Device, Failure> {
    let mut config = DeviceConfig::new(host.netdev);
    config.stags = 64;
    config.queue_pairs = qps;
    config.manager.clone_from(&host.manager);
    config.via = setup.via.unwrap_or(config.via);
    if setup.protected {
        config.interface.ipsec_if_id = Some(PROTECTED);
        config.interface.require_protection = true;
    }
    Ok(Device::open_with(&config)?)
}

/// Returns a connected pair, client and server.
pub(crate) fn connect(bed: &Bed) -> Result<(RdmaEnd, RdmaEnd), Failure> {
    connect_for(bed, &Setup::default())
}

/// Returns a connected pair, client and server, for a purpose.
pub(crate) fn connect_for(bed: &Bed, setup: &Setup) -> Result<(RdmaEnd, RdmaEnd), Failure> {
    let mut client = RdmaEnd::open(&bed.client, setup)?;
    let mut server = RdmaEnd::open(&bed.server, setup)?;
    let listener = bed
        .server
        .run(|| server.device.listen(bed.server.at(port_of(setup.via))))?;
    bed.client.run(|| {
        client
            .qp
            .connect(bed.server.at(port_of(setup.via)), None, setup.options())
    })?;
    let deadline = Instant::now() + Duration::from_secs(5);
    let (mut client_stands, mut server_stands) = (false, false);
    while !(client_stands && server_stands) {
        client_stands |= client.is_established()?;
        if let Some(request) = listener.next_request(Duration::ZERO)? {
            request.accept(&mut server.qp, setup.options())?;
        }
        server_stands |= server.is_established()?;
        if Instant::now() > deadline {
            return Err("the two ends do not connect".into());
        }
    }
    bed.settle()?;
    Ok((client, server))
}

/// Measures RDMA Writes, which complete when their last octets are acknowledged.
pub(crate) fn bandwidth(bed: &Bed, shape: Shape, effort: &Effort) -> Result<Bandwidth, Failure> {
    let (mut client, mut server) = connect(bed)?;
    bandwidth_between(bed, (&mut client, &mut server), shape, effort)
}

/// Measures RDMA Writes between two ends that are connected.
pub(crate) fn bandwidth_between(
    bed: &Bed,
    (client, server): (&mut RdmaEnd, &mut RdmaEnd),
    shape: Shape,
    effort: &Effort,
) -> Result<Bandwidth, Failure> {
    let to = server.mr.remote(0);
    match shape.cores {
        Cores::One => bed.on_one(|| {
            write_for(client, to, shape.size, effort.duration, || {
                while server.device.drive() {}
            })
        }),
        Cores::Two => {
            let over = AtomicBool::new(false);
            let (bandwidth, ()) = bed.on_two(
                || {
                    let bandwidth = write_for(client, to, shape.size, effort.duration, || {});
                    over.store(true, Ordering::Release);
                    bandwidth
                },
                || {
                    while !over.load(Ordering::Acquire) {
                        if !server.device.drive() {
                            idle();
                        }
                    }
                    Ok(())
                },
            )?;
            Ok(bandwidth)
        }
    }
}

/// Keeps the send queue busy for a time.
fn write_for(
    client: &mut RdmaEnd,
    to: RemoteAddress,
    size: usize,
    duration: Duration,
    mut meanwhile: impl FnMut(),
) -> Result<Bandwidth, Failure> {
    let depth = (POSTED / size).clamp(2, SEND_QUEUE as usize);
    // Of many short Writes, a completion for each would be a large part of the work, and tell
    // nothing.
    let signal = (depth / 4).clamp(1, 16);
    let (mut posted, mut complete) = (0, 0);
    let (mut pace, end) = (Pace::new(), Instant::now() + duration);
    while Instant::now() < end {
        let numbers = posted + 1..complete + depth + 1;
        posted += numbers.len();
        client.write_messages(to, numbers, size, signal)?;
        let done = client.poll()?.len() * signal;
        complete += done;
        pace.add(done * size);
        meanwhile();
    }
    Ok(pace.end())
}

/// Measures round trips of Writes: each end watches its memory for the other's.
pub(crate) fn write_latency(bed: &Bed, shape: Shape, effort: &Effort) -> Result<Latency, Failure> {
    let (mut client, mut server) = connect(bed)?;
    write_latency_between(bed, (&mut client, &mut server), shape, effort)
}

/// Measures round trips of Writes between two ends that have just been connected.
pub(crate) fn write_latency_between(
    bed: &Bed,
    (client, server): (&mut RdmaEnd, &mut RdmaEnd),
    shape: Shape,
    effort: &Effort,
) -> Result<Latency, Failure> {
    let octets = shape.size;
    let (to_server, to_client) = (server.mr.remote(0), client.mr.remote(0));
    let (mut mark, mut seen) = (0u8, 0u8);
    // Marks run from 1 to 255: the server waits for the one behind that which it saw last.
    let next = |mark: u8| mark % 255 + 1;
    let answer = |server: &mut RdmaEnd| -> Result<(), Failure> {
        if server.sees_mark(next(seen), octets)? {
            seen = next(seen);
            server.write_mark(to_client, seen, octets)?;
        }
        Ok(())
    };
    let ping = |client: &mut RdmaEnd| {
        mark = next(mark);
        client.write_mark(to_server, mark, octets)?;
        Ok::<_, Failure>(mark)
    };
    let pong = |client: &mut RdmaEnd, mark| client.sees_mark(mark, octets);
    let game = PingPong { ping, pong, answer };
    ping_pong(bed, shape.cores, effort, (client, server), game)
}

/// Measures round trips of Sends.
pub(crate) fn send_latency(bed: &Bed, shape: Shape, effort: &Effort) -> Result<Latency, Failure> {
    let (mut client, mut server) = connect(bed)?;
    send_latency_between(bed, (&mut client, &mut server), shape, effort)
}

/// Measures round trips of Sends between two ends that have just been connected.
pub(crate) fn send_latency_between(
    bed: &Bed,
    (client, server): (&mut RdmaEnd, &mut RdmaEnd),
    shape: Shape,
    effort: &Effort,
) -> Result<Latency, Failure> {
    let octets = shape.size;
    for slot in 0..RECEIVES {
        client.post_receive(slot, octets)?;
        server.post_receive(slot, octets)?;
    }
    let answer = |server: &mut RdmaEnd| -> Result<(), Failure> {
        if server.has_received(octets)? {
            server.send(octets)?;
        }
        Ok(())
    };
    let ping = |client: &mut RdmaEnd| client.send(octets).map(|()| 0);
    let pong = |client: &mut RdmaEnd, _| client.has_received(octets);
    let game = PingPong { ping, pong, answer };
    ping_pong(bed, shape.cores, effort, (client, server), game)
}
