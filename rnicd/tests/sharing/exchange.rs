//! What the two ends of a connection do: one writes to the other's memory, reads it back, and
//! compares.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rnic_verbs::{
    Access, ConnectionEvent, ConnectionOptions, Cq, Device, HugePages, Listener, Mr, Pd, Qp,
    QpCaps, Region, RemoteAddress, SendRequest, Stag, WcOpcode,
};

/// How long anything may take that happens at all.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// How long an end looks for requests before it looks whether it is to end.
pub(crate) const TURN: Duration = Duration::from_millis(20);
/// Octets of a round: many segments, and not a multiple of any segment's length.
pub(crate) const OCTETS: usize = (1 << 16) + 13;

/// An answer, or what went wrong.
pub(crate) type Outcome<T> = Result<T, String>;

/// Puts an error into words.
pub(crate) fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn memory(pd: &Pd) -> Outcome<Mr> {
    let region = Arc::new(Region::allocate(OCTETS, HugePages::None).map_err(words)?);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    pd.register(&region, access).map_err(words)
}

/// The end that offers its memory, and sends back what is sent to it.
pub(crate) struct Responder {
    cq: Cq,
    qp: Qp,
    mr: Mr,
    inbox: Mr,
}

impl Responder {
    /// Accepts the next connection request, if there is one within `timeout`, and tells the peer
    /// where the memory is.
    fn accept(device: &Device, listeners: &[Listener], timeout: Duration) -> Outcome<Option<Self>> {
        let Some(request) = device.next_request(listeners, timeout).map_err(words)? else {
            return Ok(None);
        };
        let (pd, cq) = (device.pd(), device.cq(16).map_err(words)?);
        let (mr, inbox) = (memory(&pd)?, memory(&pd)?);
        let mut qp = pd.qp(&cq, &cq, QpCaps::default()).map_err(words)?;
        let all = [inbox.sge(0, OCTETS as u32)];
        qp.post_recv(0, &all).map_err(words)?;
        let there = mr.remote(0);
        let mut private_data = there.stag.0.to_be_bytes().to_vec();
        private_data.extend(there.offset.to_be_bytes());
        let options = ConnectionOptions {
            private_data,
            ..ConnectionOptions::default()
        };
        request.accept(&mut qp, options).map_err(words)?;
        Ok(Some(Self { cq, qp, mr, inbox }))
    }

    /// Sends back what was sent to it. There is one message at a time.
    fn answer(&mut self) -> Outcome<()> {
        while let Some(done) = self.cq.poll_one() {
            if done.opcode() == WcOpcode::Recv && done.is_success() {
                let all = [self.inbox.sge(0, OCTETS as u32)];
                self.qp.post_recv(0, &all).map_err(words)?;
                let echo = SendRequest::send().memory(&all);
                self.qp.post_send(&echo).map_err(words)?;
            }
        }
        Ok(())
    }

    /// Returns whether its connection has not ended.
    fn goes_on(&mut self) -> bool {
        let event = self.qp.next_event(Duration::ZERO);
        matches!(event, Ok(None | Some(ConnectionEvent::Established(_))))
    }
}

/// Serves all who connect, until it is told to stop. Returns how many connected.
pub(crate) fn respond(
    device: &Device,
    listeners: &[Listener],
    stop: &AtomicBool,
) -> Outcome<usize> {
    let (mut ends, mut count) = (Vec::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        let accepted = Responder::accept(device, listeners, TURN)?;
        count += usize::from(accepted.is_some());
        ends.extend(accepted);
        ends.retain_mut(Responder::goes_on);
        ends.iter_mut().try_for_each(Responder::answer)?;
    }
    Ok(count)
}

/// The end that writes and reads.
pub(crate) struct Initiator {
    cq: Cq,
    qp: Qp,
    source: Mr,
    sink: Mr,
    there: RemoteAddress,
}

impl Initiator {
    /// Connects, and learns where the peer's memory is.
    pub(crate) fn connect(
        device: &Device,
        to: SocketAddr,
        from: Option<SocketAddr>,
    ) -> Outcome<Self> {
        Self::connect_within(device, to, from, SOON)
    }

    /// Connects, and gives up after some time.
    pub(crate) fn connect_within(
        device: &Device,
        to: SocketAddr,
        from: Option<SocketAddr>,
        limit: Duration,
    ) -> Outcome<Self> {
        Begun::connect(device, to, from, limit)?.finish()
    }

    /// Writes octets that follow from the seed, reads them back, and compares.
    pub(crate) fn round(&mut self, seed: u64) -> Outcome<()> {
        let sent = octets(seed);
        self.source.write(0, &sent).map_err(words)?;
        self.sink.write(0, &vec![0; OCTETS]).map_err(words)?;
        let all = [self.source.sge(0, OCTETS as u32)];
        self.carry_out(&SendRequest::write(self.there).memory(&all))?;
        let all = [self.sink.sge(0, OCTETS as u32)];
        self.carry_out(&SendRequest::read(self.there).memory(&all))?;
        self.compare(&sent, seed)
    }

