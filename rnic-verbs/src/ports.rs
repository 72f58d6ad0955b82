//! The local ports that a device has reserved. Connections keep the port of their listener, and
//! their own until their TIME-WAIT has ended; a listener or a connection that is to have the same
//! port shares what they keep.

use std::any::Any;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rnic_core::connection::PortReservation;
use rnic_core::engine::Peers;

/// What a [`PortReservation`] holds.
type Held = dyn Any + Send + Sync;

/// So many reservations are kept in mind before those that have ended are looked for.
const FEW: usize = 64;

/// The ports.
#[derive(Default)]
pub(crate) struct Ports(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    reservations: HashMap<SocketAddr, Vec<Reserved>>,
    /// When there are so many, those that have ended are removed.
    look_at: usize,
}

/// A reservation, and the peers that may use the port.
struct Reserved {
    peers: Peers,
    reservation: Weak<Held>,
}

impl Reserved {
    fn is_kept(&self) -> bool {
        self.reservation.strong_count() > 0
    }
}

impl Ports {
    /// Returns a reservation of this port that is kept, and that serves these peers.
    pub(crate) fn shared(&self, local: SocketAddr, peers: &Peers) -> Option<PortReservation> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reserved = kept.reservations.get(&local)?;
        // Listeners look at their peers themselves, too.
        let serves = |one: &&Reserved| one.peers == *peers || one.peers == Peers::all();
        let mut serving = reserved.iter().filter(serves);
        serving.find_map(|one| one.reservation.upgrade())
    }

    /// Keeps a reservation in mind as long as somebody has it.
    pub(crate) fn keep(&self, local: SocketAddr, peers: Peers, reservation: &PortReservation) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.reservations.len() >= kept.look_at.max(FEW) {
            kept.reservations
                .retain(|_, reserved| reserved.iter().any(Reserved::is_kept));
            kept.look_at = 2 * kept.reservations.len();
        }
        let reserved = kept.reservations.entry(local).or_default();
        reserved.retain(Reserved::is_kept);
        reserved.push(Reserved {
            peers,
            reservation: Arc::downgrade(reservation),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_shared_as_long_as_somebody_has_it() {
        let ports = Ports::default();
        let at = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let only = Peers::only([rnic_core::engine::Prefix::new(at(0).ip(), 32)]);
        let (all, some): (PortReservation, PortReservation) = (Arc::new(1), Arc::new(2));
        ports.keep(at(1), Peers::all(), &all);
        ports.keep(at(2), only.clone(), &some);
        let every = Peers::all();
        let shares = |port, peers: &Peers| ports.shared(at(port), peers).is_some();
        assert!(shares(1, &every) && shares(1, &only));
        assert!(!shares(2, &every) && shares(2, &only));
        drop((all, some));
        assert!(!shares(1, &only) && !shares(2, &only));
        for port in 3..1000 {
            ports.keep(at(port), Peers::all(), &(Arc::new(port) as PortReservation));
        }
        assert!(ports.0.lock().unwrap().reservations.len() <= FEW + 1);
    }
}
