//! A host whose connections run over the associations of a [virtual
//! kernel](crate::testing::sctp).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::connection::{AddressPair, Associated, SctpSession};
use crate::engine::{Command, Driver, EngineConfig, EngineEnd, Look};
use crate::in_memory::VecFrames;
use crate::memory::frames::TxFrames;
use crate::testing::sctp::{SctpKernel, SharedSctp, VirtualAssociations, lock, reserve};
use crate::time::Instant;
use crate::wire::icmp::TooBig;
use crate::wire::packet::Checksums;

use super::machine::{Machine, Neighbours};

/// An engine over associations, and the kernel below it.
pub struct OverSctp {
    driver: Driver<SctpSession<VirtualAssociations>>,
    kernel: SharedSctp,
}

impl OverSctp {
    /// Returns the associations of the kernel.
    pub fn associations(&self) -> VirtualAssociations {
        VirtualAssociations(self.kernel.clone())
    }

    fn transmit(&mut self, tx: &mut VecFrames) -> bool {
        let frames = lock(&self.kernel).transmit();
        for octets in &frames {
            if let Some(frame) = tx.allocate() {
                tx.bytes_mut(frame)[..octets.len()].copy_from_slice(octets);
                tx.transmit(frame, octets.len());
                tx.release(frame);
            }
        }
        !frames.is_empty()
    }
}

impl Machine for OverSctp {
    type Carrier = SctpSession<VirtualAssociations>;

    fn new(address: Ipv4Addr, config: EngineConfig, secret: [u8; 32], end: EngineEnd) -> Self {
        let kernel = SctpKernel::new(address.into());
        let associations = Associated::new(VirtualAssociations(kernel.clone()));
        let driver = Driver::over(associations, config, secret, end);
        Self { driver, kernel }
    }

    fn driver(&self) -> &Driver<Self::Carrier> {
        &self.driver
    }

    /// A port of the kernel is that of its reservation.
    fn prepare(&self, mut command: Command) -> Command {
        if let Command::Connect {
            local, reservation, ..
        }
        | Command::Listen {
            local, reservation, ..
        } = &mut command
        {
            *reservation = reserve(*local, reservation.clone());
        }
        command
    }

    fn carry_out_commands(&mut self, now: Instant) {
        self.driver.begin(now);
    }

    fn turn<'a>(
        &mut self,
        now: Instant,
        frames: impl Iterator<Item = (&'a [u8], Checksums)> + Clone,
        tx: &mut VecFrames,
    ) -> bool {
        let arrived = lock(&self.kernel).handle(now, frames.map(|(frame, _)| frame));
        let busy = self.driver.begin(now).finish_on_sockets(Look::EVERYWHERE);
        let sent = self.transmit(tx);
        arrived | busy | sent
    }

    fn revoke(&mut self, now: Instant, lease: SocketAddr, tx: &mut VecFrames) {
        let mut batch = self.driver.begin(now);
        batch.revoke(lease);
        batch.finish_on_sockets(Look::EVERYWHERE);
        self.transmit(tx);
    }

    fn handle_too_big(&mut self, _: Instant, _: &TooBig, _: &mut VecFrames) {
        unimplemented!("ICMP is the kernel's");
    }

    fn next_timeout(&mut self) -> Option<Instant> {
        let of_kernel = lock(&self.kernel).next_timeout();
        Instant::earliest([self.driver.next_timeout(), of_kernel])
    }

    fn set_untagged(&mut self, _: BTreeMap<IpAddr, u16>) {
        unimplemented!("VLANs are the kernel's");
    }

    fn set_path(&mut self, _: AddressPair, _: u16) {
        unimplemented!("routes are the kernel's");
    }

    /// The kernel asks nobody.
    fn resolve(&mut self, _: Neighbours) -> (usize, bool) {
        (0, false)
    }
}
