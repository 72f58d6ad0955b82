//! One short message at a time, there and back, between two devices that are driven inline: the
//! work of both sides, from the call that posts a message to the call that finds it, without the
//! device's rings.

use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use rnic_core::connection::{NextHop, PortReservation};
use rnic_core::engine::{self as core, EngineConfig, Net, NetError, NextHopRequest, Peers, Turn};
use rnic_core::fast_paths::FastPaths;
use rnic_core::memory::table::StagTable;
use rnic_core::time::Instant;
use rnic_core::wire::ethernet::MacAddr;
use rnic_core::wire::packet::Checksums;
use rnic_verbs::{
    Access, Completion, ConnectionEvent, ConnectionOptions, Cq, Device, Driver, HugePages, Mr, Qp,
    QpCaps, Region, RemoteAddress, SendRequest, WcOpcode,
};

use crate::effort::PING;
use crate::failure::Failure;
use crate::pool::Pool;

/// Octets of a message, which the request itself carries.
const OCTETS: usize = PING;
/// Receives posted ahead of Sends.
const RECEIVES: u64 = 16;
/// The time between two turns.
const TURN: Duration = Duration::from_micros(1);
/// Requests that may be posted ahead.
pub(crate) const SEND_QUEUE: u32 = 256;
const PORT: u16 = 4791;
/// From the client to the server, then back.
const BOTH_WAYS: [[usize; 2]; 2] = [[0, 1], [1, 0]];

/// Frames on their way to one end, each behind the other.
#[derive(Default)]
struct Line {
    octets: Vec<u8>,
    ends: Vec<usize>,
}

impl Line {
    fn push(&mut self, frame: &[u8]) {
        self.octets.extend_from_slice(frame);
        self.ends.push(self.octets.len());
    }

    fn frames(&self) -> impl Iterator<Item = &[u8]> {
        let begin = |at| if at == 0 { 0 } else { self.ends[at - 1] };
        (0..self.ends.len()).map(move |at| &self.octets[begin(at)..self.ends[at]])
    }

    fn clear(&mut self) {
        self.octets.clear();
        self.ends.clear();
    }
}

/// Drives an engine as a worker of a port does.
struct ShortWorker {
    driver: core::Driver,
    pool: Pool,
    now: Instant,
    received: Line,
    from_peer: Arc<Mutex<Line>>,
    to_peer: Arc<Mutex<Line>>,
}

impl Turn for ShortWorker {
    fn turn(&mut self) -> bool {
        self.now = self.now + TURN;
        self.received.clear();
        mem::swap(&mut self.received, &mut lock(&self.from_peer));
        if self.received.ends.is_empty() && !self.driver.is_due(self.now) {
            return false;
        }
        let mut batch = self.driver.begin(self.now);
        if !self.received.ends.is_empty() {
            let frames = self.received.frames();
            let frames = frames.map(|frame| (frame, Checksums::None));
            batch.handle_frames(frames, &mut self.pool);
        }
        let busy = batch.finish(&mut self.pool);
        let mut line = lock(&self.to_peer);
        for frame in self.pool.sent() {
            line.push(frame);
        }
        self.pool.delivered();
        while let Some(request) = self.driver.poll_next_hop_request() {
            let NextHopRequest::Follow(path) = request else {
                continue;
            };
            let mac = MacAddr([2, 0, 0, 0, 0, 1]);
            let hop = NextHop {
                source_mac: mac,
                destination_mac: mac,
                vlan: None,
                mtu: 1500,
                advertised_mss: None,
            };
            self.driver.set_next_hop(path, hop);
        }
        busy
    }

    fn is_settled(&self) -> bool {
        self.driver.is_settled()
    }

    fn wait(&mut self, _: Duration) {}
}

fn lock(line: &Mutex<Line>) -> std::sync::MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Unused ports.
struct Ports(Ipv4Addr);

impl Net for Ports {
    fn listen_to(
        &self,
        local: SocketAddr,
        _peers: &Peers,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        Ok((local, Arc::new(())))
    }

