//! What drives the engine of a host. A test sees no difference between frames and sockets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::connection::{AddressPair, NextHop};
use crate::engine::{Carrier, Command, Driver, EngineConfig, EngineEnd, NextHopRequest};
use crate::in_memory::VecFrames;
use crate::time::Instant;
use crate::wire::ethernet::MacAddr;
use crate::wire::icmp::TooBig;
use crate::wire::packet::Checksums;

/// How next hops are resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbours {
    /// Each is there, on a link of this MTU.
    Known(u16),
    /// None is reachable.
    Unreachable,
    /// None is resolved yet.
    Unresolved,
}

/// An engine with what is below it, down to the frames of a device.
pub trait Machine {
    /// What its connections run over.
    type Carrier: Carrier;

    /// Makes an engine at an address.
    fn new(address: Ipv4Addr, config: EngineConfig, secret: [u8; 32], end: EngineEnd) -> Self;

    /// Returns the driver of the engine.
    fn driver(&self) -> &Driver<Self::Carrier>;

    /// Returns a command as the engine is to get it.
    fn prepare(&self, command: Command) -> Command;

    /// Carries out commands, and nothing else.
    fn carry_out_commands(&mut self, now: Instant);

    /// Runs one turn. Returns whether there was anything to do.
    fn turn<'a>(
        &mut self,
        now: Instant,
        frames: impl Iterator<Item = (&'a [u8], Checksums)> + Clone,
        tx: &mut VecFrames,
    ) -> bool;

    /// Runs one turn that ends what uses a lease.
    fn revoke(&mut self, now: Instant, lease: SocketAddr, tx: &mut VecFrames);

    /// Runs one turn with an ICMP message.
    fn handle_too_big(&mut self, now: Instant, too_big: &TooBig, tx: &mut VecFrames);

    /// Returns when the next timer expires.
    fn next_timeout(&mut self) -> Option<Instant>;

    /// Sets the VLANs of local addresses whose frames arrive without their tag.
    fn set_untagged(&mut self, vlans: BTreeMap<IpAddr, u16>);

    /// Sets the MTU of a path.
    fn set_path(&mut self, path: AddressPair, mtu: u16);

    /// Resolves the next hops that are asked for. Returns how many were, and whether any was
    /// resolved.
    fn resolve(&mut self, neighbours: Neighbours) -> (usize, bool);
}

/// Returns the next hop of all paths of a test, with this MTU.
pub(super) fn next_hop(mtu: u16) -> NextHop {
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    NextHop {
        source_mac: mac,
        destination_mac: mac,
        vlan: None,
        mtu,
        advertised_mss: None,
    }
}

/// Answers what an engine over frames asks of its neighbours, as [`Machine::resolve`] does: `set`
/// tells it of a path with an MTU.
pub(super) fn resolve_by(
    driver: &mut Driver,
    neighbours: Neighbours,
    mut set: impl FnMut(&mut Driver, AddressPair, u16),
) -> (usize, bool) {
    let (mut asked, mut any) = (0, false);
    while let Some(request) = driver.poll_next_hop_request() {
        let NextHopRequest::Follow(path) = request else {
            continue;
        };
        asked += 1;
        match neighbours {
            Neighbours::Known(mtu) => set(driver, path, mtu),
            Neighbours::Unreachable => driver.set_unreachable(path),
            Neighbours::Unresolved => continue,
        }
        any = true;
    }
    (asked, any)
}
