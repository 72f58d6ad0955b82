//! Errors of RDMAP, with the numbers that a Terminate has for them (RFC 5040 figure 9).

use crate::memory::{error::TagError, place::AtomicError, table::BindError};
use crate::verbs::WcStatus;
use crate::wire::ddp::{DdpHeader, SegmentInfo, Stag, TaggedOffset, UntaggedHeader};
use crate::wire::rdmap::{Control, RdmapWireError, ReadRequest, TerminateControl};

use super::terminate::TerminateCause;

/// An error that ends the stream. A segment ahead of order that is not admitted is only not placed
/// early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RdmapError {
    /// The message has another version of RDMAP.
    #[error("a message of RDMAP version {0} came; version 1 is spoken here")]
    Version(u8),
    /// The opcode is unknown, does not belong to this queue or buffer, or is a response to no
    /// request.
    #[error("{0} came where it has no place")]
    UnexpectedOpcode(Control),
    /// The peer has more Read and Atomic Requests outstanding than the IRD.
    #[error(
        "the peer has more than {ird} Reads and atomics outstanding, which is the inbound depth agreed on"
    )]
    TooManyReads {
        /// The IRD.
        ird: u16,
        /// The request that is one too many, if it is a Read.
        request: Option<ReadRequest>,
    },
    /// A message that RDMAP reads itself is malformed.
    #[error("a malformed message came: {0}")]
    Malformed(RdmapWireError),
    /// A Send with Invalidate names another STag than its first segment did.
    #[error("a Send that invalidates STag {0} began with another")]
    Invalidates(Stag),
    /// A Send with Immediate brings other data than its first segment did.
    #[error("the Immediate Data of a Send change within it")]
    OtherImmediate,
    /// A Send with Invalidate named an STag that the peer may not invalidate.
    #[error("the peer asked to invalidate an STag: {0}")]
    CannotInvalidate(TagError),
    /// A Read Request asks for memory that the peer may not read.
    #[error("a Read was refused: {error}")]
    ReadSource {
        /// Why.
        error: TagError,
        /// The DDP header of the request.
        header: UntaggedHeader,
        /// What the header does not say about the segment.
        info: SegmentInfo,
        /// The request, less what was sent of its response.
        request: ReadRequest,
    },
    /// An Atomic Request names memory where the peer may not do this.
    #[error("an atomic operation was refused: {error}")]
    AtomicTarget {
        /// Why.
        error: AtomicError,
        /// The DDP header of the request.
        header: UntaggedHeader,
        /// What the header does not say about the segment.
        info: SegmentInfo,
    },
    /// An Atomic Response is not for the oldest outstanding request.
    #[error("an Atomic Response to request {received:#x} came; that to {expected:#x} is next")]
    Identifier {
        /// The identifier in it.
        received: u32,
        /// The identifier of the oldest request.
        expected: u32,
    },
    /// A Read Response writes to an STag that no outstanding Read names as its sink.
    #[error("a Read Response came for STag {0}, which no outstanding Read names")]
    SinkStag(Stag),
    /// A Read Response does not continue its Read, or does not fit its sink.
    #[error("a Read Response of {len} octets at {offset} does not fit the outstanding Read")]
    SinkBounds {
        /// Where it writes.
        offset: TaggedOffset,
        /// Octets.
        len: u32,
    },
    /// A work request of the application failed.
    #[error("request {wr_id:#x} could not be carried out: {status}")]
    Request {
        /// The application's id of the work request.
        wr_id: u64,
        /// How it completes.
        status: WcStatus,
    },
    /// A work request to bind, register or invalidate an STag failed.
    #[error("request {wr_id:#x} could not be carried out: {error}")]
    Binding {
        /// The application's id of the work request.
        wr_id: u64,
        /// Why.
        error: BindError,
    },
    /// The peer had no receive posted for too long, as `rnr_retry` says. It gets no Terminate: what
    /// it has kept of our messages is still good.
    #[error("request {wr_id:#x} could not be carried out: the peer has no receive posted")]
    ReceiverNotReady {
        /// The application's id of the work request.
        wr_id: u64,
    },
    /// The application polls too late: no more completions of receives can be kept for it.
    #[error(
        "{0} completions of received messages wait for the application to poll them; poll in time or ask for a larger completion queue"
    )]
    Overrun(usize),
    /// The rings shared with the application are inconsistent.
    #[error("the application's queues are inconsistent")]
    Queues,
}

