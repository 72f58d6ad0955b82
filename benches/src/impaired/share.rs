//! Both at once: how rnic's TCP and the kernel's share a bottleneck.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::bed::ImpairedBed;
use super::lane::Impairments;
use super::options::ImpairedOptions;
use super::ours::Side;
use super::transfer::Transfer;
use super::{ours, plain};
use crate::failure::Failure;

/// The time in which slow start ends, which does not count.
const SETTLING: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Prints a line for each loss rate and run.
pub(crate) fn run(
    bed: &ImpairedBed,
    options: &ImpairedOptions,
    transfer: &Transfer,
    losses: &[f64],
) -> Result<(), Failure> {
    println!(
        "goodput in Mb/s of rnic and the kernel's TCP while both send; 1 second after the start and later\n\n\
         {:>6} {:>8} {:>8} {:>6}",
        "loss", "ours", "kernel's", "Jain"
    );
    for &loss in losses {
        for repetition in 0..options.repetitions {
            let impairments = Impairments {
                loss,
                ..options.impairments
            };
            let both = || compete(bed, transfer);
            let seed = options.seed + 2 * repetition;
            let ([ours, kernels], _) = bed.while_impaired(impairments, seed, None, both)?;
            let jain = (ours + kernels).powi(2) / (2.0 * (ours.powi(2) + kernels.powi(2)));
            let loss = format!("{}%", loss * 100.0);
            println!("{loss:>6} {ours:>8.0} {kernels:>8.0} {jain:>6.3}");
        }
    }
    Ok(())
}

/// Returns the goodput of each until one of them is done.
fn compete(bed: &ImpairedBed, transfer: &Transfer) -> Result<[f64; 2], Failure> {
    let arrived = [AtomicU64::new(0), AtomicU64::new(0)];
    thread::scope(|scope| {
        let other = scope.spawn(|| plain::run(&bed.left, &bed.right, transfer.octets, &arrived[1]));
        let watching = scope.spawn(|| watch(&arrived, transfer.octets));
        let one = ours::run(bed, transfer, Side::Ours, Side::Ours, &arrived[0]);
        let other = other
            .join()
            .unwrap_or_else(|_| Err("the kernel's side panicked".into()));
        // The other side must not wait for one that failed.
        arrived[0].store(transfer.octets, Ordering::Relaxed);
        let goodput = watching
            .join()
            .unwrap_or_else(|_| Err("the watch panicked".into()));
        one?;
        other?;
        goodput
    })
}

fn watch(arrived: &[AtomicU64; 2], octets: u64) -> Result<[f64; 2], Failure> {
    let look = || {
        arrived
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed))
    };
    let is_over = |counts: [u64; 2]| counts.into_iter().any(|count| count >= octets);
    while look().contains(&0) && !is_over(look()) {
        thread::sleep(LOOK_EVERY);
    }
    thread::sleep(SETTLING);
    let (began, before) = (Instant::now(), look());
    if is_over(before) {
        return Err("it was over within a second: move more".into());
    }
    while !is_over(look()) {
        thread::sleep(LOOK_EVERY);
    }
    let (time, after) = (began.elapsed().as_secs_f64(), look());
    Ok([0, 1].map(|side| (after[side] - before[side]) as f64 * 8e-6 / time))
}
