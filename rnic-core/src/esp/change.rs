//! Messages between an engine's worker and the thread that follows the host's associations.

use core::net::IpAddr;
use std::sync::Arc;

use super::sa::{InboundSa, OutboundSa, SaId};
use super::selector::{Demand, Template};

/// A change of the host's associations or policies, for each worker of a device.
#[derive(Clone, Debug)]
pub enum Change {
    /// Policies of both directions, those with precedence first. They replace those before.
    Demands(Vec<Demand>),
    /// The addresses of this host. They replace those before.
    Addresses(Vec<IpAddr>),
    /// An association to open frames with.
    Inbound(Arc<InboundSa>),
    /// An association to seal frames with.
    Outbound(Arc<OutboundSa>),
    /// Another association is to be used as soon as there is one.
    Dying(SaId),
    /// An association is no more.
    Gone(SaId),
}

/// What the engine's frames need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// More sequence numbers of an association.
    Numbers(SaId),
    /// An association for what goes between two hosts (SADB_ACQUIRE).
    Acquire {
        /// What the policy demands, with the ends of the association.
        template: Template,
        /// This host, of which any port may be meant.
        local: IpAddr,
        /// The peer.
        remote: IpAddr,
    },
}
