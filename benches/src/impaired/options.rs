//! The command lines of `rnic-bench impaired` and `rnic-bench box`.

use std::path::PathBuf;
use std::time::Duration;

use super::lane::Impairments;
use super::ours::Side;
use crate::failure::Failure;

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
    pub(super) size: u64,
    pub(super) repetitions: u64,
    pub(super) losses: Vec<f64>,
    pub(super) senders: Vec<Side>,
    pub(super) payload: usize,
    pub(super) alone: bool,
    pub(super) share: bool,
    pub(super) captures: Option<PathBuf>,
    pub(super) impairments: Impairments,
    pub(super) seed: u64,
    pub(super) interfaces: Vec<String>,
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
