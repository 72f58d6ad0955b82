//! FPDUs without markers: length, ULPDU, pad and CRC (RFC 5044 section 4.1). The CRC of a received
//! FPDU is checked here, with or without markers.

pub use crate::wire::mpa::{CRC_LEN, LENGTH_LEN, fpdu_len};

use super::MpaError;
use crate::wire::mpa::Fpdu;
use crate::wire::{checksum, crc};

/// The length from which on an FPDU's checksum is computed together with its CRC. Shorter FPDUs
/// share a segment, and one checksum over the segment is cheaper.
const LONG: usize = 256;

/// The smallest MULPDU that MPA offers, whatever the segment size.
pub const MIN_MULPDU: usize = 128;

/// The largest ULPDU that a sender may post.
pub const MAX_MULPDU: usize = 64768;

/// Returns the largest ULPDU whose FPDU fits in a TCP segment of `emss` octets, and at least 128.
pub const fn mulpdu(emss: usize) -> usize {
    // rfc: 5044-40 the MULPDU without markers is that of the formula
    clamp(emss.saturating_sub(LENGTH_LEN + CRC_LEN + emss % 4))
}

/// Returns the largest ULPDU whose FPDU takes at most `room` octets; 0 also where none fits.
pub const fn ulpdu_room(room: usize) -> usize {
    (room - room % 4).saturating_sub(LENGTH_LEN + CRC_LEN)
}

/// Keeps a MULPDU within the bounds of RFC 5044 section 3.
// rfc: 5044-7, 5044-42 no ULPDU exceeds 64768 octets, and the MULPDU is never below 128
pub(super) const fn clamp(mulpdu: usize) -> usize {
    // rfc: 5044-6, 5044-41 the MULPDU is between 128 and 64768
    if mulpdu < MIN_MULPDU {
        MIN_MULPDU
    } else if mulpdu > MAX_MULPDU {
        MAX_MULPDU
    } else {
        mulpdu
    }
}

/// Completes an FPDU whose ULPDU stands at `fpdu[LENGTH_LEN..]`: writes length, pad and CRC (zero
/// without `crc`). Returns the length of the FPDU.
///
/// # Panics
/// If `fpdu` is shorter than [`fpdu_len`], or the ULPDU longer than [`MAX_MULPDU`].
#[inline]
pub fn seal(fpdu: &mut [u8], ulpdu_len: usize, crc: bool) -> usize {
    let len = write_length_and_pad(fpdu, ulpdu_len);
    let (body, field) = fpdu[..len].split_at_mut(len - CRC_LEN);
    // rfc: 5044-28a CRCs are generated
    // rfc: 5044-34 every FPDU has the CRC field
    // rfc: 5044-36a, 5044-36b the CRC covers everything in front of it
    field.copy_from_slice(&match crc {
        true => crc::to_wire(crc::crc(body)),
        false => [0; CRC_LEN],
    });
    len
}

/// Does what [`seal`] does, and computes the [`sum`](checksum::sum) of a long FPDU, if `summed`,
/// where it costs little: with the CRC.
///
/// # Panics
/// As `seal`.
pub fn seal_and_sum(
    fpdu: &mut [u8],
    ulpdu_len: usize,
    crc: bool,
    summed: bool,
) -> (usize, Option<u16>) {
    if !crc || !summed || fpdu_len(ulpdu_len) < LONG {
        return (seal(fpdu, ulpdu_len, crc), None);
    }
    let (len, sum) = seal_and_sum_up(fpdu, ulpdu_len, true);
    (len, Some(sum))
}

/// Seals as [`seal`] does, and computes the [`sum`](checksum::sum) of the FPDU.
///
/// # Panics
/// As `seal`.
#[inline(always)]
pub fn seal_and_sum_up(fpdu: &mut [u8], ulpdu_len: usize, crc: bool) -> (usize, u16) {
    let len = write_length_and_pad(fpdu, ulpdu_len);
    let (body, field) = fpdu[..len].split_at_mut(len - CRC_LEN);
    if !crc {
        field.fill(0);
        return (len, checksum::sum(body));
    }
    // rfc: 5044-34 every FPDU has the CRC field
    // rfc: 5044-36a, 5044-36b the CRC covers everything in front of it
    let (crc, sum) = crc::crc_and_sum_of_both(body);
    field.copy_from_slice(&crc::to_wire(crc));
    (len, sum)
}

