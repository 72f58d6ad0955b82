//! Many short Writes, posted one after the other: the work of each of the two ends for one of them
//! if 51 share a segment.

use rnic_core::fast_paths::FastPaths;
use rnic_verbs::{RemoteAddress, SendRequest};

use crate::failure::Failure;
use crate::short::{SEND_QUEUE, ShortEnd, ShortMessages};

/// Octets of a Write.
const OCTETS: usize = 8;
/// Writes of a batch: they fill four segments of an MTU of 1500.
pub(crate) const WRITES: usize = 4 * 51;
/// One of this many Writes is signalled.
const SIGNALED: usize = 17;
/// Octets of the peer's memory that they go to, one behind the other and from the start again.
const REACH: usize = 8192;

const _: () = assert!(WRITES <= SEND_QUEUE as usize && WRITES.is_multiple_of(SIGNALED));

/// Posts batches one after the other, and waits for the end of each.
pub(crate) fn write_batches(batches: usize, fast_paths: FastPaths) -> Result<(), Failure> {
    let mut game = ShortMessages::connect(fast_paths)?;
    let [client, server] = game.ends();
    let to = server.mr.remote(0);
    for batch in 0..batches {
        post(client, to, batch * WRITES)?;
        transmit(client);
        receive(server);
        let completed = complete(client)?;
        if completed != WRITES / SIGNALED {
            return Err(format!("{completed} completions of a batch of {WRITES} Writes").into());
        }
    }
    Ok(())
}

/// Posts a batch, as the application. Each of these is a function of its own, to be counted.
#[inline(never)]
fn post(client: &mut ShortEnd, to: RemoteAddress, first: usize) -> Result<(), Failure> {
    let data = [0x5a; OCTETS];
    let writes = (first..first + WRITES).map(|number| {
        let to = RemoteAddress {
            offset: to.offset + (number * OCTETS % REACH) as u64,
            ..to
        };
        let signaled = number.is_multiple_of(SIGNALED);
        SendRequest::write(to).inline(&data).signaled(signaled)
    });
    Ok(client.qp.post_sends(writes)?)
}

/// Runs the engine that takes the batch.
#[inline(never)]
fn transmit(client: &ShortEnd) {
    client.device.drive();
}

/// Runs the peer's engine, which places it. The last segment is acknowledged in the second turn
/// (delayed ACK).
#[inline(never)]
fn receive(server: &mut ShortEnd) {
    while server.device.drive() {}
}

/// Runs the engine, which handles the ACKs, and polls, as the application. Returns how many
/// completions there were.
#[inline(never)]
fn complete(client: &mut ShortEnd) -> Result<usize, Failure> {
    let mut completed = 0;
    loop {
        match client.poll()?.len() {
            0 => return Ok(completed),
            done => completed += done,
        }
    }
}
