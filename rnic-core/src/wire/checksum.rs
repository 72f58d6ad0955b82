//! The Internet checksum (RFC 1071): ones-complement sums of 16-bit words in network order.

use core::net::{Ipv4Addr, Ipv6Addr};

/// Whether the checksums of a received frame have to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// Compute and compare them.
    Verify,
    /// Somebody trustworthy has: the device, or the sender's kernel on this very host.
    Vouched,
}

/// The ones-complement sum of the octets, taken as 16-bit words; an odd last octet is followed by a zero one.
///
/// Sums of parts may be [`combine`]d where each part but the last has an even length.
pub fn sum(octets: &[u8]) -> u16 {
    if octets.len() < WIDE {
        return sum_words(octets);
    }
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || sum_words(octets),
    )
}

/// From this length on wider vectors make up for the choice of them.
const WIDE: usize = 256;

#[inline(always)]
fn sum_words(octets: &[u8]) -> u16 {
    // Any word size gives the same sum, and so does the machine's byte order, up to one swap at the end. In
    // this form the compiler makes a wide loop of it: the halves of the words are summed apart, the lower one
    // as what is left of the whole.
    let (words, rest) = octets.as_chunks::<8>();
    let (mut whole, mut high) = (0u64, 0u64);
    for word in words {
        let word = u64::from_ne_bytes(*word);
        whole = whole.wrapping_add(word);
        high += word >> 32;
    }
    let low = whole.wrapping_sub(high << 32);
    let mut last = [0; 8];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    let last = u64::from_ne_bytes(last);
    u16::from_be(fold(low + high + (last & 0xffff_ffff) + (last >> 32)))
}

/// The ones-complement sum of two sums.
pub fn combine(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// Adds the upper words to the lowest until one remains. The sum of halves of words is far below 2^48.
#[inline]
pub(super) fn fold(total: u64) -> u16 {
    let total = (total & 0xffff) + (total >> 16 & 0xffff) + (total >> 32);
    let total = (total & 0xffff) + (total >> 16);
    ((total & 0xffff) + (total >> 16)) as u16
}

/// The sum of the IPv4 pseudo-header (RFC 9293 section 3.1).
pub fn pseudo_header_v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: u16) -> u16 {
    let addresses = u64::from(source.to_bits()) + u64::from(destination.to_bits());
    fold(addresses + u64::from(protocol) + u64::from(len))
}

/// The sum of the IPv6 pseudo-header (RFC 8200 section 8.1).
pub fn pseudo_header_v6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, len: u16) -> u16 {
    let addresses = combine(sum(&source.octets()), sum(&destination.octets()));
    combine(addresses, combine(u16::from(protocol), len))
}
