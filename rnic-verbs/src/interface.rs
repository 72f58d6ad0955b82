//! The network interface of a device.

use rnic_xdp::{InterfaceReport, InterfaceStatistics, XdpInterface};

/// The network interface that a device has opened.
#[derive(Clone, Debug)]
pub struct Interface {
    report: InterfaceReport,
    statistics: InterfaceStatistics,
}

impl Interface {
    pub(crate) fn of(open: &XdpInterface) -> Self {
        Self {
            report: open.report().clone(),
            statistics: open.statistics(),
        }
    }

    /// Reports what was asked for and is not possible.
    pub(crate) fn ignoring(mut self, ignored: Option<String>) -> Self {
        self.report.ignored.extend(ignored);
        self
    }

    /// Reports what was opened: the XDP mode, the queues, where the frames lie.
    pub fn report(&self) -> &InterfaceReport {
        &self.report
    }

    /// Returns a reader of the counters of each receive queue.
    pub fn statistics(&self) -> &InterfaceStatistics {
        &self.statistics
    }
}
