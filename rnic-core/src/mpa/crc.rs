//! The CRC32c of an FPDU.

use crate::wire::mpa::CRC_LEN;

/// CRC32c (RFC 5044 section 4.4) of `octets`. [`to_wire`] gives its place on the wire.
// rfc: 5041-8, 5044-35
pub fn crc(octets: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(octets)
}

/// The CRC field as it is sent. The polynomial's highest power comes first and the bits of each octet are
/// reflected, as in iSCSI, which makes it the little-endian form of the number.
pub fn to_wire(crc: u32) -> [u8; CRC_LEN] {
    crc.to_le_bytes()
}

/// The CRC that a received CRC field holds.
pub fn from_wire(field: [u8; CRC_LEN]) -> u32 {
    u32::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The examples of RFC 7143 (and 3720) appendix A.4.
    // rfc: 5041-8, 5044-35
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

    proptest! {
        /// Each length takes its own way through the wide loops, and so does each alignment.
        #[test]
        fn another_implementation_agrees(
            octets in prop::collection::vec(any::<u8>(), 0..5000), from: prop::sample::Index,
        ) {
            let octets = &octets[from.index(octets.len() + 1).min(64).min(octets.len())..];
            prop_assert_eq!(crc(octets), crc32c::crc32c(octets));
        }
    }
}
