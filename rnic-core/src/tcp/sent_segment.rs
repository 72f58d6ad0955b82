//! Segments that were sent or wait to be, and the FIN: what is known of each.

use crate::memory::frames::FrameId;
use crate::time::Instant;

/// A segment, built in its frame and kept there until it is acknowledged, or spilled.
#[derive(Clone, Debug)]
pub(super) struct SentSegment {
    pub(super) frame: FrameId,
    /// Where the payload begins in the frame.
    pub(super) payload_at: u16,
    /// Octets of payload.
    pub(super) len: u16,
    /// Ones-complement sum of the payload.
    pub(super) payload_sum: u16,
    /// PSH: the sender has nothing to add for now.
    pub(super) push: bool,
    /// Stream offset of the first octet.
    pub(super) start: u64,
    /// Octets sent at least once: all of them, or the part that the window had room for.
    pub(super) sent: u16,
    pub(super) sent_at: Instant,
    pub(super) retransmitted: bool,
    pub(super) fate: Fate,
    pub(super) part: FramePart,
}

/// Where the octets of a segment are. Pieces of one that was cut share its frame; each but the
/// first goes in a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FramePart {
    /// Alone in its frame.
    Whole,
    /// In front of others in its frame.
    Front,
    /// Between others in its frame.
    Middle,
    /// Behind others in its frame, which is free when this is acknowledged: they were before.
    Back,
    /// In no frame.
    Spilled,
}

impl FramePart {
    /// Returns whether the frame is sent as it is.
    pub(super) fn begins_frame(self) -> bool {
        matches!(self, Self::Whole | Self::Front)
    }

    /// Returns whether the frame is free once this segment is acknowledged.
    #[inline]
    pub(super) fn ends_frame(self) -> bool {
        matches!(self, Self::Whole | Self::Back)
    }

    /// Returns the places of both pieces of a segment.
    pub(super) fn cut(self) -> [Self; 2] {
        match self {
            Self::Whole => [Self::Front, Self::Back],
            Self::Front => [Self::Front, Self::Middle],
            Self::Middle => [Self::Middle, Self::Middle],
            Self::Back => [Self::Middle, Self::Back],
            Self::Spilled => [Self::Spilled, Self::Spilled],
        }
    }
}

/// What is known of a segment that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// In flight, or not sent yet.
    InFlight,
    /// Selectively acknowledged.
    Sacked,
    /// Marked as lost, and not retransmitted yet.
    Lost,
}

impl SentSegment {
    /// Returns the offset past the last octet.
    pub(super) fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }
}

/// Our FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fin {
    /// The application has not closed.
    No,
    /// To be sent behind the last segment.
    Queued,
    /// Sent.
    InFlight,
    /// Thought lost, and not sent again yet.
    Lost,
    /// Acknowledged.
    Acked,
}
