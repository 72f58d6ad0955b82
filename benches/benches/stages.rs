//! Each stage of a segment's path by itself, for criterion, which keeps its results and tells a
//! change from noise.

use std::time::Duration;

use criterion::{Criterion, Throughput};

#[path = "../src/failure.rs"]
mod failure;
#[path = "../src/pool.rs"]
mod pool;
#[path = "../src/stages.rs"]
mod stages;
#[path = "../src/stats.rs"]
#[allow(dead_code, reason = "the table needs more of it")]
mod stats;

use failure::Failure;
use stages::{BATCH, NAMES, StageTimes, Stages};

/// Returns the time of one stage for a number of batches, which go through all the others too.
fn time(stages: &mut Stages, name: &str, batches: u64) -> Duration {
    let mut times = StageTimes::default();
    for _ in 0..batches {
        stages
            .turn(&mut times)
            .expect("a batch goes through all stages");
    }
    let nanoseconds: f64 = times.of(name).values().iter().sum();
    Duration::from_nanos((nanoseconds * BATCH as f64) as u64)
}

fn main() -> Result<(), Failure> {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("64 segments");
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut stages = Stages::new()?;
    for name in NAMES {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|batches| time(&mut stages, name, batches));
        });
    }
    group.finish();
    criterion.final_summary();
    Ok(())
}
