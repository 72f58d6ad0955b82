//! Work requests and completions as they stand in the rings: fixed layouts, valid whatever octets
//! they hold.

use std::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::memory::ring::{Consumer, Entry};
use crate::wire::ddp::{Stag, TaggedOffset};
use crate::wire::rdmap::IMMEDIATE_LEN;

use super::sge::{Sge, total_length};
use super::status::UnknownCode;

mod atomic;
mod completion;

pub use self::completion::{Completion, WcOpcode, completion_flags};

/// Scatter/gather elements in a work request at most.
pub const MAX_SGE: usize = 16;
/// Octets of inline data in a work request at most.
pub const MAX_INLINE: usize = 256;
/// Scatter/gather elements of a short request. Short ones are what the engine keeps by itself while
/// it sends them.
pub const SHORT_SGE: usize = 4;
/// Octets of inline data of a short request.
pub const SHORT_INLINE: usize = 64;

/// What a send queue's request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WrOpcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read.
    Read = 1,
    /// Send.
    Send = 2,
    /// Send with Invalidate.
    SendInvalidate = 3,
    /// Immediate Data alone.
    Immediate = 4,
    /// RDMA Write, and Immediate Data behind it.
    WriteImmediate = 5,
    /// Atomic FetchAdd.
    FetchAdd = 6,
    /// Atomic CmpSwap.
    CmpSwap = 7,
    /// Send with Immediate: Immediate Data of 4 octets in the header of a Send, for connections with
    /// the semantics of RC alone.
    SendImmediate = 8,
    /// Binds a memory window. This and those below send nothing.
    BindWindow = 16,
    /// Registers a part of a region.
    FastRegister = 17,
    /// Makes an STag of this stream invalid.
    LocalInvalidate = 18,
}

impl WrOpcode {
    /// Returns whether it is carried out here, without a message.
    pub const fn is_local(self) -> bool {
        matches!(
            self,
            Self::BindWindow | Self::FastRegister | Self::LocalInvalidate
        )
    }
}

impl TryFrom<u8> for WrOpcode {
    type Error = UnknownCode;
    fn try_from(code: u8) -> Result<Self, UnknownCode> {
        Ok(match code {
            0 => Self::Write,
            1 => Self::Read,
            2 => Self::Send,
            3 => Self::SendInvalidate,
            4 => Self::Immediate,
            5 => Self::WriteImmediate,
            6 => Self::FetchAdd,
            7 => Self::CmpSwap,
            8 => Self::SendImmediate,
            16 => Self::BindWindow,
            17 => Self::FastRegister,
            18 => Self::LocalInvalidate,
            _ => return Err(UnknownCode(code)),
        })
    }
}

/// Bits of [`SendWr::flags`].
pub mod send_flags {
    /// Make a completion when it succeeds (it always makes one when it fails).
    pub const SIGNALED: u8 = 1;
    /// Send, or Immediate Data, with Solicited Event.
    pub const SOLICITED: u8 = 2;
    /// Begin only when all earlier Reads and atomics are complete.
    pub const FENCE: u8 = 4;
    /// The data stands in the request itself.
    pub const INLINE: u8 = 8;
}

/// A request of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SendWr {
    /// The application's name for it.
    pub wr_id: u64,
    /// A [`WrOpcode`].
    pub opcode: u8,
    /// [`send_flags`].
    pub flags: u8,
    /// Elements of the scatter/gather list.
    pub sge_count: u16,
    /// Octets altogether.
    pub length: u32,
    /// Write, Read and atomics: the peer's STag.
    pub remote_stag: u32,
    /// Send with Invalidate: the STag that the peer shall make invalid. Local Invalidate: this
    /// side's.
    pub invalidate_stag: u32,
    /// Write, Read and atomics: where in the peer's STag.
    pub remote_offset: u64,
    /// Immediate Data; the first 4 octets for a Send with Immediate.
    pub immediate: [u8; IMMEDIATE_LEN],
    /// [`Sge`]s, or inline data, or a [`Binding`](crate::memory::binding::Binding). Of an atomic:
    /// one [`Sge`], and its operands behind it.
    // A literal length: rustc 1.95 fails where a closure of another crate captures a field of a
    // named one.
    pub payload: [u8; 256],
}

