//! A port that another process, the manager of a device, has made for this one.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rnic_core::esp::RequiredPorts;

use super::report::InterfaceReport;
use super::rx::RxRing;
use super::shape::PortShape;
use super::sides::sides;
use super::socket::Rings;
use super::statistics::InterfaceStatistics;
use super::tx::TxSide;
use super::umem::Umem;
use crate::device::error::OpenError;

/// A port that was granted, with what receives and sends.
pub struct GrantedPort {
    pub(super) rx: RxRing,
    pub(super) tx: TxSide,
    pub(super) report: InterfaceReport,
    pub(super) statistics: InterfaceStatistics,
    pub(super) partial_checksums: bool,
    pub(super) crc_optional: bool,
    pub(super) required: Option<RequiredPorts>,
}

impl GrantedPort {
    /// Takes over a bound socket and the memory of its UMEM. Fails if the sizes are not possible,
    /// or not those of the memory.
    pub(crate) fn open(
        (socket, memory): (OwnedFd, OwnedFd),
        shape: &PortShape,
        report: InterfaceReport,
        (partial_checksums, crc_optional): (bool, bool),
    ) -> Result<Self, OpenError> {
        let failed = |doing| move |source| OpenError::System { doing, source };
        if let Some(fault) = shape.fault() {
            let source = std::io::Error::other(fault);
            return Err(failed("use the port that the manager has made")(source));
        }
        let umem = Umem::map(&memory, shape.octets(), report.huge_pages);
        let umem = umem.map_err(failed("map the memory of a port"))?;
        let rings = Rings::of_bound(socket, shape, &report.zero_copy);
        let rings = rings.map_err(failed("map the rings of a port"))?;
        let (rx, tx, counted) = sides(umem, rings, shape, (report.queue.unwrap_or(0), 0))?;
        Ok(Self {
            rx,
            tx,
            report,
            statistics: InterfaceStatistics::new([Arc::downgrade(&counted)].into_iter()),
            partial_checksums,
            crc_optional,
            required: None,
        })
    }

    /// Lets its frames be protected. These local ports speak protected or not at all.
    pub(crate) fn protected(self, required: Option<RequiredPorts>) -> Self {
        Self { required, ..self }
    }
}
