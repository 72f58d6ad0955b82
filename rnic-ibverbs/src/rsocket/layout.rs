//! What rsockets say to each other: the private data of the connection, the entries that they write
//! into each other's lists, and messages of 32 bits.
//!
//! Over iWARP a message is a Send of its own, behind the RDMA Write that it belongs to. It and the
//! entries of lists are in the byte order of the host that sends them. The private data are
//! big-endian, and say which that is.

/// Octets of the private data.
pub(super) const CONNECT_OCTETS: usize = 40;
/// Octets of a message.
pub(super) const MESSAGE_OCTETS: usize = 4;
/// Entries of our list of the peer's buffers.
pub(super) const TARGETS: usize = 2;

const VERSION: u8 = 1;
/// The sender's byte order is the network's.
const FLAG_BIG_ENDIAN: u8 = 1;
/// The sender's list is followed by one of mapped buffers.
const FLAG_IOMAP: u8 = 2;

/// A buffer that the peer may write to: an entry of the list of targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) key: u32,
    pub(super) length: u32,
}

impl Sge {
    pub(super) const OCTETS: usize = 16;

    pub(super) fn to_octets(self) -> [u8; Self::OCTETS] {
        let mut octets = [0; Self::OCTETS];
        octets[..8].copy_from_slice(&self.addr.to_ne_bytes());
        octets[8..12].copy_from_slice(&self.key.to_ne_bytes());
        octets[12..].copy_from_slice(&self.length.to_ne_bytes());
        octets
    }

    pub(super) fn from_octets(octets: &[u8; Self::OCTETS]) -> Self {
        let (addr, rest) = octets.split_first_chunk().expect("16 octets");
        let (key, rest) = rest.split_first_chunk().expect("8 octets");
        let length = rest.first_chunk().expect("4 octets");
        Self {
            addr: u64::from_ne_bytes(*addr),
            key: u32::from_ne_bytes(*key),
            length: u32::from_ne_bytes(*length),
        }
    }

    /// Between the byte orders of host and network; its own inverse.
    fn swapped(self) -> Self {
        Self {
            addr: self.addr.to_be(),
            key: self.key.to_be(),
            length: self.length.to_be(),
        }
    }
}

/// A buffer of the peer's application: an entry of the list of mapped buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Iomap {
    pub(super) offset: u64,
    pub(super) sge: Sge,
}

impl Iomap {
    pub(super) const OCTETS: usize = 8 + Sge::OCTETS;

    pub(super) fn to_octets(self) -> [u8; Self::OCTETS] {
        let mut octets = [0; Self::OCTETS];
        octets[..8].copy_from_slice(&self.offset.to_ne_bytes());
        octets[8..].copy_from_slice(&self.sge.to_octets());
        octets
    }

    pub(super) fn from_octets(octets: &[u8; Self::OCTETS]) -> Self {
        let (offset, rest) = octets.split_first_chunk().expect("24 octets");
        let sge = rest.first_chunk().expect("16 octets");
        Self {
            offset: u64::from_ne_bytes(*offset),
            sge: Sge::from_octets(sge),
        }
    }

    /// Returns how many octets of it begin at an offset of the application's.
    pub(super) fn left(&self, offset: u64) -> u64 {
        match offset.checked_sub(self.offset) {
            Some(within) => u64::from(self.sge.length).saturating_sub(within),
            None => 0,
        }
    }
}

/// The private data of the connection, in request and reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectData {
    /// Messages that the other side may send at first.
    pub(super) credits: u16,
    /// Entries of the list of mapped buffers, which follows the list of targets in memory.
    pub(super) iomaps: u16,
    /// The list of targets. Its length is a number of entries.
    pub(super) targets: Sge,
    /// The first buffer.
    pub(super) buffer: Sge,
}

