//! The Internet checksum (RFC 1071): ones-complement sums of 16-bit words in network order.

use core::net::{Ipv4Addr, Ipv6Addr};

/// What is known of the checksums of a received frame, in the terms of Linux's `ip_summed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// Nothing: compute and compare them (`CHECKSUM_NONE`).
    None,
    /// The [`sum`] of all octets of the frame, computed while they were copied: compare it
    /// (`CHECKSUM_COMPLETE`).
    Complete(u16),
    /// They are right: the device has verified them, or they never left this host
    /// (`CHECKSUM_UNNECESSARY`).
    Unnecessary,
}

impl Checksums {
    /// Returns the [`sum`] of a part of a frame that begins at an even place; none if it need not
    /// be known.
    #[inline]
    pub fn sum_of(self, part: &[u8], frame: &[u8]) -> Option<u16> {
        match self {
            Self::Unnecessary => None,
            Self::Complete(total) if part.as_ptr_range().end == frame.as_ptr_range().end => {
                let front = &frame[..frame.len() - part.len()];
                Some(without(total, sum(front)))
            }
            Self::None | Self::Complete(_) => Some(sum(part)),
        }
    }
}

/// Returns the ones-complement sum of the octets, taken as 16-bit words; an odd last octet is
/// followed by a zero one.
///
/// Sums of parts may be [`combine`]d where each part but the last has an even length.
pub fn sum(octets: &[u8]) -> u16 {
    if octets.len() < WIDE {
        return sum_few(octets);
    }
    sum_many(octets)
}

#[cfg(not(target_arch = "aarch64"))]
#[inline]
fn sum_many(octets: &[u8]) -> u16 {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || Total::default().finish(octets),
    )
}

/// NEON widens pairs of words and adds them in one instruction, which the compiler does not find.
#[cfg(target_arch = "aarch64")]
fn sum_many(octets: &[u8]) -> u16 {
    let Some(pulp::aarch64::Neon { neon, .. }) = pulp::aarch64::Neon::try_new() else {
        return sum_few(octets);
    };
    let (blocks, rest) = octets.as_chunks::<64>();
    let mut sums = [pulp::cast([0u64; 2]); 4];
    for block in blocks {
        for (sum, part) in sums.iter_mut().zip(block.as_chunks::<16>().0) {
            *sum = neon.vpadalq_u32(*sum, pulp::cast(*part));
        }
    }
    let of_blocks = sums.map(|sum| pulp::cast::<_, [u64; 2]>(sum).iter().sum::<u64>());
    u16::from_be(fold(of_blocks.iter().sum::<u64>() + words_of_few(rest)))
}

/// Returns the [`sum`] of a few octets, a multiple of four: a header. The compiler makes of `sum`
/// what is good for many.
#[inline]
pub fn sum_of_header(octets: &[u8]) -> u16 {
    let (words, rest) = octets.as_chunks();
    debug_assert!(rest.is_empty());
    let words = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)));
    u16::from_be(fold(words.sum()))
}

/// Copies runs of octets to `to`, one behind the other; returns the [`sum`] of all. Panics if there
/// is no room for them.
pub fn join_and_sum<'a>(runs: impl IntoIterator<Item = &'a [u8]>, to: &mut [u8]) -> u16 {
    let (mut at, mut total) = (0, 0);
    for run in runs {
        let sum = copy_and_sum(run, &mut to[at..]);
        // At an odd place, what comes first in its word counts as second.
        let sum = if at % 2 == 1 { sum.swap_bytes() } else { sum };
        total = combine(total, sum);
        at += run.len();
    }
    total
}

fn copy_and_sum(from: &[u8], to: &mut [u8]) -> u16 {
    let to = &mut to[..from.len()];
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let (words, rest) = from.as_chunks::<8>();
            let (places, behind) = to.as_chunks_mut::<8>();
            let mut total = Total::default();
            for (word, place) in words.iter().zip(places) {
                *place = *word;
                total.add(*word);
            }
            behind.copy_from_slice(rest);
            total.finish(rest)
        },
    )
}

/// From this length on wider vectors make up for the choice of them.
const WIDE: usize = 256;

