//! A host whose connections run in frames.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::connection::AddressPair;
use crate::engine::{Command, Driver, EngineConfig, EngineEnd};
use crate::in_memory::VecFrames;
use crate::tcp::Tcp;
use crate::time::Instant;
use crate::wire::icmp::TooBig;
use crate::wire::packet::Checksums;

use super::machine::{Machine, Neighbours, next_hop, resolve_by};

/// An engine over frames.
pub struct Framed {
    driver: Driver,
}

impl Machine for Framed {
    type Carrier = Tcp;

    fn new(_: Ipv4Addr, config: EngineConfig, secret: [u8; 32], end: EngineEnd) -> Self {
        let driver = Driver::new(config, secret, end);
        Self { driver }
    }

    fn driver(&self) -> &Driver {
        &self.driver
    }

    fn prepare(&self, command: Command) -> Command {
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
        let mut batch = self.driver.begin(now);
        batch.prefetch(frames.clone().map(|(frame, _)| frame));
        batch.handle_frames(frames, tx);
        batch.finish(tx)
    }

    fn revoke(&mut self, now: Instant, lease: SocketAddr, tx: &mut VecFrames) {
        let mut batch = self.driver.begin(now);
        batch.revoke(lease);
        batch.finish(tx);
    }

    fn handle_too_big(&mut self, now: Instant, too_big: &TooBig, tx: &mut VecFrames) {
        let mut batch = self.driver.begin(now);
        batch.handle_too_big(too_big);
        batch.finish(tx);
    }

    fn next_timeout(&mut self) -> Option<Instant> {
        self.driver.next_timeout()
    }

    fn set_untagged(&mut self, vlans: BTreeMap<IpAddr, u16>) {
        self.driver.set_untagged(vlans);
    }

    fn set_path(&mut self, path: AddressPair, mtu: u16) {
        self.driver.set_next_hop(path, next_hop(mtu));
    }

    fn resolve(&mut self, neighbours: Neighbours) -> (usize, bool) {
        resolve_by(&mut self.driver, neighbours, |driver, path, mtu| {
            driver.set_next_hop(path, next_hop(mtu));
        })
    }
}
