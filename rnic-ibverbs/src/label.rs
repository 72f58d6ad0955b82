//! What devices call themselves: iWARP, which they are, or RoCE.
//!
//! Programs that connect their queue pairs themselves expect InfiniBand or RoCE, and some refuse
//! any other device. The label is all that differs: what a device does is the same.

use std::sync::OnceLock;

use tracing::warn;

use crate::abi::*;

/// Names the label.
const VARIABLE: &str = "RNIC_DEVICE";

/// What the devices of a process call themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// What they are.
    Iwarp,
    /// What some programs want.
    Roce,
}

impl Label {
    /// Returns the label that the environment names, or iWARP.
    pub(crate) fn chosen() -> Self {
        static CHOSEN: OnceLock<Label> = OnceLock::new();
        *CHOSEN.get_or_init(|| match std::env::var(VARIABLE).as_deref() {
            Ok("roce") => Self::Roce,
            Ok("iwarp" | "") | Err(_) => Self::Iwarp,
            Ok(other) => {
                warn!("{VARIABLE}={other}: it is iwarp or roce; devices are iWARP");
                Self::Iwarp
            }
        })
    }

    /// Returns the type of the node, and that of its transport.
    pub(crate) fn types(self) -> (i32, i32) {
        match self {
            Self::Iwarp => (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP),
            Self::Roce => (IBV_NODE_CA, IBV_TRANSPORT_IB),
        }
    }

    /// Returns the type of a GID in the entries of the table. That of InfiniBand is what iWARP
    /// devices have, too.
    pub(crate) fn gid_type(self) -> u32 {
        match self {
            Self::Iwarp => IBV_GID_TYPE_IB,
            Self::Roce => IBV_GID_TYPE_ROCE_V2,
        }
    }

    /// Returns the type of a GID as sysfs names it.
    pub(crate) fn sysfs_gid_type(self) -> u32 {
        match self {
            Self::Iwarp => IBV_GID_TYPE_SYSFS_IB_ROCE_V1,
            Self::Roce => IBV_GID_TYPE_SYSFS_ROCE_V2,
        }
    }
}
