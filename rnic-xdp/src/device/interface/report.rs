//! What was opened.

use std::fmt;

use super::busy_poll::BusyPoll;
use super::zero_copy::ZeroCopy;
use crate::device::steering::Mode;
use crate::device::tx_checksum::TxOffload;

/// What was opened, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceReport {
    /// The device.
    pub netdev: String,
    /// XDP mode.
    pub mode: Mode,
    /// Receive queues.
    pub queues: u32,
    /// The number of the queue, if it is one that this process has of a shared device.
    pub queue: Option<u32>,
    /// Workers that share the queues.
    pub workers: u32,
    /// The NUMA node that the frames lie on, if there are several.
    pub numa_node: Option<u32>,
    /// Whether the workers poll instead of using interrupts.
    pub busy_poll: BusyPoll,
    /// Whether every queue works without copying.
    pub zero_copy: ZeroCopy,
    /// Whether the TCP checksums of what is sent are completed by the device.
    pub tx_checksum: TxOffload,
    /// Every UMEM lies on hugepages.
    pub huge_pages: bool,
    /// Octets of a chunk of UMEM.
    pub chunk: u32,
    /// Chunks of the longest frame.
    pub chunks: u32,
    /// MTU of the device.
    pub link_mtu: u32,
    /// The largest IP datagram that is sent and received. It is smaller than the device's MTU if
    /// that is not used in full.
    pub mtu: u32,
    /// What was asked for and is not possible, each with the reason.
    pub ignored: Vec<String>,
}

impl fmt::Display for InterfaceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: XDP {}, {}, {}, UMEM on {}, frames of {}{}, MTU {}",
            self.netdev,
            self.mode,
            self.zero_copy,
            match (self.queue, self.queues) {
                (Some(queue), _) => format!("queue {queue} as a port of rnicd"),
                (None, 1) => "1 queue".to_owned(),
                (None, queues) => format!("{queues} queues"),
            },
            if self.huge_pages {
                "hugepages"
            } else {
                "ordinary pages"
            },
            match self.chunks {
                1 => String::new(),
                chunks => format!("{chunks} x "),
            },
            self.chunk,
            self.mtu,
        )?;
        if self.workers > 1 {
            write!(f, ", {} workers", self.workers)?;
        }
        if let Some(node) = self.numa_node {
            write!(f, ", NUMA node {node}")?;
        }
        if self.busy_poll != BusyPoll::Off {
            write!(f, ", busy poll {}", self.busy_poll)?;
        }
        match &self.tx_checksum {
            TxOffload::Off => {}
            TxOffload::On => f.write_str(", TCP checksums by the device")?,
            TxOffload::Refused(why) => write!(f, ", TCP checksums not by the device: {why}")?,
        }
        if self.mtu < self.link_mtu {
            write!(f, " (of {}: without multi-buffer frames)", self.link_mtu)?;
        }
        self.ignored
            .iter()
            .try_for_each(|ignored| write!(f, ", {ignored}"))
    }
}
