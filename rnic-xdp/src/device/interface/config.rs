//! The configuration of an interface to open.

use std::num::NonZeroU32;

use crate::device::error::OpenError;
use crate::device::steering::ModeChoice;
use crate::device::tx_checksum::TxChecksum;

/// Whether frames may be copied between the device and the UMEM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopyChoice {
    /// Without copying if the driver can.
    #[default]
    Auto,
    /// Always copy.
    Never,
    /// Without copying; opening fails if the driver cannot.
    Require,
}

/// The configuration of an interface to open. All numbers of frames and ring entries are powers of
/// two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceConfig {
    /// The network device.
    pub netdev: String,
    /// One receive queue of a device that rnicd shares, to have for oneself, where an administrator
    /// has granted it: without copying if the driver can. Otherwise the interface shares the
    /// device's queues with others.
    pub queue: Option<u32>,
    /// Native or generic XDP.
    pub mode: ModeChoice,
    /// With or without copying.
    pub zero_copy: ZeroCopyChoice,
    /// Frames of each receive queue that circulate at first. All of them are used in turn: more of
    /// them absorb longer bursts, fewer stay in cache. If more than half of them are found waiting,
    /// their number doubles, up to eight times, until they were not needed for long. If the MTU
    /// needs frames of several chunks, this is a number of chunks.
    pub rx_frames: u32,
    /// Frames to send. Each is held until its octets are acknowledged, so there must be more of
    /// them than segments in the windows of all connections that send at once. The last one freed
    /// is used first, so that many do not cost cache. If the MTU needs frames of several chunks,
    /// this is a number of chunks.
    pub tx_frames: u32,
    /// Entries of the transmit ring: the most frames that one system call sends.
    pub tx_ring: u32,
    /// Use hugepages if there are any.
    pub huge_pages: bool,
    /// Poll the device in the worker's system calls instead of using interrupts, if the kernel can
    /// ([`InterfaceReport::busy_poll`](crate::InterfaceReport) says so). For a worker that never
    /// sleeps.
    pub busy_poll: bool,
    /// Use a large MTU in full with frames of several chunks, if the kernel has them (Linux 6.6).
    pub multi_buffer: bool,
    /// What completes the TCP checksums of sent frames. If the MTU needs frames of several chunks,
    /// only the engine can.
    pub tx_checksum: TxChecksum,
    /// Protect by ESP what the IPsec policies demand that have this xfrm interface (`if_id`), with
    /// the associations that have it. The kernel uses neither unless a link of that number exists
    /// (`ip link add ... type xfrm`). Not for a device that rnicd shares.
    pub ipsec_if_id: Option<NonZeroU32>,
    /// Speak protected or not at all, whatever the policies say: for a program that cannot ask for
    /// it by itself. Needs `ipsec_if_id`.
    pub require_protection: bool,
}

impl InterfaceConfig {
    /// Makes the default configuration for a device.
    pub fn new(netdev: impl Into<String>) -> Self {
        Self {
            netdev: netdev.into(),
            queue: None,
            mode: ModeChoice::default(),
            zero_copy: ZeroCopyChoice::default(),
            rx_frames: 512,
            tx_frames: 4096,
            tx_ring: 128,
            huge_pages: true,
            busy_poll: false,
            multi_buffer: true,
            tx_checksum: TxChecksum::Auto,
            ipsec_if_id: None,
            require_protection: false,
        }
    }

    /// Checks the values.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let fields = [
            ("rx_frames", self.rx_frames),
            ("tx_frames", self.tx_frames),
            ("tx_ring", self.tx_ring),
        ];
        let wrong = fields
            .into_iter()
            .find(|(_, value)| !value.is_power_of_two() || *value < 32 || *value > 1 << 20);
        if let Some((field, value)) = wrong {
            return Err(OpenError::Config {
                field,
                value: value.to_string(),
                rule: "a power of two from 32 to 1048576 is needed",
            });
        }
        if self.require_protection && self.ipsec_if_id.is_none() {
            return Err(OpenError::Config {
                field: "require_protection",
                value: "true".to_owned(),
                rule: "`ipsec_if_id` is needed, which names the policies that protect (docs/ipsec.md)",
            });
        }
        if self.tx_checksum == TxChecksum::Kernel && self.zero_copy == ZeroCopyChoice::Require {
            return Err(OpenError::Config {
                field: "tx_checksum",
                value: format!("{:?}", self.tx_checksum),
                rule: "the kernel completes checksums on copies that it makes, and none are allowed",
            });
        }
        Ok(())
    }
}
