//! What protects the frames of one engine.

use core::net::IpAddr;

use crate::counters::DropCounters;
use crate::wire::icmp::{EspTooBig, TooBig};

use super::change::{Change, Request};
use super::open::Opener;
use super::required::RequiredPorts;
use super::sa::{Mode, Sa};
use super::seal::Sealer;

/// What was counted of frames that are protected, or had to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtectionCounts {
    /// Frames opened.
    pub opened: u64,
    /// Frames sealed.
    pub sealed: u64,
    /// Frames that had to be sealed and could not: they were not sent.
    pub unsealed: u64,
    /// Received frames that were dropped, by the reason.
    pub drops: DropCounters,
}

/// The peers to whom a change may alter what protects the packets that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concerned {
    /// None.
    Nobody,
    /// One.
    Peer(IpAddr),
    /// Any.
    Anybody,
}

impl Concerned {
    /// Returns whether a peer may be one of them.
    pub fn has(self, peer: IpAddr) -> bool {
        match self {
            Self::Nobody => false,
            Self::Peer(one) => one == peer,
            Self::Anybody => true,
        }
    }
}

impl From<&Sa> for Concerned {
    fn from(sa: &Sa) -> Self {
        match sa.mode {
            Mode::Transport => Self::Peer(sa.id.destination),
            // What is inside may go to others.
            Mode::Tunnel => Self::Anybody,
        }
    }
}

/// Opens what an engine receives, and seals what it sends.
#[derive(Debug, Default)]
pub struct Protection {
    /// The way in.
    pub opener: Opener,
    /// The way out.
    pub sealer: Sealer,
}

impl Protection {
    /// Makes one without associations and policies, which heeds what is required of local ports.
    pub fn new(required: RequiredPorts) -> Self {
        Self {
            opener: Opener::new(required.clone()),
            sealer: Sealer::new(required),
        }
    }

    /// Returns to whom something else may protect the packets once a change is
    /// [applied](Self::apply): with many peers, not all need to be looked at for each of them.
    pub fn concerned(&self, change: &Change) -> Concerned {
        let known = |id| {
            self.sealer
                .known(id)
                .map_or(Concerned::Nobody, Concerned::from)
        };
        match change {
            Change::Demands(_) => Concerned::Anybody,
            Change::Addresses(_) | Change::Inbound(_) => Concerned::Nobody,
            Change::Outbound(association) => match known(association.sa.id) {
                // It takes the place of one that it may have nothing in common with.
                Concerned::Anybody => Concerned::Anybody,
                _ => (&association.sa).into(),
            },
            Change::Dying(id) | Change::Gone(id) => known(*id),
        }
    }

    /// Heeds a change of the host's associations or policies.
    pub fn apply(&mut self, change: Change) {
        // rfc: 5044-89
        let Self { opener, sealer } = self;
        match change {
            Change::Demands(demands) => {
                let (outgoing, incoming) = demands.into_iter().partition(|demand| demand.outgoing);
                sealer.set_demands(outgoing);
                opener.set_demands(incoming);
            }
            Change::Addresses(own) => opener.set_own(own),
            Change::Inbound(association) => opener.add(association),
            Change::Outbound(association) => sealer.add(association),
            Change::Dying(id) => sealer.let_die(id),
            Change::Gone(id) => {
                opener.remove(id);
                sealer.remove(id);
            }
        }
    }

    /// Returns what is needed next.
    pub fn poll_request(&mut self) -> Option<Request> {
        self.sealer.poll_request()
    }

    /// Returns the MTU of what is sent between two hosts, so that with what protects it it is no
    /// longer than `mtu`. Returns `None` while there is no association for some of it.
    pub fn inner_mtu(&self, local: IpAddr, remote: IpAddr, mtu: u16) -> Option<u16> {
        self.sealer.inner_mtu(local, remote, mtu).ok()
    }

    /// Asks for an association that is missing for what is sent between two hosts.
    pub fn ask(&mut self, local: IpAddr, remote: IpAddr) {
        self.sealer.ask(local, remote);
    }

    /// Returns whether a router's message is about a packet that was sealed and sent of late.
    pub fn has_sent(&self, told: &EspTooBig) -> bool {
        self.sealer.has_sent(told).is_some()
    }

    /// Returns whether a message of a router may be heeded. One about a segment that is sealed is
    /// forged: no router has seen that.
    pub fn heeds(&mut self, too_big: &TooBig) -> bool {
        self.sealer.sends_plain(too_big.local, too_big.remote)
    }

    /// Returns the MTU that a router's message about a sealed packet leaves to what is sent between
    /// two hosts. Returns `None` if it is not about that, or not to be heeded: the packet must have
    /// been sent of late, by an association of this host.
    pub fn narrowed(&self, told: &EspTooBig, local: IpAddr, remote: IpAddr) -> Option<u16> {
        self.sealer.narrowed(told, local, remote)
    }

    /// Returns what was counted since the last call.
    pub fn take_counts(&mut self) -> ProtectionCounts {
        let (opened, drops) = self.opener.take_counts();
        let (sealed, unsealed) = self.sealer.take_counts();
        ProtectionCounts {
            opened,
            sealed,
            unsealed,
            drops,
        }
    }
}
