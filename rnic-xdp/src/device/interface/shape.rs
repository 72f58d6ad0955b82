//! The sizes of a UMEM and of the rings of its socket.

use super::circulation;
use super::config::InterfaceConfig;
use super::umem::{FrameLayout, UmemRings};

/// The kernel publishes a batch of received frames before it releases their entries in the fill
/// ring. With one entry for each frame there would be no room to give a frame back until then.
pub(super) const FILL_ENTRIES_PER_FRAME: u32 = 2;

/// The sizes of a UMEM and of the rings of its socket. The first chunks receive, those behind them
/// send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortShape {
    /// Octets of a chunk of UMEM: 2048 or 4096.
    pub chunk: u32,
    /// Chunks of the longest frame.
    pub chunks: u32,
    /// Chunks that circulate at first for receiving.
    pub rx_frames: u32,
    /// Chunks for receiving.
    pub rx_chunks: u32,
    /// Chunks for sending.
    pub tx_chunks: u32,
    /// Entries of the fill ring.
    pub fill_ring: u32,
    /// Entries of the completion ring.
    pub completion_ring: u32,
    /// Entries of the receive ring.
    pub rx_ring: u32,
    /// Entries of the transmit ring.
    pub tx_ring: u32,
}

impl PortShape {
    /// Returns the sizes that a configuration asks for, for a socket that sends, or one that only
    /// receives.
    pub(super) fn new(config: &InterfaceConfig, layout: FrameLayout, sends: bool) -> Self {
        // The octets do not depend on the MTU: a longer frame takes several chunks.
        let tx_chunks = if sends { config.tx_frames } else { 0 };
        let rx_chunks = config.rx_frames * circulation::MOST;
        Self {
            chunk: layout.chunk,
            chunks: layout.chunks,
            rx_frames: config.rx_frames,
            rx_chunks,
            tx_chunks,
            fill_ring: rx_chunks * FILL_ENTRIES_PER_FRAME,
            // It also holds frames in flight in a device that copies.
            completion_ring: if sends {
                config.tx_frames
            } else {
                config.tx_ring
            },
            // It is never full, because it has room for all chunks: ixgbe would hand out a chunk
            // twice.
            rx_ring: rx_chunks,
            tx_ring: config.tx_ring,
        }
    }

    /// Returns the sizes of a port of a NIC with this MTU.
    pub fn for_mtu(config: &InterfaceConfig, mtu: u32) -> Self {
        let layout = match config.multi_buffer {
            true => FrameLayout::for_mtu(mtu),
            false => FrameLayout::in_one_chunk(mtu),
        };
        Self::new(config, layout, true)
    }

    /// Returns the octets of the UMEM: whole hugepages.
    pub fn octets(&self) -> usize {
        let chunks = self.rx_chunks as usize + self.tx_chunks as usize;
        (chunks * self.chunk as usize).next_multiple_of(HUGE_PAGE)
    }

    /// Returns the largest IP datagram that fits a frame.
    pub fn max_mtu(&self) -> u32 {
        self.layout().max_mtu()
    }

    pub(super) fn layout(&self) -> FrameLayout {
        FrameLayout {
            chunk: self.chunk,
            chunks: self.chunks,
        }
    }

    pub(super) fn rings(&self) -> UmemRings {
        UmemRings {
            fill: self.fill_ring,
            completion: self.completion_ring,
        }
    }

    /// Returns what is wrong with sizes that another process states, if anything is.
    pub(super) fn fault(&self) -> Option<&'static str> {
        let rings = [
            self.fill_ring,
            self.completion_ring,
            self.rx_ring,
            self.tx_ring,
        ];
        let most = 1 << 24;
        if !FrameLayout::CHUNKS.contains(&self.chunk) {
            Some("a chunk has 2048 or 4096 octets")
        } else if self.chunks == 0 || self.chunks > FrameLayout::MAX_CHUNKS {
            Some("a frame has 1 to 17 chunks")
        } else if rings
            .iter()
            .any(|ring| !ring.is_power_of_two() || *ring > most)
        {
            Some("the entries of a ring are a power of two")
        } else if self.rx_chunks > self.rx_ring
            || self.rx_frames > self.rx_chunks
            || self.rx_frames == 0
            || self.rx_chunks.saturating_mul(FILL_ENTRIES_PER_FRAME) > self.fill_ring
        {
            Some("the rings have room for all chunks that receive")
        } else if self.tx_chunks < self.chunks || self.tx_chunks > most {
            Some("there is a frame to send in")
        } else {
            None
        }
    }
}

/// Octets of a hugepage.
const HUGE_PAGE: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_our_own_have_no_fault_and_others_do() {
        let good = PortShape::for_mtu(&InterfaceConfig::new("east"), 9000);
        assert_eq!((good.chunk, good.chunks), (4096, 3));
        assert_eq!(good.fault(), None);
        assert_eq!(good.octets() % HUGE_PAGE, 0);
        assert!(good.octets() >= (good.rx_chunks + good.tx_chunks) as usize * 4096);
        let bad: [fn(&mut PortShape); 9] = [
            |shape| shape.chunk = 8192,
            |shape| shape.chunks = 0,
            |shape| shape.chunks = 18,
            |shape| shape.tx_ring = 100,
            |shape| shape.rx_ring = 0,
            |shape| shape.rx_chunks *= 2,
            |shape| shape.rx_frames = 0,
            |shape| shape.tx_chunks = 2,
            |shape| shape.tx_chunks = u32::MAX,
        ];
        for (number, spoil) in bad.into_iter().enumerate() {
            let mut shape = good;
            spoil(&mut shape);
            assert_ne!(shape.fault(), None, "{number}");
        }
    }
}
