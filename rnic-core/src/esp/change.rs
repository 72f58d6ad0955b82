//! Messages between an engine's worker and the thread that follows the host's associations.

use core::net::IpAddr;
use core::ops::Range;

use super::sa::{InboundSa, OutboundSa, SaId};
use super::selector::{Demand, Template};

/// A change of the host's associations or policies.
#[derive(Debug)]
pub enum Change {
    /// Policies of both directions, those with precedence first. They replace those before.
    Demands(Vec<Demand>),
    /// The addresses of this host. They replace those before.
    Addresses(Vec<IpAddr>),
    /// An association to open frames with.
    Inbound(Box<InboundSa>),
    /// An association to seal frames with.
    Outbound(Box<OutboundSa>),
    /// Sequence numbers of an association to seal with, which nobody else uses. An empty block says
    /// that there are none now, and lets them be asked for again.
    Numbers(SaId, Range<u64>),
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
