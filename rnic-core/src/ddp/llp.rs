//! The layer below, as DDP needs it (RFC 5041 section 3).

/// A stream of a reliable transport that carries DDP segments: MPA on TCP, or SCTP with the adaptation of RFC 5043.
///
/// Whoever implements it drives the [`DdpStream`](super::DdpStream) above, and owes it what section 3 of RFC 5041 asks
/// for, point by point:
///
/// 1. [`mulpdu`](Self::mulpdu) says how long a segment may be; it is asked before each.
/// 2. A segment that [`DdpStream::next_segment`](super::DdpStream::next_segment) has given out is the transport's to
///    carry, whatever becomes of the MULPDU. DDP keeps nothing of it and cuts nothing again.
/// 3. What was given out reaches the peer, which shows in [`transferred`](Self::transferred), or the layer above is
///    told that the stream is lost.
/// 4. Each segment comes up as it went down, in one piece and with its length: a slice.
/// 5. A segment may come up ahead of its turn, by [`DdpStream::place`](super::DdpStream::place), if its turn is told
///    later, by [`DdpStream::deliver`](super::DdpStream::deliver). Those in turn go to
///    [`DdpStream::receive`](super::DdpStream::receive).
/// 6. A digest as strong as CRC32c has been checked before a segment comes up.
/// 7. See 4.
/// 8. Nothing more goes either way on a stream that is cut off.
/// 9. [`peer_closed`](Self::peer_closed) tells of the orderly end, of a stream or of its connection.
/// 10. The transport's connection ends with the last of its streams.
/// 11. No segment comes up again once it and all before it were delivered.
// rfc: 5041-3, 5041-4, 5041-5, 5041-6, 5041-9, 5041-11, 5041-12
pub trait Llp {
    /// Octets that a segment may have at most, header included, as of now.
    fn mulpdu(&self) -> usize;

    /// Up to where the peer has for certain what was given out, in the transport's own measure, which only grows.
    fn transferred(&self) -> u64;

    /// Whether the peer has closed its half in order: all that it sent has come up.
    fn peer_closed(&self) -> bool;

    /// Closes this half in order, behind everything that was given out. The other half goes on.
    fn close(&mut self);
}
