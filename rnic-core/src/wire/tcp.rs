//! TCP segments (RFC 9293 section 3.1) with the options of RFC 7323 and RFC 2018.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::error::PacketError;

use super::checksum;
use super::serial::serial_number;

/// IP protocol number of TCP.
pub const PROTOCOL: u8 = 6;
/// Octets of a header without options.
pub const HEADER_LEN: usize = 20;
/// Octets that options may take.
pub const MAX_OPTIONS_LEN: usize = 40;
/// Octets of the timestamps option with what aligns it.
const TIMESTAMPS_LEN: usize = 12;
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
/// The largest window scale (RFC 7323 section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// A sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

serial_number!(Seq);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The control bits of a header.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment field is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// Whether all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether FIN is set.
    pub const fn fin(self) -> bool {
        self.contains(Self::FIN)
    }

    /// Whether SYN is set.
    pub const fn syn(self) -> bool {
        self.contains(Self::SYN)
    }

    /// Whether RST is set.
    pub const fn rst(self) -> bool {
        self.contains(Self::RST)
    }

    /// Whether PSH is set.
    pub const fn psh(self) -> bool {
        self.contains(Self::PSH)
    }

    /// Whether ACK is set.
    pub const fn ack(self) -> bool {
        self.contains(Self::ACK)
    }

    /// Whether URG is set.
    pub const fn urg(self) -> bool {
        self.contains(Self::URG)
    }

    /// Whether ECE is set.
    pub const fn ece(self) -> bool {
        self.contains(Self::ECE)
    }

    /// Whether CWR is set.
    pub const fn cwr(self) -> bool {
        self.contains(Self::CWR)
    }
}

impl BitOr for Flags {
    type Output = Self;
    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, rhs: Self) {
        *self = *self | rhs;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        let set = NAMES
            .iter()
            .enumerate()
            .filter(|(bit, _)| self.0 >> bit & 1 != 0);
        let names: Vec<_> = set.map(|(_, name)| *name).collect();
        f.write_str(&names.join("|"))
    }
}

/// The blocks of a SACK option, in wire order: each from its left edge to just before its right edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(Seq, Seq); Self::MAX],
    len: u8,
}

impl SackBlocks {
    /// Blocks that fit into a header without other options; three fit beside timestamps.
    pub const MAX: usize = 4;

    /// No block.
    pub const EMPTY: Self = Self {
        blocks: [(Seq(0), Seq(0)); Self::MAX],
        len: 0,
    };

    /// Appends a block; false if there is no room.
    pub fn push(&mut self, left: Seq, right: Seq) -> bool {
        let Some(slot) = self.blocks.get_mut(usize::from(self.len)) else {
            return false;
        };
        *slot = (left, right);
        self.len += 1;
        true
    }

    /// Returns how many there are.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the blocks: left edge, right edge.
    pub fn iter(&self) -> impl Iterator<Item = (Seq, Seq)> + '_ {
        self.blocks.iter().copied().take(self.len())
    }
}

/// The timestamps option (RFC 7323 section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock.
    pub value: u32,
    /// The receiver's clock, as the sender last saw it.
    pub echo: u32,
}

/// The options that we understand. On receipt the first of a kind counts, and all others are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Maximum segment size.
    pub mss: Option<u16>,
    /// Shift count of the window field, at most [`MAX_WINDOW_SCALE`].
    pub window_scale: Option<u8>,
    /// Selective acknowledgments may be sent.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Selective acknowledgments.
    pub sack: SackBlocks,
}

mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(super) const MSS: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
}

impl TcpOptions {
    /// Reads an option list. Where it is malformed, reading stops; what came before counts.
    #[inline]
    pub fn parse(mut octets: &[u8]) -> Self {
        let mut options = Self::default();
        // Nearly every segment's (RFC 7323 appendix A).
        if let [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10, value @ ..] = octets
            && value.len() == 8
        {
            options.parse_one(kind::TIMESTAMPS, value);
            return options;
        }
        loop {
            match octets {
                [] | [kind::END, ..] => return options,
                [kind::NOP, rest @ ..] => octets = rest,
                [kind, len, ..] if *len >= 2 && usize::from(*len) <= octets.len() => {
                    let (option, rest) = octets.split_at(usize::from(*len));
                    options.parse_one(*kind, &option[2..]);
                    octets = rest;
                }
                _ => return options,
            }
        }
    }

