//! FPDUs with markers (RFC 5044 sections 4.2 and 4.3), which either side may require of the other.
//!
//! A position counts octets from the first octet of full operation, where the first marker stands.
//! A marker in front of an FPDU is part of it: the FPDU begins there, and its length field stands
//! behind the marker.

use super::MpaError;
use super::frame::{self, CRC_LEN, LENGTH_LEN};
use crate::wire::crc;

/// Octets from one marker to the next.
pub const INTERVAL: u64 = 512;

/// Octets of a marker.
pub const MARKER_LEN: usize = 4;

/// Octets of FPDUs between two markers.
const STRIDE: usize = INTERVAL as usize - MARKER_LEN;

/// Returns the largest ULPDU whose FPDU fits in a TCP segment of `emss` octets with as many markers
/// as there can be, and at least 128.
pub const fn mulpdu(emss: usize) -> usize {
    // rfc: 5044-39 the MULPDU with markers is that of the formula
    let markers = MARKER_LEN * emss.div_ceil(INTERVAL as usize);
    frame::clamp(emss.saturating_sub(LENGTH_LEN + CRC_LEN + markers + emss % 4))
}

/// Completes an FPDU at `position` of a stream with markers, whose ULPDU stands at
/// `fpdu[LENGTH_LEN..]`: inserts the markers and writes the CRC over all (zero without `crc`). A
/// marker in front of the FPDU is part of it, a marker behind it belongs to the next one. Returns
/// the length of the FPDU.
///
/// # Panics
/// If `fpdu` is too short, or the ULPDU longer than [`frame::MAX_MULPDU`].
pub fn seal(fpdu: &mut [u8], ulpdu_len: usize, position: u64, crc: bool) -> usize {
    let body = frame::seal(fpdu, ulpdu_len, false) - CRC_LEN;
    let (first, count) = markers_within(position, body);
    // A marker between FPDUs has pointer 0, and the length field stands behind it.
    let start = length_field_at(position);
    // From the last to the first, because octets move backward.
    for index in (0..count).rev() {
        let from = first + index * STRIDE;
        let to = body.min(from + STRIDE);
        let at = first + index * (MARKER_LEN + STRIDE);
        fpdu.copy_within(from..to, at + MARKER_LEN);
        // rfc: 5044-19, 5044-24 a marker counts the octets back to the length field of its FPDU
        // rfc: 5044-21, 5044-25 between FPDUs it is zero, and part of the FPDU behind it
        let distance = at.saturating_sub(start) as u16;
        fpdu[at..at + MARKER_LEN].copy_from_slice(&marker(distance));
    }
    let covered = body + count * MARKER_LEN;
    let check = if crc {
        crc::to_wire(crc::crc(&fpdu[..covered]))
    } else {
        [0; CRC_LEN]
    };
    fpdu[covered..covered + CRC_LEN].copy_from_slice(&check);
    covered + CRC_LEN
}

/// Returns the greatest length of an FPDU with markers around a ULPDU of this length.
pub const fn max_fpdu_len(ulpdu_len: usize) -> usize {
    let plain = frame::fpdu_len(ulpdu_len);
    plain + MARKER_LEN * (plain / STRIDE + 1)
}

/// Returns where the first marker stands in an FPDU that begins at `position` and has `body` octets
/// in front of its CRC field, and how many markers there are.
fn markers_within(position: u64, body: usize) -> (usize, usize) {
    // Positions, lengths and the interval are multiples of four: no marker splits the length or the
    // CRC field.
    // rfc: 5044-18, 5044-23 a marker in front of the first FPDU, then at every 512th octet
    // rfc: 5044-20 the count is right where sequence numbers wrap
    let first = (position.wrapping_neg() % INTERVAL) as usize;
    let count = body
        .checked_sub(first)
        .map_or(0, |behind| behind / STRIDE + 1);
    (first, count)
}

/// Returns where the length field stands in an FPDU that begins at `position`.
fn length_field_at(position: u64) -> usize {
    if position.is_multiple_of(INTERVAL) {
        MARKER_LEN
    } else {
        0
    }
}

/// Returns the length of the FPDU that begins at `position` with these octets, if its length field
/// is among them.
// rfc: 5044-44, 5044-48 the length field says where an FPDU ends
pub fn fpdu_len(position: u64, octets: &[u8]) -> Option<usize> {
    let length = octets
        .get(length_field_at(position)..)?
        .first_chunk::<LENGTH_LEN>()?;
    let plain = frame::fpdu_len(u16::from_be_bytes(*length).into());
    let (_, count) = markers_within(position, plain - CRC_LEN);
    Some(plain + count * MARKER_LEN)
}

/// Octets that [`fpdu_len`] needs.
pub const PREFIX_LEN: usize = MARKER_LEN + LENGTH_LEN;

