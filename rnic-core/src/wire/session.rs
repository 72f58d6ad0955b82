//! What SCTP's DATA chunks carry for DDP: segments, and the control messages of sessions (RFC 5043
//! section 5.2, RFC 6581 section 7).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mpa::{ENHANCED_LEN, Enhanced, MAX_PRIVATE_DATA};

/// The adaptation indication of DDP, which the INIT or INIT ACK has (parameter 0xC006).
// rfc: 5043-1 the indication of DDP is 1
pub const INDICATION: u32 = 1;
/// The payload protocol identifier of a segment.
pub const SEGMENT: u32 = 16;
/// The payload protocol identifier of a control message.
pub const CONTROL: u32 = 17;

/// Octets of the DDP-SSN in front of a segment.
pub const SSN_LEN: usize = 2;
/// Octets of a control message in front of its private data.
pub const CONTROL_LEN: usize = 4;
/// Octets of the longest control message.
pub const MAX_CONTROL: usize = CONTROL_LEN + MAX_PRIVATE_DATA;

/// Why octets are no chunk of DDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionWireError {
    /// Another payload protocol identifier.
    #[error("a chunk of payload protocol {0}, which is not one of DDP (16, 17)")]
    Protocol(u32),
    /// Too few octets for what is in front of a segment, or of private data.
    #[error("a chunk of {0} octets, which is too short")]
    TooShort(usize),
    /// A control message of another kind than those of RFC 5043 and RFC 6581.
    #[error("a session control message with the unknown function code {0}")]
    Function(u16),
    /// More than 512 octets of private data.
    #[error("a session control message with {0} octets of private data; the limit is 512")]
    PrivateDataLength(usize),
    /// Private data in a Terminate.
    #[error("a Terminate with {0} octets of private data; it must have none")]
    PrivateDataInTerminate(usize),
    /// An enhanced message without room for the enhanced data.
    #[error("an enhanced session control message with {0} octets of private data, it takes 4")]
    EnhancedLength(usize),
}

/// What a control message asks for or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// The active side asks for a session.
    Initiate,
    /// The passive side accepts it.
    Accept,
    /// The application of the passive side does not.
    Reject,
    /// The same, of an enhanced Initiate.
    EnhancedReject,
    /// A side ends the session.
    Terminate,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawControl {
    ssn: U16,
    function: U16,
}

/// A control message of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionControl<'a> {
    /// What it is.
    pub function: Function,
    /// The enhanced data, in the enhanced Initiate and Accept of RFC 6581 alone.
    pub enhanced: Option<Enhanced>,
    /// The application's private data, behind the enhanced data.
    pub private_data: &'a [u8],
}

impl<'a> SessionControl<'a> {
    /// A Terminate.
    // rfc: 5043-5, 6581-10 a Terminate has no private data
    // rfc: 6581-12 enhanced sessions end by the same code as others
    pub const TERMINATE: Self = Self {
        function: Function::Terminate,
        enhanced: None,
        private_data: &[],
    };

    fn parse(function: u16, private_data: &'a [u8]) -> Result<Self, SessionWireError> {
        let len = private_data.len();
        // rfc: 5043-4 private data are at most 512 octets
        if len > MAX_PRIVATE_DATA {
            return Err(SessionWireError::PrivateDataLength(len));
        }
        let (function, is_enhanced) = match function {
            1 => (Function::Initiate, false),
            2 => (Function::Accept, false),
            3 => (Function::Reject, false),
            4 => (Function::Terminate, false),
            // rfc: 6581-7 the enhanced forms have codes of their own
            5 => (Function::Initiate, true),
            6 => (Function::Accept, true),
            // The enhanced data belong to Initiate and Accept (RFC 6581 section 7).
            7 => (Function::EnhancedReject, false),
            other => return Err(SessionWireError::Function(other)),
        };
        // rfc: 5043-5, 6581-10 a Terminate has no private data
        if function == Function::Terminate && len > 0 {
            return Err(SessionWireError::PrivateDataInTerminate(len));
        }
        let (mut enhanced, mut private_data) = (None, private_data);
        if is_enhanced {
            let split = Enhanced::split(private_data);
            let (found, behind) = split.ok_or(SessionWireError::EnhancedLength(len))?;
            (enhanced, private_data) = (Some(found), behind);
        }
        Ok(Self {
            function,
            enhanced,
            private_data,
        })
    }

    // rfc: 6581-7 the enhanced forms have codes of their own
    // rfc: 6581-12 but for the Terminate
    fn code(&self) -> u16 {
        match (self.function, self.enhanced) {
            (Function::Initiate, None) => 1,
            (Function::Accept, None) => 2,
            (Function::Reject, _) => 3,
            (Function::Terminate, _) => 4,
            (Function::Initiate, Some(_)) => 5,
            (Function::Accept, Some(_)) => 6,
            (Function::EnhancedReject, _) => 7,
        }
    }

    /// Returns the octets of the message, with this DDP-SSN. The caller has checked that the private
    /// data are no longer than they may be.
    // rfc: 5043-3 Initiate, Accept and Reject have private data, of any length down to zero
    // rfc: 6581-8 private data follow the enhanced data
    pub fn octets(&self, ssn: u16) -> Vec<u8> {
        let raw = RawControl {
            ssn: U16::new(ssn),
            function: U16::new(self.code()),
        };
        let mut octets = Vec::with_capacity(CONTROL_LEN + ENHANCED_LEN + self.private_data.len());
        octets.extend_from_slice(raw.as_bytes());
        octets.extend(self.enhanced.iter().flat_map(|enhanced| enhanced.octets()));
        octets.extend_from_slice(self.private_data);
        octets
    }
}

/// What a chunk carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// A DDP segment.
    Segment(&'a [u8]),
    /// A control message.
    Control(SessionControl<'a>),
}

/// A chunk of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionChunk<'a> {
    /// The DDP-SSN.
    pub ssn: u16,
    /// What it carries.
    pub body: Body<'a>,
}

impl<'a> SessionChunk<'a> {
    /// Reads the user data of a DATA chunk.
    pub fn parse(protocol: u32, octets: &'a [u8]) -> Result<Self, SessionWireError> {
        let too_short = SessionWireError::TooShort(octets.len());
        match protocol {
            SEGMENT => {
                let (ssn, segment) = U16::ref_from_prefix(octets).map_err(|_| too_short)?;
                Ok(Self {
                    ssn: ssn.get(),
                    body: Body::Segment(segment),
                })
            }
            CONTROL => {
                let (raw, data) = RawControl::ref_from_prefix(octets).map_err(|_| too_short)?;
                Ok(Self {
                    ssn: raw.ssn.get(),
                    body: Body::Control(SessionControl::parse(raw.function.get(), data)?),
                })
            }
            other => Err(SessionWireError::Protocol(other)),
        }
    }

    /// Returns whether this is the first chunk of a session: an Initiate.
    pub fn begins_session(&self) -> bool {
        match &self.body {
            Body::Control(control) => control.function == Function::Initiate && self.ssn == 0,
            Body::Segment(_) => false,
        }
    }
}
