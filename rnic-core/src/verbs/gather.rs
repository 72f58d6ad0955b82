//! Copying between one run of octets and the pieces of a scatter/gather list.

use std::ops::Range;

use crate::memory::{
    epoch::Guard,
    error::TagError,
    place::Placement,
    table::{Access, Origin},
};
use crate::wire::ddp::TaggedOffset;

use super::sge::{Sge, total_length};

/// Why nothing was scattered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScatterError {
    /// The octets do not fit the list.
    #[error("{end} octets do not fit the {room} of the receive buffer")]
    TooLong {
        /// Where the octets would end.
        end: u64,
        /// Octets in the list.
        room: u64,
    },
    /// A piece may not be written.
    #[error(transparent)]
    Tag(#[from] TagError),
}

/// Copies octets `offset..offset + to.len()` of the list to `to`.
///
/// If the list is shorter, the octets that it lacks count as past the bounds of its last piece.
#[inline]
pub fn gather(
    guard: &Guard<'_>,
    origin: impl Into<Origin>,
    sges: &[Sge],
    offset: u64,
    to: &mut [u8],
) -> Result<(), TagError> {
    let origin = origin.into();
    // Most lists are one piece.
    if let [sge] = sges
        && offset.saturating_add(to.len() as u64) <= sge.length.into()
        && !to.is_empty()
    {
        let at = TaggedOffset(sge.offset.saturating_add(offset));
        guard
            .for_reading(sge.stag(), at, to.len(), origin, Access::LOCAL_READ)?
            .read(to)
            .map_err(|fault| fault.by(sge.stag(), Access::LOCAL_READ))?;
        return Ok(());
    }
    gather_pieces(guard, origin, sges, offset, to)
}

/// Copies octets of a list of any length, as [`gather`] does.
#[inline(never)]
fn gather_pieces(
    guard: &Guard<'_>,
    origin: Origin,
    sges: &[Sge],
    offset: u64,
    to: &mut [u8],
) -> Result<(), TagError> {
    if offset.saturating_add(to.len() as u64) > total_length(sges) {
        let last = sges.last().copied().unwrap_or_default();
        let offset = TaggedOffset(last.offset.saturating_add(last.length.into()));
        return Err(TagError::BaseOrBounds {
            stag: last.stag(),
            offset,
            len: to.len(),
        });
    }
    for (sge, at, part) in pieces(sges, offset, to.len()) {
        guard
            .for_reading(sge.stag(), at, part.len(), origin, Access::LOCAL_READ)?
            .read(&mut to[part])
            .map_err(|fault| fault.by(sge.stag(), Access::LOCAL_READ))?;
    }
    Ok(())
}

/// Copies `from` to octets `offset..` of the list. All of it is validated before anything is
/// copied.
pub fn scatter(
    guard: &Guard<'_>,
    origin: impl Into<Origin>,
    sges: &[Sge],
    offset: u64,
    from: &[u8],
) -> Result<(), ScatterError> {
    let origin = origin.into();
    let (end, room) = (offset.saturating_add(from.len() as u64), total_length(sges));
    if end > room {
        return Err(ScatterError::TooLong { end, room });
    }
    let place =
        |sge: &Sge, at, len| guard.for_placement(sge.stag(), at, len, origin, Access::LOCAL_WRITE);
    // A list of one piece is validated whole before its copy anyway.
    if sges.len() > 1 {
        for (sge, at, part) in pieces(sges, offset, from.len()) {
            place(sge, at, part.len())?;
        }
    }
    for (sge, at, part) in pieces(sges, offset, from.len()) {
        place(sge, at, part.len())?
            .write(&from[part])
            .map_err(|fault| fault.by(sge.stag(), Access::LOCAL_WRITE))?;
    }
    Ok(())
}

/// Returns the placement of octets `offset..` of the list up to the end of the piece that they begin
/// in, of `most` octets at most. `None` if nothing may be written there.
// rfc: 5041-72d the payload lies inside the buffer
pub(crate) fn rest_of_piece<'g>(
    guard: &'g Guard<'_>,
    origin: Origin,
    sges: &[Sge],
    offset: u64,
    most: usize,
) -> Option<Placement<'g>> {
    let (sge, at, part) = pieces(sges, offset, most).next()?;
    guard.placement(sge.stag(), at, part.len(), origin, Access::LOCAL_WRITE)
}

/// Cuts octets `offset..offset + len` of the list at the ends of its pieces: for each, the piece,
/// the tagged offset in it, and which of the `len` octets these are.
fn pieces(
    sges: &[Sge],
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (&Sge, TaggedOffset, Range<usize>)> {
    let mut skip = offset;
    let mut done = 0;
    sges.iter().filter_map(move |sge| {
        let skipped = skip.min(sge.length.into());
        skip -= skipped;
        let here = (u64::from(sge.length) - skipped).min((len - done) as u64) as usize;
        if here == 0 {
            return None;
        }
        let part = done..done + here;
        done += here;
        // Where an offset would wrap, its greatest value is refused as well: an octet there ends
        // past 2^64 - 1.
        Some((sge, TaggedOffset(sge.offset.saturating_add(skipped)), part))
    })
}

#[cfg(test)]
mod tests;
