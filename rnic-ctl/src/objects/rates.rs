//! The counters of ports and devices, and their rates.

use std::time::Duration;

use rnic_manager::PoliceVerdict;
use rnic_manager::states::{KernelLink, PortState};

/// Counters, or their rates: what is counted in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) tx_frames: u64,
    pub(super) tx_octets: u64,
    pub(super) rx_frames: u64,
    pub(super) rx_octets: u64,
    /// Of a client: sent by it, and not let out.
    pub(super) dropped_frames: u64,
}

impl Sums {
    /// Returns the counters of a port, as its client sees them.
    pub(super) fn of(port: &PortState) -> Self {
        let mut sums = Self::default();
        let goes_out = [PoliceVerdict::ToNic, PoliceVerdict::ToPort].map(PoliceVerdict::name);
        for sent in &port.sent {
            if goes_out.contains(&sent.verdict.as_str()) {
                sums.tx_frames += sent.frames;
                sums.tx_octets += sent.octets;
            } else {
                sums.dropped_frames += sent.frames;
            }
        }
        // What the host end sends is what the client receives.
        if let Some(host_end) = &port.host_end {
            sums.rx_frames = host_end.tx_packets;
            sums.rx_octets = host_end.tx_octets;
        }
        sums
    }

    /// Returns the counters of a network device, as the kernel has them.
    pub(super) fn of_device(link: &KernelLink) -> Self {
        Self {
            tx_frames: link.tx_packets,
            tx_octets: link.tx_octets,
            rx_frames: link.rx_packets,
            rx_octets: link.rx_octets,
            dropped_frames: link.rx_dropped.saturating_add(link.tx_dropped),
        }
    }

    /// Returns these and others together.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            tx_frames: self.tx_frames.saturating_add(other.tx_frames),
            tx_octets: self.tx_octets.saturating_add(other.tx_octets),
            rx_frames: self.rx_frames.saturating_add(other.rx_frames),
            rx_octets: self.rx_octets.saturating_add(other.rx_octets),
            dropped_frames: self.dropped_frames.saturating_add(other.dropped_frames),
        }
    }

    /// Returns what was counted in each second of a time.
    pub(super) fn rates(self, before: Self, time: Duration) -> Self {
        let rate = |now: u64, before: u64| {
            let counted = u128::from(now.saturating_sub(before));
            let nanos = time.as_nanos().max(1);
            u64::try_from(counted * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
        };
        Self {
            tx_frames: rate(self.tx_frames, before.tx_frames),
            tx_octets: rate(self.tx_octets, before.tx_octets),
            rx_frames: rate(self.rx_frames, before.rx_frames),
            rx_octets: rate(self.rx_octets, before.rx_octets),
            dropped_frames: rate(self.dropped_frames, before.dropped_frames),
        }
    }
}

/// Returns what tells a port from a later one of the same number.
pub(super) fn key(port: &PortState) -> (u32, u64, i32) {
    (port.port, port.since, port.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_for_a_second() {
        let sums = |value| Sums {
            tx_frames: value,
            tx_octets: 2 * value,
            rx_frames: 3 * value,
            rx_octets: 4 * value,
            dropped_frames: 5 * value,
        };
        let half = Duration::from_millis(500);
        assert_eq!(sums(30).rates(sums(10), half), sums(40));
        assert_eq!(sums(10).rates(sums(30), half), sums(0));
        let most = sums(u64::MAX / 5).rates(sums(0), Duration::ZERO);
        assert_eq!(
            most,
            Sums {
                tx_frames: u64::MAX,
                tx_octets: u64::MAX,
                rx_frames: u64::MAX,
                rx_octets: u64::MAX,
                dropped_frames: u64::MAX,
            }
        );
    }
}
