//! Policies of the kernel as demands that rnic meets itself.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use nix::libc;
use rnic_core::esp::{Action as EspAction, Demand, Mode, Selector, Template};

use super::policy::{Action, Layer, Policies, Policy};
use super::policy_layout::{MODE_TRANSPORT, MODE_TUNNEL};

/// rnic cannot do what a policy demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unmet;

impl Policy {
    fn selector(&self) -> Selector {
        Selector {
            local: self.local,
            local_ports: self.local_ports,
            remote: self.remote,
            remote_ports: self.remote_ports,
        }
    }

    /// Returns what it demands of packets that it lets through.
    fn layers(&self) -> &[Layer] {
        match &self.action {
            Action::Protect(layers) => layers,
            Action::Pass | Action::Block => &[],
        }
    }

    fn selected(&self, optional: bool) -> Selected {
        Selected {
            tcp_alone: self.is_for_tcp_alone(),
            optional,
            selector: self.selector(),
            words: self.to_string(),
        }
    }

    /// Returns what it demands, if rnic can meet that.
    fn demanded(&self) -> Option<EspAction> {
        match self.action {
            Action::Pass => return Some(EspAction::Bypass),
            Action::Block => return Some(EspAction::Discard),
            Action::Protect(_) => {}
        }
        let [layer] = self.layers() else { return None };
        let Layer {
            protocol,
            mode,
            request,
            source,
            destination,
        } = *layer;
        let mode = match (i32::from(protocol), mode) {
            (libc::IPPROTO_ESP, MODE_TRANSPORT) => Mode::Transport,
            (libc::IPPROTO_ESP, MODE_TUNNEL) => Mode::Tunnel,
            _ => return None,
        };
        let (local, remote) = match self.outgoing {
            true => (source, destination),
            false => (destination, source),
        };
        Some(EspAction::Protect(Template {
            request,
            mode,
            local,
            remote,
        }))
    }

    /// Returns the demand, and whether rnic can meet it. What it cannot, it drops.
    pub(crate) fn demand(&self) -> (Demand, Result<(), Unmet>) {
        let action = self.demanded();
        let demand = Demand {
            outgoing: self.outgoing,
            selector: self.selector(),
            action: action.unwrap_or(EspAction::Discard),
        };
        (demand, action.map(drop).ok_or(Unmet))
    }
}

/// What a policy selects that can use associations in some name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    /// Nothing but TCP.
    pub(crate) tcp_alone: bool,
    /// It may go in the clear, too (`level use`).
    pub(crate) optional: bool,
    /// By addresses and ports.
    pub(crate) selector: Selector,
    /// The policy, in words.
    pub(crate) words: String,
}

impl Policies {
    /// Returns what is selected by the policies that can use associations, by the request in the
    /// name of which those were negotiated.
    pub(crate) fn by_request(&self) -> BTreeMap<u32, Vec<Selected>> {
        let mut found: BTreeMap<u32, Vec<Selected>> = BTreeMap::new();
        for policy in &self.0 {
            let demanded = policy.layers().iter().filter(|layer| !layer.is_to_ask());
            let demanded = demanded.map(|layer| (layer.request, false));
            let optional = policy.optional.iter().map(|request| (*request, true));
            for (request, optional) in demanded.chain(optional) {
                found
                    .entry(request)
                    .or_default()
                    .push(policy.selected(optional));
            }
        }
        found
    }

    /// Returns what is selected by the policies that only have key managers asked.
    pub(crate) fn that_ask(&self) -> Vec<Selected> {
        let asks = |policy: &&Policy| policy.layers().iter().any(Layer::is_to_ask);
        let asking = self.0.iter().filter(asks);
        asking.map(|policy| policy.selected(false)).collect()
    }

    /// Returns the policies, those with precedence first. One that lets through on a single link is
    /// left out: which link a packet leaves by is not asked, and in doubt it is protected.
    pub(crate) fn by_precedence(&self) -> Vec<&Policy> {
        let counts = |policy: &&Policy| policy.is_demand() || policy.link.is_none();
        let mut all: Vec<_> = self.0.iter().filter(counts).collect();
        all.sort_by_key(|policy| (policy.priority, policy.index));
        all
    }

    /// Returns the policy that decides on what goes out from one end to the other, or comes in from
    /// there, if one selects that.
    fn first(&self, outgoing: bool, local: SocketAddr, remote: SocketAddr) -> Option<&Policy> {
        let mut all = self.by_precedence().into_iter();
        all.find(|policy| policy.outgoing == outgoing && policy.selector().selects(local, remote))
    }

    /// Returns whether what goes out from one end to the other, or comes in from there, is protected.
    pub(crate) fn protect(&self, outgoing: bool, local: SocketAddr, remote: SocketAddr) -> bool {
        let first = self.first(outgoing, local, remote);
        first.is_some_and(|policy| matches!(policy.action, Action::Protect(_)))
    }

    /// Returns whether two ends can speak protected: what is sent is, and no policy lets what is
    /// received through as it is, or blocks it. A key manager may bring the one that protects it only
    /// when it has negotiated.
    pub(crate) fn can_protect(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let received = self.first(false, local, remote);
        let received = received.is_none_or(|policy| matches!(policy.action, Action::Protect(_)));
        received && self.protect(true, local, remote)
    }

    /// Returns whether all that another policy selects is protected: by the first policy that
    /// selects all of it, where none with precedence lets some of it through.
    pub(crate) fn protect_all_of(&self, other: &Policy) -> bool {
        let selector = other.selector();
        let all = self.by_precedence().into_iter();
        let mut concerned = all.filter(|policy| {
            policy.outgoing == other.outgoing && policy.selector().meets(&selector)
        });
        let decides =
            |policy: &&Policy| policy.action == Action::Pass || policy.selector().covers(&selector);
        let found = concerned.find(decides);
        found.is_some_and(|policy| matches!(policy.action, Action::Protect(_)))
    }
}
