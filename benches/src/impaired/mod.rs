//! Our TCP against the kernel's over a path that loses, delays, reorders and duplicates, and the
//! kernel's against itself over the same path in the same run.

mod bed;
mod capture;
mod forwarder;
mod lane;
mod options;
mod ours;
mod pattern;
mod peer;
mod plain;
mod share;
mod socket;
mod table;
mod transfer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use self::bed::ImpairedBed;
use self::forwarder::{Account, Forwarder};
use self::lane::Impairments;
pub(crate) use self::options::{ImpairedOptions, USAGE};
use self::ours::Side;
use self::table::ImpairedPoint;
use self::transfer::Transfer;
use crate::failure::Failure;

/// Runs only the box, until SIGINT or SIGTERM.
pub(crate) fn run_box(options: &ImpairedOptions) -> Result<(), Failure> {
    let [one, other] = options.interfaces.as_slice() else {
        return Err("name the two interfaces".into());
    };
    let mut impairments = options.impairments;
    impairments.loss = options.losses.first().copied().unwrap_or(0.0);
    let capture = options
        .captures
        .as_ref()
        .map(|directory| directory.join("box.pcap"));
    let forwarder = Forwarder::open(
        [one, other],
        [impairments; 2],
        options.seed,
        capture.as_deref(),
    )?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let accounts = forwarder.run(&stop)?;
    for (name, account) in [one, other].into_iter().zip(accounts) {
        println!("from {name}: {}", describe(&account));
    }
    Ok(())
}

fn describe(account: &Account) -> String {
    let lane = account.lane;
    format!(
        "{} frames, {} lost, {} overflowed, {} reordered, {} duplicated, {} delivered; {} missed, {} refused",
        lane.offered,
        lane.lost,
        lane.overflowed,
        lane.reordered,
        lane.duplicated,
        lane.delivered,
        account.missed,
        account.refused
    )
}

/// Runs the comparison.
pub(crate) fn run(options: &ImpairedOptions) -> Result<(), Failure> {
    if !nix::unistd::geteuid().is_root() {
        return Err("run it as root: it makes network namespaces and opens AF_XDP sockets".into());
    }
    if !options.interfaces.is_empty() {
        return Err("it makes its interfaces itself".into());
    }
    let losses = if options.losses.is_empty() {
        &[0.0, 0.0001, 0.001, 0.01, 0.03]
    } else {
        options.losses.as_slice()
    };
    let bed = ImpairedBed::new()?;
    let transfer = Transfer::new(options.size, options.payload);
    if options.share {
        return share::run(&bed, options, &transfer, losses);
    }
    println!("{}", table::head(options));
    for &sender in &options.senders {
        for &loss in losses {
            let impairments = Impairments {
                loss,
                ..options.impairments
            };
            let mut point = ImpairedPoint::new(sender, loss);
            for repetition in 0..options.repetitions {
                let seed = options.seed + 2 * repetition;
                measure(&bed, options, &transfer, impairments, seed, &mut point)
                    .map_err(|error| format!("{point}: {error}"))?;
            }
            println!("{}", point.line(options.size));
        }
    }
    Ok(())
}

/// Does one run of ours and one of the kernel's.
fn measure(
    bed: &ImpairedBed,
    options: &ImpairedOptions,
    transfer: &Transfer,
    impairments: Impairments,
    seed: u64,
    point: &mut ImpairedPoint,
) -> Result<(), Failure> {
    // Each side takes each role.
    let initiator = if point.runs().is_multiple_of(2) {
        Side::Ours
    } else {
        Side::Kernel
    };
    let capture = options
        .captures
        .as_ref()
        .map(|directory| directory.join(point.file_name(initiator)));
    let ours = || ours::run(bed, transfer, point.sender, initiator, &AtomicU64::new(0));
    let (outcome, accounts) = bed.while_impaired(impairments, seed, capture.as_deref(), ours)?;
    tell(&format!("{point}"), &accounts);
    eprintln!("{point}: {:?}", outcome.tcp);
    point.add_ours(&outcome, &accounts);
    if options.alone {
        return Ok(());
    }
    let (from, to) = match point.sender {
        Side::Ours => (&bed.left, &bed.right),
        Side::Kernel => (&bed.right, &bed.left),
    };
    let plain = || plain::run(from, to, transfer.octets, &AtomicU64::new(0));
    let (time, accounts) = bed.while_impaired(impairments, seed, None, plain)?;
    tell(&format!("{point}, the kernel alone"), &accounts);
    point.add_kernels(time, &accounts);
    Ok(())
}

fn tell(what: &str, accounts: &[Account]) {
    for (side, account) in ["left", "right"].into_iter().zip(accounts) {
        eprintln!("{what}, from the {side}: {}", describe(account));
    }
}
