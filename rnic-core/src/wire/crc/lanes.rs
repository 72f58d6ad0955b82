//! CRC32c by the processor's own instruction, in three lanes.
//!
//! The instruction takes eight octets, one can begin in each cycle, and its result is there three
//! cycles later. So three CRCs are computed side by side, of the thirds of a block, and put
//! together: in front of so many octets a CRC counts as its product with a power of x. What else
//! the processor can do meanwhile costs nothing, such as adding the octets up for a checksum; words
//! are widened by shuffles, which never take the place of a CRC instruction, as shifts may.

#![allow(unsafe_code)]

use core::arch::x86_64::{
    _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64, _mm256_add_epi64,
    _mm256_setzero_si256, _mm256_unpackhi_epi32, _mm256_unpacklo_epi32,
};

use pulp::cast;

use super::polynomial::power_of_x;
use crate::wire::checksum::{WordSum, fold};

/// Octets of a lane that are taken at once.
const GROUP: usize = 32;
/// Groups of a lane, at most, before the lanes are put together.
const MAX_GROUPS: usize = 96;

/// Proves that the processor has what this needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lanes(());

impl Lanes {
    pub(super) fn detect() -> Option<Self> {
        let detected = is_x86_feature_detected!("sse4.2")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("avx2");
        detected.then_some(Self(()))
    }

    /// Returns the CRC of octets too few for lanes.
    #[inline]
    pub(super) fn crc_of_few(self, octets: &[u8]) -> u32 {
        // SAFETY: a value of this type is made only where the processor has the features.
        unsafe { !follow::<false>(!0, octets, &mut WordSum::default()) }
    }

    #[inline]
    pub(super) fn crc(self, octets: &[u8]) -> u32 {
        // SAFETY: a value of this type is made only where the processor has the features.
        unsafe { run::<false>(octets).0 }
    }

    /// Returns the CRC of octets too few for lanes, and the sum of their words, not folded, in the
    /// order of the machine.
    #[inline]
    pub(super) fn crc_and_words_of_few(self, octets: &[u8]) -> (u32, u64) {
        // SAFETY: a value of this type is made only where the processor has the features.
        unsafe { run_few(octets) }
    }

    /// Returns the CRC, and the sum of the Internet checksum.
    #[inline]
    pub(super) fn crc_and_sum(self, octets: &[u8]) -> (u32, u16) {
        // SAFETY: a value of this type is made only where the processor has the features.
        unsafe { run::<true>(octets) }
    }
}

/// Folds a sum to 16 bits, as the octets stand in words of that size in network order.
#[inline(always)]
fn finish(sum: WordSum) -> u16 {
    u16::from_be(fold(sum.finish()))
}

/// Returns CRC and sum of octets too few for lanes, four words at a time.
#[target_feature(enable = "sse4.2")]
fn run_few(octets: &[u8]) -> (u32, u64) {
    let (mut crc, mut sum, mut rest) = (u64::from(!0_u32), WordSum::default(), octets);
    // A message of a cache line takes two of these.
    while let Some((words, behind)) = rest.split_first_chunk::<GROUP>() {
        for word in words.as_chunks().0 {
            sum.add(u64::from_le_bytes(*word));
            crc = step(crc, word);
        }
        rest = behind;
    }
    let crc = follow::<true>(crc as u32, rest, &mut sum);
    (!crc, sum.finish())
}

/// Returns the CRC, and the sum if `SUM` is set.
#[target_feature(enable = "sse4.2,pclmulqdq,avx2")]
fn run<const SUM: bool>(octets: &[u8]) -> (u32, u16) {
    let (mut crc, mut sum, mut rest) = (!0, WordSum::default(), octets);
    while rest.len() >= 3 * GROUP {
        let groups = (rest.len() / (3 * GROUP)).min(MAX_GROUPS);
        let (block, behind) = rest.split_at(groups * 3 * GROUP);
        crc = follow_block::<SUM>(crc, block.as_chunks().0, &mut sum);
        rest = behind;
    }
    crc = follow::<SUM>(crc, rest, &mut sum);
    (!crc, finish(sum))
}

