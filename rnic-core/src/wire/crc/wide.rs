//! CRC32c on processors that multiply four pairs of polynomials at once (VPCLMULQDQ, in
//! AVX-512).
//!
//! A CRC is what remains of a polynomial, and every 128 bits of it may be brought nearer to the end
//! by a product with what remains of a power of x. Sixteen such pieces are on their way at once,
//! 256 octets from their successors, until they have met at the end. The octets are taken from the
//! end in whole blocks: in front of the first one zeros are thought, which change nothing. Adding
//! the octets up for a checksum takes other units than the products, and little time beside them.

#![allow(unsafe_code)]

use core::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_crc32_u8, _mm_crc32_u64, _mm_xor_si128, _mm256_xor_si256,
    _mm512_add_epi64, _mm512_clmulepi64_epi128, _mm512_mask_xor_epi64, _mm512_maskz_expand_epi8,
    _mm512_reduce_add_epi64, _mm512_setzero_si512, _mm512_slli_epi64, _mm512_srli_epi64,
    _mm512_sub_epi64, _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

use pulp::cast;

use super::polynomial::power_of_x;

/// Octets that are multiplied at once.
const BLOCK: usize = 64;
/// Blocks that are on their way at once.
const GROUP: usize = 4;
/// Octets from which on this may be used.
pub(super) const LEAST: usize = BLOCK;

/// Proves that the processor has what this needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wide(());

impl Wide {
    pub(super) fn detect() -> Option<Self> {
        let detected = is_x86_feature_detected!("sse4.2")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi2");
        detected.then_some(Self(()))
    }

    /// Returns the CRC of at least [`LEAST`] octets. Panics if there are fewer.
    #[inline]
    pub(super) fn crc(self, octets: &[u8]) -> u32 {
        // SAFETY: a value of this type is made only where the processor has the features.
        unsafe { run::<false>(octets).0 }
    }

    /// Returns the CRC of at least [`LEAST`] octets, and the sum of their words, not folded, in the
    /// order of the machine.
    #[inline]
    pub(super) fn crc_and_words(self, octets: &[u8]) -> (u32, u64) {
        // SAFETY: a value of this type is made only where the processor has the features.
        unsafe { run::<true>(octets) }
    }
}

/// Returns the CRC, and the sum if `SUM` is set.
#[target_feature(enable = "sse4.2,vpclmulqdq,avx512f,avx512bw,avx512vbmi2")]
fn run<const SUM: bool>(octets: &[u8]) -> (u32, u64) {
    // FPDUs are of whole words.
    let (whole, rest) = octets.split_at(octets.len() & !3);
    let front = whole.first_chunk::<BLOCK>().expect("a block of octets");
    let begun = (whole.len() - 1) % BLOCK + 1;
    let blocks = whole[begun..].as_chunks::<BLOCK>().0;
    let behind_zeros = !0 << (BLOCK - begun);
    let front = cast(*front);
    // A CRC begins with the complement of the first four octets.
    let complement = cast([0xffff_ffff_u64, 0, 0, 0, 0, 0, 0, 0]);
    let first = _mm512_maskz_expand_epi8(behind_zeros, _mm512_xor_si512(front, complement));
    let mut sum = Sum::default();
    if SUM {
        sum.add(_mm512_maskz_expand_epi8(behind_zeros, front));
    }

    let (few, groups) = blocks.split_at(blocks.len() % GROUP);
    let none = _mm512_setzero_si512();
    let mut pieces = match few {
        [] => [none, none, none, first],
        [a] => [none, none, first, cast(*a)],
        [a, b] => [none, first, cast(*a), cast(*b)],
        [a, b, c, ..] => [first, cast(*a), cast(*b), cast(*c)],
    };
    if SUM {
        for block in few {
            sum.add(cast(*block));
        }
    }
    let powers = cast([AHEAD; 4]);
    for group in groups.as_chunks::<GROUP>().0 {
        for (piece, block) in pieces.iter_mut().zip(group) {
            let block = cast(*block);
            *piece = xor_of_three(
                product::<LOW>(*piece, powers),
                product::<HIGH>(*piece, powers),
                block,
            );
            if SUM {
                sum.add(block);
            }
        }
    }
    let mut crc = meet(pieces);
    let mut last = 0;
    for (at, octet) in rest.iter().enumerate() {
        last |= u64::from(*octet) << (8 * at);
        crc = _mm_crc32_u8(crc, *octet);
    }
    let words = if SUM { sum.finish() + last } else { 0 };
    (!crc, words)
}