    fn active(
        &self,
        _remote: SocketAddr,
        _local: Option<SocketAddr>,
        _engine: u16,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        Ok((SocketAddr::new(self.0.into(), 40_000), Arc::new(())))
    }
}

/// One end.
pub(crate) struct ShortEnd {
    pub(crate) device: Device,
    address: Ipv4Addr,
    cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) mr: Mr,
    completions: [Completion; 16],
}

impl ShortEnd {
    fn open(
        number: u8,
        from_peer: &Arc<Mutex<Line>>,
        to_peer: &Arc<Mutex<Line>>,
        fast_paths: FastPaths,
    ) -> Result<Self, Failure> {
        let (seed, secret) = ([number; 32], [!number; 32]);
        let table = Arc::new(StagTable::new(64, seed));
        let (host, end) = core::mailbox(table, 1, Waker::noop().clone());
        let config = EngineConfig {
            fast_paths,
            ..EngineConfig::default()
        };
        let worker = ShortWorker {
            driver: core::Driver::new(config, secret, end),
            pool: Pool::new(1024, 64),
            now: Instant::ZERO,
            received: Line::default(),
            from_peer: from_peer.clone(),
            to_peer: to_peer.clone(),
        };
        let address = Ipv4Addr::new(192, 0, 2, number);
        let device = Device::new(
            host,
            Arc::new(Ports(address)),
            Driver::Inline(Box::new(worker)),
        );
        let pd = device.pd();
        let cq = device.cq(256)?;
        let caps = QpCaps {
            max_send_wr: SEND_QUEUE,
            ..QpCaps::default()
        };
        let qp = pd.qp(&cq, &cq, caps)?;
        let region = Arc::new(Region::allocate(1 << 16, HugePages::Prefer)?);
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(&region, rights)?;
        Ok(Self {
            device,
            address,
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
            Some(other) => Err(format!("the devices did not connect: {other:?}").into()),
        }
    }

    fn post_receive(&mut self, slot: u64) -> Result<(), Failure> {
        let piece = [self.mr.sge(0, OCTETS as u32)];
        Ok(self.qp.post_recv(slot, &piece)?)
    }

    /// Polls completions, and runs the device if there are none. Returns them. All must be
    /// successes.
    pub(crate) fn poll(&mut self) -> Result<&[Completion], Failure> {
        let taken = self.cq.poll(&mut self.completions);
        let completions = &self.completions[..taken];
        match completions.iter().find(|one| !one.is_success()) {
            None => Ok(completions),
            Some(failed) => Err(format!("a request failed: {:?}", failed.status()).into()),
        }
    }
}

/// Posts a Write and runs the device to send it. Each of these is a function of its own, to be
/// counted.
#[inline(never)]
fn write(end: &mut ShortEnd, to: RemoteAddress, mark: u8) -> Result<(), Failure> {
    let write = SendRequest::write(to);
    end.qp.post_send(&write.inline(&[mark; OCTETS]))?;
    end.device.drive();
    Ok(())
}

/// Polls the completions. Returns whether the Write with this mark has arrived.
#[inline(never)]
fn see(end: &mut ShortEnd, mark: u8) -> Result<bool, Failure> {
    end.poll()?;
    Ok(end.mr.load(OCTETS - 1)? == mark)
}

/// Posts a Send and runs the device to send it.
#[inline(never)]
fn send(end: &mut ShortEnd) -> Result<(), Failure> {
    let send = SendRequest::send();
    end.qp.post_send(&send.inline(&[7; OCTETS]))?;
    end.device.drive();
    Ok(())
}

/// Polls the completions. Returns the number of the receive that a Send has filled, if there is
/// one.
#[inline(never)]
fn receive(end: &mut ShortEnd) -> Result<Option<u64>, Failure> {
    let filled = |one: &Completion| (one.opcode() == WcOpcode::Recv).then_some(one.wr_id());
    Ok(end.poll()?.iter().find_map(filled))
}

/// Reads from the peer: posts, runs the peer, which responds, and takes the completion.
#[inline(never)]
fn read_one(
    client: &mut ShortEnd,
    server: &ShortEnd,
    from: RemoteAddress,
) -> Result<usize, Failure> {
    let sink = [client.mr.sge(0, OCTETS as u32)];
    client
        .qp
        .post_send(&SendRequest::read(from).memory(&sink))?;
    client.device.drive();
    server.device.drive();
    Ok(client.poll()?.len())
}

/// Two ends that exchange messages.
pub(crate) struct ShortMessages {
    ends: [ShortEnd; 2],
    mark: u8,
}

impl ShortMessages {
    pub(crate) fn connect(fast_paths: FastPaths) -> Result<Self, Failure> {
        let (there, back) = <(Arc<Mutex<Line>>, Arc<Mutex<Line>>)>::default();
        let mut ends = [
            ShortEnd::open(1, &back, &there, fast_paths)?,
            ShortEnd::open(2, &there, &back, fast_paths)?,
        ];
        let [client, server] = &mut ends;
        let at = SocketAddr::new(server.address.into(), PORT);
        let listener = server.device.listen(at)?;
        client.qp.connect(at, None, ConnectionOptions::default())?;
        let mut stand = [false; 2];
        while stand != [true; 2] {
            stand[0] |= client.is_established()?;
            if let Some(request) = listener.next_request(Duration::ZERO)? {
                request.accept(&mut server.qp, ConnectionOptions::default())?;
            }
            stand[1] |= server.is_established()?;
        }
        for slot in 0..RECEIVES {
            client.post_receive(slot)?;
            server.post_receive(slot)?;
        }
        Ok(Self { ends, mark: 0 })
    }

