//! TCP options: those of RFC 9293 section 3.2, RFC 7323 and RFC 2018.

use zerocopy::FromBytes;
use zerocopy::byteorder::network_endian::U32;

use super::fields::Seq;

/// Octets that options may take.
pub const MAX_OPTIONS_LEN: usize = 40;
/// Octets of the timestamps option with what aligns it.
pub(in crate::wire) const TIMESTAMPS_LEN: usize = 12;
/// What stands in front of its values: two NOPs that align them (RFC 7323 appendix A), kind and
/// length.
pub(in crate::wire) const TIMESTAMPS_FRONT: [u8; 4] = [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10];
/// The largest window scale (RFC 7323 section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// The blocks of a SACK option, in wire order: each from its left edge to just before its right
/// edge.
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

    /// Returns whether there is none.
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

/// The options that we understand. On receipt the first of a kind counts, and all others are
/// ignored.
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
    pub(super) fn only_timestamps(&self) -> Option<Option<Timestamps>> {
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
            (true, _) => TIMESTAMPS_LEN,
            (false, true) => 4,
            (false, false) => 0,
        };
        mss + scale + stamps
    }

    /// Returns the number of octets that [`emit`](Self::emit) writes: a multiple of four, at
    /// most 40.
    pub fn len(&self) -> usize {
        let sack = match self.sack_count() {
            0 => 0,
            blocks => 4 + 8 * blocks,
        };
        self.len_without_sack() + sack
    }

    /// Returns whether there is no option at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the options, aligned to four octets by NOPs. SACK blocks beyond the room left are not
    /// written. Panics if `buffer` is shorter than [`len`](Self::len).
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
