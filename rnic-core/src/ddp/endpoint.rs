//! Endpoints: streams with a ULP other than RDMAP.

use crate::ids::{PdId, QpNumber, StreamId};
use crate::memory::table::Origin;
use crate::verbs::qp::QpState;

use super::{DdpStreamError, ErrorReport, Teardown, Ulp};

/// A ULP on an [`Endpoint`].
///
/// It is called in the middle of the work on a stream: it must not block.
pub trait EndpointUlp: Ulp<Error = DdpStreamError> + Send {
    /// Handles the start of the stream. `llp_version` is the revision of MPA that was negotiated.
    // rfc: 5044-10 the ULP learns the revision that was agreed on
    fn handle_start(&mut self, llp_version: u8) {
        let _ = llp_version;
    }

    /// Handles an error that ends receiving: later segments are dropped (RFC 5041 section 7.1). The
    /// ULP can still send, to tell the peer. The stream stays until the application tears it down
    /// or the LLP loses it.
    // rfc: 5041-70b, 5041-70c errors of the LLP and invalid DDP headers are told as fatal
    // rfc: 5041-74 the error is reported
    fn handle_error(&mut self, report: &ErrorReport);

    /// Handles the application's wish to end the stream in order: requests from now on fail. The
    /// stream is closed when the ULP is idle. It goes on receiving until the peer closes too; TCP
    /// waits for that as long as something arrives every minute (`fin_wait` of its settings).
    // rfc: 5041-67 requests after the ULP has asked for an orderly end fail
    fn handle_finish(&mut self);

    /// Handles the end of the stream. The ULP is not called any more.
    // rfc: 5041-70a, 5041-s6 the ULP learns that the connection is lost
    fn handle_end(&mut self, teardown: Teardown);
}

/// One end of a DDP stream with the ULP above it, in the place of RDMAP and a queue pair.
pub struct Endpoint {
    /// Its number. Endpoints and queue pairs share one number space.
    pub number: QpNumber,
    /// Identifies the stream in events, and in memory that is for this stream alone.
    pub stream: StreamId,
    /// Its protection domain.
    pub pd: PdId,
    /// Whether it is connected.
    pub state: QpState,
    /// The ULP.
    pub ulp: Box<dyn EndpointUlp>,
}

impl Endpoint {
    /// Returns whose memory it may use: that of this stream, in its protection domain.
    pub fn origin(&self) -> Origin {
        (self.pd, self.stream).into()
    }
}
