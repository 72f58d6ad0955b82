//! The work on octets that every implementation has, and nothing else: copies and CRCs in memory.

use std::hint::black_box;
use std::time::Instant;

use rnic_core::memory::region::{HugePages, Region};
use rnic_core::wire::crc;

use crate::bed::Bed;
use crate::effort::{Effort, REGION, Shape};
use crate::failure::Failure;
use crate::pace::{Bandwidth, Pace};

/// Octets of payload of a frame that fills an MTU of 1500, without TCP options.
const PIECE: usize = 1460;
/// Frames that are in use in turn.
const FRAMES: usize = 128;
/// Octets between two looks at the clock.
const ROUND: usize = 256 * 1024;

/// The work on each piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OctetWork {
    /// Copied from memory to a frame.
    Copy,
    /// Its CRC.
    Crc,
    /// Copied to a frame; its CRC there; copied to memory.
    CopyCrcCopy,
}

/// Measures messages, on one core.
pub(crate) fn bandwidth(
    bed: &Bed,
    shape: Shape,
    effort: &Effort,
    work: OctetWork,
) -> Result<Bandwidth, Failure> {
    let from = Region::allocate(REGION, HugePages::Prefer)?;
    let to = Region::allocate(REGION, HugePages::Prefer)?;
    let mut frames = vec![[0u8; 2048]; FRAMES];
    let piece = shape.size.min(PIECE);
    let (mut at, mut number) = (0, 0);
    let mut handle = || -> Result<(), Failure> {
        let frame = &mut frames[number % FRAMES][..piece];
        if work != OctetWork::Crc {
            from.read(at, frame)?;
        }
        if work != OctetWork::Copy {
            black_box(crc::crc(frame));
        }
        if work == OctetWork::CopyCrcCopy {
            to.write(at, frame)?;
        }
        black_box(frame);
        number += 1;
        at = (at + piece) % (REGION - PIECE);
        Ok(())
    };
    bed.on_one(|| {
        let (mut pace, end) = (Pace::new(), Instant::now() + effort.duration);
        while Instant::now() < end {
            for _ in 0..ROUND / piece {
                handle()?;
            }
            pace.add(ROUND / piece * piece);
        }
        Ok(pace.end())
    })
}