    /// Sends octets that follow from the seed, and compares what comes back.
    pub(crate) fn echo(&mut self, seed: u64) -> Outcome<()> {
        let sent = octets(seed);
        self.source.write(0, &sent).map_err(words)?;
        self.sink.write(0, &vec![0; OCTETS]).map_err(words)?;
        let all = [self.sink.sge(0, OCTETS as u32)];
        self.qp.post_recv(0, &all).map_err(words)?;
        let all = [self.source.sge(0, OCTETS as u32)];
        self.carry_out(&SendRequest::send().memory(&all))?;
        // What came back, or that it was sent: one is done, the other is to come.
        self.complete()?;
        self.compare(&sent, seed)
    }

    /// Compares what has arrived with what was sent.
    fn compare(&self, sent: &[u8], seed: u64) -> Outcome<()> {
        let mut found = vec![0; OCTETS];
        self.sink.read(0, &mut found).map_err(words)?;
        match found
            .iter()
            .zip(sent)
            .position(|(found, sent)| found != sent)
        {
            None => Ok(()),
            Some(at) => Err(format!("octet {at} of the round with seed {seed} is wrong")),
        }
    }

    fn carry_out(&mut self, request: &SendRequest<'_>) -> Outcome<()> {
        self.qp.post_send(request).map_err(words)?;
        self.complete()
    }

    /// Waits until a request is done.
    fn complete(&mut self) -> Outcome<()> {
        let until = Instant::now() + SOON;
        let done = loop {
            if let Some(done) = self.cq.poll_one() {
                break done;
            }
            self.cq.wait(TURN).map_err(words)?;
            if Instant::now() > until {
                return Err("a request does not complete".into());
            }
        };
        if done.is_success() {
            return Ok(());
        }
        let event = self.qp.next_event(SOON).map_err(words)?;
        Err(format!("{:?}: {event:?}", done.status()))
    }

    /// Closes the connection, and waits until it has ended in order.
    pub(crate) fn close(mut self) -> Outcome<()> {
        self.qp.disconnect().map_err(words)?;
        match self.qp.next_event(SOON).map_err(words)? {
            Some(ConnectionEvent::Disconnected(_)) => Ok(()),
            other => Err(format!("closing ends with {other:?}")),
        }
    }
}

/// A connection that is being made.
struct Begun {
    cq: Cq,
    qp: Qp,
    pd: Pd,
}

impl Begun {
    fn connect(
        device: &Device,
        to: SocketAddr,
        from: Option<SocketAddr>,
        limit: Duration,
    ) -> Outcome<Self> {
        let (pd, cq) = (device.pd(), device.cq(16).map_err(words)?);
        let mut qp = pd.qp(&cq, &cq, QpCaps::default()).map_err(words)?;
        let options = ConnectionOptions {
            connect_timeout: limit,
            ..ConnectionOptions::default()
        };
        qp.connect(to, from, options).map_err(words)?;
        Ok(Self { cq, qp, pd })
    }

    fn finish(mut self) -> Outcome<Initiator> {
        let established = self.qp.wait_established(SOON).map_err(words)?;
        let data = established.private_data.as_slice();
        let (stag, offset) = data.split_at_checked(4).ok_or("no private data")?;
        let short = |_| "the private data is too short".to_owned();
        let there = RemoteAddress {
            stag: Stag(u32::from_be_bytes(stag.try_into().map_err(short)?)),
            offset: u64::from_be_bytes(offset.try_into().map_err(short)?),
        };
        Ok(Initiator {
            source: memory(&self.pd)?,
            sink: memory(&self.pd)?,
            cq: self.cq,
            qp: self.qp,
            there,
        })
    }
}

/// Connects a device to a listener of this thread's own, on the same device or on another, and has
/// one write to the other. Returns what the listener's memory has then, which the initiator did not
/// look at.
pub(crate) fn talk_to_oneself(
    device: &Device,
    (other, listener): (&Device, Listener),
    to: SocketAddr,
    seed: u64,
) -> Outcome<()> {
    let begun = Begun::connect(device, to, None, SOON)?;
    let listeners = [listener];
    let until = Instant::now() + SOON;
    let responder = loop {
        device.drive();
        if let Some(responder) = Responder::accept(other, &listeners, Duration::ZERO)? {
            break responder;
        }
        if Instant::now() > until {
            return Err("no connection request comes".into());
        }
    };
    let stop = AtomicBool::new(false);
    let wrote = std::thread::scope(|scope| {
        // Whoever offers memory does nothing for it, but its device must be driven.
        let driver = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                other.drive();
                std::thread::yield_now();
            }
        });
        let wrote = begun.finish().and_then(|mut end| end.round(seed));
        stop.store(true, Ordering::Relaxed);
        let driven = driver.join().map_err(|_| "driving panics".to_owned());
        wrote.and(driven)
    });
    wrote?;
    let mut found = vec![0; OCTETS];
    responder.mr.read(0, &mut found).map_err(words)?;
    match found == octets(seed) {
        true => Ok(()),
        false => Err("the listener's memory has other octets".into()),
    }
}

/// The octets of a round.
fn octets(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut octets = vec![0; OCTETS];
    random.fill(&mut octets);
    octets
}
