//! What the devices of this process call themselves, in the codes of the verbs.

use std::sync::OnceLock;

use rnic_verbs::rdma::Label;
use tracing::warn;

use crate::abi::*;

/// Names the label.
const VARIABLE: &str = "RNIC_DEVICE";

/// Returns the label that the environment names, or iWARP.
pub(crate) fn chosen() -> Label {
    static CHOSEN: OnceLock<Label> = OnceLock::new();
    *CHOSEN.get_or_init(|| match std::env::var(VARIABLE).as_deref() {
        Ok("roce") => Label::Roce,
        Ok("iwarp" | "") | Err(_) => Label::Iwarp,
        Ok(other) => {
            warn!("{VARIABLE}={other}: it is iwarp or roce; devices are iWARP");
            Label::Iwarp
        }
    })
}

/// Returns the type of the node, and that of its transport.
pub(crate) fn types() -> (i32, i32) {
    match chosen() {
        Label::Iwarp => (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP),
        Label::Roce => (IBV_NODE_CA, IBV_TRANSPORT_IB),
    }
}

/// Returns the type of a GID in the entries of the table. That of InfiniBand is what iWARP devices
/// have, too.
pub(crate) fn gid_type() -> u32 {
    match chosen() {
        Label::Iwarp => IBV_GID_TYPE_IB,
        Label::Roce => IBV_GID_TYPE_ROCE_V2,
    }
}

/// Returns the type of a GID as sysfs names it.
pub(crate) fn sysfs_gid_type() -> u32 {
    match chosen() {
        Label::Iwarp => IBV_GID_TYPE_SYSFS_IB_ROCE_V1,
        Label::Roce => IBV_GID_TYPE_SYSFS_ROCE_V2,
    }
}