/// Writes the length field and the pad of an FPDU. Returns the length of the FPDU.
// rfc: 5044-4, 5044-11 an FPDU is length, one ULPDU, pad and CRC
#[inline(always)]
fn write_length_and_pad(fpdu: &mut [u8], ulpdu_len: usize) -> usize {
    assert!(
        ulpdu_len <= MAX_MULPDU,
        "a ULPDU of {ulpdu_len} octets exceeds {MAX_MULPDU}"
    );
    let len = fpdu_len(ulpdu_len);
    let body = &mut fpdu[..len - CRC_LEN];
    body[..LENGTH_LEN].copy_from_slice(&(ulpdu_len as u16).to_be_bytes());
    // rfc: 5044-12 the pad is zero
    if LENGTH_LEN + ulpdu_len < body.len() {
        body[LENGTH_LEN + ulpdu_len..].fill(0);
    }
    len
}

/// Returns the ULPDU of a received FPDU. Checks its CRC first, with `crc`.
///
/// # Errors
/// [`MpaError::Crc`].
#[inline]
pub(super) fn open<'a>(fpdu: &Fpdu<'a>, crc: bool) -> Result<&'a [u8], MpaError> {
    // rfc: 5044-45, 5044-46b an FPDU is verified before its ULPDU is passed up
    // rfc: 5044-13, 5044-60, 5044-62 without CRCs the field may hold anything
    if crc {
        verify(fpdu.covered, fpdu.crc)?;
    }
    // rfc: 5041-6, 5044-26 ULPDUs keep their boundaries
    // rfc: 5041-9, 5044-9, 5044-27 the ULPDU is passed up with its length, without framing
    Ok(fpdu.ulpdu)
}

/// Returns whether an FPDU is valid. `crc` is the [`crc`](crc::crc) of all of it, its CRC field
/// included.
// rfc: 5044-37, 5044-38 the CRC is compared with its field; where it is wrong the FPDU is invalid
#[inline]
pub fn crc_is_good(crc: u32) -> bool {
    crc == crc::RESIDUE
}

/// Returns the length of the FPDU that begins with these octets; `None` until its length field is
/// there.
pub(super) fn announced_fpdu_len(fpdu: &[u8]) -> Option<usize> {
    let length = fpdu.first_chunk::<LENGTH_LEN>()?;
    Some(fpdu_len(u16::from_be_bytes(*length).into()))
}

/// Returns the ULPDU of a whole FPDU.
#[inline(always)]
pub fn ulpdu(fpdu: &[u8]) -> Option<&[u8]> {
    let (length, behind) = fpdu.split_first_chunk()?;
    behind.get(..u16::from_be_bytes(*length).into())
}

