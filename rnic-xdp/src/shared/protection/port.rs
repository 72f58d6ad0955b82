//! What protects a port, as its client is told.

use std::net::IpAddr;

use rnic_core::esp::{Demand, Keys, Sa, USUAL_WINDOW};

use crate::device::protection::Known;

/// An association of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAssociation {
    /// What both ends know of it.
    pub sa: Sa,
    /// Its keys.
    pub keys: Keys,
    /// The port sends with it, and does not receive.
    pub is_outbound: bool,
    /// Another one is to be used as soon as there is one.
    pub is_dying: bool,
    /// When the kernel got it, in seconds since 1970: the youngest is used.
    pub age: u64,
    /// Numbers of its replay window.
    pub window: u32,
    /// The highest number that was received before.
    pub received: u64,
    /// The first sequence numbers to send with, from one up to another that is not among them.
    pub first: Option<(u64, u64)>,
}

/// What protects what a port sends and receives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortProtection {
    /// The policies that concern it, those with precedence first.
    pub demands: Vec<Demand>,
    /// Addresses of this host.
    pub addresses: Vec<IpAddr>,
    /// The associations.
    pub associations: Vec<PortAssociation>,
}

/// Returns what the client is told of an association, if it can be used.
pub(super) fn association(
    known: &Known,
    is_dying: bool,
    first: Option<(u64, u64)>,
) -> Option<PortAssociation> {
    let found = &known.association;
    let (mode, algorithm, keys) = found.usable.as_ref().ok()?;
    Some(PortAssociation {
        sa: Sa {
            id: found.id,
            source: found.source,
            mode: *mode,
            algorithm: *algorithm,
            extended: found.extended,
            encapsulation: found.encapsulation,
            request: found.request,
        },
        keys: keys.clone(),
        is_outbound: known.is_outbound,
        is_dying,
        age: found.added,
        window: found.window.max(USUAL_WINDOW),
        received: found.received,
        first,
    })
}
