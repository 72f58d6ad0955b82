//! RDMAP's control octet and headers (RFC 5040 section 4, RFC 7306 section 4).

use core::fmt;

mod atomic;
mod error;
mod flow_control;
mod read_request;
mod receipt;
mod terminate;
pub use atomic::{AtomicOperation, AtomicRequest, AtomicResponse};
pub use error::RdmapWireError;
pub use flow_control::{FlowControl, MAX_RNR_TIMER, Readiness};
pub use read_request::ReadRequest;
pub use receipt::Receipt;
pub use terminate::{BitOrder, Terminate, TerminateControl};

/// The version that RFC 5040 describes.
pub const VERSION: u8 = 1;

/// What a message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 6,
    /// Terminate.
    Terminate = 7,
    /// Immediate Data (RFC 7306).
    Immediate = 8,
    /// Immediate Data with Solicited Event (RFC 7306).
    ImmediateSolicited = 9,
    /// Atomic Request (RFC 7306).
    AtomicRequest = 10,
    /// Atomic Response (RFC 7306).
    AtomicResponse = 11,
    /// Send with Immediate, on connections with the semantics of RC alone.
    SendImmediate = 12,
    /// Send with Solicited Event and Immediate, on these alone.
    SendSolicitedImmediate = 13,
    /// Control, on connections with the semantics of RC: see [`FlowControl`].
    FlowControl = 14,
}

/// Octets of Immediate Data (RFC 7306 figure 7).
pub const IMMEDIATE_LEN: usize = 8;

/// Octets of Immediate Data in the header of a Send.
pub const SEND_IMMEDIATE_LEN: usize = 4;

impl Opcode {
    /// Returns whether the message targets a tagged buffer (RFC 5040 figure 4).
    // rfc: 5040-7 opcodes of figure 4, with their queues
    pub const fn is_tagged(self) -> bool {
        matches!(self, Self::Write | Self::ReadResponse)
    }

    /// Returns whether it is one that the RFCs leave free. Only connections with the semantics of
    /// RC use it.
    pub const fn is_of_rc(self) -> bool {
        matches!(self, Self::SendImmediate | Self::SendSolicitedImmediate)
    }
}

impl TryFrom<u8> for Opcode {
    type Error = RdmapWireError;

    // rfc: 5040-8, 7306-57 an opcode is one of figure 4 or RFC 7306
    fn try_from(opcode: u8) -> Result<Self, RdmapWireError> {
        Ok(match opcode {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            3 => Self::Send,
            4 => Self::SendInvalidate,
            5 => Self::SendSolicited,
            6 => Self::SendSolicitedInvalidate,
            7 => Self::Terminate,
            8 => Self::Immediate,
            9 => Self::ImmediateSolicited,
            10 => Self::AtomicRequest,
            11 => Self::AtomicResponse,
            12 => Self::SendImmediate,
            13 => Self::SendSolicitedImmediate,
            14 => Self::FlowControl,
            other => return Err(RdmapWireError::Opcode(other)),
        })
    }
}

/// The control octet: what DDP carries for RDMAP in every segment (RFC 5040 section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Two bits.
    pub version: u8,
    /// Four bits: see [`Opcode`].
    pub opcode: u8,
}

impl Control {
    /// Returns the control octet of our messages.
    pub const fn new(opcode: Opcode) -> Self {
        Self {
            version: VERSION,
            opcode: opcode as u8,
        }
    }

    /// Returns the octet.
    pub const fn octet(self) -> u8 {
        self.version << 6 | self.opcode & 0xf
    }
}

impl From<u8> for Control {
    /// Returns the two reserved bits are not looked at.
    // rfc: 5040-4 bits in the order of figure 3
    // rfc: 5040-11 reserved bits are sent as zero and ignored
    fn from(octet: u8) -> Self {
        Self {
            version: octet >> 6,
            opcode: octet & 0xf,
        }
    }
}

impl From<Control> for u8 {
    fn from(control: Control) -> Self {
        control.octet()
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Opcode::try_from(self.opcode) {
            Ok(opcode) => write!(f, "{opcode:?}"),
            Err(_) => write!(f, "opcode {}", self.opcode),
        }
    }
}
