//! The Terminate message (RFC 5040 sections 4.8 and 5.4), sent and received.

use super::message::{Outbound, PayloadSource, Token, untagged};
use crate::verbs::WcStatus;
use crate::verbs::wr::SHORT_INLINE;
use crate::wire::ddp::{
    DdpHeader, DdpSegment, MessageOffset, Msn, QueueNumber, SegmentInfo, UNTAGGED_LEN,
    UntaggedHeader,
};
use crate::wire::rdmap::{
    Control, Opcode, RdmapWireError, ReadRequest, Terminate, TerminateControl, VERSION,
};

const _: () = assert!(Terminate::MAX_LEN <= SHORT_INLINE);

/// An error to be reported to the peer, with what is known of the segment in which it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminateCause {
    control: TerminateControl,
    header: [u8; UNTAGGED_LEN],
    header_len: usize,
    segment_len: u16,
    read_request: Option<ReadRequest>,
    receive_status: Option<WcStatus>,
}

impl TerminateCause {
    /// Makes the cause for an error that was not found in a segment.
    pub const fn new(control: TerminateControl) -> Self {
        Self {
            control,
            header: [0; UNTAGGED_LEN],
            header_len: 0,
            segment_len: 0,
            read_request: None,
            receive_status: None,
        }
    }

    /// Adds the segment in which it was found: its header as received, and its length.
    pub fn with_segment(mut self, header: &[u8], segment_len: usize) -> Self {
        self.header_len = header.len().min(UNTAGGED_LEN);
        self.header[..self.header_len].copy_from_slice(&header[..self.header_len]);
        self.segment_len = u16::try_from(segment_len).unwrap_or(u16::MAX);
        self
    }

    /// Adds the segment in which it was found, of which only the parsed header is left.
    // rfc: 5041-s11 a report has the header, the error and the length of the segment
    pub fn with_header(self, header: &DdpHeader, info: SegmentInfo) -> Self {
        let mut octets = [0; UNTAGGED_LEN];
        let len = header.emit(&mut octets);
        octets[0] = info.control;
        self.with_segment(&octets[..len], info.len.into())
    }

    /// Adds the Read Request that it is about, less what was sent of its response.
    pub const fn with_read_request(mut self, request: ReadRequest) -> Self {
        self.read_request = Some(request);
        self
    }

    /// Sets how the next receive completes, if the error is about it.
    pub const fn with_receive_status(mut self, status: Option<WcStatus>) -> Self {
        self.receive_status = status;
        self
    }

    /// Returns layer, error type and error code.
    pub const fn control(&self) -> TerminateControl {
        self.control
    }

    /// Returns the segment in which it was found: its DDP header as received, and its length.
    pub fn segment(&self) -> Option<(&[u8], u16)> {
        let known = self.header_len > 0;
        known.then_some((&self.header[..self.header_len], self.segment_len))
    }

    pub(super) const fn receive_status(&self) -> Option<WcStatus> {
        self.receive_status
    }

    /// Makes the Terminate, with the headers of RFC 5040 figure 10: none for a local catastrophic
    /// error or an error of the LLP. The RDMA header goes with each error that RDMAP finds in a
    /// Read Request, as section 7.1 has it; the figure has it only for protection errors.
    // rfc: 5040-20, 5040-s1 M: the DDP segment length is valid
    // rfc: 5040-21, 5040-22, 5040-s2 D: DDP segment length and DDP header are there
    // rfc: 5040-23, 5040-s3 R: the RDMA header is there
    fn terminate<'a>(&'a self, rdma_header: &'a mut [u8; ReadRequest::LEN]) -> Terminate<'a> {
        let TerminateControl {
            layer, error_type, ..
        } = self.control;
        let with_segment = layer < 2 && error_type != 0 && self.header_len > 0;
        // rfc: 5040-88c with each error in a Read Request
        let with_request = with_segment && layer == 0;
        let request = self.read_request.filter(|_| with_request).map(|request| {
            request.emit(rdma_header);
            &rdma_header[..]
        });
        Terminate {
            control: self.control,
            ddp_segment_length: with_segment.then_some(self.segment_len),
            ddp_header: with_segment.then_some(&self.header[..self.header_len]),
            rdma_header: request,
        }
    }

