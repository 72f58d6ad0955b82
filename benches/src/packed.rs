//! Many short Writes, posted one behind the other: what each of the two ends does for one of them where 51 share a segment.

use rnic_core::fast_paths::FastPaths;
use rnic_verbs::{RemoteAddress, SendRequest};

use crate::Failure;
use crate::short::{SEND_QUEUE, ShortEnd, ShortMessages};

/// Octets of a Write.
const OCTETS: usize = 8;
/// Writes of a batch: they fill four segments of an MTU of 1500.
pub(crate) const WRITES: usize = 4 * 51;
/// Every so many Writes one makes a completion.
const SIGNALED: usize = 17;
/// Octets of the peer's memory that they go to, one behind the other and from the start again.
const REACH: usize = 8192;

const _: () = assert!(WRITES <= SEND_QUEUE as usize && WRITES.is_multiple_of(SIGNALED));

/// Posts one batch after the other, and sees each to its end.
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

/// The application posts a batch. Each of these is a function of its own, to be counted.
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

/// The engine takes the batch up.
#[inline(never)]
fn transmit(client: &ShortEnd) {
    client.device.drive();
}

/// The peer's engine places it. What was pushed last is acknowledged with the second turn: an answer might have taken
/// that along.
#[inline(never)]
fn receive(server: &mut ShortEnd) {
    while server.device.drive() {}
}

/// The engine handles the acknowledgments, the application polls. Returns how many completions it found.
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
