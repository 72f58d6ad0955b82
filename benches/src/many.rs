//! Many connections at once over the veth pair: how fast they move messages together, and what an
//! idle one costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rnic_core::memory::ring::ring_of;
use rnic_core::verbs::wr::{RecvWr, SendWr};
use rnic_verbs::{
    Access, Completion, ConnectionEvent, ConnectionOptions, Cq, Device, HugePages, Listener, Mr,
    Pd, Qp, QpCaps, Region, RemoteAddress, SendRequest, Via,
};

use crate::bed::{Bed, Cores, Host};
use crate::effort::{REGION, idle};
use crate::failure::Failure;
use crate::heap;
use crate::pace::{Bandwidth, Pace};
use crate::rdma::{Setup, open_device, port_of};

/// Octets of a message: less than a connection sends before others have their turn, so that all are
/// served in a run.
pub(crate) const SIZE: usize = 8 * 1024;
/// The least number of messages in flight. Each connection has at least one.
pub(crate) const UNDER_WAY: usize = 16;
/// Connections that are set up at the same time.
const AT_ONCE: usize = 64;
const CAPS: QpCaps = QpCaps {
    max_send_wr: UNDER_WAY as u32,
    max_recv_wr: 8,
    max_sge: 1,
    max_inline: 0,
    signal_all: true,
};

/// One end of all connections.
struct ManyEnd {
    /// Where the server listens.
    port: u16,
    device: Device,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    qps: Vec<Qp>,
    completions: Vec<Completion>,
}

impl ManyEnd {
    fn open(host: &Host, connections: usize, via: Option<Via>) -> Result<Self, Failure> {
        let setup = Setup {
            via,
            ..Setup::default()
        };
        let device = host.run(|| open_device(host, connections as u32, &setup))?;
        let (pd, cq) = (device.pd(), device.cq(1 << 15)?);
        let region = Arc::new(Region::allocate(REGION, HugePages::Prefer)?);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.register(&region, access)?;
        Ok(Self {
            port: port_of(via),
            device,
            pd,
            cq,
            mr,
            qps: Vec::with_capacity(connections),
            completions: vec![Completion::default(); 64],
        })
    }

    fn add_qp(&mut self) -> Result<&mut Qp, Failure> {
        let qp = self.pd.qp(&self.cq, &self.cq, CAPS)?;
        self.qps.push(qp);
        self.qps.last_mut().ok_or_else(|| "no queue pair".into())
    }

    /// Posts a message on a connection.
    fn write(&mut self, connection: usize, to: RemoteAddress) -> Result<(), Failure> {
        let piece = [self.mr.sge(0, SIZE as u32)];
        let write = SendRequest::write(to).memory(&piece);
        Ok(self.qps[connection].post_send(&write.wr_id(connection as u64))?)
    }
}

/// Returns whether a connection was established.
fn stands(qp: &mut Qp) -> Result<bool, Failure> {
    match qp.next_event(Duration::ZERO)? {
        None => Ok(false),
        Some(ConnectionEvent::Established(_)) => Ok(true),
        Some(other) => Err(format!("a connection did not come to be: {other:?}").into()),
    }
}

/// The result of many connections.
pub(crate) struct Figures {
    pub(crate) one_core: Bandwidth,
    pub(crate) two_cores: Option<Bandwidth>,
    /// Octets of heap of an idle connection with its queue pair beyond its rings, on each side.
    pub(crate) idle: f64,
}

