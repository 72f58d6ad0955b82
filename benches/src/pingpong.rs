//! Round trips: one end sends, the other replies, both without sleeping.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::bed::{Bed, Cores};
use crate::effort::Effort;
use crate::failure::Failure;
use crate::stats::Samples;

/// How long to wait for a reply before the run fails.
const PATIENCE: Duration = Duration::from_secs(2);

/// The result of a run, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

/// The functions of client and server.
pub(crate) struct PingPong<Ping, Pong, Answer> {
    /// Sends the client's message. It may return a mark.
    pub(crate) ping: Ping,
    /// Returns whether the reply to the message with this mark has arrived.
    pub(crate) pong: Pong,
    /// Sends the server's reply if a message has arrived.
    pub(crate) answer: Answer,
}

/// Times round trips.
pub(crate) fn ping_pong<Client: Send, Server: Send>(
    bed: &Bed,
    cores: Cores,
    effort: &Effort,
    (client, server): (&mut Client, &mut Server),
    game: PingPong<
        impl FnMut(&mut Client) -> Result<u8, Failure> + Send,
        impl FnMut(&mut Client, u8) -> Result<bool, Failure> + Send,
        impl FnMut(&mut Server) -> Result<(), Failure> + Send,
    >,
) -> Result<Latency, Failure> {
    let PingPong {
        mut ping,
        mut pong,
        mut answer,
    } = game;
    match cores {
        Cores::One => bed.on_one(|| {
            timed(effort.round_trips, || {
                let mark = ping(client)?;
                until(|| {
                    answer(server)?;
                    pong(client, mark)
                })
            })
        }),
        Cores::Two => {
            let over = AtomicBool::new(false);
            let (latency, ()) = bed.on_two(
                || {
                    let latency = timed(effort.round_trips, || {
                        let mark = ping(client)?;
                        until(|| pong(client, mark))
                    });
                    over.store(true, Ordering::Release);
                    latency
                },
                || {
                    while !over.load(Ordering::Acquire) {
                        answer(server)?;
                    }
                    Ok(())
                },
            )?;
            Ok(latency)
        }
    }
}

/// Times round trips, after some to warm up.
pub(crate) fn timed(
    count: usize,
    mut round_trip: impl FnMut() -> Result<(), Failure>,
) -> Result<Latency, Failure> {
    for _ in 0..count / 10 {
        round_trip()?;
    }
    let mut times = Samples::default();
    for _ in 0..count {
        let began = Instant::now();
        round_trip()?;
        times.push(began.elapsed().as_nanos() as f64 / 1000.0);
    }
    Ok(Latency {
        median: times.median(),
        p99: times.quantile(0.99),
    })
}

/// Polls until the reply is there.
pub(crate) fn until(mut holds: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    // Reading the clock each time would cost as much as what is measured.
    let mut looks = 0u32;
    let mut deadline = None;
    while !holds()? {
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(1 << 12) {
            let now = Instant::now();
            if now > *deadline.get_or_insert(now + PATIENCE) {
                return Err("no answer came".into());
            }
        }
    }
    Ok(())
}