impl ConnectData {
    pub(super) fn to_octets(self) -> [u8; CONNECT_OCTETS] {
        let mut octets = [0; CONNECT_OCTETS];
        octets[0] = VERSION;
        octets[1] = FLAG_IOMAP
            | if cfg!(target_endian = "big") {
                FLAG_BIG_ENDIAN
            } else {
                0
            };
        octets[2..4].copy_from_slice(&self.credits.to_be_bytes());
        octets[7] = scale(self.iomaps);
        octets[8..24].copy_from_slice(&self.targets.swapped().to_octets());
        octets[24..].copy_from_slice(&self.buffer.swapped().to_octets());
        octets
    }

    /// Reads what a peer has sent. `None` if it speaks another version or has the other byte order:
    /// over iWARP no rsocket converts messages.
    pub(super) fn from_octets(octets: &[u8]) -> Option<Self> {
        let octets: &[u8; CONNECT_OCTETS] = octets.first_chunk()?;
        let big_endian = octets[1] & FLAG_BIG_ENDIAN != 0;
        if octets[0] != VERSION || big_endian != cfg!(target_endian = "big") {
            return None;
        }
        let sge = |at: usize| Some(Sge::from_octets(octets[at..].first_chunk()?).swapped());
        let data = Self {
            credits: u16::from_be_bytes([octets[2], octets[3]]),
            iomaps: if octets[1] & FLAG_IOMAP != 0 {
                unscale(octets[7])
            } else {
                0
            },
            targets: sge(8)?,
            buffer: sge(24)?,
        };
        (data.targets.length > 0).then_some(data)
    }
}

/// Returns the octet for a number of mapped buffers: up to 128 it is exact, beyond that a multiple
/// of 256.
fn scale(entries: u16) -> u8 {
    if entries <= 0x80 {
        entries as u8
    } else {
        0x80 | (entries >> 8).min(0x7f) as u8
    }
}

fn unscale(octet: u8) -> u16 {
    if octet <= 0x80 {
        octet.into()
    } else {
        u16::from(octet & 0x7f) << 8
    }
}

/// Returns the number of mapped buffers that can be said to the peer in place of this one.
pub(super) fn sayable_iomaps(entries: u32) -> u16 {
    unscale(scale(entries.min(0x7fff) as u16))
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// So many octets were written into the current buffer.
    Data(u32),
    /// Messages up to this number may be sent. An entry of the list of targets may have been
    /// written before.
    Credits(u16),
    /// This entry of the list of mapped buffers was written.
    Iomap(u16),
    /// Nothing more will be sent or received.
    Disconnect,
    /// Nothing more will be sent.
    Shutdown,
    /// Nothing.
    KeepAlive,
    /// What no rsocket sends.
    Unknown(u32),
}

const DATA: u32 = 0;
const CREDITS: u32 = 4;
const IOMAP: u32 = 6;
const CONTROL: u32 = 7;
const VALUE_BITS: u32 = 29;

/// The longest data of a message.
pub(super) const LONGEST_DATA: u32 = (1 << VALUE_BITS) - 1;

impl Message {
    pub(super) fn to_bits(self) -> u32 {
        let (kind, value) = match self {
            Self::Data(octets) => (DATA, octets),
            Self::Credits(limit) => (CREDITS, limit.into()),
            Self::Iomap(index) => (IOMAP, index.into()),
            Self::Disconnect => (CONTROL, 0),
            Self::KeepAlive => (CONTROL, 1),
            Self::Shutdown => (CONTROL, 2),
            Self::Unknown(bits) => return bits,
        };
        kind << VALUE_BITS | value & LONGEST_DATA
    }

