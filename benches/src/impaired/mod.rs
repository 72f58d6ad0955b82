//! Our TCP against the kernel's over a path that loses, delays, reorders and duplicates, and the kernel's against itself over
//! the same path in the same run.

mod bed;
mod capture;
mod forwarder;
mod lane;
mod ours;
mod pattern;
mod peer;
mod plain;
mod share;
mod socket;
mod table;
mod transfer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use self::bed::ImpairedBed;
use self::forwarder::{Account, Forwarder};
use self::lane::Impairments;
use self::ours::Side;
use self::table::ImpairedPoint;
use self::transfer::Transfer;
use crate::Failure;

pub(crate) const USAGE: &str = "\
usage: rnic-bench impaired [--size OCTETS] [--repetitions N] [--loss PERCENT,...] [--sender ours|kernel]
                           [--payload OCTETS] [--alone|--share] [--captures DIRECTORY] [IMPAIRMENT...]
       rnic-bench box [--loss PERCENT] [IMPAIRMENT...] INTERFACE INTERFACE

impaired: rnic and the kernel's TCP send each other octets through the box, checking every one; beside it the
kernel's TCP alone. Needs root.
  --size OCTETS       of each transfer, with K, M or G (default 10G)
  --repetitions N     of each, alternating (default 3)
  --loss LIST         a point of the table each (default 0,0.01,0.1,1,3)
  --sender SIDE       only this direction
  --payload OCTETS    in a segment of the kernel's side (default 1428: it fills an MTU of 1500)
  --alone             without the kernel's TCP beside it
  --share             both send at once through the same box: each one's goodput, and Jain's index
  --captures DIR      writes what passes our side of the box to a file for each run

box: passes frames between two interfaces until it is interrupted.
  --loss PERCENT      frames that never arrive (default 0)

impairments of each direction:
  --delay US          microseconds (default 1000)
  --rate MBPS         of the narrowest link, megabits in a second (default 500; 0: no limit); where
                      two processors cannot keep up with it they are what is measured
  --queue OCTETS      in front of it (default 256K)
  --reorder PERCENT   frames that are held up (default 0) ...
  --hold-up US        ... by up to this (default 500)
  --duplicate PERCENT frames that arrive twice (default 0)
  --seed N            of all chances (default 1)";

/// The options of the command line.
pub(crate) struct ImpairedOptions {
    size: u64,
    repetitions: u64,
    losses: Vec<f64>,
    senders: Vec<Side>,
    payload: usize,
    alone: bool,
    share: bool,
    captures: Option<PathBuf>,
    impairments: Impairments,
    seed: u64,
    interfaces: Vec<String>,
}

impl ImpairedOptions {
    /// Parses the options. Returns `None` if help is wanted.
    pub(crate) fn parse(
        mut arguments: impl Iterator<Item = String>,
    ) -> Result<Option<Self>, Failure> {
        let mut options = Self {
            size: 10 << 30,
            repetitions: 3,
            losses: Vec::new(),
            senders: vec![Side::Ours, Side::Kernel],
            payload: 1428,
            alone: false,
            share: false,
            captures: None,
            impairments: Impairments {
                delay: Duration::from_millis(1),
                hold_up: Duration::from_micros(500),
                rate: Some(500_000_000),
                queue: 256 << 10,
                ..Impairments::default()
            },
            seed: 1,
            interfaces: Vec::new(),
        };
        let impairments = &mut options.impairments;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--size" => options.size = octets(&value()?)?,
                "--repetitions" => options.repetitions = value()?.parse()?,
                "--loss" => {
                    let losses: Result<_, _> = value()?.split(',').map(share).collect();
                    options.losses = losses?;
                }
                "--sender" => {
                    options.senders = match value()?.as_str() {
                        "ours" => vec![Side::Ours],
                        "kernel" => vec![Side::Kernel],
                        other => return Err(format!("{other} is no side").into()),
                    }
                }
                "--payload" => options.payload = value()?.parse()?,
                "--alone" => options.alone = true,
                "--share" => options.share = true,
                "--captures" => options.captures = Some(value()?.into()),
                "--delay" => impairments.delay = Duration::from_micros(value()?.parse()?),
                "--rate" => {
                    let megabits: u64 = value()?.parse()?;
                    impairments.rate = (megabits > 0).then_some(megabits * 1_000_000);
                }
                "--queue" => impairments.queue = octets(&value()?)? as usize,
                "--reorder" => impairments.reordering = share(&value()?)?,
                "--hold-up" => impairments.hold_up = Duration::from_micros(value()?.parse()?),
                "--duplicate" => impairments.duplication = share(&value()?)?,
                "--seed" => options.seed = value()?.parse()?,
                "-h" | "--help" => return Ok(None),
                other if other.starts_with('-') => {
                    return Err(format!("{other} is not an option").into());
                }
                interface => options.interfaces.push(interface.into()),
            }
        }
        Ok(Some(options))
    }
}

/// Parses a share in percent.
fn share(text: &str) -> Result<f64, Failure> {
    let percent: f64 = text.parse()?;
    if (0.0..=100.0).contains(&percent) {
        Ok(percent / 100.0)
    } else {
        Err(format!("{text} is no percentage").into())
    }
}

/// Parses a number of octets, with K, M or G.
fn octets(text: &str) -> Result<u64, Failure> {
    let shift = match text.chars().last() {
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        _ => 0,
    };
    let number: u64 = text.trim_end_matches(['K', 'M', 'G']).parse()?;
    Ok(number << shift)
}

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