const _: () = assert!(size_of::<Sge>() == 16 && size_of::<SendWr>() == 296);
// What `SendWr::sges` relies on.
const _: () = assert!(offset_of!(SendWr, payload) % align_of::<Sge>() == 0);
const _: () = assert!(MAX_SGE * size_of::<Sge>() == MAX_INLINE && MAX_INLINE == 256);
const _: () = assert!(SHORT_SGE * size_of::<Sge>() == SHORT_INLINE);

impl Entry for SendWr {
    const FEWEST_WORDS: usize = Self::FRONT_WORDS + SHORT_INLINE / 8;
}

impl SendWr {
    /// Words in front of the payload.
    pub const FRONT_WORDS: usize = offset_of!(Self, payload) / 8;

    /// Returns the words of an entry with room for so many elements and octets of inline data, and
    /// for any request without either.
    pub fn words_for(max_sge: usize, max_inline: usize) -> usize {
        let elements = max_sge.min(MAX_SGE) * size_of::<Sge>();
        let payload = elements.max(max_inline.min(MAX_INLINE));
        (Self::FRONT_WORDS + payload.div_ceil(8)).max(Self::FEWEST_WORDS)
    }

    /// Returns how many words mean something, from the first: as many as there are elements or
    /// octets of inline data for. The front must be known.
    #[inline]
    pub fn words(&self) -> usize {
        let payload = if self.is_inline() {
            (self.length as usize).min(MAX_INLINE)
        } else if self.has_operands() {
            SHORT_INLINE
        } else {
            usize::from(self.sge_count).min(MAX_SGE) * size_of::<Sge>()
        };
        Self::FRONT_WORDS + payload.div_ceil(8)
    }

    /// Returns whether something else than elements or data stands in the payload.
    #[inline]
    fn has_operands(&self) -> bool {
        !matches!(
            self.operation(),
            Ok(WrOpcode::Write
                | WrOpcode::Read
                | WrOpcode::Send
                | WrOpcode::SendInvalidate
                | WrOpcode::Immediate
                | WrOpcode::WriteImmediate
                | WrOpcode::SendImmediate)
        )
    }

    /// Copies what the entry `ahead` places behind the oldest of a ring means. The rest of `self`
    /// stays as it is. Returns whether there is one.
    #[inline]
    pub fn peek(&mut self, ring: &Consumer<Self>, ahead: u32) -> bool {
        let there = ring.peek_front(ahead, Self::FRONT_WORDS, self);
        if there {
            let words = self.words();
            ring.peek_behind(ahead, Self::FRONT_WORDS, words, self);
        }
        there
    }

    /// Returns a signalled request without data.
    #[inline]
    pub fn new(wr_id: u64, opcode: WrOpcode) -> Self {
        Self {
            wr_id,
            opcode: opcode as u8,
            flags: send_flags::SIGNALED,
            sge_count: 0,
            length: 0,
            remote_stag: 0,
            invalidate_stag: 0,
            remote_offset: 0,
            immediate: [0; IMMEDIATE_LEN],
            payload: [0; MAX_INLINE],
        }
    }

    /// Sets registered memory as the data. `None` if there are more than [`MAX_SGE`] pieces or more
    /// than 2^32 - 1 octets.
    #[inline]
    pub fn with_sges(mut self, sges: &[Sge]) -> Option<Self> {
        if sges.len() > MAX_SGE {
            return None;
        }
        let octets = sges.as_bytes();
        self.payload[..octets.len()].copy_from_slice(octets);
        self.sge_count = sges.len() as u16;
        self.length = u32::try_from(total_length(sges)).ok()?;
        self.flags &= !send_flags::INLINE;
        Some(self)
    }

