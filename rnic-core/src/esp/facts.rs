//! What protects a connection, as an administrator sees it.

use core::net::{IpAddr, SocketAddr};
use std::collections::HashSet;

use super::change::Change;
use super::cipher::Algorithm;
use super::sa::{Mode, Rank, Sa, SaId};
use super::seal::youngest;
use super::selector::{Action, Demand, action};

/// What becomes of the segments of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectionState {
    /// All are protected.
    Esp,
    /// Those of one direction are protected, and the others go as they are.
    OneWay,
    /// They must be protected, and there is no association now: none passes.
    Missing,
    /// None passes, whatever associations there are.
    Dropped,
}

impl ProtectionState {
    /// Returns it as a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Esp => "esp",
            Self::OneWay => "one-way",
            Self::Missing => "missing",
            Self::Dropped => "dropped",
        }
    }
}

/// An association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaFacts {
    /// Its Security Parameters Index.
    pub spi: u32,
    /// What it protects of a packet.
    pub mode: Mode,
    /// By what.
    pub algorithm: Algorithm,
}

impl From<&Sa> for SaFacts {
    fn from(sa: &Sa) -> Self {
        Self {
            spi: sa.id.spi,
            mode: sa.mode,
            algorithm: sa.algorithm,
        }
    }
}

/// What protects a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtectionFacts {
    /// What becomes of its segments.
    pub state: ProtectionState,
    /// It is protected or not at all, whatever the policies say.
    pub required: bool,
    /// What seals its next segment.
    pub outbound: Option<SaFacts>,
    /// What its peer may seal with.
    pub inbound: Vec<SaFacts>,
}

/// The host's associations and policies, as the worker is told of them.
#[derive(Debug, Default)]
pub struct KnownProtection {
    outgoing: Vec<Demand>,
    incoming: Vec<Demand>,
    own: HashSet<IpAddr>,
    inbound: Vec<Sa>,
    outbound: Vec<(Sa, Rank)>,
}

impl KnownProtection {
    /// Takes note of a change.
    pub fn note(&mut self, change: &Change) {
        match change {
            Change::Demands(demands) => {
                let demands = demands.iter().copied();
                (self.outgoing, self.incoming) = demands.partition(|demand| demand.outgoing);
            }
            Change::Addresses(own) => self.own = own.iter().copied().collect(),
            Change::Inbound(association) => {
                self.remove(association.sa.id);
                self.inbound.push(association.sa.clone());
            }
            Change::Outbound(association) => {
                self.remove(association.sa.id);
                let rank = Rank::new(association.age);
                self.outbound.push((association.sa.clone(), rank));
            }
            Change::Dying(id) => {
                let mut known = self.outbound.iter_mut();
                if let Some((_, rank)) = known.find(|(sa, _)| sa.id == *id) {
                    rank.stays = false;
                }
            }
            Change::Gone(id) => self.remove(*id),
        }
    }

    fn remove(&mut self, id: SaId) {
        self.inbound.retain(|sa| sa.id != id);
        self.outbound.retain(|(sa, _)| sa.id != id);
    }

    /// Returns what protects a connection, `None` if nothing does and nothing has to. `required`:
    /// it is protected or not at all.
    pub fn facts(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        required: bool,
    ) -> Option<ProtectionFacts> {
        if self.own.contains(&remote.ip()) {
            // It does not leave the process.
            return None;
        }
        let sent = action(&self.outgoing, local, remote);
        let received = action(&self.incoming, local, remote);
        let outbound = match sent {
            Action::Protect(template) => {
                let ends = template.ends(local.ip(), remote.ip());
                let all = self.outbound.iter().map(|(sa, rank)| (sa, *rank));
                youngest(all, &template, ends).map(|place| (&self.outbound[place].0).into())
            }
            Action::Bypass | Action::Discard => None,
        };
        let inbound: Vec<SaFacts> = match received {
            Action::Protect(template) => {
                let is_for = |sa: &&Sa| template.admits_inbound(sa, local.ip(), remote.ip());
                self.inbound.iter().filter(is_for).map(Into::into).collect()
            }
            Action::Bypass | Action::Discard => Vec::new(),
        };
        let protects = |action| matches!(action, Action::Protect(_));
        let state = match [sent, received] {
            [Action::Bypass, Action::Bypass] if !required => return None,
            [Action::Discard, _] | [_, Action::Discard] => ProtectionState::Dropped,
            [Action::Bypass, _] | [_, Action::Bypass] if required => ProtectionState::Dropped,
            _ if protects(sent) && outbound.is_none() => ProtectionState::Missing,
            _ if protects(received) && inbound.is_empty() => ProtectionState::Missing,
            [Action::Bypass, _] | [_, Action::Bypass] => ProtectionState::OneWay,
            _ => ProtectionState::Esp,
        };
        Some(ProtectionFacts {
            state,
            required,
            outbound,
            inbound,
        })
    }
}
