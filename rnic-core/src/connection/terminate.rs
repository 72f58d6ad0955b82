//! Which Terminate reports which error. This is the one place where the errors of all layers meet.

use crate::ddp::{DdpError, DdpStreamError, ErrorReport, Placed, Segmenter};
use crate::memory::{error::TagError, table::Access};
use crate::mpa::{MpaError, frame, marker};
use crate::rdmap::{Outbound, PayloadSource, RdmapError, ReceivedTerminate, TerminateCause};
use crate::wire::ddp::{DdpWireError, QueueNumber, Stag, header_octets};
use crate::wire::mpa::LENGTH_LEN;
use crate::wire::rdmap::TerminateControl;

use super::EndReason;

/// What a side says that gives up during the start-up: RFC 6581's local catastrophic error.
const GIVEN_UP: TerminateControl = TerminateControl {
    layer: 2,
    error_type: 0,
    code: 0x05,
};

/// Returns why a stream is over whose peer sent a Terminate. With RC a peer that gives up before the
/// connection is there has left: to InfiniBand there is no start-up that could fail.
pub(super) fn reason_of(terminate: &ReceivedTerminate, rc: bool) -> EndReason {
    match rc && terminate.control == GIVEN_UP {
        true => EndReason::Peer,
        false => EndReason::TerminateReceived {
            control: terminate.control,
            quoted: terminate.quoted(),
        },
    }
}

