//! The peer of clients that are processes: it accepts each connection, and offers its memory.

use std::sync::Arc;
use std::time::Duration;

use rnic_verbs::{
    Access, ConnectionOptions, Cq, Device, HugePages, Listener, Mr, Pd, Qp, QpCaps, Region,
};

use super::client::encode;
use crate::bed::Host;
use crate::effort::REGION;
use crate::failure::Failure;

/// The TCP port where it listens.
pub(super) const PORT: u16 = 4792;

/// It stands on a device that something else may use too.
pub(super) struct Peer {
    listener: Listener,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    qps: Vec<Qp>,
}

impl Peer {
    pub(super) fn listen(host: &Host, device: &Device) -> Result<Self, Failure> {
        let listener = host.run(|| device.listen(host.at(PORT)))?;
        let (pd, cq) = (device.pd(), device.cq(64)?);
        let region = Arc::new(Region::allocate(REGION, HugePages::Prefer)?);
        let mr = pd.register(&region, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Self {
            listener,
            pd,
            cq,
            mr,
            qps: Vec::new(),
        })
    }

    /// Accepts those who want to connect now, and drives the device.
    pub(super) fn turn(&mut self) -> Result<(), Failure> {
        while let Some(request) = self.listener.next_request(Duration::ZERO)? {
            let mut qp = self.pd.qp(&self.cq, &self.cq, QpCaps::default())?;
            let options = ConnectionOptions {
                private_data: encode(self.mr.remote(0)),
                ..ConnectionOptions::default()
            };
            request.accept(&mut qp, options)?;
            self.qps.push(qp);
        }
        Ok(())
    }
}
