//! Several clients at once: how much they carry together, and how evenly.

use std::time::{Duration, SystemTime};

use super::client::{ClientOptions, READY};
use super::peer::{PORT, Peer};
use super::process::Process;
use crate::bed::Bed;
use crate::effort::idle;
use crate::failure::Failure;
use crate::rdma::{Setup, open_device};
use crate::rnicd::command_in;

/// From the word to the start: all have heard it then.
const NOTICE: Duration = Duration::from_millis(50);

/// How many clients there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    pub(crate) processes: usize,
    /// How often each opens the device.
    pub(crate) ports: usize,
    /// Connections of each port.
    pub(crate) connections: usize,
}

impl Crowd {
    fn all_connections(self) -> usize {
        self.processes * self.ports * self.connections
    }
}

/// What clients carried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Carried {
    /// Gigabits of payload in a second, of all together.
    pub(crate) goodput: f64,
    /// Jain's index of what each had: 1 if all had the same, 1/n if one had everything.
    pub(crate) fairness: f64,
}

impl Carried {
    fn new(octets: &[u64], duration: Duration) -> Self {
        let sum: f64 = octets.iter().map(|one| *one as f64).sum();
        let squares: f64 = octets.iter().map(|one| (*one as f64).powi(2)).sum();
        Self {
            goodput: sum * 8.0 / duration.as_nanos() as f64,
            fairness: sum.powi(2) / (octets.len() as f64 * squares),
        }
    }
}

/// Makes clients write messages of 64 KiB for a time, all on the first processor, the peer on the
/// second.
pub(crate) fn measure(bed: &Bed, crowd: Crowd, duration: Duration) -> Result<Carried, Failure> {
    let connections = crowd.all_connections() as u32;
    let open = || open_device(&bed.server, connections, &Setup::default());
    let device = bed.server.run(open)?;
    let mut peer = Peer::listen(&bed.server, &device)?;
    let start = |_| start(bed, crowd, bed.processor(0));
    let mut clients = (0..crowd.processes)
        .map(start)
        .collect::<Result<Vec<_>, Failure>>()?;
    bed.on(1, || {
        for client in &mut clients {
            ready(client, || peer.turn())?;
        }
        bed.settle()?;
        let begin = SystemTime::now() + NOTICE;
        for client in &mut clients {
            go(client, begin, duration)?;
        }
        let mut octets = Vec::new();
        for client in &mut clients {
            let answer = client.answer(|| {
                if !device.drive() {
                    idle();
                }
                Ok(())
            })?;
            for one in answer.split(' ') {
                octets.push(one.parse()?);
            }
        }
        Ok(Carried::new(&octets, duration))
    })
}

/// Starts one client of a crowd.
pub(super) fn start(bed: &Bed, crowd: Crowd, processor: usize) -> Result<Process, Failure> {
    let options = ClientOptions {
        netdev: bed.client.netdev.to_owned(),
        to: bed.server.at(PORT),
        ports: crowd.ports,
        connections: crowd.connections,
        processor,
        manager: bed.client.manager.clone(),
    };
    let mut command = command_in(bed.client.namespace());
    command
        .arg(std::env::current_exe()?)
        .args(options.arguments());
    Process::start(command)
}

/// Waits until a client has connected.
pub(super) fn ready(
    client: &mut Process,
    meanwhile: impl FnMut() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let answer = client.answer(meanwhile)?;
    if answer != READY {
        return Err(format!("a client says {answer:?}").into());
    }
    Ok(())
}

/// Tells a client when to start, and for how long.
pub(super) fn go(
    client: &mut Process,
    begin: SystemTime,
    duration: Duration,
) -> Result<(), Failure> {
    let begin = begin.duration_since(SystemTime::UNIX_EPOCH)?;
    client.tell(&format!("{} {}", begin.as_micros(), duration.as_micros()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_one_of_equals_and_falls_to_a_share() {
        let second = Duration::from_secs(1);
        let equal = Carried::new(&[125_000_000; 8], second);
        assert_eq!((equal.goodput, equal.fairness), (8.0, 1.0));
        let one = Carried::new(&[125_000_000, 0, 0, 0], second);
        assert_eq!((one.goodput, one.fairness), (1.0, 0.25));
    }
}
