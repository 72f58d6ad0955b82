//! The Terminate message (RFC 5040 sections 4.8 and 5.4): what is reported, and what a peer reported.

use super::message::{Outbound, Source, Token, untagged};
use crate::verbs::WcStatus;
use crate::verbs::wr::MAX_INLINE;
use crate::wire::ddp::{
    Came, DdpHeader, DdpSegment, MessageOffset, Msn, QueueNumber, UNTAGGED_LEN, UntaggedHeader,
};
use crate::wire::rdmap::{
    Control, Opcode, RdmapWireError, ReadRequest, Terminate, TerminateControl, VERSION,
};

const _: () = assert!(Terminate::MAX_LEN <= MAX_INLINE);

/// An error to be reported to the peer, with what is known of the segment that showed it.
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
    /// An error that no segment showed.
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

    /// The segment that showed it: its header as it came, and the octets of the whole segment.
    pub fn with_segment(mut self, header: &[u8], segment_len: usize) -> Self {
        self.header_len = header.len().min(UNTAGGED_LEN);
        self.header[..self.header_len].copy_from_slice(&header[..self.header_len]);
        self.segment_len = u16::try_from(segment_len).unwrap_or(u16::MAX);
        self
    }

    /// The same, where only the parsed header is left of the segment, and what that does not tell.
    // rfc: 5041-s11
    pub fn with_header(self, header: &DdpHeader, came: Came) -> Self {
        let mut octets = [0; UNTAGGED_LEN];
        let len = header.emit(&mut octets);
        octets[0] = came.control;
        self.with_segment(&octets[..len], came.len.into())
    }

    /// The Read Request that it is about, brought up to date with what was sent of the response.
    pub const fn with_read_request(mut self, request: ReadRequest) -> Self {
        self.read_request = Some(request);
        self
    }

    /// How the receive whose turn it is completes, if the error is about that receive.
    pub const fn with_receive_status(mut self, status: Option<WcStatus>) -> Self {
        self.receive_status = status;
        self
    }

    /// What is reported.
    pub const fn control(&self) -> TerminateControl {
        self.control
    }

    /// The segment that showed it: its DDP header as it came, and the octets of the whole segment.
    pub fn segment(&self) -> Option<(&[u8], u16)> {
        let known = self.header_len > 0;
        known.then_some((&self.header[..self.header_len], self.segment_len))
    }

    pub(super) const fn receive_status(&self) -> Option<WcStatus> {
        self.receive_status
    }

    /// Which headers go along: RFC 5040 figure 10. A local catastrophic error and an error of the LLP carry none,
    /// and the RDMA header goes with a Read Request that met a protection error.
    // rfc: 5040-20, 5040-21, 5040-22, 5040-23, 5040-s1, 5040-s2, 5040-s3
    fn terminate<'a>(&'a self, rdma_header: &'a mut [u8; ReadRequest::LEN]) -> Terminate<'a> {
        let TerminateControl {
            layer, error_type, ..
        } = self.control;
        let with_segment = layer < 2 && error_type != 0 && self.header_len > 0;
        let with_request = with_segment && (layer, error_type) == (0, 1);
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

    /// The message to be sent.
    // rfc: 5040-61, 5040-62, 5040-63, 5040-12
    pub fn message(&self) -> Outbound {
        let mut octets = [0; MAX_INLINE];
        let length = self.terminate(&mut [0; ReadRequest::LEN]).emit(&mut octets);
        Outbound {
            header: untagged(Opcode::Terminate, QueueNumber::TERMINATE, 0),
            length: length as u32,
            source: Source::Octets(octets),
            token: Token::Terminate,
        }
    }
}

/// What a peer's Terminate said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedTerminate {
    /// Which error it found (in the bit order that the peer used, where only one makes sense).
    pub control: TerminateControl,
    /// The octets of the segment that showed it.
    pub segment_len: Option<u16>,
    /// The DDP header of that segment.
    pub header: Option<DdpHeader>,
    /// The Read Request that it is about.
    pub read_request: Option<ReadRequest>,
}

impl ReceivedTerminate {
    pub(super) fn parse(octets: &[u8]) -> Result<Self, RdmapWireError> {
        let (terminate, _) = Terminate::parse_as_meant(octets)?;
        let header = |octets| DdpSegment::parse(octets).ok().map(|segment| segment.header);
        let request = |octets| ReadRequest::parse(octets).ok();
        Ok(Self {
            control: terminate.control,
            segment_len: terminate.ddp_segment_length,
            header: terminate.ddp_header.and_then(header),
            read_request: terminate.rdma_header.and_then(request),
        })
    }

    /// Reads a Terminate message that comes before there is a stream: a whole one, in one segment.
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

    /// How the request completes that the peer found fault with.
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
        // rfc: 5040-89
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
