//! Completions.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::WrOpcode;
use crate::ids::QpNumber;
use crate::memory::ring::Entry;
use crate::verbs::status::{UnknownCode, WcStatus};
use crate::wire::rdmap::IMMEDIATE_LEN;

/// What a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WcOpcode {
    /// A Send, with or without Invalidate or Immediate, or Immediate Data alone.
    Send = 0,
    /// An RDMA Write, with or without Immediate Data.
    Write = 1,
    /// An RDMA Read.
    Read = 2,
    /// An atomic CmpSwap.
    CmpSwap = 3,
    /// An atomic FetchAdd.
    FetchAdd = 4,
    /// A memory window bound.
    BindWindow = 5,
    /// An STag of this side made invalid.
    LocalInvalidate = 6,
    /// Memory registered.
    FastRegister = 8,
    /// A message received.
    Recv = 128,
    /// Immediate Data received.
    RecvImmediate = 129,
}

impl TryFrom<u8> for WcOpcode {
    type Error = UnknownCode;
    fn try_from(code: u8) -> Result<Self, UnknownCode> {
        Ok(match code {
            0 => Self::Send,
            1 => Self::Write,
            2 => Self::Read,
            3 => Self::CmpSwap,
            4 => Self::FetchAdd,
            5 => Self::BindWindow,
            6 => Self::LocalInvalidate,
            8 => Self::FastRegister,
            128 => Self::Recv,
            129 => Self::RecvImmediate,
            _ => return Err(UnknownCode(code)),
        })
    }
}

impl From<WrOpcode> for WcOpcode {
    fn from(opcode: WrOpcode) -> Self {
        match opcode {
            WrOpcode::Write | WrOpcode::WriteImmediate => Self::Write,
            WrOpcode::Read => Self::Read,
            WrOpcode::FetchAdd => Self::FetchAdd,
            WrOpcode::CmpSwap => Self::CmpSwap,
            WrOpcode::Send
            | WrOpcode::SendInvalidate
            | WrOpcode::SendImmediate
            | WrOpcode::Immediate => Self::Send,
            WrOpcode::BindWindow => Self::BindWindow,
            WrOpcode::FastRegister => Self::FastRegister,
            WrOpcode::LocalInvalidate => Self::LocalInvalidate,
        }
    }
}

/// Bits of [`Completion::flags`].
pub mod completion_flags {
    /// The message came with Solicited Event.
    pub const SOLICITED: u16 = 1;
    /// The message made `invalidated_stag` invalid.
    pub const WITH_INVALIDATE: u16 = 2;
    /// `immediate` is what the peer sent.
    pub const WITH_IMMEDIATE: u16 = 4;
    /// The message is a datagram. Its sender's number stands behind the 4 octets of `immediate`.
    /// Engines have no datagrams: the application writes this.
    pub const DATAGRAM: u16 = 8;
}

/// The end of a request.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Completion {
    /// The application's name for the request.
    pub wr_id: u64,
    /// The queue pair.
    pub qp: u32,
    /// Octets received (Recv), read (Read) or brought back (atomics: 8); with RecvImmediate, which
    /// leaves the buffer as it is, octets of the Write in front of it, as they were placed; on the
    /// others, octets sent.
    pub byte_len: u32,
    /// A [`WcStatus`].
    pub status: u8,
    /// A [`WcOpcode`].
    pub opcode: u8,
    /// [`completion_flags`].
    pub flags: u16,
    /// The STag that the message made invalid.
    pub invalidated_stag: u32,
    /// Immediate Data: 8 octets with RecvImmediate, 4 and zeros with Recv.
    pub immediate: [u8; IMMEDIATE_LEN],
}

const _: () = assert!(size_of::<Completion>() == 32);

impl Entry for Completion {}

impl Completion {
    /// Returns a completion without flags.
    pub fn new(
        wr_id: u64,
        qp: QpNumber,
        opcode: WcOpcode,
        status: WcStatus,
        byte_len: u32,
    ) -> Self {
        Self {
            wr_id,
            qp: qp.0,
            byte_len,
            status: status as u8,
            opcode: opcode as u8,
            ..Self::default()
        }
    }

    /// Returns how the request ended. A status that this release does not know is
    /// [`WcStatus::GeneralError`].
    pub fn status(&self) -> WcStatus {
        WcStatus::try_from(self.status).unwrap_or(WcStatus::GeneralError)
    }

    /// Returns what it is about.
    pub fn opcode(&self) -> Result<WcOpcode, UnknownCode> {
        WcOpcode::try_from(self.opcode)
    }
}
