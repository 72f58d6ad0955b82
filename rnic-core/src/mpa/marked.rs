//! Deframing of a stream with markers.

use super::marker::{self, PREFIX_LEN};
use super::{MpaError, Ulpdu};

/// Finds FPDUs in the octets of a stream with markers. Each is copied without its markers: one copy
/// more than a stream without markers needs.
#[derive(Debug, Default)]
pub(super) struct MarkedDeframer {
    /// Where the next FPDU begins.
    position: u64,
    /// Its first octets, with markers, if it crosses segments.
    partial: Vec<u8>,
    /// The last FPDU without its markers.
    unmarked: Vec<u8>,
}

impl MarkedDeframer {
    /// Removes the next FPDU from the front of `input`; see
    /// [`Deframer::next`](super::Deframer::next).
    pub(super) fn next(
        &mut self,
        input: &mut &[u8],
        crc: bool,
    ) -> Result<Option<Ulpdu<'_>>, MpaError> {
        let position = self.position;
        if self.partial.is_empty()
            && let Some(len) = marker::fpdu_len(position, input)
            && let Some((fpdu, rest)) = input.split_at_checked(len)
        {
            *input = rest;
            self.position += len as u64;
            return marker::open(fpdu, position, crc, &mut self.unmarked).map(Some);
        }
        self.fill(input, PREFIX_LEN);
        let Some(len) = marker::fpdu_len(position, &self.partial) else {
            return Ok(None);
        };
        self.fill(input, len);
        if self.partial.len() < len {
            return Ok(None);
        }
        self.position += len as u64;
        let ulpdu = marker::open(&self.partial, position, crc, &mut self.unmarked);
        self.partial.clear();
        ulpdu.map(Some)
    }

    /// Returns how many octets of a partial FPDU are buffered.
    pub(super) fn buffered(&self) -> usize {
        self.partial.len()
    }

    /// Returns how many octets the partial FPDU still needs, as far as its length is known.
    pub(super) fn missing_len(&self) -> usize {
        let whole = marker::fpdu_len(self.position, &self.partial).unwrap_or(0);
        whole.saturating_sub(self.partial.len())
    }

    /// Returns the ULPDU of an FPDU ahead of order, verified.
    pub(super) fn open(&mut self, position: u64, fpdu: &[u8]) -> Option<Ulpdu<'_>> {
        marker::open(fpdu, position, true, &mut self.unmarked).ok()
    }

    /// Skips the next FPDU, which was yielded ahead of order.
    pub(super) fn skip_fpdu(&mut self, len: u64) {
        self.position += len;
    }

    /// Moves octets from the front of `input` until `len` are buffered.
    fn fill(&mut self, input: &mut &[u8], len: usize) {
        let missing = len.saturating_sub(self.partial.len()).min(input.len());
        let (now, rest) = input.split_at(missing);
        self.partial.extend_from_slice(now);
        *input = rest;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Deframer;
    use super::super::deframe::tests::deframe;
    use super::super::frame::{self, CRC_LEN, LENGTH_LEN};
    use super::*;
    use crate::wire::crc;

    /// The FPDU of `ulpdu` at `position`.
    fn sealed(ulpdu: &[u8], position: u64, crc: bool) -> Vec<u8> {
        let mut fpdu = vec![0; marker::max_fpdu_len(ulpdu.len())];
        fpdu[LENGTH_LEN..][..ulpdu.len()].copy_from_slice(ulpdu);
        let len = marker::seal(&mut fpdu, ulpdu.len(), position, crc);
        fpdu.truncate(len);
        fpdu
    }

    /// A stream of FPDUs from its first octet.
    fn stream(ulpdus: &[Vec<u8>], crc: bool) -> Vec<u8> {
        let mut octets = Vec::new();
        for ulpdu in ulpdus {
            octets.extend(sealed(ulpdu, octets.len() as u64, crc));
        }
        octets
    }

    /// Writes the right CRC again after a change.
    fn mend(fpdu: &mut [u8]) {
        let at = fpdu.len() - CRC_LEN;
        let check = crc::to_wire(crc::crc(&fpdu[..at]));
        fpdu[at..].copy_from_slice(&check);
    }

    /// A marker at every place of an FPDU: in front of it, in header, payload and pad, in front of
    /// the CRC, and behind it.
    // rfc: 5044-18, 5044-21, 5044-36a, 5044-36b a marker at every 512th octet, in the CRC
    #[test]
    fn every_place_of_a_marker() {
        for len in [0, 1, 2, 14, 40, 494, 502, 503, 504, 506, 1442] {
            let ulpdu: Vec<u8> = (0..len).map(|at| (at * 31 + 7) as u8).collect();
            for before in (8..520).step_by(4) {
                // A first FPDU brings the second one to each position modulo 512.
                let ulpdus = [vec![1; before - 6], ulpdu.clone(), vec![3; 9]];
                let octets = stream(&ulpdus, true);
                let mut deframer = Deframer::with_markers(true);
                assert_eq!(deframe(&mut deframer, [&octets[..]]).unwrap(), ulpdus);
                for piece in [1, 4, 7, 511] {
                    let mut deframer = Deframer::with_markers(true);
                    let pieces = octets.chunks(piece);
                    assert_eq!(deframe(&mut deframer, pieces).unwrap(), ulpdus);
                    assert_eq!((deframer.buffered(), deframer.missing_len()), (0, 0));
                }
            }
        }
    }

    #[test]
    fn held_and_missing_count_markers() {
        let octets = stream(&[vec![1; 1000]], true);
        let mut deframer = Deframer::with_markers(true);
        for at in 0..octets.len() - 1 {
            assert_eq!(deframer.buffered(), at);
            if at >= PREFIX_LEN {
                assert_eq!(deframer.missing_len(), octets.len() - at);
            }
            deframe(&mut deframer, [&octets[at..=at]]).unwrap();
        }
    }

    /// Any marker that points elsewhere than to the start of its FPDU, with a CRC that is right.
    // rfc: 5044-24, 5044-25, 5044-85c, 5044-s18
    // a marker points to the start of its FPDU; another pointer is an error of its own
    #[test]
    fn a_marker_that_points_elsewhere() {
        let first = sealed(&[1; 40], 0, true);
        let good = sealed(&[2; 1442], first.len() as u64, true);
        let between = sealed(&[3; 40], 512, true);
        for crc in [true, false] {
            for at in [512, 1024] {
                let place = at - first.len();
                let distance = place as u16;
                assert_eq!(good[place..place + 4][2..], distance.to_be_bytes());
                for wrong in [0, 4, distance - 4, distance + 4, 0xfffc] {
                    let mut bad = good.clone();
                    bad[place + 2..place + 4].copy_from_slice(&wrong.to_be_bytes());
                    mend(&mut bad);
                    let mut deframer = Deframer::with_markers(crc);
                    let error = deframe(&mut deframer, [&first[..], &bad]).unwrap_err();
                    let expected = MpaError::Marker {
                        pointer: usize::from(wrong),
                        distance: place,
                    };
                    assert_eq!(error, expected);
                    assert_eq!(deframer.next(&mut &first[..]), Err(error), "it is over");
                }
            }
            let mut bad = between.clone();
            bad[3] = 8;
            mend(&mut bad);
            let front = sealed(&[1; 500], 0, crc);
            let error = deframe(&mut Deframer::with_markers(crc), [&front[..], &bad]);
            let expected = MpaError::Marker {
                pointer: 8,
                distance: 0,
            };
            assert_eq!(error, Err(expected));
        }
    }

    // rfc: 5044-15, 5044-22 the reserved half and the last two bits of the pointer are ignored
    #[test]
    fn what_is_reserved_of_a_marker_is_not_looked_at() {
        let mut octets = stream(&[vec![1; 1000]], true);
        for at in [0, 512] {
            octets[at..at + 2].copy_from_slice(&[0xff, 0xa5]);
            octets[at + 3] |= 3;
        }
        let mut deframer = Deframer::with_markers(true);
        let error = deframe(&mut deframer, [&octets[..]]).unwrap_err();
        assert!(matches!(error, MpaError::Crc { .. }), "the CRC covers it");
        mend(&mut octets);
        let mut deframer = Deframer::with_markers(true);
        assert_eq!(
            deframe(&mut deframer, [&octets[..]]),
            Ok(vec![vec![1; 1000]])
        );
        assert_eq!(marker::fpdu_start(512, [0xff, 0xff, 0, 3]), Some(512));
        assert_eq!(marker::fpdu_start(512, [0, 0, 0, 11]), Some(504));
    }

    /// An error in the octets counts before one in the markers.
    // rfc: 5044-36b, 5044-38, 5044-46b the CRC covers the markers, and is checked first
    #[test]
    fn every_octet_counts_for_the_crc() {
        let octets = stream(&[vec![1; 700]], true);
        for at in 0..octets.len() {
            let mut altered = octets.clone();
            altered[at] ^= 4;
            altered.extend([0; 1100]);
            let mut deframer = Deframer::with_markers(true);
            let error = deframe(&mut deframer, [&altered[..]]).unwrap_err();
            assert!(matches!(error, MpaError::Crc { .. }), "octet {at}: {error}");
        }
    }

    // rfc: 5044-13, 5044-33, 5044-60, 5044-62 without CRCs the field is there and not checked
    #[test]
    fn with_crc_off_the_field_may_hold_anything() {
        let mut octets = sealed(&[5; 600], 0, false);
        let at = octets.len() - CRC_LEN;
        octets[at..].fill(0x5a);
        let mut deframer = Deframer::with_markers(false);
        assert_eq!(
            deframe(&mut deframer, [&octets[..]]),
            Ok(vec![vec![5; 600]])
        );
        let mut deframer = Deframer::with_markers(false);
        assert_eq!(deframer.open_out_of_order(0, &octets), None);
    }

    /// A ULPDU that no sender may send is too long for a pointer.
    #[test]
    fn the_longest_length_field() {
        let mut deframer = Deframer::with_markers(false);
        let mut octets = vec![0; 66_064];
        octets[4..6].fill(0xff);
        for at in (512..octets.len()).step_by(512) {
            let pointer = (at as u16).wrapping_sub(4).to_be_bytes();
            octets[at + 2..at + 4].copy_from_slice(&pointer);
        }
        assert_eq!(marker::fpdu_len(0, &octets), Some(octets.len()));
        let mut longest = 0;
        for mut piece in octets.chunks(1000) {
            match deframer.next(&mut piece) {
                Ok(None) => longest = deframer.buffered(),
                other => {
                    let (pointer, distance) = (508, 66_044);
                    assert_eq!(other, Err(MpaError::Marker { pointer, distance }));
                }
            }
        }
        assert!(longest <= 66_064);
        // The longest that a sender may send.
        let longest = vec![7; frame::MAX_MULPDU];
        let octets = sealed(&longest, 0, true);
        let mut deframer = Deframer::with_markers(true);
        assert_eq!(deframe(&mut deframer, [&octets[..]]), Ok(vec![longest]));
    }

    // rfc: 5044-46a out of order, the start of an FPDU must be certain
    #[test]
    fn where_a_marker_points() {
        let marker = |pointer: u16| [0, 0, (pointer >> 8) as u8, pointer as u8];
        assert_eq!(marker::fpdu_start(0, marker(0)), Some(0));
        assert_eq!(marker::fpdu_start(0, marker(4)), None, "before the stream");
        assert_eq!(marker::fpdu_start(1024, marker(1028)), None);
        assert_eq!(marker::fpdu_start(1024, marker(1024)), None, "to a marker");
        assert_eq!(marker::fpdu_start(1024, marker(512)), None, "to a marker");
        assert_eq!(
            marker::fpdu_start(1024, marker(508)),
            Some(512),
            "behind one"
        );
        assert_eq!(marker::fpdu_start(1024, marker(504)), Some(520));
        assert_eq!(marker::fpdu_start(1024, marker(4)), Some(1020));
    }

    proptest! {
        // rfc: 5041-6, 5041-9, 5044-9, 5044-26, 5044-27, 5044-43, 5044-44, 5044-48
        // FPDUs are found by their lengths wherever segments are cut; only ULPDU and length go up
        #[test]
        fn any_cut_yields_the_same_ulpdus(
            ulpdus in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1500), 1..8),
            mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12), crc: bool,
        ) {
            let octets = stream(&ulpdus, crc);
            let mut at: Vec<usize> = cuts.drain(..).map(|cut| cut.index(octets.len())).collect();
            at.extend([0, octets.len()]);
            at.sort_unstable();
            let pieces = at.windows(2).map(|pair| &octets[pair[0]..pair[1]]);
            let mut deframer = Deframer::with_markers(crc);
            prop_assert_eq!(deframe(&mut deframer, pieces).unwrap(), ulpdus);
            prop_assert_eq!(deframer.buffered(), 0);
        }

        #[test]
        fn any_octets_are_survived(
            octets in prop::collection::vec(any::<u8>(), 1..3000), crc: bool, piece in 1..3000usize,
            position in 0..1_000_000u64,
        ) {
            let mut deframer = Deframer::with_markers(crc);
            let _ = deframe(&mut deframer, octets.chunks(piece));
            prop_assert!(deframer.buffered() <= 66_068);
            if let Some(len) = marker::fpdu_len(position * 4, &octets)
                && let Some(fpdu) = octets.get(..len)
            {
                let _ = Deframer::with_markers(true).open_out_of_order(position * 4, fpdu);
            }
            if let Some(marker) = octets.first_chunk() {
                let _ = marker::fpdu_start(position * 512, *marker);
            }
        }
    }
}
