//! Counts of embryonic connections: passive ones that are not established yet.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};

use crate::connection::Stage;

/// While half of the places are free, any source may have them. Beyond that, one source gets no
/// more than one place in this many, so that others get in.
const PART_OF_A_SOURCE: usize = 16;

/// Passive connections that are not established yet.
#[derive(Default)]
pub(super) struct Embryonic {
    /// Those whose SYN-ACK is not acknowledged.
    pub(super) half_open: usize,
    /// Those whose MPA start-up is not over, half-open ones among them.
    starting: usize,
    /// Those by source, without half-open ones: addresses may be forged there, to shut out their
    /// owners.
    sources: HashMap<IpAddr, usize>,
}

impl Embryonic {
    pub(super) fn add(&mut self, stage: Stage, peer: IpAddr) {
        self.half_open += usize::from(stage == Stage::HalfOpen);
        self.starting += usize::from(stage != Stage::Established);
        if stage == Stage::Starting {
            *self.sources.entry(source(peer)).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, stage: Stage, peer: IpAddr) {
        self.half_open -= usize::from(stage == Stage::HalfOpen);
        self.starting -= usize::from(stage != Stage::Established);
        if stage == Stage::Starting
            && let Entry::Occupied(mut count) = self.sources.entry(source(peer))
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Returns whether one of so many places is left for a peer.
    pub(super) fn has_place_for(&self, peer: IpAddr, places: usize) -> bool {
        let share = (places / PART_OF_A_SOURCE).max(1);
        let its_own = || self.sources.get(&source(peer)).copied().unwrap_or(0);
        self.starting < places && (self.starting < places / 2 || its_own() < share)
    }
}

/// Returns the source that a peer's address counts for. For IPv6 it is the /64, the smallest
/// network that anybody is given.
fn source(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(address) => {
            let prefix = address.to_bits() >> 64 << 64;
            Ipv6Addr::from_bits(prefix).into()
        }
    }
}
