//! What this host and a network device can do, each finding with its remedy: for `rnic-ctl doctor`.

mod associations;
mod device;
mod fact;
mod host;
mod offloads;

pub use associations::{
    AssociationFacts, AssociationKeys, KeysError, association_keys, associations,
};
pub use fact::{Fact, Verdict};

/// Checks the host: kernel, rights, memory.
pub fn host() -> Vec<Fact> {
    host::facts()
}

/// Checks a network device without opening it.
pub fn device(netdev: &str) -> Vec<Fact> {
    device::facts(netdev)
}

/// Opens the device for a moment, as an application does, and reports the outcome. On real NICs
/// this interrupts the link for a moment. It needs the same rights as opening the device.
pub fn trial(netdev: &str, facts: &mut Vec<Fact>) {
    device::trial(netdev, facts);
}
