//! The network interface of a device.

use rnic_xdp::{PortReport, PortStatistics, XdpPort};

/// The network interface that a device has opened.
#[derive(Clone, Debug)]
pub struct Port {
    report: PortReport,
    statistics: PortStatistics,
}

impl Port {
    pub(crate) fn of(port: &XdpPort) -> Self {
        Self {
            report: port.report().clone(),
            statistics: port.statistics(),
        }
    }

    /// Reports what was asked for and is not possible.
    pub(crate) fn ignoring(mut self, ignored: Option<String>) -> Self {
        self.report.ignored.extend(ignored);
        self
    }

    /// Reports what was opened: the XDP mode, the queues, where the frames lie.
    pub fn report(&self) -> &PortReport {
        &self.report
    }

    /// Returns a reader of the counters of each receive queue.
    pub fn statistics(&self) -> &PortStatistics {
        &self.statistics
    }
}
