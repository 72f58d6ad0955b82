//! A host whose frames are protected by ESP.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use crate::connection::{AddressPair, NextHop};
use crate::engine::{Command, Driver, EngineConfig, EngineEnd};
use crate::esp::{
    Action, Algorithm, Change, Demand, InboundSa, Keys, Mode, OutboundSa, Ports, Protection, Sa,
    SaId, Sealing, Selector, Template, USUAL_WINDOW, Window,
};
use crate::in_memory::VecFrames;
use crate::tcp::Tcp;
use crate::time::Instant;
use crate::wire::icmp::{EspTooBig, TooBig};
use crate::wire::packet::Checksums;
use crate::wire::prefix::Prefix;

use super::machine::{Machine, Neighbours, next_hop, resolve_by};

/// Numbers of an association of a test.
const NUMBERS: u64 = 1 << 40;

/// The name in which associations of tests are negotiated.
const REQUEST: u32 = 42;

/// An engine over frames that are opened and sealed.
pub struct Protected {
    driver: Driver,
    /// What protects its frames.
    pub protection: Protection,
    address: IpAddr,
    hops: BTreeMap<AddressPair, NextHop>,
}

/// Returns the association from a host to another one, with this SPI.
pub fn association(from: IpAddr, to: IpAddr, spi: u32) -> Sa {
    Sa {
        id: SaId {
            spi,
            destination: to,
        },
        source: from,
        mode: Mode::Transport,
        algorithm: Algorithm::AesGcm,
        extended: true,
        encapsulation: None,
        request: REQUEST,
    }
}

/// Returns the keys of an association.
pub fn keys(sa: &Sa) -> Keys {
    let spi = sa.id.spi.to_be_bytes();
    Keys::new(spi.repeat(5), Vec::new())
}

/// Returns the policies of a host: all that it sends and receives is protected.
pub fn demands() -> Vec<Demand> {
    let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let selector = Selector {
        local: Prefix::new(any, 0),
        local_ports: Ports::ALL,
        remote: Prefix::new(any, 0),
        remote_ports: Ports::ALL,
    };
    let action = Action::Protect(Template {
        request: REQUEST,
        mode: Mode::Transport,
        local: any,
        remote: any,
    });
    let demand = |outgoing| Demand {
        outgoing,
        selector,
        action,
    };
    vec![demand(true), demand(false)]
}

impl Protected {
    /// Adds an association to send with.
    pub fn add_outbound(&mut self, sa: Sa, age: u64) {
        let made = OutboundSa::new(sa.clone(), &keys(&sa), age).expect("its keys fit");
        made.numbers().add(1..NUMBERS);
        self.apply(Change::Outbound(Arc::new(made)));
    }

    /// Adds an association to receive with.
    pub fn add_inbound(&mut self, sa: Sa) {
        let window = Window::new(USUAL_WINDOW, sa.extended, 0);
        let made = InboundSa::new(sa.clone(), &keys(&sa), window).expect("its keys fit");
        self.apply(Change::Inbound(Arc::new(made)));
    }

    /// Heeds a change, as a worker does.
    pub fn apply(&mut self, change: Change) {
        let concerned = self.protection.concerned(&change);
        self.protection.apply(change);
        let hops = self.hops.iter();
        for (path, hop) in hops.filter(|(path, _)| concerned.has(path.remote)) {
            let hop = narrowed(&self.protection, *path, *hop);
            if let Some(hop) = hop {
                self.driver.set_next_hop(*path, hop);
            }
        }
    }

    /// Handles an ICMP message that a sealed packet was too big, as a worker does. Returns whether
    /// it is heeded.
    pub fn narrow(&mut self, now: Instant, told: &EspTooBig) -> bool {
        let mut batch = self.driver.begin(now);
        let mut heeded = false;
        for path in self.hops.keys() {
            if let Some(mtu) = self.protection.narrowed(told, path.local, path.remote) {
                batch.narrow(*path, mtu);
                heeded = true;
            }
        }
        heeded
    }

    fn finish(&mut self, now: Instant, tx: &mut VecFrames, did: impl FnOnce(&mut Driver)) -> bool {
        did(&mut self.driver);
        let batch = self.driver.begin(now);
        batch.finish(&mut Sealing::new(tx, &mut self.protection.sealer))
    }
}

/// Returns a next hop with the MTU that protection leaves, once there is an association.
fn narrowed(protection: &Protection, path: AddressPair, hop: NextHop) -> Option<NextHop> {
    let mtu = protection.inner_mtu(path.local, path.remote, hop.mtu)?;
    Some(NextHop { mtu, ..hop })
}

impl Machine for Protected {
    type Carrier = Tcp;

    /// Makes one that shares an association for each direction with the other of two hosts.
    fn new(address: Ipv4Addr, config: EngineConfig, secret: [u8; 32], end: EngineEnd) -> Self {
        let [a, b, c, last] = address.octets();
        let peer = IpAddr::from([a, b, c, 3 - last]);
        let address = IpAddr::from(address);
        let mut made = Self {
            driver: Driver::new(config, secret, end),
            protection: Protection::default(),
            address,
            hops: BTreeMap::new(),
        };
        made.apply(Change::Demands(demands()));
        made.apply(Change::Addresses(vec![made.address]));
        made.add_outbound(association(address, peer, u32::from(last) << 8), 0);
        made.add_inbound(association(peer, address, u32::from(3 - last) << 8));
        made
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
        let Protection { opener, sealer } = &mut self.protection;
        let mut batch = self.driver.begin(now);
        let mut tx = Sealing::new(tx, sealer);
        opener.open(frames.clone());
        let again = frames.map(|frame| move || frame);
        batch.handle_frames(opener.frames(again), &mut tx);
        let busy = batch.finish(&mut tx);
        let counts = self.protection.take_counts();
        self.driver.begin(now).count_protection(&counts);
        busy
    }

    fn revoke(&mut self, now: Instant, lease: SocketAddr, tx: &mut VecFrames) {
        self.finish(now, tx, |driver| driver.begin(now).revoke(lease));
    }

    fn handle_too_big(&mut self, now: Instant, too_big: &TooBig, tx: &mut VecFrames) {
        if self.protection.heeds(too_big) {
            self.finish(now, tx, |driver| driver.begin(now).handle_too_big(too_big));
        }
    }

    fn next_timeout(&mut self) -> Option<Instant> {
        self.driver.next_timeout()
    }

    fn set_untagged(&mut self, vlans: BTreeMap<IpAddr, u16>) {
        self.driver.set_untagged(vlans);
    }

    fn set_path(&mut self, path: AddressPair, mtu: u16) {
        self.hops.insert(path, next_hop(mtu));
        if let Some(hop) = narrowed(&self.protection, path, next_hop(mtu)) {
            self.driver.set_next_hop(path, hop);
        }
    }

    fn resolve(&mut self, neighbours: Neighbours) -> (usize, bool) {
        let Self {
            driver,
            protection,
            hops,
            ..
        } = self;
        resolve_by(driver, neighbours, |driver, path, mtu| {
            hops.insert(path, next_hop(mtu));
            if let Some(hop) = narrowed(protection, path, next_hop(mtu)) {
                driver.set_next_hop(path, hop);
            }
            protection.ask(path.local, path.remote);
        })
    }
}
