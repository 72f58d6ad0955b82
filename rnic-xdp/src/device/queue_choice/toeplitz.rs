//! Toeplitz hashing, by which most devices choose a receive queue.

use std::net::SocketAddr;

/// Returns the hash of octets under a key. A key that is too short is padded with zeroes.
pub(super) fn hash(key: &[u8], input: &[u8]) -> u32 {
    let mut octets = key.iter().copied();
    let mut next = || octets.next().unwrap_or(0);
    // The 32 bits of the key from the bit of the input on, and those that follow.
    let mut window = (0..8).fold(0u64, |window, _| window << 8 | u64::from(next()));
    let mut result = 0;
    for octet in input {
        for bit in (0..8).rev() {
            if octet >> bit & 1 == 1 {
                result ^= (window >> 32) as u32;
            }
            window <<= 1;
        }
        // Eight bits have become free.
        window |= u64::from(next());
    }
    result
}

/// The fields of a frame that are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) source: bool,
    pub(super) destination: bool,
    pub(super) source_port: bool,
    pub(super) destination_port: bool,
}

/// What a device does to the fields before hashing, so that both directions of a flow have one
/// hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symmetry {
    None,
    /// Source and destination are both replaced by their XOR.
    Xor,
    /// The source is replaced by their OR, the destination by their XOR.
    OrXor,
}

/// Returns what is hashed of a frame from `source` to `destination`: RSS has the addresses before
/// the ports.
pub(super) fn input(
    source: SocketAddr,
    destination: SocketAddr,
    fields: Fields,
    symmetry: Symmetry,
) -> Vec<u8> {
    let address = |of: SocketAddr| match of {
        SocketAddr::V4(of) => of.ip().octets().to_vec(),
        SocketAddr::V6(of) => of.ip().octets().to_vec(),
    };
    let port = |of: SocketAddr| of.port().to_be_bytes().to_vec();
    let (addresses, ports) = (
        mixed(address(source), address(destination), symmetry),
        mixed(port(source), port(destination), symmetry),
    );
    let parts = [
        (fields.source, addresses.0),
        (fields.destination, addresses.1),
        (fields.source_port, ports.0),
        (fields.destination_port, ports.1),
    ];
    let hashed = parts.into_iter().filter(|(hashed, _)| *hashed);
    hashed.flat_map(|(_, octets)| octets).collect()
}

fn mixed(one: Vec<u8>, other: Vec<u8>, symmetry: Symmetry) -> (Vec<u8>, Vec<u8>) {
    let both = |mix: fn(u8, u8) -> u8| {
        let pairs = one.iter().zip(&other);
        pairs.map(|(a, b)| mix(*a, *b)).collect::<Vec<_>>()
    };
    match symmetry {
        Symmetry::Xor => (both(|a, b| a ^ b), both(|a, b| a ^ b)),
        Symmetry::OrXor => (both(|a, b| a | b), both(|a, b| a ^ b)),
        Symmetry::None => (one, other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the flows of Microsoft's verification suite for RSS.
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Destination, source, hash of the addresses, hash with the ports.
    const FLOWS: [(&str, &str, u32, u32); 8] = [
        (
            "161.142.100.80:1766",
            "66.9.149.187:2794",
            0x323e8fc2,
            0x51ccc178,
        ),
        (
            "65.69.140.83:4739",
            "199.92.111.2:14230",
            0xd718262a,
            0xc626b0ea,
        ),
        (
            "12.22.207.184:38024",
            "24.19.198.95:12898",
            0xd2d0a5de,
            0x5c2b394a,
        ),
        (
            "209.142.163.6:2217",
            "38.27.205.30:48228",
            0x82989176,
            0xafc7327f,
        ),
        (
            "202.188.127.2:1303",
            "153.39.163.191:44251",
            0x5d1809c5,
            0x10e828a2,
        ),
        (
            "[3ffe:2501:200:3::1]:1766",
            "[3ffe:2501:200:1fff::7]:2794",
            0x2cc18cd5,
            0x40207d3d,
        ),
        (
            "[ff02::1]:4739",
            "[3ffe:501:8::260:97ff:fe40:efab]:14230",
            0x0f0c461c,
            0xdde51bbf,
        ),
        (
            "[fe80::200:f8ff:fe21:67cf]:38024",
            "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
            0x4b61e985,
            0x02d1feef,
        ),
    ];

    const ADDRESSES: Fields = Fields {
        source: true,
        destination: true,
        source_port: false,
        destination_port: false,
    };
    const ALL: Fields = Fields {
        source_port: true,
        destination_port: true,
        ..ADDRESSES
    };

    #[test]
    fn hashes_are_those_of_the_verification_suite() {
        for (destination, source, of_addresses, of_all) in FLOWS {
            let (to, from) = (destination.parse().unwrap(), source.parse().unwrap());
            let hashed = |fields| hash(&KEY, &input(from, to, fields, Symmetry::None));
            assert_eq!(hashed(ADDRESSES), of_addresses, "{source}");
            assert_eq!(hashed(ALL), of_all, "{source}");
        }
    }

    #[test]
    fn symmetric_hashes_are_the_same_both_ways() {
        for (one, other, ..) in FLOWS {
            let (one, other) = (one.parse().unwrap(), other.parse().unwrap());
            for (symmetry, same) in [
                (Symmetry::None, false),
                (Symmetry::Xor, true),
                (Symmetry::OrXor, true),
            ] {
                let to = hash(&KEY, &input(one, other, ALL, symmetry));
                let from = hash(&KEY, &input(other, one, ALL, symmetry));
                assert_eq!(to == from, same, "{symmetry:?}");
            }
        }
        // As Linux' documentation of the receive side scaling states the inputs.
        let (from, to) = (
            "1.2.3.4:258".parse().unwrap(),
            "1.0.3.5:256".parse().unwrap(),
        );
        let xor = input(from, to, ALL, Symmetry::Xor);
        assert_eq!(xor, [0, 2, 0, 1, 0, 2, 0, 1, 0, 2, 0, 2]);
        let or_xor = input(from, to, ALL, Symmetry::OrXor);
        assert_eq!(or_xor, [1, 2, 3, 5, 0, 2, 0, 1, 1, 2, 0, 2]);
    }
}
