//! Associations for tests and benchmarks, where the kernel has no ESP.

use std::sync::{Mutex, PoisonError};

use rnic_core::esp::{Keys, OutboundSa, Sa};

use super::{HostProtection, Own, Uses};

/// Network devices, with the associations that were given for them.
static GIVEN: Mutex<Vec<(String, Sa, Keys)>> = Mutex::new(Vec::new());

/// Gives an association to every device that is opened on a network device from now on, with
/// sequence numbers from 1 on, as if the kernel had it with the `ipsec_if_id` of the device.
/// Policies are the kernel's.
pub fn give_association(netdev: &str, sa: Sa, keys: Keys) {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    given.push((netdev.to_owned(), sa, keys));
}

impl HostProtection<Own> {
    /// Begins to use the associations that were given for its device.
    pub(super) fn with_given(mut self) -> Self {
        let given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        let here = given.iter().filter(|(name, ..)| *name == self.netdev);
        for (_, sa, keys) in here {
            if self.own.contains(&sa.source) {
                let made = OutboundSa::new(sa.clone(), keys, 0).expect("its keys are usable");
                self.uses.begin_outbound(sa.id, made);
                self.uses.add_numbers(sa.id, 1..1 << 63);
            } else {
                let begun = self.uses.begin_inbound(sa.clone(), keys, (0, 0));
                begun.expect("its keys are usable, and its packets can be steered");
            }
        }
        self
    }
}
