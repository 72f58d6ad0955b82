//! Errors that DDP finds in received segments, with the numbers of RFC 5041 section 7.2.

use crate::memory::error::TagError;
use crate::verbs::WcStatus;
use crate::wire::ddp::{DdpWireError, MessageOffset, Msn, QueueNumber, header_octets};

/// Why DDP does not place or deliver a received segment.
///
/// In order, each of these ends the stream. Ahead of order the segment is only not placed early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DdpError {
    /// The tagged buffer may not be written in this way.
    #[error("a tagged segment was refused: {0}")]
    Tagged(TagError),
    /// A segment of another DDP version.
    #[error("a segment of DDP version {version} came; version 1 is spoken here")]
    Version {
        /// The version.
        version: u8,
        /// Whether the segment is tagged.
        tagged: bool,
    },
    /// The queue is not open on this stream.
    #[error("an untagged segment came for queue {0}, which is not open")]
    InvalidQn(QueueNumber),
    /// No buffer is posted for the next message of the queue.
    #[error(
        "message {msn} of queue {queue} found no buffer; post receives ahead of the peer's sends"
    )]
    NoBuffer {
        /// The queue.
        queue: QueueNumber,
        /// The message.
        msn: Msn,
    },
    /// The message was delivered already, is not the next one, or lies beyond the last buffer.
    #[error("message {msn} of queue {queue} is out of range: {next} is next")]
    MsnRange {
        /// The queue.
        queue: QueueNumber,
        /// The message.
        msn: Msn,
        /// The next message.
        next: Msn,
    },
    /// The segment does not belong to the partial message, whose last segment has not arrived.
    #[error("a segment of another message came before the last one of the message begun")]
    Interrupts {
        /// Whether the segment is tagged.
        tagged: bool,
    },
    /// The MO does not continue the message.
    #[error("an untagged segment has message offset {}, not {expected}", offset.0)]
    InvalidMo {
        /// The segment's MO.
        offset: MessageOffset,
        /// The MO that is next.
        expected: u64,
    },
    /// The segment begins where its buffer ends, or behind that.
    #[error("a message that goes on at {} came for a buffer of {room} octets; post larger ones", offset.0)]
    BeyondBuffer {
        /// Its queue.
        queue: QueueNumber,
        /// The segment's MO.
        offset: MessageOffset,
        /// Octets of the buffer.
        room: u64,
    },
    /// The message is longer than its buffer.
    #[error("a message of {length} octets or more came for a buffer of {room}; post larger ones")]
    TooLong {
        /// Its queue.
        queue: QueueNumber,
        /// Octets of the message up to the end of this segment.
        length: u64,
        /// Octets of the buffer.
        room: u64,
    },
    /// A segment came behind the LLP's news that the peer has closed its half in order.
    #[error("a segment came although the peer had closed its half of the stream")]
    AfterClose,
    /// The posted receive names memory that may not be written: not the peer's fault.
    #[error("the posted receive cannot be filled: {0}")]
    Receive(TagError),
}

impl DdpError {
    /// Returns error type and error code of RFC 5041 section 7.2.
    ///
    /// RFC 5041 has no number for a missing access right, nor for memory that is gone. The STag has
    /// no buffer "that allows placement" (check 2 of section 7.1), so it is reported as an invalid
    /// STag, as other implementations do. It has none either for a message that interrupts another:
    /// this is reported as an invalid STag, or an MSN out of range.
    // rfc: 5041-76 errors are reported by the numbers of the table
    pub const fn number(&self) -> (u8, u8) {
        match self {
            Self::Receive(_) | Self::AfterClose => (0, 0),
            Self::Tagged(error) => match error {
                TagError::InvalidStag(_)
                | TagError::AccessViolation { .. }
                | TagError::Fault { .. }
                | TagError::NotInvalidatable(_)
                | TagError::WindowsBound(_) => (1, 0),
                TagError::BaseOrBounds { .. } => (1, 1),
                TagError::NotAssociated { .. } => (1, 2),
                TagError::OffsetWrap { .. } => (1, 3),
            },
            Self::Interrupts { tagged: true } => (1, 0),
            Self::Version { tagged: true, .. } => (1, 4),
            Self::InvalidQn(_) => (2, 1),
            Self::NoBuffer { .. } => (2, 2),
            Self::MsnRange { .. } | Self::Interrupts { tagged: false } => (2, 3),
            Self::InvalidMo { .. } | Self::BeyondBuffer { .. } => (2, 4),
            Self::TooLong { .. } => (2, 5),
            Self::Version { tagged: false, .. } => (2, 6),
        }
    }

    /// Returns how the next receive completes, if the error is about it. Receives are for queue 0.
    pub const fn receive_status(&self) -> Option<WcStatus> {
        match self {
            Self::TooLong {
                queue: QueueNumber::SEND,
                ..
            }
            | Self::BeyondBuffer {
                queue: QueueNumber::SEND,
                ..
            } => Some(WcStatus::LocalLengthError),
            Self::Receive(_) => Some(WcStatus::LocalProtectionError),
            _ => None,
        }
    }
}

/// Everything that can end a stream, as a ULP other than RDMAP sees it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DdpStreamError {
    /// A segment has a malformed header.
    #[error(transparent)]
    Segment(#[from] DdpWireError),
    /// A segment could not be placed or delivered.
    #[error(transparent)]
    Ddp(#[from] DdpError),
    /// The memory of a message to be sent was revoked.
    #[error("a message cannot be sent: {0}")]
    Source(TagError),
    /// The ULP refuses a segment.
    #[error("refused by the layer above: {0}")]
    Refused(&'static str),
    /// The LLP reports an error.
    #[error("the layer below: {0}")]
    Llp(String),
}

impl DdpStreamError {
    /// Returns error type and error code of RFC 5041 section 7.2. Errors of the LLP have type 3,
    /// and no code of DDP.
    // rfc: 5041-76 errors are reported by the numbers of the table
    // rfc: 5041-s8 errors of the LLP are passed upward
    pub const fn number(&self) -> (u8, u8) {
        match self {
            Self::Segment(DdpWireError::Version { tagged: true, .. }) => (1, 4),
            Self::Segment(DdpWireError::Version { tagged: false, .. }) => (2, 6),
            Self::Segment(DdpWireError::TooShort(_)) | Self::Llp(_) => (3, 0),
            Self::Ddp(error) => error.number(),
            Self::Source(_) | Self::Refused(_) => (0, 0),
        }
    }
}

/// An error, and the segment in which it was found (RFC 5041 section 7.1).
#[derive(Clone, Debug, PartialEq, Eq)]
// rfc: 5041-s11 a report has the header, the error and the length of the segment
pub struct ErrorReport {
    /// The error.
    pub fault: DdpStreamError,
    /// The DDP header of the segment as received, if there was a segment.
    pub header: Option<Vec<u8>>,
    /// Length of that segment, header included.
    pub segment_len: Option<usize>,
}

impl ErrorReport {
    /// Reports an error in a segment.
    pub fn about(fault: DdpStreamError, segment: &[u8]) -> Self {
        Self {
            fault,
            header: header_octets(segment).map(<[u8]>::to_vec),
            segment_len: Some(segment.len()),
        }
    }

    /// Reports an error that was not found in a segment.
    pub fn without_segment(fault: DdpStreamError) -> Self {
        Self {
            fault,
            header: None,
            segment_len: None,
        }
    }
}
