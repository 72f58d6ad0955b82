//! Streams of each kind of message over one connection, by the way that is asked for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rnic_verbs::{ConnectionOptions, QpCaps, RemoteAddress, SendRequest, Via, WcOpcode};

use crate::bed::{Bed, Cores};
use crate::effort::{Effort, REGION, Shape, idle};
use crate::failure::Failure;
use crate::pace::{Bandwidth, Pace};
use crate::rdma::{self, POSTED, RdmaEnd, SEND_QUEUE, Setup};

/// Receives posted ahead. Over sockets, one turn may take 1 MiB of Sends.
const RECEIVES: u32 = 512;
/// Reads under way: so many octets of 4 KiB messages as are posted.
const READS: u16 = 128;

/// A kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    Read,
    Send,
}

impl Kind {
    /// Returns what a connection needs for it.
    fn setup(self, via: Via) -> Setup {
        let (receives, reads) = match self {
            Self::Write => (
                QpCaps::default().max_recv_wr,
                ConnectionOptions::default().ord,
            ),
            Self::Read => (QpCaps::default().max_recv_wr, READS),
            Self::Send => (RECEIVES, ConnectionOptions::default().ord),
        };
        Setup {
            via: Some(via),
            receives,
            reads,
            ..Setup::default()
        }
    }
}

/// Measures messages that the client posts. A Write or a Send is complete when its last octet is
/// acknowledged, a Read when its data have come.
pub(crate) fn bandwidth(
    bed: &Bed,
    via: Via,
    kind: Kind,
    shape: Shape,
    effort: &Effort,
) -> Result<Bandwidth, Failure> {
    let (mut client, mut server) = rdma::connect_for(bed, &kind.setup(via))?;
    let ends = (&mut client, &mut server);
    if kind == Kind::Write {
        return rdma::bandwidth_between(bed, ends, shape, effort);
    }
    let (client, server) = ends;
    let from = server.mr.remote(0);
    if kind == Kind::Send {
        for slot in 0..u64::from(RECEIVES) {
            post_receive(server, slot, shape.size)?;
        }
    }
    match shape.cores {
        Cores::One => bed.on_one(|| {
            stream(client, kind, from, shape.size, effort, || {
                while serve(server, shape.size)? {}
                Ok(())
            })
        }),
        Cores::Two => {
            let over = AtomicBool::new(false);
            let (bandwidth, ()) = bed.on_two(
                || {
                    let bandwidth = stream(client, kind, from, shape.size, effort, || Ok(()));
                    over.store(true, Ordering::Release);
                    bandwidth
                },
                || {
                    while !over.load(Ordering::Acquire) {
                        if !serve(server, shape.size)? {
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
fn stream(
    client: &mut RdmaEnd,
    kind: Kind,
    from: RemoteAddress,
    size: usize,
    effort: &Effort,
    mut meanwhile: impl FnMut() -> Result<(), Failure>,
) -> Result<Bandwidth, Failure> {
    let depth = (POSTED / size).clamp(2, SEND_QUEUE as usize);
    let signal = (depth / 4).clamp(1, 16);
    let (mut posted, mut complete) = (0, 0);
    let end = Instant::now() + effort.duration;
    let mut pace = Pace::of_rounds(depth * size);
    while Instant::now() < end {
        while posted < complete + depth {
            posted += 1;
            post(client, kind, from, size, (posted, signal))?;
        }
        let done = client.poll()?.len() * signal;
        complete += done;
        pace.add(done * size);
        meanwhile()?;
    }
    Ok(pace.end())
}

/// Posts the message with a number of a stream of them, one behind the other in memory. Each
/// `signal`th makes a completion.
fn post(
    client: &mut RdmaEnd,
    kind: Kind,
    from: RemoteAddress,
    size: usize,
    (number, signal): (usize, usize),
) -> Result<(), Failure> {
    let at = place(number, size);
    let request = match kind {
        Kind::Read => SendRequest::read(RemoteAddress {
            offset: from.offset + at as u64,
            ..from
        }),
        _ => SendRequest::send(),
    };
    let piece = [client.mr.sge(at, size as u32)];
    let request = request.memory(&piece);
    let request = request.signaled(number.is_multiple_of(signal));
    Ok(client.qp.post_send(&request)?)
}

/// Drives the server's engine, and posts the receives again that it has used. Returns whether there
/// was anything to do.
fn serve(server: &mut RdmaEnd, size: usize) -> Result<bool, Failure> {
    let any = server.device.drive();
    loop {
        let completions = server.take()?;
        if completions.is_empty() {
            return Ok(any);
        }
        let used: Vec<_> = completions
            .iter()
            .filter(|one| one.opcode() == WcOpcode::Recv)
            .map(|one| one.wr_id())
            .collect();
        for slot in used {
            post_receive(server, slot, size)?;
        }
    }
}

fn post_receive(server: &mut RdmaEnd, slot: u64, size: usize) -> Result<(), Failure> {
    let piece = [server.mr.sge(place(slot as usize, size), size as u32)];
    Ok(server.qp.post_recv(slot, &piece)?)
}

/// Returns where a message lies in the region, which is used cyclically.
fn place(number: usize, size: usize) -> usize {
    number % (REGION / size) * size
}
