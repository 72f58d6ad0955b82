//! A client with a neighbour on the same device: its round trips and its goodput meanwhile.

use std::time::Instant;

use super::neighbour::{Conduct, Neighbour};
use crate::bed::{Bed, Cores};
use crate::effort::{Effort, MESSAGE, PING, Shape};
use crate::failure::Failure;
use crate::pingpong::Latency;
use crate::rdma::{bandwidth_between, connect, write_latency_between};

/// What a client has beside a neighbour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) latency: Latency,
    /// Gigabits of payload in a second, over the whole run: stalls count.
    pub(crate) goodput: f64,
    /// Million frames, leases or connections that the neighbour has made in a second, if it is one
    /// that counts them.
    pub(crate) pressure: Option<f64>,
}

/// Measures a client and its peer, which one thread drives on the first processor. The neighbour is
/// on the same one, or has the second for itself.
pub(crate) fn measure(
    bed: &Bed,
    conduct: Conduct,
    cores: Cores,
    effort: &Effort,
) -> Result<Figures, Failure> {
    let shape = |size| Shape {
        cores: Cores::One,
        mtu: 1500,
        size,
    };
    let (mut client, mut server) = connect(bed)?;
    let processor = bed.processor(usize::from(cores.count()) - 1);
    let neighbour = Neighbour::start(bed, conduct, processor, &server.device)?;
    let began = Instant::now();
    let ends = (&mut client, &mut server);
    let latency = write_latency_between(bed, ends, shape(PING), effort)?;
    let ends = (&mut client, &mut server);
    let goodput = bandwidth_between(bed, ends, shape(MESSAGE), effort)?.mean;
    let sent = neighbour.end()?;
    Ok(Figures {
        latency,
        goodput,
        pressure: sent.map(|sent| sent as f64 / began.elapsed().as_micros() as f64),
    })
}