    /// Copies `data` into the request. `None` if there are more than [`MAX_INLINE`] octets.
    #[inline]
    pub fn with_inline(mut self, data: &[u8]) -> Option<Self> {
        if data.len() > MAX_INLINE {
            return None;
        }
        self.payload[..data.len()].copy_from_slice(data);
        self.sge_count = 0;
        self.length = data.len() as u32;
        self.flags |= send_flags::INLINE;
        Some(self)
    }

    /// Sets the flags (the inline flag stays as it is).
    #[inline]
    pub fn with_flags(mut self, flags: u8) -> Self {
        self.flags = self.flags & send_flags::INLINE | flags & !send_flags::INLINE;
        self
    }

    /// Sets the peer's memory that it reads or writes.
    #[inline]
    pub fn with_remote(mut self, stag: Stag, offset: TaggedOffset) -> Self {
        self.remote_stag = stag.0;
        self.remote_offset = offset.0;
        self
    }

    /// Sets Immediate Data.
    #[inline]
    pub fn with_immediate(mut self, immediate: [u8; IMMEDIATE_LEN]) -> Self {
        self.immediate = immediate;
        self
    }

    /// Returns its scatter/gather list; none if the data is inline.
    pub fn sges(&self) -> &[Sge] {
        if self.is_inline() {
            return &[];
        }
        // Always aligned: see the assertion above.
        match <[Sge; MAX_SGE]>::ref_from_bytes(&self.payload) {
            Ok(sges) => &sges[..usize::from(self.sge_count).min(MAX_SGE)],
            Err(_) => &[],
        }
    }

    /// Returns the places of a short scatter/gather list, of which as many are in use as
    /// [`sges`](Self::sges) has.
    pub(crate) fn short_sges(&self) -> [Sge; SHORT_SGE] {
        zerocopy::transmute!(self.short_payload())
    }

    /// Returns the payload of a short request.
    pub(crate) fn short_payload(&self) -> [u8; SHORT_INLINE] {
        let mut payload = [0; SHORT_INLINE];
        payload.copy_from_slice(&self.payload[..SHORT_INLINE]);
        payload
    }

    /// Returns its inline data; none if it has a scatter/gather list.
    pub fn inline_data(&self) -> &[u8] {
        if self.is_inline() {
            &self.payload[..(self.length as usize).min(MAX_INLINE)]
        } else {
            &[]
        }
    }

    /// Returns whether the data stands in the request.
    #[inline]
    pub fn is_inline(&self) -> bool {
        self.flags & send_flags::INLINE != 0
    }

    /// Returns what it asks for.
    #[inline]
    pub fn operation(&self) -> Result<WrOpcode, UnknownCode> {
        WrOpcode::try_from(self.opcode)
    }
}

/// A request of a receive queue: a buffer for one message.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RecvWr {
    /// The application's name for it.
    pub wr_id: u64,
    /// Elements of the scatter list.
    pub sge_count: u32,
    /// Zero.
    pub _reserved: u32,
    /// The scatter list.
    pub sges: [Sge; 16],
}

const _: () = assert!(size_of::<RecvWr>() == 272);

impl Entry for RecvWr {
    const FEWEST_WORDS: usize = Self::FRONT_WORDS;
}

impl RecvWr {
    /// Words in front of the second piece of the scatter list.
    pub(crate) const FRONT_WORDS: usize =
        (offset_of!(RecvWr, sges) + size_of::<Sge>()) / size_of::<u64>();

    /// Returns the words of an entry with room for so many elements.
    pub fn words_for(max_sge: usize) -> usize {
        let elements = max_sge.clamp(1, MAX_SGE) * size_of::<Sge>();
        (offset_of!(Self, sges) + elements) / 8
    }

    /// Returns how many words mean something, from the first. The front must be known.
    #[inline]
    pub fn words(&self) -> usize {
        let elements = (self.sge_count as usize).min(MAX_SGE) * size_of::<Sge>();
        (offset_of!(Self, sges) + elements) / 8
    }