    /// Returns the two ends.
    pub(crate) fn ends(&mut self) -> &mut [ShortEnd; 2] {
        &mut self.ends
    }

    /// Does a Write there, and one back.
    pub(crate) fn write_both_ways(&mut self) -> Result<(), Failure> {
        self.write_both_ways_amid(|_| Ok(()))
    }

    /// Does a Write there, and one back. Between the post of each and its arrival it calls
    /// `meanwhile` with the end that posted.
    pub(crate) fn write_both_ways_amid(
        &mut self,
        mut meanwhile: impl FnMut(usize) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for [from, to] in BOTH_WAYS {
            self.mark = self.mark.wrapping_add(1);
            let at = self.ends[to].mr.remote(0);
            write(&mut self.ends[from], at, self.mark)?;
            meanwhile(from)?;
            if !see(&mut self.ends[to], self.mark)? {
                return Err("a Write did not arrive with the turn that it was for".into());
            }
        }
        Ok(())
    }

    /// Does a Send there, and one back.
    pub(crate) fn send_both_ways(&mut self) -> Result<(), Failure> {
        for [from, to] in BOTH_WAYS {
            send(&mut self.ends[from])?;
            let Some(slot) = receive(&mut self.ends[to])? else {
                return Err("a Send did not arrive with the turn that it was for".into());
            };
            self.ends[to].post_receive(slot)?;
        }
        Ok(())
    }

    /// Does a number of Reads, one after the other.
    pub(crate) fn read(&mut self, messages: usize) -> Result<(), Failure> {
        let [client, server] = &mut self.ends;
        let from = server.mr.remote(0);
        for _ in 0..messages {
            if read_one(client, server, from)? != 1 {
                return Err("a Read was not completed with the turn that it was for".into());
            }
        }
        Ok(())
    }

    /// Does a number of Writes, every other one in reply to the one before, and as many Sends.
    pub(crate) fn play(&mut self, messages: usize) -> Result<(), Failure> {
        (0..messages / 2).try_for_each(|_| self.write_both_ways())?;
        (0..messages / 2).try_for_each(|_| self.send_both_ways())
    }
}