#[inline]
fn sum_few(octets: &[u8]) -> u16 {
    u16::from_be(fold(words_of_few(octets)))
}

/// Returns the sum, not folded, in the order of the machine.
#[inline]
fn words_of_few(octets: &[u8]) -> u64 {
    let (words, rest) = octets.as_chunks();
    let mut sum = WordSum::default();
    for word in words {
        sum.add(u64::from_ne_bytes(*word));
    }
    sum.finish() + sum_last(rest)
}

/// A sum of words that counts their carries, which is the least work for a few.
#[derive(Clone, Copy, Default)]
pub(super) struct WordSum(u128);

impl WordSum {
    #[inline(always)]
    pub(super) fn add(&mut self, word: u64) {
        self.0 += u128::from(word);
    }

    /// Returns the sum of the words' halves or less, not folded, in the order of the machine.
    #[inline(always)]
    pub(super) fn finish(self) -> u64 {
        let (low, carries) = (self.0 as u64, (self.0 >> 64) as u64);
        (low & 0xffff_ffff) + (low >> 32) + carries
    }
}

/// Returns the sum of less than eight octets, not folded, in the order of the machine.
#[inline(always)]
fn sum_last(octets: &[u8]) -> u64 {
    let (halves, rest) = octets.as_chunks();
    let halves = halves
        .iter()
        .map(|half| u64::from(u32::from_ne_bytes(*half)));
    let (pairs, rest) = rest.as_chunks();
    let pairs = pairs
        .iter()
        .map(|pair| u64::from(u16::from_ne_bytes(*pair)));
    let odd = rest
        .first()
        .map_or(0, |octet| u16::from_ne_bytes([*octet, 0]));
    halves.sum::<u64>() + pairs.sum::<u64>() + u64::from(odd)
}

/// A sum under way. Any word size gives the same sum, and so does the machine's byte order, up to
/// one swap at the end. In this form the compiler makes a wide loop of it: the halves of the words
/// are summed apart, the lower one as what is left of the whole.
#[derive(Default)]
struct Total {
    whole: u64,
    high: u64,
}

impl Total {
    #[inline(always)]
    fn add(&mut self, word: [u8; 8]) {
        let word = u64::from_ne_bytes(word);
        self.whole = self.whole.wrapping_add(word);
        self.high += word >> 32;
    }

    /// Returns the sum, with the octets that are left.
    #[inline(always)]
    fn finish(mut self, rest: &[u8]) -> u16 {
        let (words, rest) = rest.as_chunks();
        for word in words {
            self.add(*word);
        }
        let low = self.whole.wrapping_sub(self.high << 32);
        u16::from_be(fold(low + self.high + sum_last(rest)))
    }
}

/// Returns the ones-complement sum of two sums.
pub fn combine(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// Returns what is left of a sum without a part of it that begins at an even place.
pub fn without(sum: u16, part: u16) -> u16 {
    combine(sum, !part)
}

/// Returns whether a sum with its checksum comes to all ones in 16 bits. No such sum is zero.
#[inline]
pub(super) fn is_whole(sum: u64) -> bool {
    sum.is_multiple_of(0xffff)
}

/// Adds the upper words to the lowest until one remains. The sum of halves of words is far below
/// 2^48.
#[inline]
pub(super) fn fold(total: u64) -> u16 {
    let total = (total & 0xffff) + (total >> 16 & 0xffff) + (total >> 32);
    let total = (total & 0xffff) + (total >> 16);
    ((total & 0xffff) + (total >> 16)) as u16
}

/// Returns the sum of the IPv4 pseudo-header (RFC 9293 section 3.1).
pub fn pseudo_header_v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: u16) -> u16 {
    let addresses = u64::from(source.to_bits()) + u64::from(destination.to_bits());
    fold(addresses + u64::from(protocol) + u64::from(len))
}

/// Returns the sum of the IPv6 pseudo-header (RFC 8200 section 8.1).
pub fn pseudo_header_v6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, len: u16) -> u16 {
    let addresses = combine(sum(&source.octets()), sum(&destination.octets()));
    combine(addresses, combine(u16::from(protocol), len))
}
