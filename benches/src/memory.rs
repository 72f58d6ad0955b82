//! The memory of registrations and queue pairs, of which there are many.

use std::sync::Arc;
use std::task::Waker;

use rnic_core::engine::{Driver, EngineConfig, mailbox};
use rnic_core::ids::{PdId, QpNumber};
use rnic_core::memory::{
    region::{HugePages, Region},
    table::{Access, StagTable},
};
use rnic_core::time::Instant;
use rnic_core::wire::ddp::TaggedOffset;

use crate::engine::Queues;
use crate::failure::Failure;
use crate::heap;
use crate::pool::Pool;

const REGISTRATIONS: usize = 1_000_000;
const QUEUE_PAIRS: u32 = 100_000;
const PD: PdId = PdId(1);

/// Returns the number of octets of heap for a registration, where there are a million of them.
pub(crate) fn registration() -> Result<f64, Failure> {
    let region = Arc::new(Region::allocate_unlocked(4096, HugePages::None)?);
    let (_table, kept) = heap::kept_by(|| -> Result<_, Failure> {
        let table = StagTable::new(REGISTRATIONS, [1; 32]);
        for _ in 0..REGISTRATIONS {
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            table.register(region.clone(), 0..4096, TaggedOffset(0), access, PD)?;
        }
        Ok(table)
    })?;
    Ok(kept as f64 / REGISTRATIONS as f64)
}

/// Returns the number of octets of heap for a queue pair without a connection beyond its rings,
/// where there are 100,000 of them.
pub(crate) fn queue_pair() -> Result<f64, Failure> {
    let (rings, of_rings) = heap::kept_by(Queues::rings)?;
    drop(rings);
    let (_kept, kept) = heap::kept_by(|| -> Result<_, Failure> {
        let table = Arc::new(StagTable::new(1, [1; 32]));
        let (end, engine_end) = mailbox(table, QUEUE_PAIRS, Waker::noop().clone());
        let mut driver = Driver::new(EngineConfig::default(), [1; 32], engine_end);
        let mut pool = Pool::new(1, 1);
        let queues: Result<Vec<_>, Failure> = (0..QUEUE_PAIRS)
            .map(|number| Queues::create(&end, QpNumber(number)))
            .collect();
        let queues = queues?;
        driver.begin(Instant::ZERO).finish(&mut pool);
        Ok((end, driver, queues))
    })?;
    Ok(kept as f64 / f64::from(QUEUE_PAIRS) - of_rings as f64)
}