/// Returns where the FPDU begins that holds the marker at `position`, by the marker's pointer;
/// `None` where no FPDU can begin.
// rfc: 5044-46a the start of an FPDU is located without doubt
pub fn fpdu_start(position: u64, marker: [u8; MARKER_LEN]) -> Option<u64> {
    let length_field_at = match pointer(marker) {
        0 => return Some(position),
        distance => position.checked_sub(distance as u64)?,
    };
    match length_field_at % INTERVAL {
        // Another marker stands there.
        0 => None,
        4 => Some(length_field_at - MARKER_LEN as u64),
        _ => Some(length_field_at),
    }
}

/// Returns the ULPDU of a whole FPDU that begins at `position`, verified, and without its markers
/// in `room`.
///
/// # Errors
/// [`MpaError::Crc`], [`MpaError::Marker`].
pub(super) fn open<'a>(
    fpdu: &[u8],
    position: u64,
    crc: bool,
    room: &'a mut Vec<u8>,
) -> Result<&'a [u8], MpaError> {
    let (covered, field) = fpdu.split_at(fpdu.len() - CRC_LEN);
    if crc {
        // rfc: 5044-21, 5044-36a, 5044-36b the CRC covers all in front of it, markers too
        frame::verify(covered, [field[0], field[1], field[2], field[3]])?;
    }
    room.clear();
    let (first, _) = markers_within(position, covered.len());
    let (front, rest) = covered.split_at(first.min(covered.len()));
    room.extend_from_slice(front);
    for (index, piece) in rest.chunks(MARKER_LEN + STRIDE).enumerate() {
        let (marker, octets) = piece.split_at(MARKER_LEN);
        let at = first + index * (MARKER_LEN + STRIDE);
        check_pointer(marker, at.saturating_sub(length_field_at(position)))?;
        room.extend_from_slice(octets);
    }
    let len = usize::from(u16::from_be_bytes([room[0], room[1]]));
    Ok(&room[LENGTH_LEN..LENGTH_LEN + len])
}

/// Checks that a marker points to the start of its FPDU.
// rfc: 5044-24, 5044-25 all markers in an FPDU point to its start
// rfc: 5044-s18, 5044-s19 a marker that contradicts the lengths is an error
fn check_pointer(marker: &[u8], distance: usize) -> Result<(), MpaError> {
    let pointer = pointer([marker[0], marker[1], marker[2], marker[3]]);
    if pointer != distance {
        return Err(MpaError::Marker { pointer, distance });
    }
    Ok(())
}

/// Returns how many octets back a marker points. Its reserved half is ignored.
// rfc: 5044-22 the last two bits of the pointer count as zero
fn pointer(marker: [u8; MARKER_LEN]) -> usize {
    usize::from(u16::from_be_bytes([marker[2], marker[3]]) & !3)
}

