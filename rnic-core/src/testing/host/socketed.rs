//! A host whose connections run over the sockets of a [virtual kernel](crate::testing::kernel).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::connection::{AddressPair, KernelTcp, Socketed};
use crate::engine::{Command, Driver, EngineConfig, EngineEnd, Look};
use crate::in_memory::VecFrames;
use crate::testing::kernel::{Kernel, SharedKernel, VirtualSockets, lock, reserve};
use crate::time::Instant;
use crate::wire::icmp::TooBig;
use crate::wire::packet::Checksums;

use super::machine::{Machine, Neighbours};

/// An engine over sockets, and the kernel below it.
pub struct OverSockets {
    driver: Driver<KernelTcp<VirtualSockets>>,
    kernel: SharedKernel,
}

impl Machine for OverSockets {
    type Carrier = KernelTcp<VirtualSockets>;

    fn new(address: Ipv4Addr, config: EngineConfig, secret: [u8; 32], end: EngineEnd) -> Self {
        let (mtu, tcp) = (config.mtu, config.tcp.clone());
        let mut seed = [0; 8];
        seed.copy_from_slice(&secret[..8]);
        let kernel = Kernel::new(address.into(), mtu, tcp, u64::from_le_bytes(seed));
        let sockets = Socketed::new(VirtualSockets(kernel.clone()));
        let driver = Driver::over(sockets, config, secret, end);
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
        lock(&self.kernel).begin(now);
        self.driver.begin(now);
    }

    fn turn<'a>(
        &mut self,
        now: Instant,
        frames: impl Iterator<Item = (&'a [u8], Checksums)> + Clone,
        tx: &mut VecFrames,
    ) -> bool {
        lock(&self.kernel).begin(now);
        let arrived = lock(&self.kernel).handle(frames, tx);
        let busy = self.driver.begin(now).finish_on_sockets(Look::EVERYWHERE);
        let sent = lock(&self.kernel).transmit(tx);
        arrived | busy | sent
    }

    fn revoke(&mut self, now: Instant, lease: SocketAddr, tx: &mut VecFrames) {
        lock(&self.kernel).begin(now);
        let mut batch = self.driver.begin(now);
        batch.revoke(lease);
        batch.finish_on_sockets(Look::EVERYWHERE);
        lock(&self.kernel).transmit(tx);
    }

    fn handle_too_big(&mut self, now: Instant, too_big: &TooBig, tx: &mut VecFrames) {
        let mut kernel = lock(&self.kernel);
        kernel.begin(now);
        kernel.handle_too_big(too_big);
        kernel.transmit(tx);
    }

    fn next_timeout(&mut self) -> Option<Instant> {
        let of_kernel = lock(&self.kernel).next_timeout();
        Instant::earliest([self.driver.next_timeout(), of_kernel])
    }

    fn set_untagged(&mut self, _: BTreeMap<IpAddr, u16>) {
        unimplemented!("VLANs are the kernel's");
    }

    fn set_path(&mut self, path: AddressPair, mtu: u16) {
        lock(&self.kernel).set_route(path.remote, mtu);
    }

    /// The kernel asks nobody.
    fn resolve(&mut self, neighbours: Neighbours) -> (usize, bool) {
        if let Neighbours::Known(mtu) = neighbours {
            lock(&self.kernel).set_default_route(mtu);
        }
        (0, false)
    }
}
