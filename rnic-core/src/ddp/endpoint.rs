//! Endpoints: where a layer other than RDMAP stands on a stream.

use super::{DdpStreamError, ErrorReport, Teardown, Ulp};
use crate::memory::table::Origin;
use crate::verbs::qp::{PdId, QpNumber, QpState, StreamId};

/// A layer above DDP that an [`Endpoint`] has room for.
///
/// It is called by whoever drives the stream, in the middle of its work: it must not wait.
pub trait EndpointUlp: Ulp<Error = DdpStreamError> + Send {
    /// The stream is there, above a layer that agreed on this version with its peer: the revision of MPA.
    // rfc: 5044-10
    fn handle_start(&mut self, llp_version: u8) {
        let _ = llp_version;
    }

    /// An error ends what is received, and what comes after it is dropped (RFC 5041 section 7.1). Messages can still be
    /// sent, to tell the peer. The stream stays until the application has it torn down or the layer below loses it.
    // rfc: 5041-70b, 5041-70c, 5041-74
    fn handle_error(&mut self, report: &ErrorReport);

    /// The application has the stream end in order: what it asks for from now on is not carried out, but fails. The
    /// stream is closed when this layer is idle. It goes on receiving until the peer closes too; TCP waits for that as
    /// long as it hears something every minute (`fin_wait` of its settings).
    // rfc: 5041-67
    fn handle_finish(&mut self);

    /// The stream is over. Nothing more is asked of this layer.
    // rfc: 5041-70a, 5041-s6
    fn handle_end(&mut self, teardown: Teardown);
}

/// One end of a DDP stream with the layer above it, in the place that RDMAP and its queue pair else have.
pub struct Endpoint {
    /// Its name, out of the same numbers as those of queue pairs.
    pub number: QpNumber,
    /// What memory meant for it alone, and its events, go by.
    pub stream: StreamId,
    /// Its protection domain.
    pub pd: PdId,
    /// Whether it is connected.
    pub state: QpState,
    /// The layer above.
    pub ulp: Box<dyn EndpointUlp>,
}

impl Endpoint {
    /// On whose behalf memory is used: this stream of this protection domain.
    pub fn origin(&self) -> Origin {
        Origin {
            pd: self.pd,
            stream: Some(self.stream),
        }
    }
}
