//! CRC32c, the CRC of an FPDU, in the way that this processor is fastest at.

#[cfg(target_arch = "x86_64")]
mod lanes;
#[cfg(target_arch = "x86_64")]
mod polynomial;
#[cfg(target_arch = "x86_64")]
mod wide;

use super::checksum;
use super::mpa::CRC_LEN;

/// Returns the CRC32c (RFC 5044 section 4.4) of `octets`. [`to_wire`] gives its place on the wire.
// rfc: 5041-8, 5044-35 CRC32c, as in iSCSI
#[inline]
pub fn crc(octets: &[u8]) -> u32 {
    way::crc(octets)
}

/// Returns the [`crc`] and the [`checksum::sum`] of the same octets, at the price of little more
/// than the dearer of them.
#[inline]
pub fn crc_and_sum(octets: &[u8]) -> (u32, u16) {
    way::crc_and_sum(octets)
}

/// Returns the [`crc`] of octets, a multiple of four of them, and the [`checksum::sum`] of them and
/// of the CRC behind them, as it is on the wire.
#[inline]
pub fn crc_and_sum_of_both(octets: &[u8]) -> (u32, u16) {
    way::crc_and_sum_of_both(octets)
}

/// Returns the [`crc`] of octets, and the sum of their words, not folded, in the order of the
/// machine: to be added to others.
#[inline(always)]
pub(super) fn crc_and_words(octets: &[u8]) -> (u32, u64) {
    way::crc_and_words(octets)
}

#[cfg(not(target_arch = "x86_64"))]
mod way {
    use super::{checksum, to_wire};

    pub(super) fn crc_and_sum_of_both(octets: &[u8]) -> (u32, u16) {
        let (crc, sum) = crc_and_sum(octets);
        let sum = checksum::combine(sum, checksum::sum_of_header(&to_wire(crc)));
        (crc, sum)
    }

    // Not the crc32c crate, for it is slower. On a Xeon with AVX-512, in one run, median
    // nanoseconds of crc-fast and of crc32c for 64, 256, 1448 and 8948 octets: 6 and 9, 12 and 15,
    // 24 and 105, 97 and 490; with the instructions of neither, by tables: 22 and 24, 74 and 143,
    // 444 and 957, 2680 and 6100. On aarch64 (by their sources) crc32c runs the CRC instruction in
    // three lanes; crc-fast runs it beside lanes of PMULL.
    pub(super) use crc_fast::crc32_iscsi as crc;

    pub(super) fn crc_and_sum(octets: &[u8]) -> (u32, u16) {
        (crc(octets), checksum::sum(octets))
    }

    pub(super) fn crc_and_words(octets: &[u8]) -> (u32, u64) {
        let (crc, sum) = crc_and_sum(octets);
        (crc, sum.to_be().into())
    }
}

/// Lengths and processors were measured: see docs/design/frames.md.
#[cfg(target_arch = "x86_64")]
mod way {
    use std::sync::LazyLock;

    use super::checksum;
    use super::lanes::Lanes;
    use super::wide::{self, Wide};

    /// Below this length one lane is fastest.
    const FEW: usize = 256;
    /// From this length on the library is faster than three lanes, but not than three lanes that
    /// sum up too.
    const MANY: usize = 6144;

    const _: () = assert!(FEW >= wide::LEAST);

    /// What of it the processor has the instructions for.
    #[derive(Clone, Copy, Debug)]
    struct Processor {
        lanes: Option<Lanes>,
        wide: Option<Wide>,
    }

    static PROCESSOR: LazyLock<Processor> = LazyLock::new(|| Processor {
        lanes: Lanes::detect(),
        wide: Wide::detect(),
    });

    #[inline]
    pub(super) fn crc(octets: &[u8]) -> u32 {
        let Processor { lanes, wide } = *PROCESSOR;
        match (lanes, wide) {
            (Some(lanes), _) if octets.len() < FEW => lanes.crc_of_few(octets),
            (_, Some(wide)) if octets.len() >= FEW => wide.crc(octets),
            (Some(lanes), _) if octets.len() < MANY => lanes.crc(octets),
            _ => crc_fast::crc32_iscsi(octets),
        }
    }

    #[inline(always)]
    pub(super) fn crc_and_sum(octets: &[u8]) -> (u32, u16) {
        let (crc, words) = crc_and_words(octets);
        (crc, u16::from_be(checksum::fold(words)))
    }

    #[inline(always)]
    pub(super) fn crc_and_sum_of_both(octets: &[u8]) -> (u32, u16) {
        let (crc, words) = crc_and_words(octets);
        let sum = checksum::fold(words + u64::from(crc));
        (crc, u16::from_be(sum))
    }