    /// Copies the entry `ahead` places behind the oldest of a ring.
    #[inline]
    pub fn peek(ring: &Consumer<Self>, ahead: u32) -> Option<Self> {
        let mut wr = Self::default();
        if !ring.peek_front(ahead, Self::FRONT_WORDS, &mut wr) {
            return None;
        }
        let words = wr.words();
        ring.peek_behind(ahead, Self::FRONT_WORDS, words, &mut wr);
        Some(wr)
    }

    /// Returns a buffer of these pieces. `None` if there are more than [`MAX_SGE`].
    pub fn new(wr_id: u64, sges: &[Sge]) -> Option<Self> {
        let mut wr = Self {
            wr_id,
            sge_count: sges.len() as u32,
            ..Self::default()
        };
        wr.sges.get_mut(..sges.len())?.copy_from_slice(sges);
        Some(wr)
    }

    /// Returns the scatter list.
    pub fn sges(&self) -> &[Sge] {
        &self.sges[..(self.sge_count as usize).min(MAX_SGE)]
    }

    /// Returns the number of octets that fit.
    pub fn length(&self) -> u64 {
        total_length(self.sges())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::status::WcStatus;
    use zerocopy::FromZeros;

    #[test]
    fn lists_and_inline_data_come_back() {
        let sges = [1, 2, 3].map(|n| Sge {
            offset: n,
            length: 10,
            lkey: 7,
        });
        let wr = SendWr::new(1, WrOpcode::Write).with_sges(&sges).unwrap();
        assert_eq!(
            (wr.sges(), wr.length, wr.inline_data()),
            (&sges[..], 30, &[][..])
        );
        let wr = wr
            .with_inline(b"hello")
            .unwrap()
            .with_flags(send_flags::SOLICITED);
        assert_eq!(
            (wr.sges(), wr.length, wr.inline_data()),
            (&[][..], 5, &b"hello"[..])
        );
        assert_eq!(wr.flags, send_flags::SOLICITED | send_flags::INLINE);
        let wr = wr.with_sges(&[]).unwrap();
        assert_eq!((wr.sges(), wr.length, wr.is_inline()), (&[][..], 0, false));
        assert!(wr.with_inline(&[0; MAX_INLINE + 1]).is_none());
        assert!(wr.with_sges(&[sges[0]; MAX_SGE + 1]).is_none());
        let huge = Sge {
            length: u32::MAX,
            ..sges[0]
        };
        assert!(wr.with_sges(&[huge, sges[0]]).is_none());
        assert!(RecvWr::new(1, &[sges[0]; MAX_SGE + 1]).is_none());
        assert_eq!(RecvWr::new(1, &sges).unwrap().length(), 30);
    }

    /// An application may write anything into a ring.
    #[test]
    fn any_octets_are_a_request() {
        let wr = SendWr::read_from_bytes(&[0xff; 296]).unwrap();
        assert_eq!((wr.sges().len(), wr.inline_data().len()), (0, MAX_INLINE));
        let wr = SendWr { flags: 0, ..wr };
        assert_eq!(wr.sges().len(), MAX_SGE);
        assert_eq!(wr.operation(), Err(UnknownCode(0xff)));
        let wr = RecvWr::read_from_bytes(&[0xff; 272]).unwrap();
        assert_eq!(wr.length(), 16 * u64::from(u32::MAX));
        let completion = Completion {
            status: 0xfe,
            ..Completion::new_zeroed()
        };
        assert_eq!(completion.status(), WcStatus::GeneralError);
    }

    #[test]
    fn codes_round_trip() {
        for code in 0..=u8::MAX {
            assert!(WrOpcode::try_from(code).map_or(true, |op| op as u8 == code));
            assert!(WcOpcode::try_from(code).map_or(true, |op| op as u8 == code));
        }
    }
}
