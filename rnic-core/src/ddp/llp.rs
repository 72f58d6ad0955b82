//! The lower layer protocol (LLP), as DDP needs it (RFC 5041 section 3).

/// A reliable transport that carries DDP segments: MPA on TCP, or SCTP with the adaptation of RFC
/// 5043.
///
/// The implementor drives the [`DdpStream`](super::DdpStream) above it, and meets section 3 of RFC
/// 5041, point by point:
///
/// 1. [`mulpdu`](Self::mulpdu) says how long a segment may be. It is called before each segment.
/// 2. A segment that [`DdpStream::next_segment`](super::DdpStream::next_segment) has returned is
///    carried by the LLP, even if the MULPDU changes. DDP keeps no copy and does not segment it
///    again.
/// 3. A segment reaches the peer, which shows in [`transferred`](Self::transferred), or the ULP
///    learns that the stream is lost.
/// 4. Each segment is received as it was sent, whole and with its length: a slice.
/// 5. A segment ahead of order may be passed to [`DdpStream::place`](super::DdpStream::place), and
///    to [`DdpStream::deliver`](super::DdpStream::deliver) once it is in order. Segments in order
///    are passed to [`DdpStream::receive`](super::DdpStream::receive).
/// 6. A digest as strong as CRC32c was checked before a segment is passed up.
/// 7. See 4.
/// 8. After an error that ends the stream, no data passes in either direction.
/// 9. [`peer_closed`](Self::peer_closed) tells of the orderly end, of a stream or of its
///    connection.
/// 10. The connection ends with the last of its streams.
/// 11. No segment is passed up again once it and all before it were delivered.
// rfc: 5041-3, 5041-4 DDP learns the MULPDU, and does not segment again
// rfc: 5041-5 a segment that was accepted is transferred reliably
// rfc: 5041-6, 5041-9 segments keep their boundaries, and arrive with their length
// rfc: 5041-11, 5041-12 the orderly end of a stream and of a connection is told
pub trait Llp {
    /// Returns the most octets that a segment may have now, header included.
    fn mulpdu(&self) -> usize;

    /// Returns up to where the peer has received what was sent, in a measure of the LLP that only
    /// grows.
    fn transferred(&self) -> u64;

    /// Returns whether the peer has closed its half in order, and all that it sent was passed up.
    fn peer_closed(&self) -> bool;

    /// Closes this half in order, behind everything that was sent. The other half stays open.
    fn close(&mut self);
}