    #[inline(always)]
    pub(super) fn crc_and_words(octets: &[u8]) -> (u32, u64) {
        let Processor { lanes, wide } = *PROCESSOR;
        match (lanes, wide) {
            (Some(lanes), _) if octets.len() < FEW => lanes.crc_and_words_of_few(octets),
            (_, Some(wide)) if octets.len() >= FEW => wide.crc_and_words(octets),
            (Some(lanes), _) => {
                let (crc, sum) = lanes.crc_and_sum(octets);
                (crc, sum.to_be().into())
            }
            _ => (crc(octets), checksum::sum(octets).to_be().into()),
        }
    }
}

/// The [`crc`] of any octets and their CRC, in the form [`to_wire`], behind them.
pub const RESIDUE: u32 = 0x4867_4bc7;

/// Returns the CRC field as it is sent. The polynomial's highest power comes first and the bits of
/// each octet are reflected, as in iSCSI, which makes it the little-endian form of the number.
pub fn to_wire(crc: u32) -> [u8; CRC_LEN] {
    crc.to_le_bytes()
}

/// Returns the CRC that a received CRC field holds.
pub fn from_wire(field: [u8; CRC_LEN]) -> u32 {
    u32::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The examples of RFC 7143 (and 3720) appendix A.4.
    // rfc: 5041-8, 5044-35 CRC32c, as in iSCSI
    #[test]
    fn iscsi_examples() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        let mut read_command = [0u8; 48];
        read_command[0..2].copy_from_slice(&[0x01, 0xc0]);
        read_command[16] = 0x14;
        read_command[22] = 0x04;
        read_command[27] = 0x14;
        read_command[31] = 0x18;
        read_command[32] = 0x28;
        read_command[40] = 0x02;
        let examples: [(&[u8], [u8; 4]); 5] = [
            (&[0; 32], [0xaa, 0x36, 0x91, 0x8a]),
            (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (&ascending, [0x4e, 0x79, 0xdd, 0x46]),
            (&descending, [0x5c, 0xdb, 0x3f, 0x11]),
            (&read_command, [0x56, 0x3a, 0x96, 0xd9]),
        ];
        for (octets, field) in examples {
            assert_eq!(to_wire(crc(octets)), field, "{octets:02x?}");
            assert_eq!(from_wire(field), crc(octets));
        }
    }

    /// Returns the Internet checksum's sum as RFC 1071 section 1 puts it.
    fn plain_sum(octets: &[u8]) -> u16 {
        let words = octets.chunks(2);
        let word =
            |octets: &[u8]| u32::from_be_bytes([0, 0, octets[0], *octets.get(1).unwrap_or(&0)]);
        let total = words.fold(0, |total, octets| {
            let total: u32 = total + word(octets);
            (total & 0xffff) + (total >> 16)
        });
        total as u16
    }

    proptest! {
        /// Each length takes its own way through the wide loops, and so does each alignment.
        #[test]
        fn another_implementation_agrees(
            octets in prop::collection::vec(any::<u8>(), 0..20_000), from: prop::sample::Index,
        ) {
            let octets = &octets[from.index(octets.len() + 1).min(64).min(octets.len())..];
            let expected = crc32c::crc32c(octets);
            prop_assert_eq!(crc(octets), expected);
            let field = to_wire(expected);
            prop_assert_eq!(crc(&[octets, &field].concat()), RESIDUE);
            prop_assert_eq!(crc_and_sum(octets), (expected, plain_sum(octets)));
            let (crc, words) = crc_and_words(octets);
            prop_assert_eq!((crc, checksum::fold(words).to_be()), (expected, plain_sum(octets)));
        }

        /// Whichever of them this processor would choose.
        #[cfg(target_arch = "x86_64")]
        #[test]
        fn each_way_agrees(octets in prop::collection::vec(any::<u8>(), 0..20_000)) {
            let expected = (crc32c::crc32c(&octets), plain_sum(&octets));
            let summed = |(crc, words)| (crc, checksum::fold(words).to_be());
            if let Some(lanes) = lanes::Lanes::detect() {
                prop_assert_eq!(lanes.crc(&octets), expected.0);
                prop_assert_eq!(lanes.crc_and_sum(&octets), expected);
                prop_assert_eq!(lanes.crc_of_few(&octets), expected.0);
                prop_assert_eq!(summed(lanes.crc_and_words_of_few(&octets)), expected);
            }
            if let Some(wide) = wide::Wide::detect().filter(|_| octets.len() >= wide::LEAST) {
                prop_assert_eq!(wide.crc(&octets), expected.0);
                prop_assert_eq!(summed(wide.crc_and_words(&octets)), expected);
            }
        }
    }
}
