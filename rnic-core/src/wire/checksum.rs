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
    // Any word size gives the same sum, and so does the machine's byte order, up to one swap at the end.
    let (words, rest) = octets.as_chunks::<8>();
    let mut total: u128 = words
        .iter()
        .map(|word| u128::from(u64::from_ne_bytes(*word)))
        .sum();
    let mut last = [0; 8];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    total += u128::from(u64::from_ne_bytes(last));
    u16::from_be(fold(total))
}

/// The ones-complement sum of two sums.
pub fn combine(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// Adds the carries back in until 16 bits remain.
fn fold(total: u128) -> u16 {
    let mut total = (total & u128::from(u64::MAX)) + (total >> 64);
    while let high = total >> 16
        && high != 0
    {
        total = (total & 0xffff) + high;
    }
    total as u16
}

/// The sum of the IPv4 pseudo-header (RFC 9293 section 3.1).
pub fn pseudo_header_v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: u16) -> u16 {
    let addresses = combine(sum(&source.octets()), sum(&destination.octets()));
    combine(addresses, combine(u16::from(protocol), len))
}

/// The sum of the IPv6 pseudo-header (RFC 8200 section 8.1).
pub fn pseudo_header_v6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, len: u16) -> u16 {
    let addresses = combine(sum(&source.octets()), sum(&destination.octets()));
    combine(addresses, combine(u16::from(protocol), len))
}