    /// Reads one option; one of a wrong length is ignored.
    #[inline]
    fn parse_one(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (kind::MSS, &[high, low]) => {
                self.mss.get_or_insert(u16::from_be_bytes([high, low]));
            }
            (kind::WINDOW_SCALE, &[shift]) => {
                // RFC 7323 section 2.3: a larger shift is an error, and is used as 14.
                self.window_scale.get_or_insert(shift.min(MAX_WINDOW_SCALE));
            }
            (kind::SACK_PERMITTED, []) => self.sack_permitted = true,
            (kind::TIMESTAMPS, value) => {
                if let Ok([value, echo]) = <[U32; 2]>::read_from_bytes(value) {
                    self.timestamps.get_or_insert(Timestamps {
                        value: value.get(),
                        echo: echo.get(),
                    });
                }
            }
            (kind::SACK, value) if self.sack.is_empty() => {
                let Ok(blocks) = <[[U32; 2]]>::ref_from_bytes(value) else {
                    return;
                };
                for [left, right] in blocks {
                    self.sack.push(Seq(left.get()), Seq(right.get()));
                }
            }
            _ => {}
        }
    }

    /// Returns the timestamps, or that there are none, if there is no other option.
    #[inline]
    fn only_timestamps(&self) -> Option<Option<Timestamps>> {
        let others = self.mss.is_some()
            || self.window_scale.is_some()
            || self.sack_permitted
            || !self.sack.is_empty();
        (!others).then_some(self.timestamps)
    }

    /// Returns the number of SACK blocks that fit behind the other options.
    fn sack_count(&self) -> usize {
        let room = MAX_OPTIONS_LEN - self.len_without_sack();
        self.sack.len().min(room.saturating_sub(4) / 8)
    }

    fn len_without_sack(&self) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        // SACK-permitted takes the place of the two octets that align the timestamps.
        let stamps = match (self.timestamps.is_some(), self.sack_permitted) {
            (true, _) => 12,
            (false, true) => 4,
            (false, false) => 0,
        };
        mss + scale + stamps
    }

    /// Returns the number of octets that [`emit`](Self::emit) writes: a multiple of four, at most 40.
    pub fn len(&self) -> usize {
        let sack = match self.sack_count() {
            0 => 0,
            blocks => 4 + 8 * blocks,
        };
        self.len_without_sack() + sack
    }

    /// Whether there is no option at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the options, aligned to four octets by NOPs. SACK blocks beyond the room left are not written.
    /// Panics if `buffer` is shorter than [`len`](Self::len).
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let mut at = 0;
        let mut put = |octets: &[u8]| {
            buffer[at..at + octets.len()].copy_from_slice(octets);
            at += octets.len();
        };
        if let Some(mss) = self.mss {
            put(&[kind::MSS, 4]);
            put(&mss.to_be_bytes());
        }
        if self.sack_permitted {
            if self.timestamps.is_none() {
                put(&[kind::NOP, kind::NOP]);
            }
            put(&[kind::SACK_PERMITTED, 2]);
        } else if self.timestamps.is_some() {
            put(&[kind::NOP, kind::NOP]);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            put(&[kind::TIMESTAMPS, 10]);
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            put(&[
                kind::NOP,
                kind::WINDOW_SCALE,
                3,
                shift.min(MAX_WINDOW_SCALE),
            ]);
        }
        let blocks = self.sack_count();
        if blocks > 0 {
            put(&[kind::NOP, kind::NOP, kind::SACK, (2 + 8 * blocks) as u8]);
            for (left, right) in self.sack.iter().take(blocks) {
                put(&left.0.to_be_bytes());
                put(&right.0.to_be_bytes());
            }
        }
        at
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
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

    /// Writes header and options, with a checksum of zero. Panics if `buffer` is shorter than [`len`](Self::len).
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        self.emit_summed(buffer).0
    }

    /// Writes the header as [`emit`](Self::emit) does; returns its length and its ones-complement sum, not folded.
    #[inline(always)]
    pub(super) fn emit_summed(&self, buffer: &mut [u8]) -> (usize, u64) {
        // Nearly every segment's.
        match self.options.only_timestamps() {
            Some(None) => {
                let words = self.words(HEADER_LEN);
                (HEADER_LEN, put_words(buffer, &words))
            }
            Some(Some(timestamps)) => {
                const LEN: usize = DataHeader::MOST_LEN;
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
    pub(super) const MOST_LEN: usize = HEADER_LEN + TIMESTAMPS_LEN;

    /// Writes it with a sequence number and a checksum of zero and without flags; returns its length, and its ones-complement
    /// sum, not folded. Panics if `buffer` is shorter.
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

    /// Writes it with a checksum of zero; returns its length, and its ones-complement sum, not folded. Panics if `buffer`
    /// is shorter.
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
                let words = with_timestamps(words(Self::MOST_LEN), timestamps);
                (Self::MOST_LEN, put_words(buffer, &words))
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
) -> [u32; DataHeader::MOST_LEN / 4] {
    let kind = u32::from_be_bytes([kind::NOP, kind::NOP, kind::TIMESTAMPS, 10]);
    [a, b, c, d, e, kind, value, echo]
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
    /// Reads a segment that fills `octets`. The checksum needs the IP addresses, and is not looked at here.
    #[inline]
    pub fn parse(octets: &'a [u8]) -> Result<Self, PacketError> {
        let too_short = PacketError::Truncated("TCP");
        let (raw, _) = RawHeader::ref_from_prefix(octets).map_err(|_| too_short)?;
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
