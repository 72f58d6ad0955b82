//! rnic: RDMA over the same veth pair, each end driven by the thread that uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rnic_core::engine::{EngineConfig, link};
use rnic_core::memory::table::StagTable;
use rnic_verbs::{
    Access, Completion, ConnectionEvent, ConnectionOptions, Cq, Device, Driver, HugePages, Mr, Qp,
    QpCaps, Region, RemoteAddress, SendRequest, WcOpcode,
};
use rnic_xdp::{PortConfig, Worker, XdpNet, XdpPort, bell};

use crate::Failure;
use crate::bed::{Bed, Cores, Host};
use crate::effort::{Effort, MESSAGE, REGION, idle};
use crate::pace::{Bandwidth, Pace};
use crate::pingpong::{Game, Latency, ping_pong};

/// Writes posted at once: as many octets as the receive window has.
const DEPTH: usize = 8;
/// Receives posted ahead of the Sends of a latency measurement.
const RECEIVES: u64 = 16;
const PORT: u16 = 4791;

/// One end of a connection.
struct End {
    device: Device,
    cq: Cq,
    qp: Qp,
    mr: Mr,
    completions: [Completion; 16],
}

impl End {
    fn open(host: &Host, secret: u8) -> Result<Self, Failure> {
        let device = host.run(|| open_device(host, secret))?;
        let pd = device.pd();
        let cq = device.cq(256)?;
        let qp = pd.qp(&cq, &cq, QpCaps::default())?;
        let region = Arc::new(Region::allocate(REGION, HugePages::Prefer)?);
        let mr = pd.register(&region, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
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

    /// Takes completions, driving the engine if there are none; returns how many. All must be successes.
    fn poll(&mut self) -> Result<&[Completion], Failure> {
        let taken = self.cq.poll(&mut self.completions);
        let completions = &self.completions[..taken];
        match completions.iter().find(|one| !one.is_success()) {
            None => Ok(completions),
            Some(failed) => Err(format!("a request failed: {:?}", failed.status()).into()),
        }
    }

    /// Posts a Write of a whole message.
    fn write_message(&mut self, to: RemoteAddress, number: usize) -> Result<(), Failure> {
        let at = number % (REGION / MESSAGE) * MESSAGE;
        let to = RemoteAddress {
            offset: to.offset + at as u64,
            ..to
        };
        let piece = [self.mr.sge(at, MESSAGE as u32)];
        Ok(self.qp.post_send(&SendRequest::write(to).memory(&piece))?)
    }

    /// Posts a short Write, whose octets all are `mark`.
    fn write_mark(&mut self, to: RemoteAddress, mark: u8, octets: usize) -> Result<(), Failure> {
        let data = [mark; 64];
        let write = SendRequest::write(to).inline(&data[..octets]);
        Ok(self.qp.post_send(&write)?)
    }

    /// Drives the engine; whether the peer's mark has arrived.
    fn sees_mark(&mut self, mark: u8, octets: usize) -> Result<bool, Failure> {
        self.poll()?;
        Ok(self.mr.load(octets - 1)? == mark)
    }

    fn send(&mut self, octets: usize) -> Result<(), Failure> {
        let data = [7; 64];
        Ok(self
            .qp
            .post_send(&SendRequest::send().inline(&data[..octets]))?)
    }

    fn post_receive(&mut self, slot: u64) -> Result<(), Failure> {
        let piece = [self.mr.sge(slot as usize * 64, 64)];
        Ok(self.qp.post_recv(slot, &piece)?)
    }

    /// Drives the engine; whether a Send has arrived. Its buffer is posted again.
    fn has_received(&mut self) -> Result<bool, Failure> {
        let slot = |one: &Completion| (one.opcode() == WcOpcode::Recv).then_some(one.wr_id());
        let Some(slot) = self.poll()?.iter().find_map(slot) else {
            return Ok(false);
        };
        self.post_receive(slot)?;
        Ok(true)
    }
}

fn open_device(host: &Host, secret: u8) -> Result<Device, Failure> {
    let port = XdpPort::open(&PortConfig::new(host.netdev))?;
    let net = Arc::new(XdpNet::new(&port)?);
    let (bell, waker) = bell()?;
    // Nobody guesses STags or sequence numbers on this link.
    let (table_seed, secret) = ([secret; 32], [!secret; 32]);
    let (host_end, engine_end) = link(Arc::new(StagTable::new(64, table_seed)), 16, waker);
    let worker = Worker::new(port, EngineConfig::default(), secret, engine_end, bell)?;
    Ok(Device::new(host_end, net, Driver::Inline(Box::new(worker))))
}

/// A connected pair, client and server.
fn connect(bed: &Bed) -> Result<(End, End), Failure> {
    let (mut client, mut server) = (End::open(&bed.client, 1)?, End::open(&bed.server, 2)?);
    let listener = bed
        .server
        .run(|| server.device.listen(bed.server.at(PORT)))?;
    bed.client.run(|| {
        let options = ConnectionOptions::default();
        client.qp.connect(bed.server.at(PORT), None, options)
    })?;
    let deadline = Instant::now() + Duration::from_secs(5);
    let (mut client_stands, mut server_stands) = (false, false);
    while !(client_stands && server_stands) {
        client_stands |= client.is_established()?;
        if let Some(request) = listener.next_request(Duration::ZERO)? {
            request.accept(&mut server.qp, ConnectionOptions::default())?;
        }
        server_stands |= server.is_established()?;
        if Instant::now() > deadline {
            return Err("the two ends do not connect".into());
        }
    }
    Ok((client, server))
}

/// RDMA Writes of 64 KiB, each complete when its last octet is acknowledged.
pub(crate) fn bandwidth(bed: &Bed, cores: Cores, effort: &Effort) -> Result<Bandwidth, Failure> {
    let (mut client, server) = connect(bed)?;
    let to = server.mr.remote(0);
    match cores {
        Cores::One => bed.on_one(|| {
            write_for(&mut client, to, effort.duration, || {
                while server.device.drive() {}
            })
        }),
        Cores::Two => {
            let over = AtomicBool::new(false);
            let (bandwidth, ()) = bed.on_two(
                || {
                    let bandwidth = write_for(&mut client, to, effort.duration, || {});
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
    client: &mut End,
    to: RemoteAddress,
    duration: Duration,
    mut meanwhile: impl FnMut(),
) -> Result<Bandwidth, Failure> {
    let (mut posted, mut complete) = (0, 0);
    let (mut pace, end) = (Pace::new(), Instant::now() + duration);
    while Instant::now() < end {
        while posted - complete < DEPTH {
            client.write_message(to, posted)?;
            posted += 1;
        }
        let done = client.poll()?.len();
        complete += done;
        pace.add(done * MESSAGE);
        meanwhile();
    }
    Ok(pace.end())
}

/// Round trips of Writes of some octets: each end watches its memory for the other's.
pub(crate) fn write_latency(
    bed: &Bed,
    cores: Cores,
    effort: &Effort,
    octets: usize,
) -> Result<Latency, Failure> {
    let (mut client, mut server) = connect(bed)?;
    let (to_server, to_client) = (server.mr.remote(0), client.mr.remote(0));
    let (mut mark, mut seen) = (0u8, 0u8);
    // Marks run from 1 to 255: the server waits for the one behind that which it saw last.
    let next = |mark: u8| mark % 255 + 1;
    let answer = |server: &mut End| -> Result<(), Failure> {
        if server.sees_mark(next(seen), octets)? {
            seen = next(seen);
            server.write_mark(to_client, seen, octets)?;
        }
        Ok(())
    };
    let ping = |client: &mut End| {
        mark = next(mark);
        client.write_mark(to_server, mark, octets)?;
        Ok::<_, Failure>(mark)
    };
    let pong = |client: &mut End, mark| client.sees_mark(mark, octets);
    ping_pong(
        bed,
        cores,
        effort,
        (&mut client, &mut server),
        Game { ping, pong, answer },
    )
}

/// Round trips of Sends of some octets.
pub(crate) fn send_latency(
    bed: &Bed,
    cores: Cores,
    effort: &Effort,
    octets: usize,
) -> Result<Latency, Failure> {
    let (mut client, mut server) = connect(bed)?;
    for slot in 0..RECEIVES {
        client.post_receive(slot)?;
        server.post_receive(slot)?;
    }
    let answer = |server: &mut End| -> Result<(), Failure> {
        if server.has_received()? {
            server.send(octets)?;
        }
        Ok(())
    };
    let ping = |client: &mut End| client.send(octets).map(|()| 0);
    let pong = |client: &mut End, _| client.has_received();
    ping_pong(
        bed,
        cores,
        effort,
        (&mut client, &mut server),
        Game { ping, pong, answer },
    )
}