    pub(super) fn from_bits(bits: u32) -> Self {
        let value = bits & LONGEST_DATA;
        match (bits >> VALUE_BITS, value) {
            (DATA, _) => Self::Data(value),
            // The sum of a sequence number and the length of a queue, of which 16 bits count.
            (CREDITS, _) => Self::Credits(value as u16),
            (IOMAP, _) => Self::Iomap(value as u16),
            (CONTROL, 0) => Self::Disconnect,
            (CONTROL, 1) => Self::KeepAlive,
            (CONTROL, 2) => Self::Shutdown,
            _ => Self::Unknown(bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: ConnectData = ConnectData {
        credits: 0x0180,
        iomaps: 3,
        targets: Sge {
            addr: 0x0102_0304_0506_0708,
            key: 0x1112_1314,
            length: 2,
        },
        buffer: Sge {
            addr: 0x2122_2324_2526_2728,
            key: 0x3132_3334,
            length: 0x0001_0000,
        },
    };

    #[test]
    #[cfg(target_endian = "little")]
    fn private_data_are_as_rdma_core_has_them() {
        let expected = [
            1, 2, 0x01, 0x80, 0, 0, 0, 3, // version, flags, credits, reserved, mapped buffers
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2, // list of targets
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0, 1, 0, 0,
        ];
        assert_eq!(DATA.to_octets(), expected);
        assert_eq!(ConnectData::from_octets(&expected), Some(DATA));
        // What follows belongs to nobody.
        assert_eq!(
            ConnectData::from_octets(&[&expected[..], &[9]].concat()),
            Some(DATA)
        );
    }

    #[test]
    fn other_private_data_are_refused() {
        let octets = DATA.to_octets();
        assert_eq!(ConnectData::from_octets(&octets[..39]), None);
        for (at, value) in [(0, 2), (1, octets[1] ^ FLAG_BIG_ENDIAN), (23, 0)] {
            let mut changed = octets;
            changed[at] = value;
            assert_eq!(ConnectData::from_octets(&changed), None, "octet {at}");
        }
        let mut without = octets;
        without[1] &= !FLAG_IOMAP;
        assert_eq!(
            ConnectData::from_octets(&without).map(|data| data.iomaps),
            Some(0)
        );
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn entries_are_in_the_order_of_the_host() {
        let sge = Sge {
            addr: 0x0102_0304_0506_0708,
            key: 0x1112_1314,
            length: 0x2122_2324,
        };
        let octets = [
            8, 7, 6, 5, 4, 3, 2, 1, 0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21,
        ];
        assert_eq!(sge.to_octets(), octets);
        assert_eq!(Sge::from_octets(&octets), sge);
        let iomap = Iomap {
            offset: 0x0a0b,
            sge,
        };
        let octets = [&[0x0b, 0x0a, 0, 0, 0, 0, 0, 0], &octets[..]].concat();
        assert_eq!(iomap.to_octets()[..], octets);
        assert_eq!(Iomap::from_octets(octets[..].first_chunk().unwrap()), iomap);
    }

    #[test]
    fn messages_have_three_bits_of_kind() {
        for (message, bits) in [
            (Message::Data(0x1fff_ffff), 0x1fff_ffff),
            (Message::Credits(0xffff), 0x8000_ffff),
            (Message::Iomap(5), 0xc000_0005),
            (Message::Disconnect, 0xe000_0000),
            (Message::KeepAlive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002),
            (Message::Unknown(0x2000_0001), 0x2000_0001),
        ] {
            assert_eq!(message.to_bits(), bits);
            assert_eq!(Message::from_bits(bits), message);
        }
        // rdma-core adds a sequence number and a length in more than 16 bits.
        assert_eq!(Message::from_bits(0x8001_0002), Message::Credits(2));
    }

    #[test]
    fn numbers_of_mapped_buffers_fit_an_octet() {
        for (asked, said) in [
            (0, 0),
            (5, 5),
            (128, 128),
            (129, 128),
            (255, 128),
            (256, 256),
            (1000, 768),
            (40_000, 0x7f00),
        ] {
            assert_eq!(sayable_iomaps(asked), said);
            assert_eq!(unscale(scale(said)), said);
        }
    }

    #[test]
    fn a_mapped_buffer_says_how_much_of_it_is_left() {
        let iomap = Iomap {
            offset: 100,
            sge: Sge {
                length: 10,
                ..Sge::default()
            },
        };
        assert_eq!(
            [99, 100, 109, 110, u64::MAX].map(|at| iomap.left(at)),
            [0, 10, 1, 0, 0]
        );
        assert_eq!(Iomap::default().left(0), 0);
    }
}
