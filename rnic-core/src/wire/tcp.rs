//! TCP segments (RFC 9293 section 3.1) with the options of RFC 7323 and RFC 2018.

mod fields;
mod options;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::error::PacketError;

use super::checksum;

pub use self::fields::{Flags, Seq};
pub use self::options::{MAX_OPTIONS_LEN, MAX_WINDOW_SCALE, SackBlocks, TcpOptions, Timestamps};

pub(super) use self::options::{TIMESTAMPS_FRONT, TIMESTAMPS_LEN};

/// IP protocol number of TCP.
pub const PROTOCOL: u8 = 6;
/// Octets of a header without options.
pub const HEADER_LEN: usize = 20;
/// Where the sequence number stands in the header.
pub const SEQ_AT: usize = 4;
/// Where the control bits stand.
pub const FLAGS_AT: usize = 13;
/// Where the checksum stands.
pub const CHECKSUM_AT: usize = 16;

/// Returns the checksum field of a segment; none of octets that end before it.
pub(super) fn checksum_field(segment: &[u8]) -> Option<u16> {
    let field = segment.get(CHECKSUM_AT..)?.first_chunk()?;
    Some(u16::from_be_bytes(*field))
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTcp {
    source_port: U16,
    destination_port: U16,
    seq: U32,
    ack: U32,
    /// Header length in units of four octets, in the upper half.
    data_offset: u8,
    flags: u8,
    window: U16,
    checksum: U16,
    urgent: U16,
}

/// A header, without its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpHeader {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// Sequence number of the first octet (of SYN, if set).
    pub seq: Seq,
    /// The next sequence number that the sender expects, if ACK is set.
    pub ack: Seq,
    /// Control bits.
    pub flags: Flags,
    /// The window as on the wire, unscaled.
    pub window: u16,
    /// The urgent pointer.
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions,
}

impl TcpHeader {
    /// Returns the number of octets that [`emit`](Self::emit) writes: 20 to 60.
    pub fn len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Writes header and options, with a checksum of zero. Panics if `buffer` is shorter than
    /// [`len`](Self::len).
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        self.emit_summed(buffer).0
    }

    /// Writes the header as [`emit`](Self::emit) does; returns its length and its ones-complement
    /// sum, not folded.
    #[inline(always)]
    pub(super) fn emit_summed(&self, buffer: &mut [u8]) -> (usize, u64) {
        // Nearly every segment's.
        match self.options.only_timestamps() {
            Some(None) => {
                let words = self.words(HEADER_LEN);
                (HEADER_LEN, put_words(buffer, &words))
            }
            Some(Some(timestamps)) => {
                const LEN: usize = DataHeader::MAX_LEN;
                let words = with_timestamps(self.words(LEN), timestamps);
                (LEN, put_words(buffer, &words))
            }
            None => {
                let len = self.len();
                let fixed = put_words(buffer, &self.words(len));
                let options = &mut buffer[HEADER_LEN..len];
                self.options.emit(options);
                (len, fixed + u64::from(checksum::sum(options)))
            }
        }
    }

    /// Returns the header of a segment whose options end at `len`, without them.
    #[inline]
    fn words(&self, len: usize) -> [u32; HEADER_LEN / 4] {
        [
            pair(self.source_port, self.destination_port),
            self.seq.0,
            self.ack.0,
            pair(length_and_flags(len, self.flags), self.window),
            pair(0, self.urgent),
        ]
    }
}

/// The header of a segment with data: there are no options but timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// Sequence number of the first octet.
    pub seq: Seq,
    /// The next sequence number that the sender expects.
    pub ack: Seq,
    /// Control bits.
    pub flags: Flags,
    /// The window as on the wire, unscaled.
    pub window: u16,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
}

impl DataHeader {
    /// Octets of it at most.
    pub(super) const MAX_LEN: usize = HEADER_LEN + TIMESTAMPS_LEN;

    /// Writes it with a sequence number and a checksum of zero and without flags; returns its
    /// length, and its ones-complement sum, not folded. Panics if `buffer` is shorter.
    #[inline]
    pub(super) fn emit_rest(&self, buffer: &mut [u8]) -> (usize, u64) {
        let (seq, flags) = (Seq(0), Flags::NONE);
        Self {
            seq,
            flags,
            ..*self
        }
        .emit(buffer)
    }

