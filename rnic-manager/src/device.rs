//! What messages say of a network device, in the terms of the code that drives it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The XDP mode in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// In the driver.
    Native,
    /// In the kernel's stack.
    Generic {
        /// Why it is not in the driver.
        reason: String,
    },
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native => f.write_str("native"),
            Self::Generic { reason } => write!(f, "generic ({reason})"),
        }
    }
}

/// Whether the device can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// It is up, and has a carrier.
    Active,
    /// It is down, or has no carrier.
    Inactive,
    /// It was removed, or moved to another network namespace. If it comes back, its sockets and
    /// program do not.
    Gone,
}

/// Local addresses whose frames arrive without the tag of their VLAN, because the device removes
/// it: each with that VLAN. An address that is in two VLANs, or also on the device itself, is not
/// among them: such a frame does not show whose it is.
pub type Untagged = BTreeMap<IpAddr, u16>;