/// Continues a CRC over some octets, one behind the other.
#[inline]
#[target_feature(enable = "sse4.2")]
fn follow<const SUM: bool>(crc: u32, octets: &[u8], sum: &mut WordSum) -> u32 {
    let (mut crc, mut rest) = (u64::from(crc), octets);
    // Word by word: what unrolls loops takes these for long.
    while let Some((word, behind)) = rest.split_first_chunk() {
        if SUM {
            sum.add(u64::from_le_bytes(*word));
        }
        crc = step(crc, word);
        rest = behind;
    }
    let mut crc = crc as u32;
    // FPDUs are of whole words of this size.
    if let Some((half, behind)) = rest.split_first_chunk() {
        let half = u32::from_le_bytes(*half);
        if SUM {
            sum.add(half.into());
        }
        crc = _mm_crc32_u32(crc, half);
        rest = behind;
    }
    if rest.is_empty() {
        return crc;
    }
    let mut last = 0;
    for (at, octet) in rest.iter().enumerate() {
        last |= u64::from(*octet) << (8 * at);
        crc = _mm_crc32_u8(crc, *octet);
    }
    if SUM {
        sum.add(last);
    }
    crc
}

/// Continues a CRC over three lanes of the same length.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx2")]
fn follow_block<const SUM: bool>(crc: u32, block: &[[u8; GROUP]], sum: &mut WordSum) -> u32 {
    let groups = block.len() / 3;
    let (first, others) = block.split_at(groups);
    let (second, third) = others.split_at(groups);
    let (mut crc_1, mut crc_2, mut crc_3) = (u64::from(crc), 0, 0);
    let zero = _mm256_setzero_si256();
    let (mut low, mut high) = (zero, zero);
    for ((first, second), third) in first.iter().zip(second).zip(third) {
        if SUM {
            for lane in [first, second, third] {
                let octets = cast(*lane);
                low = _mm256_add_epi64(low, _mm256_unpacklo_epi32(octets, zero));
                high = _mm256_add_epi64(high, _mm256_unpackhi_epi32(octets, zero));
            }
        }
        let (first, second, third) = (words(first), words(second), words(third));
        for ((first, second), third) in first.iter().zip(second).zip(third) {
            crc_1 = step(crc_1, first);
            crc_2 = step(crc_2, second);
            crc_3 = step(crc_3, third);
        }
    }
    if SUM {
        let sums: [u64; 4] = cast(_mm256_add_epi64(low, high));
        sum.add(sums.iter().sum());
    }
    let [two_lanes, one_lane] = POWERS[groups];
    let ahead = times(crc_1, two_lanes) ^ times(crc_2, one_lane);
    (crc_3 ^ _mm_crc32_u64(0, ahead)) as u32
}

#[inline]
fn words(group: &[u8; GROUP]) -> &[[u8; 8]] {
    group.as_chunks().0
}

#[inline]
#[target_feature(enable = "sse4.2")]
fn step(crc: u64, word: &[u8; 8]) -> u64 {
    _mm_crc32_u64(crc, u64::from_le_bytes(*word))
}

/// Returns the product of a CRC and a power of x. A CRC step over it takes the remainder.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn times(crc: u64, power: u32) -> u64 {
    let (crc, power) = (cast([crc, 0]), cast([u64::from(power), 0]));
    let [product, _]: [u64; 2] = cast(_mm_clmulepi64_si128::<0>(crc, power));
    product
}

/// For each number of groups: by which power of x a CRC counts in front of two lanes, and of one.
const POWERS: [[u32; 2]; MAX_GROUPS + 1] = {
    let mut powers = [[0; 2]; MAX_GROUPS + 1];
    let mut groups = 1;
    while groups <= MAX_GROUPS {
        let bits = groups as u32 * GROUP as u32 * 8;
        // A product of two reflected numbers has one power of x too many, and the CRC step over it
        // adds 32.
        powers[groups] = [power_of_x(2 * bits - 33), power_of_x(bits - 33)];
        groups += 1;
    }
    powers
};