/// Sets the connections up, and measures. `via` says what carries them, or else the environment.
pub(crate) fn measure(
    bed: &Bed,
    via: Option<Via>,
    connections: usize,
    duration: Duration,
) -> Result<Figures, Failure> {
    let mut client = ManyEnd::open(&bed.client, connections, via)?;
    let mut server = ManyEnd::open(&bed.server, connections, via)?;
    let listener = bed
        .server
        .run(|| server.device.listen(bed.server.at(server.port)))?;
    let (rings, of_rings) = heap::kept_by(|| -> Result<_, Failure> {
        Ok((
            ring_of::<SendWr>(
                CAPS.max_send_wr,
                SendWr::words_for(CAPS.max_sge, CAPS.max_inline),
            )?,
            ring_of::<RecvWr>(CAPS.max_recv_wr, RecvWr::words_for(CAPS.max_sge))?,
        ))
    })?;
    drop(rings);
    let ((), kept) = heap::kept_by(|| -> Result<(), Failure> {
        while client.qps.len() < connections {
            let count = AT_ONCE.min(connections - client.qps.len());
            connect(bed, (&mut client, &mut server), &listener, count)?;
        }
        Ok(())
    })?;
    let idle = kept as f64 / (2 * connections) as f64 - of_rings as f64;
    let one_core = bed.on_one(|| {
        let to = server.mr.remote(0);
        write_for(&mut client, to, duration, || while server.device.drive() {})
    })?;
    let two_cores = if bed.allows(Cores::Two) {
        let to = server.mr.remote(0);
        Some(on_two(bed, &mut client, to, &server.device, duration)?)
    } else {
        None
    };
    Ok(Figures {
        one_core,
        two_cores,
        idle,
    })
}

fn on_two(
    bed: &Bed,
    client: &mut ManyEnd,
    to: RemoteAddress,
    server: &Device,
    duration: Duration,
) -> Result<Bandwidth, Failure> {
    let over = AtomicBool::new(false);
    let (bandwidth, ()) = bed.on_two(
        || {
            let bandwidth = write_for(client, to, duration, || {});
            over.store(true, Ordering::Release);
            bandwidth
        },
        || {
            while !over.load(Ordering::Acquire) {
                if !server.drive() {
                    idle();
                }
            }
            Ok(())
        },
    )?;
    Ok(bandwidth)
}

/// Adds `count` connections.
fn connect(
    bed: &Bed,
    (client, server): (&mut ManyEnd, &mut ManyEnd),
    listener: &Listener,
    count: usize,
) -> Result<(), Failure> {
    let first = client.qps.len();
    bed.client.run(|| -> Result<(), Failure> {
        for _ in 0..count {
            let options = ConnectionOptions::default();
            let to = bed.server.at(client.port);
            client.add_qp()?.connect(to, None, options)?;
        }
        Ok(())
    })?;
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut stand = [vec![false; count], vec![false; count]];
    while !stand.iter().flatten().all(|stands| *stands) {
        while let Some(request) = listener.next_request(Duration::ZERO)? {
            request.accept(server.add_qp()?, ConnectionOptions::default())?;
        }
        for (end, stand) in [&mut *client, &mut *server].into_iter().zip(&mut stand) {
            while end.device.drive() {}
            for (qp, known) in end.qps.iter_mut().skip(first).zip(stand) {
                *known = *known || stands(qp)?;
            }
        }
        if Instant::now() > deadline {
            return Err(format!("only {first} of the connections came to stand").into());
        }
    }
    Ok(())
}

/// Keeps every connection busy for a time.
fn write_for(
    client: &mut ManyEnd,
    to: RemoteAddress,
    duration: Duration,
    mut meanwhile: impl FnMut(),
) -> Result<Bandwidth, Failure> {
    let connections = client.qps.len();
    let mut under_way = connections.max(UNDER_WAY);
    for number in 0..under_way {
        client.write(number % connections, to)?;
    }
    // Many complete together.
    let (mut pace, began) = (Pace::of_rounds(under_way * SIZE), Instant::now());
    let patience = duration + Duration::from_secs(20);
    // The next measurement finds nothing under way.
    while under_way > 0 {
        let done = client.cq.poll(&mut client.completions);
        for number in 0..done {
            let completion = client.completions[number];
            if !completion.is_success() {
                return Err(format!("a Write failed: {:?}", completion.status()).into());
            }
            if began.elapsed() < duration {
                client.write(completion.wr_id() as usize, to)?;
            } else {
                under_way -= 1;
            }
        }
        pace.add(done * SIZE);
        if began.elapsed() > patience {
            return Err(format!("{under_way} Writes do not complete").into());
        }
        meanwhile();
    }
    Ok(pace.end())
}
