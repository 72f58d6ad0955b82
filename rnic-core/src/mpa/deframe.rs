//! Deframing: finds FPDUs in a TCP stream, however it was cut into segments.

use super::marked::MarkedDeframer;
use super::{MpaError, Ulpdu, frame};
use crate::wire::crc::crc;
use crate::wire::mpa::{Fpdu, LENGTH_LEN, fpdu_len};

/// Finds FPDUs in the octets of a stream. An FPDU that lies in one piece of input is yielded from
/// there without a copy. The start of an FPDU at the end of the input is buffered: at most one FPDU
/// (65544 octets).
#[derive(Debug)]
pub struct Deframer {
    crc: bool,
    partial: PartialFpdu,
    failure: Option<MpaError>,
    /// Deframes a stream with markers. In a box, because few streams have them.
    marked: Option<Box<MarkedDeframer>>,
}

impl Deframer {
    /// Starts at the first octet behind the start-up frame. `crc` says whether CRCs were
    /// negotiated.
    pub fn new(crc: bool) -> Self {
        Self {
            crc,
            partial: PartialFpdu::default(),
            failure: None,
            marked: None,
        }
    }

    /// Starts a stream with markers, which this side has required.
    pub fn with_markers(crc: bool) -> Self {
        Self {
            marked: Some(Box::default()),
            ..Self::new(crc)
        }
    }

    /// Removes the next FPDU from the front of `input`, verifies it, and returns its ULPDU. Returns
    /// `None` when `input` is used up. `input` continues the stream where the previous input ended.
    ///
    /// # Errors
    /// [`MpaError::Crc`], [`MpaError::Marker`]. After an error no ULPDU is returned: each call
    /// repeats the error.
    #[inline]
    pub fn next<'d, 'i: 'd>(
        &'d mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Ulpdu<'d>>, MpaError> {
        self.next_with_crc(input, None)
    }

    /// Does what [`next`](Self::next) does, where the [`crc`] of all of `input` may be known.
    ///
    /// # Errors
    /// As of `next`.
    #[inline]
    pub fn next_with_crc<'d, 'i: 'd>(
        &'d mut self,
        input: &mut &'i [u8],
        crc: Option<u32>,
    ) -> Result<Option<Ulpdu<'d>>, MpaError> {
        // Most FPDUs lie in one piece of input.
        let begins = self.partial.len() == 0 && self.marked.is_none() && self.failure.is_none();
        if begins && let Some((fpdu, len)) = Fpdu::parse(input) {
            let known_good = len == input.len() && crc.is_some_and(frame::crc_is_good);
            if let Ok(ulpdu) = frame::open(&fpdu, self.crc && !known_good) {
                *input = &input[len..];
                return Ok(Some(ulpdu));
            }
        }
        self.next_general(input)
    }

    /// Returns the next FPDU in all cases, errors and partial FPDUs included.
    fn next_general<'d, 'i: 'd>(
        &'d mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Ulpdu<'d>>, MpaError> {
        // rfc: 5044-87 after an error no FPDU is passed up
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if let Some(marked) = &mut self.marked {
            let next = marked.next(input, self.crc);
            return next.inspect_err(|failure| self.failure = Some(failure.clone()));
        }
        let fpdu: Fpdu<'d> = match Fpdu::parse(input) {
            Some((fpdu, len)) if self.partial.len() == 0 => {
                *input = &input[len..];
                fpdu
            }
            _ if input.is_empty() => return Ok(None),
            _ => match self.partial.add(input) {
                Some(fpdu) => fpdu,
                None => return Ok(None),
            },
        };
        match frame::open(&fpdu, self.crc) {
            Ok(ulpdu) => Ok(Some(ulpdu)),
            Err(failure) => {
                self.failure = Some(failure.clone());
                Err(failure)
            }
        }
    }

    /// Returns whether the input so far has ended at the end of an FPDU, in a stream with CRCs and
    /// without markers. A caller that has a whole FPDU with a [good CRC](frame::crc_is_good) then
    /// need not call the deframer for it.
    pub fn is_at_fpdu_boundary(&self) -> bool {
        self.crc && self.is_between_fpdus()
    }

    /// Returns whether the input so far has ended at the end of an FPDU, in a stream without
    /// markers. A caller that has a whole FPDU which is [good](Self::is_good) then need not call
    /// the deframer for it.
    pub fn is_between_fpdus(&self) -> bool {
        self.partial.len() == 0 && self.marked.is_none() && self.failure.is_none()
    }

    /// Returns whether a whole FPDU has a good CRC, or CRCs were not negotiated.
    // rfc: 5044-37 the CRC of an FPDU is compared before anything else is done
    #[inline]
    pub fn is_good(&self, fpdu: &[u8]) -> bool {
        !self.crc || frame::crc_is_good(crc(fpdu))
    }

    /// Returns how many octets of a partial FPDU are buffered.
    pub fn buffered(&self) -> usize {
        match &self.marked {
            None => self.partial.len(),
            Some(marked) => marked.buffered(),
        }
    }

    /// Returns how many octets the partial FPDU still needs, as far as its length is known.
    pub fn missing_len(&self) -> usize {
        match &self.marked {
            None => self.partial.missing_len(),
            Some(marked) => marked.missing_len(),
        }
    }

    /// Opens an FPDU that has arrived ahead of order in a stream with markers, and returns its
    /// ULPDU. A marker, or the end of another such FPDU, shows that it begins at `position` (see
    /// [`marker`](super::marker)). `fpdu` is as long as [`fpdu_len`](super::marker::fpdu_len) says.
    /// `None` if it is invalid, or CRCs are off, so that nothing can verify it.
    // rfc: 5044-46a the start of an FPDU is located without doubt
    pub fn open_out_of_order(&mut self, position: u64, fpdu: &[u8]) -> Option<Ulpdu<'_>> {
        if !self.crc || self.failure.is_some() {
            return None;
        }
        self.marked.as_mut()?.open(position, fpdu)
    }

    /// Skips an FPDU of `len` octets that [`open_out_of_order`](Self::open_out_of_order) returned,
    /// now that the stream has reached it. The next input continues behind it.
    ///
    /// # Errors
    /// [`MpaError::Boundary`] if the stream before it ends inside an FPDU: then no FPDU begins
    /// there.
    // rfc: 5044-s19 markers are checked against the lengths when a gap is closed
    pub fn skip_fpdu(&mut self, len: u64) -> Result<(), MpaError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.buffered() > 0 {
            self.failure = Some(MpaError::Boundary);
            return Err(MpaError::Boundary);
        }
        if let Some(marked) = &mut self.marked {
            marked.skip_fpdu(len);
        }
        Ok(())
    }
}