/// Compares a CRC field with the octets that it covers.
///
/// # Errors
/// [`MpaError::Crc`].
#[inline]
pub(super) fn verify(covered: &[u8], field: [u8; CRC_LEN]) -> Result<(), MpaError> {
    // rfc: 5044-28a, 5044-37, 5044-38 the CRC is computed and compared with its field
    let (received, computed) = (crc::from_wire(field), crc::crc(covered));
    // rfc: 5044-28a, 5044-45 an FPDU with a wrong CRC is not passed up
    if received != computed {
        return Err(MpaError::Crc { received, computed });
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An FPDU around `ulpdu`.
    pub(in crate::mpa) fn sealed(ulpdu: &[u8], crc: bool) -> Vec<u8> {
        let mut fpdu = vec![0xa5; fpdu_len(ulpdu.len()) + 3];
        fpdu[LENGTH_LEN..][..ulpdu.len()].copy_from_slice(ulpdu);
        let len = seal(&mut fpdu, ulpdu.len(), crc);
        assert!(
            fpdu[len..].iter().all(|octet| *octet == 0xa5),
            "wrote behind the FPDU"
        );
        fpdu.truncate(len);
        fpdu
    }

    #[test]
    fn a_long_fpdu_is_summed_up_on_the_way() {
        for len in (0..600).chain([MAX_MULPDU]) {
            let ulpdu: Vec<u8> = (0..len).map(|at| (at * 7 + at / 256) as u8).collect();
            for crc in [true, false] {
                let mut fpdu = [&[0; LENGTH_LEN][..], &ulpdu, &[0; 9]].concat();
                let (sealed, sum) = seal_and_sum(&mut fpdu, len, crc, true);
                let expected = checksum::sum(&fpdu[..sealed]);
                assert_eq!(sum, (crc && sealed >= LONG).then_some(expected), "{len}");
            }
        }
    }

    /// The DDP segment of RFC 5044 figures 5 and 6: a Send of 24 zero octets.
    pub(in crate::mpa) fn figure_ulpdu(msn: u8) -> [u8; 42] {
        let mut ulpdu = [0; 42];
        ulpdu[..2].copy_from_slice(&[0x41, 0x43]);
        ulpdu[13] = msn;
        ulpdu
    }

    // rfc: 5044-4, 5044-11, 5044-12, 5044-34 an FPDU is length, one ULPDU, a pad of zeros, and CRC
    #[test]
    fn every_field_in_its_place() {
        assert_eq!(
            sealed(&[1, 2, 3, 4, 5], false),
            [0, 5, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0]
        );
        assert_eq!(sealed(&[1, 2], false), [0, 2, 1, 2, 0, 0, 0, 0]);
        assert_eq!(sealed(&[], false), [0, 0, 0, 0, 0, 0, 0, 0]);
        let with_crc = sealed(&[1, 2, 3, 4, 5], true);
        assert_eq!(with_crc[..8], [0, 5, 1, 2, 3, 4, 5, 0]);
        assert_eq!(with_crc[8..], crc::to_wire(crc::crc(&with_crc[..8])));
        assert_eq!(sealed(&[7; MAX_MULPDU], true).len(), 64776);
    }

    // rfc: 5044-12 the pad fills up to a multiple of four
    #[test]
    fn lengths_are_multiples_of_four_with_at_most_three_octets_of_pad() {
        for len in 0..=300 {
            let total = fpdu_len(len);
            assert_eq!(total % 4, 0);
            assert!(
                (0..4).contains(&(total - 6 - len)),
                "ULPDU of {len}: FPDU of {total}"
            );
        }
        assert_eq!(fpdu_len(65535), 65544);
    }

    #[test]
    fn a_ulpdu_comes_out_as_it_went_in() {
        for len in 0..40u8 {
            let octets: Vec<u8> = (0..len).collect();
            let fpdu = sealed(&octets, true);
            let (parsed, parsed_len) = Fpdu::parse(&fpdu).unwrap();
            assert_eq!(parsed_len, fpdu.len());
            assert_eq!(open(&parsed, true).unwrap(), octets);
        }
    }

    /// A Send of five octets by the Linux siw driver (capture 40-crc-both-odd5).
    #[test]
    fn the_crc_of_siw() {
        let mut fpdu = vec![0x00, 0x17, 0x41, 0x43];
        fpdu.extend([0; 11]);
        fpdu.extend([1, 0, 0, 0, 0, 0x00, 0x07, 0x0e, 0x15, 0x1c, 0, 0, 0]);
        fpdu.extend([0x45, 0xa3, 0x74, 0x37]);
        let (parsed, _) = Fpdu::parse(&fpdu).unwrap();
        let ulpdu = open(&parsed, true).unwrap();
        assert_eq!(sealed(ulpdu, true), fpdu);
    }

    // rfc: 5044-5, 5044-6, 5044-7, 5044-40, 5044-41, 5044-42 the MULPDU is 128 to 64768
    #[test]
    fn mulpdu_follows_the_segment_size() {
        assert_eq!(mulpdu(1460), 1454);
        assert_eq!(mulpdu(1448), 1442);
        assert_eq!(mulpdu(1447), 1438);
        assert_eq!(mulpdu(8948), 8942);
        assert_eq!(mulpdu(65495), MAX_MULPDU);
        for small in 0..=135 {
            assert_eq!(mulpdu(small), MIN_MULPDU);
        }
        for emss in 136..=9000 {
            assert!(fpdu_len(mulpdu(emss)) <= emss);
            assert!(fpdu_len(mulpdu(emss) + 1) > emss - emss % 4);
        }
    }
}
