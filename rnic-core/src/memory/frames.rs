//! Transmit frames: where outgoing segments are built, and kept until they are acknowledged.

use core::ops::Range;

/// Names one transmit frame of a [`TxFrames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameId(pub u32);

/// Frames that are left to segments without data: ACK, RST, SYN, FIN and window probes. They come
/// back as soon as the device has sent them.
pub const CONTROL_FRAMES: usize = 8;

/// Frames that are left to those and to copies of held segments, which come back as soon.
pub const PASSING_FRAMES: usize = 16;

/// Frames that are left to all these and to the first segment that a connection holds, which may be
/// all that it wants.
pub const RESERVED_FRAMES: usize = 32;

/// Returns how many frames a connection leaves to others that holds so many.
pub fn frames_for_others(held: usize) -> usize {
    match held {
        0 => PASSING_FRAMES,
        _ => RESERVED_FRAMES,
    }
}

/// Octets of a piece that is copied at once.
const PIECE: usize = 256;

/// The transmit side of a device: frames to build in, and the queue that sends them.
///
/// A frame is owned by its holder (a connection that may have to send it again, or none) and,
/// between [`transmit`](Self::transmit) and its completion, by the device too. It becomes free when
/// neither owns it.
pub trait TxFrames {
    /// Allocates a free frame. Returns `None` while all are in use.
    fn allocate(&mut self) -> Option<FrameId>;

    /// Returns how many frames are free.
    fn available(&self) -> usize;

    /// Returns how many frames there are.
    fn total(&self) -> usize;

    /// Returns the whole of a frame, to read.
    fn bytes(&self, frame: FrameId) -> &[u8];

    /// Returns the whole of a frame, to build in. The caller must not change a frame that is
    /// [`busy`](Self::busy).
    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8];

    /// Copies octets `range` of a frame to another one, from `at` on.
    fn copy(&mut self, from: FrameId, range: Range<usize>, to: FrameId, at: usize) {
        let mut piece = [0; PIECE];
        for done in (0..range.len()).step_by(PIECE) {
            let piece = &mut piece[..(range.len() - done).min(PIECE)];
            let source = range.start + done;
            piece.copy_from_slice(&self.bytes(from)[source..source + piece.len()]);
            self.bytes_mut(to)[at + done..at + done + piece.len()].copy_from_slice(piece);
        }
    }

    /// Returns whether the device may still read the frame.
    fn busy(&self, frame: FrameId) -> bool;

    /// Returns whether the device has room to queue another frame now.
    fn can_transmit(&self) -> bool;

    /// Queues the first `len` octets of the frame to be sent. Only after
    /// [`can_transmit`](Self::can_transmit) said yes.
    fn transmit(&mut self, frame: FrameId, len: usize);

    /// Returns whether the device completes the checksums of TCP
    /// ([`transmit_partial`](Self::transmit_partial)): then the payload of frames needs no sum.
    fn completes_checksums(&self) -> bool {
        false
    }

    /// Queues a frame as [`transmit`](Self::transmit) does. Its TCP header stands at `tcp_at` and
    /// has a partial checksum: the sum of the pseudo-header. Only where the device
    /// [completes](Self::completes_checksums) it.
    fn transmit_partial(&mut self, frame: FrameId, len: usize, tcp_at: usize) {
        debug_assert!(
            false,
            "the device does not complete the checksum at {tcp_at}"
        );
        self.transmit(frame, len);
    }

    /// Releases a frame. It is free at once, or as soon as the device has finished with it.
    fn release(&mut self, frame: FrameId);
}