/// An error that ends a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LayerError {
    #[error(transparent)]
    Mpa(#[from] MpaError),
    #[error(transparent)]
    Segment(#[from] DdpWireError),
    #[error(transparent)]
    Ddp(#[from] DdpError),
    #[error(transparent)]
    Rdmap(#[from] RdmapError),
    /// Of a layer above DDP that is not RDMAP.
    #[error(transparent)]
    Ulp(DdpStreamError),
}

impl From<DdpStreamError> for LayerError {
    fn from(fault: DdpStreamError) -> Self {
        match fault {
            DdpStreamError::Segment(error) => Self::Segment(error),
            DdpStreamError::Ddp(error) => Self::Ddp(error),
            other => Self::Ulp(other),
        }
    }
}

impl From<&LayerError> for DdpStreamError {
    fn from(error: &LayerError) -> Self {
        match error {
            LayerError::Segment(error) => Self::Segment(*error),
            LayerError::Ddp(error) => Self::Ddp(*error),
            LayerError::Ulp(fault) => fault.clone(),
            LayerError::Mpa(error) => Self::Llp(error.to_string()),
            LayerError::Rdmap(error) => Self::Llp(error.to_string()),
        }
    }
}

/// An error, and the segment that showed it. In a box, because it is large and rare.
#[derive(Clone, Debug)]
pub(super) struct StreamError(Box<(LayerError, TerminateCause)>);

impl<E: Into<LayerError>> From<E> for StreamError {
    fn from(error: E) -> Self {
        let error = error.into();
        let cause = cause(&error);
        Self(Box::new((error, cause)))
    }
}

impl StreamError {
    /// Adds the segment that showed the error.
    // rfc: 5041-s11 an error report has the header, the kind of error and the segment's length
    pub(super) fn about(mut self, ulpdu: &[u8]) -> Self {
        if let Some(header) = header_octets(ulpdu) {
            self.0.1 = self.0.1.with_segment(header, ulpdu.len());
        }
        self
    }

    /// Adds the segment that showed the error, where that was placed before.
    pub(super) fn about_placed(mut self, placed: &Placed) -> Self {
        self.0.1 = self.0.1.with_header(placed.header(), placed.info());
        self
    }

    pub(super) fn cause(&self) -> TerminateCause {
        self.0.1
    }

    /// Returns the error as a layer above DDP other than RDMAP gets it.
    // rfc: 5041-s11 an error report has the header, the kind of error and the segment's length
    pub(super) fn report(&self) -> ErrorReport {
        let segment = self.0.1.segment();
        ErrorReport {
            fault: DdpStreamError::from(&self.0.0),
            header: segment.map(|(header, _)| header.to_vec()),
            segment_len: segment.map(|(_, len)| len.into()),
        }
    }

    /// Returns the error as the application gets it.
    pub(super) fn end_reason(&self) -> EndReason {
        EndReason::TerminateSent {
            control: self.cause().control(),
            error: self.to_string(),
        }
    }

    /// Returns whether a completion queue overran because the application did not poll it.
    pub(super) fn is_overrun(&self) -> bool {
        matches!(self.0.0, LayerError::Rdmap(RdmapError::Overrun(_)))
    }

    /// Returns the STag of the sink of a Read whose memory the program has taken away, if that is
    /// the error.
    pub(super) fn faulted_sink(&self) -> Option<Stag> {
        match self.0.0 {
            // Peers write with a right of their own, and Read Responses with the local one.
            LayerError::Ddp(DdpError::Tagged(TagError::Fault { stag, need }))
                if need == Access::LOCAL_WRITE =>
            {
                Some(stag)
            }
            _ => None,
        }
    }

    /// Returns whether a message found no posted receive.
    pub(super) fn lacks_receive(&self) -> bool {
        let queue = QueueNumber::SEND;
        matches!(self.0.0, LayerError::Ddp(DdpError::NoBuffer { queue: other, .. }) if other == queue)
    }

    /// Returns whether the peer had no receive posted for too long.
    pub(super) fn is_receiver_not_ready(&self) -> bool {
        let LayerError::Rdmap(error) = &self.0.0 else {
            return false;
        };
        matches!(error, RdmapError::ReceiverNotReady { .. })
    }

    pub(super) fn is_mpa(&self) -> bool {
        matches!(self.0.0, LayerError::Mpa(_))
    }

    pub(super) fn is_crc(&self) -> bool {
        matches!(self.0.0, LayerError::Mpa(MpaError::Crc { .. }))
    }
}

impl std::fmt::Display for StreamError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.0.fmt(f)
    }
}

/// Returns the segment of a Terminate message.
pub(super) fn segment(outbound: &Outbound, segmenter: Segmenter) -> Vec<u8> {
    let mut octets = Vec::new();
    put_segment(outbound, segmenter, &mut octets);
    octets
}

/// Appends the segment of a Terminate message. Returns its length.
fn put_segment(outbound: &Outbound, mut segmenter: Segmenter, to: &mut Vec<u8>) -> usize {
    let (Some(cut), PayloadSource::Octets(octets)) =
        (segmenter.next(frame::MAX_MULPDU), outbound.source)
    else {
        return 0;
    };
    let (at, header_len) = (to.len(), cut.header.len());
    to.resize(at + header_len, 0);
    cut.header.emit(&mut to[at..]);
    to.extend_from_slice(&octets[..cut.len]);
    header_len + cut.len
}

/// Returns the whole FPDU of a Terminate message. `markers`: its position in the stream, if it gets
/// markers.
pub(super) fn fpdu(
    outbound: &Outbound,
    segmenter: Segmenter,
    crc: bool,
    markers: Option<u64>,
) -> Vec<u8> {
    let mut fpdu = vec![0; LENGTH_LEN];
    let ulpdu_len = put_segment(outbound, segmenter, &mut fpdu);
    if ulpdu_len == 0 {
        return Vec::new();
    }
    fpdu.resize(marker::max_fpdu_len(ulpdu_len), 0);
    let len = match markers {
        None => frame::seal(&mut fpdu, ulpdu_len, crc),
        Some(position) => marker::seal(&mut fpdu, ulpdu_len, position, crc),
    };
    fpdu.truncate(len);
    fpdu
}

/// Returns layer, error type and error code: those of RFC 5040 figure 9, with DDP's numbers of RFC
/// 5041 section 7.2 and MPA's of RFC 5044 section 8.
// rfc: 5044-85b, 5044-85c, 5044-s17 a wrong CRC and a wrong marker have codes of their own
fn cause(error: &LayerError) -> TerminateCause {
    const RDMA: u8 = 0;
    const DDP: u8 = 1;
    const LLP: u8 = 2;
    let (layer, error_type, code) = match error {
        LayerError::Rdmap(error) => return error.cause(),
        LayerError::Mpa(MpaError::Crc { .. }) => (LLP, 0, 0x02),
        LayerError::Mpa(MpaError::Boundary | MpaError::Marker { .. }) => (LLP, 0, 0x03),
        LayerError::Mpa(MpaError::GivenUp) => return TerminateCause::new(GIVEN_UP),
        // rfc: 6581-16, 6581-19 too small an IRD of the initiator: Terminate 2/0/6
        LayerError::Mpa(MpaError::InsufficientIrd { .. }) => (LLP, 0, 0x06),
        // rfc: 6581-33 no RTR message in common: Terminate 2/0/7
        LayerError::Mpa(MpaError::NoMatchingRtr) => (LLP, 0, 0x07),
        // Start-up errors, for which no Terminate is sent.
        LayerError::Mpa(_) => (LLP, 0, 0x04),
        // DDP has no number for a segment without a whole header, and MPA found no error in it.
        LayerError::Segment(DdpWireError::TooShort(_)) => (RDMA, 2, 0xff),
        LayerError::Segment(DdpWireError::Version { tagged: true, .. }) => (DDP, 1, 0x04),
        LayerError::Segment(DdpWireError::Version { tagged: false, .. }) => (DDP, 2, 0x06),
        // Only for the error report: a layer other than RDMAP sends no Terminate.
        LayerError::Ulp(fault) => {
            let (error_type, code) = fault.number();
            (DDP, error_type, code)
        }
        LayerError::Ddp(error) => {
            let (error_type, code) = error.number();
            let control = TerminateControl {
                layer: DDP,
                error_type,
                code,
            };
            return TerminateCause::new(control).with_receive_status(error.receive_status());
        }
    };
    TerminateCause::new(TerminateControl {
        layer,
        error_type,
        code,
    })
}
