//! Queue pairs over sessions of SCTP associations (RFC 5043): rnic with rnic, and with a peer whose
//! chunks a test makes itself.

#[path = "../common/mod.rs"]
mod common;

mod liveness;
mod peer;
mod set_up;
mod traffic;

use std::time::Duration;

use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::EngineConfig;
use rnic_core::testing::host::associated::OverSctp;
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{self, TestQp};

/// Two hosts over virtual SCTP.
pub(crate) type Sessions = simulation::Simulation<OverSctp>;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Makes a link that only delays.
pub(crate) fn link() -> Impairments {
    Impairments {
        delay: Duration::from_micros(50),
        ..Impairments::default()
    }
}

/// Makes two hosts on it.
pub(crate) fn sessions() -> Sessions {
    Sessions::over(&EngineConfig::default(), link(), 1)
}

/// Connects a new pair of queue pairs with the defaults.
pub(crate) fn pair(sim: &mut Sessions) -> (TestQp, TestQp) {
    let connected = sim.connect(&ConnectionOptions::default());
    connected.unwrap_or_else(|| panic!("{:?} {:?}", sim.hosts[0].events, sim.hosts[1].events))
}
