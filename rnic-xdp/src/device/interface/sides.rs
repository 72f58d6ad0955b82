//! The two sides of a socket.

use std::sync::Arc;

use super::rx::RxRing;
use super::shape::PortShape;
use super::socket::Rings;
use super::statistics::Counted;
use super::tx::{TxParts, TxSide};
use super::umem::Umem;
use super::zero_copy::ZeroCopy;
use crate::device::error::OpenError;

/// Makes the two sides of a socket and its UMEM, of these sizes, and what counts for its queue and
/// worker. Frames are received from now on.
pub(super) fn sides(
    umem: Umem,
    rings: Rings,
    shape: &PortShape,
    (queue, worker): (u32, usize),
) -> Result<(RxRing, TxSide, Arc<Counted>), OpenError> {
    let own_handle = rings.fd().try_clone_to_owned();
    let own_handle = own_handle.map_err(|source| OpenError::System {
        doing: "keep a second handle of an AF_XDP socket",
        source,
    })?;
    let counted = Arc::new(Counted::new(queue, worker, own_handle));
    let layout = shape.layout();
    let tx = TxSide::new(TxParts {
        umem: umem.clone(),
        layout,
        socket: rings.tx_socket,
        ring: rings.tx,
        completion: rings.completion,
        zero_copy: rings.zero_copy == ZeroCopy::On,
        has_metadata: rings.has_metadata,
        first: shape.rx_chunks as usize,
        frames: (shape.tx_chunks / layout.chunks) as usize,
    });
    let chunks = (shape.rx_frames, shape.rx_chunks);
    let (rx, fill, socket) = (rings.rx, rings.fill, rings.rx_socket);
    let rx = RxRing::new(umem, layout, chunks, socket, rx, fill, counted.clone());
    Ok((rx, tx, counted))
}