/// Brings all pieces to the end of the last one; returns the CRC of what is there.
#[inline]
#[target_feature(enable = "sse4.2,vpclmulqdq,avx512f")]
fn meet(pieces: [__m512i; GROUP]) -> u32 {
    let mut all = _mm512_setzero_si512();
    for (piece, powers) in pieces.iter().zip(TO_THE_END) {
        let powers = cast(powers);
        all = xor_of_three(
            all,
            product::<LOW>(*piece, powers),
            product::<HIGH>(*piece, powers),
        );
    }
    // The last 128 bits are there.
    let all = _mm512_mask_xor_epi64(all, 0b1100_0000, all, pieces[GROUP - 1]);
    let [a, b]: [__m256i; 2] = cast(all);
    let [a, b]: [__m128i; 2] = cast(_mm256_xor_si256(a, b));
    let [a, b]: [u64; 2] = cast(_mm_xor_si128(a, b));
    _mm_crc32_u64(_mm_crc32_u64(0, a), b) as u32
}

/// Which halves of 128 bits are multiplied: what comes first in memory has the higher powers.
const LOW: i32 = 0x00;
const HIGH: i32 = 0x11;

#[inline]
#[target_feature(enable = "vpclmulqdq,avx512f")]
fn product<const HALVES: i32>(a: __m512i, b: __m512i) -> __m512i {
    _mm512_clmulepi64_epi128::<HALVES>(a, b)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn xor_of_three(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi64::<0b1001_0110>(a, b, c)
}

/// Returns the powers of x by which the halves of 128 bits are multiplied to be brought nearer by
/// so many bits. A product of two such numbers has one power of x too many, and 32 as the power
/// stands in 64 bits.
const fn nearer_by(bits: u32) -> [u64; 2] {
    [
        power_of_x(bits + 64 - 33) as u64,
        power_of_x(bits - 33) as u64,
    ]
}

/// From one group to the next.
const AHEAD: [u64; 2] = nearer_by((GROUP * BLOCK * 8) as u32);

/// From each place of a group to its last one, which is there.
const TO_THE_END: [[[u64; 2]; 4]; GROUP] = {
    let mut powers = [[[0; 2]; 4]; GROUP];
    let mut place = 0;
    while place + 1 < GROUP * 4 {
        powers[place / 4][place % 4] = nearer_by((GROUP * 4 - 1 - place) as u32 * 128);
        place += 1;
    }
    powers
};

/// A sum of 64-bit words in eight places, each modulo 2^64, and of their upper halves: what is left
/// of the one without the other is that of the lower halves.
struct Sum {
    whole: __m512i,
    high: __m512i,
}

impl Default for Sum {
    fn default() -> Self {
        let none = cast([0_u64; 8]);
        Self {
            whole: none,
            high: none,
        }
    }
}

impl Sum {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add(&mut self, block: __m512i) {
        self.whole = _mm512_add_epi64(self.whole, block);
        self.high = _mm512_add_epi64(self.high, _mm512_srli_epi64::<32>(block));
    }

    /// Returns the sum of the halves, not folded, in the order of the machine.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn finish(self) -> u64 {
        let low = _mm512_sub_epi64(self.whole, _mm512_slli_epi64::<32>(self.high));
        _mm512_reduce_add_epi64(_mm512_add_epi64(low, self.high)) as u64
    }
}
