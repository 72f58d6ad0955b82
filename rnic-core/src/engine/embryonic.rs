//! Connections to listeners that have not come far, counted.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};

use crate::connection::Stage;

/// While half of these places are free, anybody may have them. Beyond that, one source may have no more than this part of
/// all, so that newcomers get in.
const PART_OF_A_SOURCE: usize = 16;

/// Passive connections that have not come far.
#[derive(Default)]
pub(super) struct Embryonic {
    /// The SYN-ACK is not acknowledged.
    pub(super) half_open: usize,
    /// MPA start-up is not over, half-open ones among them.
    starting: usize,
    /// The same by source, without half-open ones: their addresses may be forged, to shut out those who have them.
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

    /// Whether of so many places there is one more for a peer.
    pub(super) fn has_place_for(&self, peer: IpAddr, places: usize) -> bool {
        let share = (places / PART_OF_A_SOURCE).max(1);
        let its_own = || self.sources.get(&source(peer)).copied().unwrap_or(0);
        self.starting < places && (self.starting < places / 2 || its_own() < share)
    }
}

/// Whose a peer's address is: nobody has less than a /64 of IPv6.
fn source(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(address) => {
            let prefix = address.to_bits() >> 64 << 64;
            Ipv6Addr::from_bits(prefix).into()
        }
    }
}