    /// Writes it with a checksum of zero; returns its length, and its ones-complement sum, not
    /// folded. Panics if `buffer` is shorter.
    #[inline(always)]
    pub(super) fn emit(&self, buffer: &mut [u8]) -> (usize, u64) {
        let ports = pair(self.source_port, self.destination_port);
        let words = |len| {
            let window = pair(length_and_flags(len, self.flags), self.window);
            [ports, self.seq.0, self.ack.0, window, 0]
        };
        match self.timestamps {
            None => (HEADER_LEN, put_words(buffer, &words(HEADER_LEN))),
            Some(timestamps) => {
                let words = with_timestamps(words(Self::MAX_LEN), timestamps);
                (Self::MAX_LEN, put_words(buffer, &words))
            }
        }
    }
}

#[cfg(test)]
impl TcpHeader {
    /// Returns this as the header of a segment with data, if it has no other options.
    pub(crate) fn of_data(&self) -> Option<DataHeader> {
        Some(DataHeader {
            source_port: self.source_port,
            destination_port: self.destination_port,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            timestamps: self.options.only_timestamps()?,
        })
    }
}

impl From<DataHeader> for TcpHeader {
    fn from(header: DataHeader) -> Self {
        Self {
            source_port: header.source_port,
            destination_port: header.destination_port,
            seq: header.seq,
            ack: header.ack,
            flags: header.flags,
            window: header.window,
            urgent: 0,
            options: TcpOptions {
                timestamps: header.timestamps,
                ..TcpOptions::default()
            },
        }
    }
}

#[inline]
fn pair(high: u16, low: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

/// Returns the word with the length of a header and its flags.
#[inline]
fn length_and_flags(len: usize, flags: Flags) -> u16 {
    u16::from((len / 4) as u8) << 12 | u16::from(flags.0)
}

/// Returns a header of no other options, with its timestamps.
#[inline]
fn with_timestamps(
    [a, b, c, d, e]: [u32; HEADER_LEN / 4],
    Timestamps { value, echo }: Timestamps,
) -> [u32; DataHeader::MAX_LEN / 4] {
    let front = u32::from_be_bytes(TIMESTAMPS_FRONT);
    [a, b, c, d, e, front, value, echo]
}

/// Writes words in network order. Returns their sum, which is congruent to that of their halves.
#[inline(always)]
fn put_words<const N: usize>(buffer: &mut [u8], words: &[u32; N]) -> u64 {
    let (places, _) = buffer[..4 * N].as_chunks_mut::<4>();
    for (place, word) in places.iter_mut().zip(words) {
        *place = word.to_be_bytes();
    }
    words.iter().map(|word| u64::from(*word)).sum()
}

/// A segment: a header and the payload behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSegment<'a> {
    /// The header.
    pub header: TcpHeader,
    /// The stream octets.
    pub payload: &'a [u8],
}

impl<'a> TcpSegment<'a> {
    /// Reads a segment that fills `octets`. The checksum needs the IP addresses, and is not looked
    /// at here.
    #[inline]
    pub fn parse(octets: &'a [u8]) -> Result<Self, PacketError> {
        let too_short = PacketError::Truncated("TCP");
        let (raw, _) = RawTcp::ref_from_prefix(octets).map_err(|_| too_short)?;
        let header_len = usize::from(raw.data_offset >> 4) * 4;
        if header_len < HEADER_LEN {
            return Err(PacketError::Malformed("TCP data offset"));
        }
        let (header, payload) = octets.split_at_checked(header_len).ok_or(too_short)?;
        let header = TcpHeader {
            source_port: raw.source_port.get(),
            destination_port: raw.destination_port.get(),
            seq: Seq(raw.seq.get()),
            ack: Seq(raw.ack.get()),
            flags: Flags(raw.flags),
            window: raw.window.get(),
            urgent: raw.urgent.get(),
            options: TcpOptions::parse(&header[HEADER_LEN..]),
        };
        Ok(Self { header, payload })
    }

    /// Returns the sequence space that the segment takes: its payload, SYN and FIN.
    pub fn sequence_len(&self) -> u32 {
        // A payload comes out of an IP datagram: it is far below 2^32.
        self.payload.len() as u32
            + u32::from(self.header.flags.syn())
            + u32::from(self.header.flags.fin())
    }
}
