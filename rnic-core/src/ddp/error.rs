//! What DDP finds wrong with a received segment, and the numbers of RFC 5041 section 7.2.

use crate::memory::place::TagError;
use crate::verbs::WcStatus;
use crate::wire::ddp::{DdpWireError, MessageOffset, Msn, QueueNumber, header_octets};

/// A received segment that DDP does not place or deliver.
///
/// In order, each of these ends the stream. Out of order it only means that the segment was not placed early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DdpError {
    /// The tagged buffer may not be written so.
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
    /// There is no such queue on this stream.
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
    /// The message was delivered already, or its turn has not come, or it is beyond the last buffer.
    #[error("message {msn} of queue {queue} is out of range: {next} is next")]
    MsnRange {
        /// The queue.
        queue: QueueNumber,
        /// The message.
        msn: Msn,
        /// The message whose turn it is.
        next: Msn,
    },
    /// The segment is not one of the message that was begun before it and whose last segment has not come.
    #[error("a segment of another message came before the last one of the message begun")]
    Interrupts {
        /// Whether the segment is tagged.
        tagged: bool,
    },
    /// The MO lies outside of the buffer, or does not continue what came before.
    #[error("an untagged segment has message offset {}, not {expected}", offset.0)]
    InvalidMo {
        /// The segment's MO.
        offset: MessageOffset,
        /// The octet that is next, or, out of turn, the last that the buffer has room for.
        expected: u64,
    },
    /// The message is longer than its buffer.
    #[error("a message of {length} octets or more came for a buffer of {room}; post larger ones")]
    TooLong {
        /// Its queue.
        queue: QueueNumber,
        /// Octets that the message has at least.
        length: u64,
        /// Octets of the buffer.
        room: u64,
    },
    /// The posted receive names memory that may not be received into: not the peer's fault.
    #[error("the posted receive cannot be filled: {0}")]
    Receive(TagError),
}

impl DdpError {
    /// Error type and error code of RFC 5041 section 7.2.
    ///
    /// RFC 5041 has no number for an access right that is lacking: the STag has no buffer "that allows placement"
    /// (check 2 of section 7.1), so it is reported as an invalid STag, as other implementations do. Nor has it one for a
    /// message that interrupts another: its STag, or its MSN, is not the one that may come now.
    // rfc: 5041-76
    pub const fn number(&self) -> (u8, u8) {
        match self {
            Self::Receive(_) => (0, 0),
            Self::Tagged(error) => match error {
                TagError::InvalidStag(_)
                | TagError::AccessViolation { .. }
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
            Self::InvalidMo { .. } => (2, 4),
            Self::TooLong { .. } => (2, 5),
            Self::Version { tagged: false, .. } => (2, 6),
        }
    }

    /// How the receive whose turn it is completes, where the error is about that receive. Receives are for queue 0.
    pub const fn receive_status(&self) -> Option<WcStatus> {
        match self {
            Self::TooLong {
                queue: QueueNumber::SEND,
                ..
            } => Some(WcStatus::LocalLengthError),
            Self::Receive(_) => Some(WcStatus::LocalProtectionError),
            _ => None,
        }
    }
}

/// What a layer above other than RDMAP is told of: everything that can end a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DdpStreamError {
    /// A segment could not be read.
    #[error(transparent)]
    Segment(#[from] DdpWireError),
    /// A segment could not be placed or delivered.
    #[error(transparent)]
    Ddp(#[from] DdpError),
    /// The memory of a message to be sent is gone.
    #[error("a message cannot be sent: {0}")]
    Source(TagError),
    /// The layer above does not want a segment, for a reason of its own.
    #[error("refused by the layer above: {0}")]
    Refused(&'static str),
    /// The layer below found an error.
    #[error("the layer below: {0}")]
    Llp(String),
}

impl DdpStreamError {
    /// Error type and error code of RFC 5041 section 7.2. Errors of the layer below have type 3 and no code of DDP's.
    // rfc: 5041-76, 5041-s8
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

/// A fault, and the segment that showed it (RFC 5041 section 7.1).
#[derive(Clone, Debug, PartialEq, Eq)]
// rfc: 5041-s11
pub struct ErrorReport {
    /// What is wrong.
    pub fault: DdpStreamError,
    /// The DDP header of the segment as it came, if a segment showed it.
    pub header: Option<Vec<u8>>,
    /// Octets of that segment, header included.
    pub segment_len: Option<usize>,
}

impl ErrorReport {
    /// What a segment showed.
    pub fn about(fault: DdpStreamError, segment: &[u8]) -> Self {
        Self {
            fault,
            header: header_octets(segment).map(<[u8]>::to_vec),
            segment_len: Some(segment.len()),
        }
    }

    /// What no segment showed.
    pub fn without_segment(fault: DdpStreamError) -> Self {
        Self {
            fault,
            header: None,
            segment_len: None,
        }
    }
}
