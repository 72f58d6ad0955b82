//! Our own code alone: without a device, or beside one that carries something else.

use std::time::Instant;

use super::{Measurement, ROUND_TRIPS, Unit, row};
use rnic_core::fast_paths::FastPaths;

use crate::bed::Cores;
use crate::effort::{MESSAGE, PING, Shape};
use crate::failure::Failure;
use crate::pingpong::timed;
use crate::raw::Wire;
use crate::short::ShortMessages;
use crate::{engine, stages};

const ONE_PING: Shape = Shape {
    cores: Cores::One,
    mtu: 1500,
    size: PING,
};
const MESSAGES: Shape = Shape {
    size: MESSAGE,
    ..ONE_PING
};

/// Makes a measurement of a round trip without device and kernel: posting, sending, receiving and
/// polling on both sides. A copy in memory takes the place of the device's rings.
pub(super) fn in_memory(
    id: &'static str,
    title: &'static str,
    round_trip: fn(&mut ShortMessages) -> Result<(), Failure>,
) -> Measurement {
    let row = row(ROUND_TRIPS, id, title, Unit::Microseconds, ONE_PING);
    Measurement::new(row, move |bed, effort| {
        bed.on_one(|| {
            let mut game = ShortMessages::connect(FastPaths::ALL)?;
            timed(effort.round_trips, || round_trip(&mut game))
        })
    })
}

/// Makes that measurement with a frame of raw AF_XDP from end to end while each message is in
/// flight. The time beyond that of raw AF_XDP alone is what our code takes, and what it and the
/// kernel cost each other in caches and branch predictors.
pub(super) fn amid_kernel_calls() -> Measurement {
    let (id, title) = (
        "write-lat-amid",
        "rnic Write ping-pong in memory, and raw AF_XDP's",
    );
    let row = row(ROUND_TRIPS, id, title, Unit::Microseconds, ONE_PING);
    Measurement::new(row, |bed, effort| {
        let mut wire = Wire::open(bed, PING)?;
        bed.on_one(|| {
            let mut game = ShortMessages::connect(FastPaths::ALL)?;
            timed(effort.round_trips, || {
                game.write_both_ways_amid(|from| wire.carry(from))
            })
        })
    })
}

/// Makes a measurement of the engine without I/O: six rows of one run.
pub(super) fn engine_alone() -> Result<Measurement, Failure> {
    let row = |id, title| {
        row(
            "engine without I/O, FPDUs that fill an MTU of 1500",
            id,
            title,
            Unit::Nanoseconds,
            MESSAGES,
        )
    };
    let mut pair = engine::Pair::connect(
        1,
        engine::Kind::Write,
        engine::Timing::Real(Instant::now()),
        FastPaths::ALL,
    )?;
    Ok(Measurement {
        rows: vec![
            row("engine-rx", "engine alone, receive"),
            row("octets-rx", "CRC and copy alone, receive"),
            row("octets-rx-sum", "CRC, copy and checksum alone, receive"),
            row("engine-tx", "engine alone, transmit"),
            row("octets-tx", "copy and CRC alone, transmit"),
            row("octets-tx-sum", "copy, CRC and checksum alone, transmit"),
        ],
        run: Box::new(move |bed, effort| {
            let times = bed.on_one(|| Ok(pair.measure(effort.batches)))?;
            let [octets_rx, octets_rx_sum] = times.octets_received;
            let [octets_tx, octets_tx_sum] = times.octets_sent;
            let all = [
                times.receive,
                octets_rx,
                octets_rx_sum,
                times.transmit,
                octets_tx,
                octets_tx_sum,
            ];
            Ok(all.iter().map(|samples| samples.median().into()).collect())
        }),
    })
}

/// Makes a measurement of each stage by itself.
pub(super) fn single_stages() -> Result<Measurement, Failure> {
    let section = "single stages, FPDUs that fill an MTU of 1500";
    let row = |id| row(section, id, id, Unit::Nanoseconds, MESSAGES);
    let mut stages = stages::Stages::new()?;
    Ok(Measurement {
        rows: stages::NAMES.map(row).into(),
        run: Box::new(move |bed, effort| {
            let times = bed.on_one(|| {
                let mut times = stages::StageTimes::default();
                for _ in 0..effort.batches {
                    stages.turn(&mut times)?;
                }
                Ok(times)
            })?;
            let medians = stages::NAMES.map(|name| times.of(name).median().into());
            Ok(medians.into())
        }),
    })
}

/// Makes a measurement of engines with many connections, which are served in turn: their state does
/// not stay in cache.
pub(super) fn engine_with_many(connections: usize) -> Result<Measurement, Failure> {
    let section = "engine without I/O, many connections, all busy";
    let row = |id, title| row(section, id, title, Unit::Nanoseconds, MESSAGES);
    // Made when it is first run: it takes a while, and may not be wanted.
    let mut pair = None;
    Ok(Measurement {
        rows: vec![
            row("many-engine-rx", "engine alone, receive"),
            row("many-engine-tx", "engine alone, transmit"),
        ],
        run: Box::new(move |bed, effort| {
            let pair = match &mut pair {
                Some(pair) => pair,
                None => {
                    let timing = engine::Timing::Real(Instant::now());
                    pair.insert(engine::Pair::connect(
                        connections as u32,
                        engine::Kind::Write,
                        timing,
                        FastPaths::ALL,
                    )?)
                }
            };
            let times = bed.on_one(|| Ok(pair.measure(effort.batches)))?;
            let all = [times.receive, times.transmit];
            Ok(all.iter().map(|samples| samples.median().into()).collect())
        }),
    })
}