/// The start of an FPDU that crosses segments.
#[derive(Debug, Default)]
struct PartialFpdu {
    octets: Vec<u8>,
    /// The FPDU was yielded: the next one begins empty.
    yielded: bool,
}

impl PartialFpdu {
    /// Returns how many octets wait for more.
    fn len(&self) -> usize {
        if self.yielded { 0 } else { self.octets.len() }
    }

    /// Returns how many octets are missing until the FPDU is complete.
    fn missing_len(&self) -> usize {
        let length = self.octets.first_chunk::<LENGTH_LEN>();
        let whole = length.map_or(0, |length| fpdu_len(u16::from_be_bytes(*length).into()));
        whole.saturating_sub(self.octets.len())
    }

    /// Moves octets of this FPDU from the front of `input`. Returns the FPDU if that completes it.
    // rfc: 5044-43, 5044-92 FPDUs and segments need not be aligned
    fn add(&mut self, input: &mut &[u8]) -> Option<Fpdu<'_>> {
        if self.yielded {
            self.octets.clear();
            self.yielded = false;
        }
        self.fill(input, LENGTH_LEN);
        // rfc: 5044-44, 5044-48 the length field says where an FPDU ends
        let length = self.octets.first_chunk::<LENGTH_LEN>()?;
        self.fill(input, fpdu_len(u16::from_be_bytes(*length).into()));
        let (fpdu, _) = Fpdu::parse(&self.octets)?;
        self.yielded = true;
        Some(fpdu)
    }

    /// Moves octets from the front of `input` until `len` are buffered.
    fn fill(&mut self, input: &mut &[u8], len: usize) {
        let missing = len.saturating_sub(self.octets.len()).min(input.len());
        let (now, rest) = input.split_at(missing);
        self.octets.extend_from_slice(now);
        *input = rest;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::super::frame::tests::{figure_ulpdu, sealed};
    use super::*;
    use crate::wire::crc::RESIDUE;

    /// Feeds pieces one after the other, as the connection does, and collects what comes out.
    pub(in crate::mpa) fn deframe<'a>(
        deframer: &mut Deframer,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Vec<Vec<u8>>, MpaError> {
        let mut ulpdus = Vec::new();
        for mut piece in pieces {
            while let Some(ulpdu) = deframer.next(&mut piece)? {
                ulpdus.push(ulpdu.to_vec());
            }
            assert!(piece.is_empty());
        }
        Ok(ulpdus)
    }

    fn stream(ulpdus: &[Vec<u8>], crc: bool) -> Vec<u8> {
        ulpdus.iter().flat_map(|ulpdu| sealed(ulpdu, crc)).collect()
    }

    #[test]
    fn whole_fpdus_are_yielded_from_the_input() {
        let octets = stream(&[vec![1; 20], vec![2; 7], vec![]], true);
        let mut deframer = Deframer::new(true);
        let mut input = &octets[..];
        let first = deframer.next(&mut input).unwrap().unwrap();
        assert!(octets.as_ptr_range().contains(&first.as_ptr()), "copied");
        assert_eq!(first, [1; 20]);
        assert_eq!(deframer.next(&mut input).unwrap(), Some(&[2; 7][..]));
        assert_eq!(deframer.next(&mut input).unwrap(), Some(&[][..]));
        assert_eq!(deframer.next(&mut input).unwrap(), None);
        assert_eq!(deframer.buffered(), 0);
    }

    // rfc: 5044-43, 5044-92 FPDUs and segments need not be aligned
    #[test]
    fn every_single_cut_of_two_fpdus() {
        let ulpdus = [figure_ulpdu(1).to_vec(), vec![9; 5]];
        let octets = stream(&ulpdus, true);
        for at in 0..=octets.len() {
            let mut deframer = Deframer::new(true);
            let (a, b) = octets.split_at(at);
            assert_eq!(
                deframe(&mut deframer, [a, b]).unwrap(),
                ulpdus,
                "cut at {at}"
            );
        }
        let mut deframer = Deframer::new(true);
        assert_eq!(deframe(&mut deframer, octets.chunks(1)).unwrap(), ulpdus);
    }

    #[test]
    fn held_counts_the_partial_fpdu_only() {
        let octets = stream(&[vec![1; 10], vec![2; 10]], false);
        let mut deframer = Deframer::new(false);
        assert_eq!(deframe(&mut deframer, [&octets[..1]]).unwrap().len(), 0);
        assert_eq!(deframer.buffered(), 1);
        assert_eq!(deframe(&mut deframer, [&octets[1..25]]).unwrap().len(), 1);
        assert_eq!(deframer.buffered(), 25 - 16);
        assert_eq!(deframe(&mut deframer, [&octets[25..]]).unwrap().len(), 1);
        assert_eq!(deframer.buffered(), 0);
    }

    #[test]
    fn the_longest_length_field_holds_one_fpdu_at_most() {
        let mut octets = vec![0xff; 65544];
        octets.extend(sealed(&[1, 2, 3], false));
        let mut deframer = Deframer::new(false);
        let mut count = 0;
        for mut piece in octets.chunks(1000) {
            while let Some(ulpdu) = deframer.next(&mut piece).unwrap() {
                assert!(ulpdu.len() == 65535 || ulpdu == [1, 2, 3]);
                count += 1;
            }
            assert!(deframer.buffered() <= 65544);
        }
        assert_eq!((count, deframer.buffered()), (2, 0));
    }

    // rfc: 5044-37, 5044-38, 5044-45, 5044-46b, 5044-87 the CRC is checked first; an error ends all
    #[test]
    fn nothing_comes_out_behind_a_bad_crc() {
        let mut octets = stream(&[vec![1; 8], vec![2; 8], vec![3; 8]], true);
        octets[20] ^= 1;
        for size in [octets.len(), 16, 5] {
            let mut deframer = Deframer::new(true);
            let error = deframe(&mut deframer, octets.chunks(size)).unwrap_err();
            assert!(matches!(error, MpaError::Crc { .. }));
            assert_eq!(deframer.next(&mut &octets[32..]), Err(error.clone()));
            assert_eq!(deframer.skip_fpdu(16), Err(error));
        }
    }

    /// A CRC that comes with octets says that they are whole, if it is of just one FPDU.
    // rfc: 5044-38 an FPDU with a wrong CRC is invalid
    #[test]
    fn a_known_crc_is_not_computed_again() {
        let next = |octets: &[u8], known| {
            let mut deframer = Deframer::new(true);
            let next = deframer.next_with_crc(&mut &octets[..], known);
            next.map(|ulpdu| ulpdu.map(<[u8]>::to_vec))
        };
        let mut octets = stream(&[vec![1; 8], vec![2; 8]], true);
        assert_eq!(next(&octets[..16], Some(7)), Ok(Some(vec![1; 8])));
        octets[4] ^= 1;
        let spoilt = octets[2..10].to_vec();
        assert_eq!(next(&octets[..16], Some(RESIDUE)), Ok(Some(spoilt)));
        for (octets, known) in [(&octets[..16], Some(7)), (&octets, Some(RESIDUE))] {
            let error = next(octets, known).unwrap_err();
            assert!(matches!(error, MpaError::Crc { .. }));
        }
    }

    // rfc: 5044-13, 5044-33, 5044-60, 5044-62 without CRCs the field is there and not checked
    #[test]
    fn with_crc_off_the_field_and_the_pad_may_hold_anything() {
        let mut octets = sealed(&[1, 2, 3, 4, 5], false);
        octets[7..].fill(0x5a);
        let mut deframer = Deframer::new(false);
        assert_eq!(
            deframe(&mut deframer, [&octets[..]]).unwrap(),
            [vec![1, 2, 3, 4, 5]]
        );
    }

    // rfc: 5044-12 the pad counts for the CRC alone
    #[test]
    fn a_pad_that_is_not_zero_is_covered_by_the_crc_and_ignored() {
        let mut octets = sealed(&[1, 2, 3, 4, 5], true);
        octets[7] = 0xee;
        let crc = crate::wire::crc::to_wire(crate::wire::crc::crc(&octets[..8]));
        octets[8..].copy_from_slice(&crc);
        assert_eq!(
            deframe(&mut Deframer::new(true), [&octets[..]]).unwrap(),
            [[1, 2, 3, 4, 5]]
        );
    }

    fn ulpdus_and_cuts() -> impl Strategy<Value = (Vec<Vec<u8>>, Vec<prop::sample::Index>)> {
        let ulpdu = prop::collection::vec(any::<u8>(), 0..200);
        let cuts = prop::collection::vec(any::<prop::sample::Index>(), 0..12);
        (prop::collection::vec(ulpdu, 1..8), cuts)
    }

    fn pieces<'a>(octets: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(octets.len())).collect();
        at.extend([0, octets.len()]);
        at.sort_unstable();
        at.windows(2)
            .map(|pair| &octets[pair[0]..pair[1]])
            .collect()
    }

    proptest! {
        // rfc: 5041-6, 5041-9, 5044-9, 5044-26, 5044-27, 5044-43, 5044-44, 5044-48
        // FPDUs are found by their lengths wherever segments are cut; only ULPDU and length go up
        #[test]
        fn any_cut_yields_the_same_ulpdus((ulpdus, cuts) in ulpdus_and_cuts(), crc: bool) {
            let octets = stream(&ulpdus, crc);
            let mut deframer = Deframer::new(crc);
            prop_assert_eq!(deframe(&mut deframer, pieces(&octets, &cuts)).unwrap(), ulpdus);
            prop_assert_eq!(deframer.buffered(), 0);
        }

        #[test]
        fn a_flipped_bit_never_passes_for_the_original(
            (ulpdus, cuts) in ulpdus_and_cuts(), at: prop::sample::Index, bit in 0..8u32, crc: bool,
        ) {
            let mut octets = stream(&ulpdus, crc);
            let at = at.index(octets.len());
            octets[at] ^= 1 << bit;
            let mut deframer = Deframer::new(crc);
            let result = deframe(&mut deframer, pieces(&octets, &cuts));
            if crc {
                // An altered length may leave the deframer waiting for more; it never yields all.
                prop_assert!(result.is_err() || deframer.buffered() > 0);
            } else {
                prop_assert!(result.is_ok());
            }
        }

        #[test]
        fn any_octets_are_survived(octets in prop::collection::vec(any::<u8>(), 0..2000), crc: bool,
                                   cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..9)) {
            prop_assume!(!octets.is_empty());
            let mut deframer = Deframer::new(crc);
            let _ = deframe(&mut deframer, pieces(&octets, &cuts));
            prop_assert!(deframer.buffered() <= 65544);
        }
    }
}