impl RdmapError {
    /// Returns layer, error type and error code for the Terminate.
    ///
    /// A Read Response to another buffer than its Read names is a placement error, reported by the
    /// numbers of DDP.
    // rfc: 5040-18 a Terminate has the values of figure 9
    pub const fn control(&self) -> TerminateControl {
        let (layer, error_type, code) = match self {
            Self::Request { .. }
            | Self::Binding { .. }
            | Self::ReceiverNotReady { .. }
            | Self::Overrun(_)
            | Self::Queues => (0, 0, 0x00),
            Self::ReadSource { error, .. } => (0, 1, protection_code(error)),
            // rfc: 5040-60c a Terminate says that the STag cannot be invalidated
            Self::CannotInvalidate(_) => (0, 1, 0x09),
            Self::Version(_) => (0, 2, 0x05),
            // RFC 7306 has no number for it: section 1.1 expects this one or another of its type.
            // rfc: 7306-24, 7306-54b an unknown operation is an error, told by a Terminate
            Self::UnexpectedOpcode(_) | Self::Malformed(RdmapWireError::AtomicOperation(_)) => {
                (0, 2, 0x06)
            }
            // rfc: 7306-8, 7306-14, 7306-61 an atomic at no multiple of 8 is told by 0/2/7
            Self::TooManyReads { .. }
            | Self::AtomicTarget {
                error: AtomicError::Misaligned { .. },
                ..
            } => (0, 2, 0x07),
            Self::AtomicTarget {
                error: AtomicError::Tag(error),
                ..
            } => (0, 1, protection_code(error)),
            // rfc: 5040-18 a Terminate has the values of figure 9
            Self::Malformed(_)
            | Self::Identifier { .. }
            | Self::Invalidates(_)
            | Self::OtherImmediate => (0, 2, 0xff),
            Self::SinkStag(_) => (1, 1, 0x00),
            Self::SinkBounds { .. } => (1, 1, 0x01),
        };
        TerminateControl {
            layer,
            error_type,
            code,
        }
    }

    /// Returns the Terminate that reports it. The caller adds the segment, if the error was found
    /// in one.
    // rfc: 5040-88c an error in a delivered Read Request is told with length, DDP and RDMA header
    pub fn cause(&self) -> TerminateCause {
        let cause = TerminateCause::new(self.control());
        match self {
            Self::ReadSource {
                header,
                info,
                request,
                ..
            } => cause
                .with_header(&DdpHeader::Untagged(*header), *info)
                .with_read_request(*request),
            Self::TooManyReads {
                request: Some(request),
                ..
            } => cause.with_read_request(*request),
            // rfc: 7306-54b an error in an Atomic Request is told with the DDP header alone
            Self::AtomicTarget { header, info, .. } => {
                cause.with_header(&DdpHeader::Untagged(*header), *info)
            }
            Self::CannotInvalidate(_) => {
                cause.with_receive_status(Some(WcStatus::RemoteInvalidRequestError))
            }
            _ => cause,
        }
    }
}

/// Returns the error code within the type Remote Protection Error.
const fn protection_code(error: &TagError) -> u8 {
    match error {
        TagError::InvalidStag(_) => 0x00,
        TagError::BaseOrBounds { .. } => 0x01,
        TagError::AccessViolation { .. } | TagError::Fault { .. } => 0x02,
        TagError::NotAssociated { .. } => 0x03,
        TagError::OffsetWrap { .. } => 0x04,
        TagError::NotInvalidatable(_) | TagError::WindowsBound(_) => 0x09,
    }
}
