//! Rejecting requests.

use rnic_core::wire::hello::{Hello, Receipts, Refusal};
use rnic_verbs::ConnectRequest;
use tracing::debug;

/// Rejects a request, and says why.
pub(super) fn reject(request: ConnectRequest, hello: &Hello, refusal: Refusal) {
    debug!(
        "rejects {} for {:#x}: {refusal:?}",
        request.peer(),
        hello.peer
    );
    let answer = Hello {
        kind: hello.kind,
        own: hello.peer,
        peer: hello.own,
        rq_psn: 0,
        sq_psn: None,
        gid: [0; 16],
        receipts: Receipts::Unknown,
    };
    // Fails only where there is no engine any more.
    let _ = request.reject(&answer.octets(Some(refusal)));
}
