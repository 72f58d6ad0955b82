//! Frames that are dropped: each has a reason, and is counted here.

use crate::counters::DropReason;
use crate::esp::ProtectionCounts;
use crate::wire::error::PacketError;

use super::Engine;

impl Engine {
    /// Counts what was opened, sealed and dropped below the engine.
    pub(super) fn count_protection(&mut self, counts: &ProtectionCounts) {
        let engine = &mut self.counters.engine;
        engine.frames_opened += counts.opened;
        engine.frames_sealed += counts.sealed;
        engine.frames_unsealed += counts.unsealed;
        self.counters.drops.add(&counts.drops);
    }

    /// Counts a frame, if its connection dropped it.
    #[inline]
    pub(super) fn count_dropped(&mut self, handled: Result<(), DropReason>) {
        if let Err(reason) = handled {
            self.drop_frame(reason);
        }
    }

    /// Counts a frame that is dropped. Every dropped frame comes here once.
    #[cold]
    pub(super) fn drop_frame(&mut self, reason: DropReason) {
        self.counters.drops.count(reason);
    }
}

/// Returns why a frame is dropped that holds no TCP segment for us.
#[cold]
pub(super) fn unreadable(error: &PacketError) -> DropReason {
    match error {
        PacketError::Truncated(_) => DropReason::Truncated,
        PacketError::Malformed(_) => DropReason::Malformed,
        PacketError::NotIp(_) => DropReason::NotIp,
        PacketError::NotTcp(_) => DropReason::NotTcp,
        PacketError::Fragment => DropReason::Fragment,
        PacketError::NotUnicast(_) => DropReason::NotUnicast,
        PacketError::Checksum("TCP") => DropReason::TcpChecksum,
        PacketError::Checksum(_) => DropReason::IpChecksum,
    }
}