    /// Makes the message to be sent.
    // rfc: 5040-61, 5040-62, 5040-63 a Terminate is an untagged message to queue 2
    // rfc: 5040-12 its Invalidate STag field is zero
    pub fn message(&self) -> Outbound {
        let mut octets = [0; SHORT_INLINE];
        let length = self.terminate(&mut [0; ReadRequest::LEN]).emit(&mut octets);
        Outbound {
            header: untagged(Opcode::Terminate, QueueNumber::TERMINATE, 0),
            length: length as u32,
            source: PayloadSource::Octets(octets),
            token: Token::Terminate,
        }
    }
}

/// A segment of ours in which the peer has found an error, as its Terminate quotes it (RFC 5040
/// section 4.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotedSegment {
    /// Its length in octets, DDP header included.
    pub len: Option<u16>,
    /// Its DDP header.
    pub header: Option<DdpHeader>,
    /// The Read Request in it, less what the peer has sent of the response.
    pub read_request: Option<ReadRequest>,
}

/// A Terminate of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedTerminate {
    /// Layer, error type and error code (in the bit order that the peer used, where only one makes
    /// sense).
    pub control: TerminateControl,
    /// The segment in which the peer found the error.
    pub segment: QuotedSegment,
}

impl ReceivedTerminate {
    pub(super) fn parse(octets: &[u8]) -> Result<Self, RdmapWireError> {
        let (terminate, _) = Terminate::parse_as_meant(octets)?;
        let header = |octets| DdpSegment::parse(octets).ok().map(|segment| segment.header);
        let request = |octets| ReadRequest::parse(octets).ok();
        Ok(Self {
            control: terminate.control,
            segment: QuotedSegment {
                len: terminate.ddp_segment_length,
                header: terminate.ddp_header.and_then(header),
                read_request: terminate.rdma_header.and_then(request),
            },
        })
    }

    /// Returns the segment that it is about, if it quotes one.
    // rfc: 5040-67 the application is told all that the Terminate says
    pub fn quoted(&self) -> Option<Box<QuotedSegment>> {
        let says_something = self.segment != QuotedSegment::default();
        says_something.then(|| Box::new(self.segment))
    }

    /// Reads a Terminate that arrives in place of an MPA Reply: a whole message in one segment.
    pub fn before_stream(ulpdu: &[u8]) -> Option<Self> {
        let segment = DdpSegment::parse(ulpdu).ok()?;
        let DdpHeader::Untagged(header) = segment.header else {
            return None;
        };
        let expected = UntaggedHeader {
            last: true,
            msn: Msn::FIRST,
            offset: MessageOffset(0),
            ..header
        };
        let control = Control::from(header.ulp);
        let is_terminate = header == expected
            && header.queue == QueueNumber::TERMINATE
            && (control.version, control.opcode) == (VERSION, Opcode::Terminate as u8);
        let terminate = is_terminate.then(|| Self::parse(segment.payload));
        terminate?.ok()
    }

    /// Returns how the request completes that the Terminate names.
    pub(super) const fn status(&self) -> WcStatus {
        match (self.control.layer, self.control.error_type) {
            (0 | 1, 1) => WcStatus::RemoteAccessError,
            (1, 2) => WcStatus::RemoteInvalidRequestError,
            _ => WcStatus::RemoteOperationError,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Ending, Rdmap};
    use super::*;

    #[test]
    fn the_first_error_counts() {
        // rfc: 5040-89 of several errors the first is reported
        let cause = |code| {
            TerminateCause::new(TerminateControl {
                layer: 0,
                error_type: 2,
                code,
            })
        };
        let mut rdmap = Rdmap::new(0, 0, 1);
        rdmap.terminate(cause(6));
        rdmap.terminate(cause(7));
        assert!(matches!(&rdmap.ending, Ending::Terminating(told) if **told == cause(6)));
    }
}