/// Makes a marker that points `distance` octets back, to the length field of its FPDU.
fn marker(distance: u16) -> [u8; MARKER_LEN] {
    // rfc: 5044-14, 5044-15, 5044-16 the reserved half and the last two bits are zero
    let pointer = (distance & !3).to_be_bytes();
    [0, 0, pointer[0], pointer[1]]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::frame::tests::{figure_ulpdu, sealed};
    use super::*;
    use crate::wire::mpa::Fpdu;

    /// The FPDU of `ulpdu` at `position`.
    fn seal(ulpdu: &[u8], position: u64, crc: bool) -> Vec<u8> {
        let most = max_fpdu_len(ulpdu.len());
        let mut fpdu = vec![0xa5; most + 3];
        fpdu[LENGTH_LEN..][..ulpdu.len()].copy_from_slice(ulpdu);
        let len = super::seal(&mut fpdu, ulpdu.len(), position, crc);
        assert!(len <= most, "{len} octets");
        fpdu.truncate(len);
        fpdu
    }

    /// Removes the markers from a stream that starts at position 0. Returns what is left, and the
    /// pointers with the positions of their markers.
    fn without_markers(stream: &[u8]) -> (Vec<u8>, Vec<(usize, usize)>) {
        let mut markers = Vec::new();
        let mut octets = Vec::new();
        for (index, interval) in stream.chunks(INTERVAL as usize).enumerate() {
            let (marker, rest) = interval.split_at(MARKER_LEN);
            assert_eq!(marker[..2], [0, 0]);
            let pointer = usize::from(u16::from_be_bytes([marker[2], marker[3]]));
            markers.push((index * INTERVAL as usize, pointer));
            octets.extend_from_slice(rest);
        }
        (octets, markers)
    }

    /// RFC 5044 figure 5: the first FPDU of a stream.
    // rfc: 5044-14, 5044-15, 5044-21, 5044-23, 5044-36b
    // the layout of a marker; the first stands right in front of the first FPDU
    #[test]
    fn figure_5() {
        let mut figure = vec![0, 0, 0, 0, 0x00, 0x2a, 0x41, 0x43];
        figure.extend([0; 8]);
        figure.extend([0, 0, 0, 1]);
        figure.extend([0; 4 + 24]);
        figure.extend([0x52, 0x23, 0x99, 0x83]);
        assert_eq!(figure.len(), 0x34);
        assert_eq!(seal(&figure_ulpdu(1), 0, true), figure);
        // Apart from the marker and the CRC over it, this is what goes out without markers.
        assert_eq!(sealed(&figure_ulpdu(1), true)[..0x2c], figure[4..0x30]);
    }

    /// RFC 5044 figure 6: a second FPDU, behind one of 492 octets.
    // rfc: 5044-16, 5044-18, 5044-19, 5044-36a a marker at every 512th octet points to its FPDU
    #[test]
    fn figure_6() {
        let mut figure = vec![0x00, 0x2a, 0x41, 0x43];
        figure.extend([0; 8]);
        figure.extend([0, 0, 0, 2]);
        figure.extend([0; 4]);
        figure.extend([0, 0, 0, 0x14]);
        figure.extend([0; 24]);
        figure.extend([0x84, 0x92, 0x58, 0x98]);
        assert_eq!(figure.len(), 0x220 - 0x1ec);
        assert_eq!(seal(&figure_ulpdu(2), 0x1ec, true), figure);
    }

    // rfc: 5044-21, 5044-25 a marker between FPDUs is zero, and belongs to the second
    #[test]
    fn a_marker_between_two_fpdus_belongs_to_the_second() {
        // Marker, 2 + 500 + 2 and CRC: 512 octets, so that the second FPDU starts with a marker.
        let first = seal(&[1; 500], 0, true);
        assert_eq!(first.len(), 512);
        let second = seal(&[2; 10], 512, true);
        assert_eq!(second[..6], [0, 0, 0, 0, 0, 10]);
    }

    // rfc: 5044-24, 5044-36a all markers of an FPDU point to its start, and its CRC covers them
    #[test]
    fn a_marker_right_behind_the_pad_is_covered_by_the_crc() {
        // Marker, 2 + 505 and one octet of pad end at 512: the marker stands in front of the CRC
        // field.
        let fpdu = seal(&[1; 505], 0, true);
        assert_eq!(fpdu.len(), 512 + MARKER_LEN + CRC_LEN);
        assert_eq!(fpdu[512..516], marker(508));
        assert_eq!(fpdu[516..], crc::to_wire(crc::crc(&fpdu[..516])));
    }

    // rfc: 5044-20 the pointer is right where sequence numbers wrap
    #[test]
    fn a_marker_counts_across_the_wrap_of_sequence_numbers() {
        let start = (1 << 32) - 8;
        let fpdu = seal(&[1; 10], start, true);
        assert_eq!(fpdu[8..12], marker(8));
        assert_eq!(fpdu[4..8], [1; 4]);
    }

    // rfc: 5044-39 the MULPDU leaves room for markers
    #[test]
    fn mulpdu_leaves_room_for_the_worst_case() {
        assert_eq!(mulpdu(1460), 1442);
        assert_eq!(mulpdu(8948), 8870);
        assert_eq!(mulpdu(100), frame::MIN_MULPDU);
        for emss in (160..3000usize).step_by(7) {
            for position in (0..512).step_by(4) {
                assert!(seal(&vec![0; mulpdu(emss)], position, false).len() <= emss);
            }
        }
    }

    proptest! {
        // rfc: 5044-18, 5044-19, 5044-24, 5044-25 markers at every 512th octet point to their FPDU
        #[test]
        fn markers_point_at_the_fpdu_that_holds_them(
            ulpdus in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1500), 1..12),
        ) {
            let (mut stream, mut starts) = (Vec::new(), Vec::new());
            for ulpdu in &ulpdus {
                let between = stream.len().is_multiple_of(512);
                starts.push(stream.len() + if between { MARKER_LEN } else { 0 });
                stream.extend(seal(ulpdu, stream.len() as u64, true));
            }
            let (octets, markers) = without_markers(&stream);
            for (at, pointer) in markers {
                if starts.contains(&(at + MARKER_LEN)) {
                    prop_assert_eq!(pointer, 0);
                } else {
                    let start = starts.iter().rev().find(|start| **start <= at);
                    prop_assert_eq!(Some(&(at - pointer)), start);
                }
            }
            let mut rest = &octets[..];
            for ulpdu in &ulpdus {
                let (fpdu, len) = Fpdu::parse(rest).unwrap();
                prop_assert_eq!(fpdu.ulpdu, ulpdu);
                rest = &rest[len..];
            }
            prop_assert!(rest.is_empty());
        }
    }
}
