//! The IPsec policies that apply to the connections of a device.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use rnic_core::engine::Peers;

use crate::device::netlink::{
    Link, NetlinkError, Policies, Policy, PolicySocket, RouteSocket, link_by_index,
};

/// The IPsec policies of the host, and those links named by them that this device carries.
#[derive(Default)]
pub(crate) struct KnownPolicies {
    policies: Policies,
    /// Those that rnic meets itself.
    own: Policies,
    links: Vec<u32>,
}

impl KnownPolicies {
    /// Reads the policies for a device. rnic meets those itself that have this xfrm interface.
    pub(crate) fn read(
        socket: &mut PolicySocket,
        routes: &mut RouteSocket,
        device: u32,
        if_id: Option<NonZeroU32>,
    ) -> Result<Self, NetlinkError> {
        let policies = socket.read(0)?;
        let own = match if_id {
            Some(if_id) => socket.read(if_id.get())?,
            None => Policies::default(),
        };
        let mut links = vec![device];
        for index in policies.links() {
            let link = link_by_index(routes, index)?;
            let on_device = |link: Link| link.vlan_on(device).is_some();
            if link.is_some_and(on_device) {
                links.push(index);
            }
        }
        Ok(Self {
            policies,
            own,
            links,
        })
    }

    /// Returns a policy that forbids an unprotected connection, if there is one.
    pub(crate) fn on_connection(&self, local: SocketAddr, remote: SocketAddr) -> Option<&Policy> {
        let is_met = |policy: &Policy| self.own.protect(policy.is_outgoing(), local, remote);
        self.policies
            .on_connection(&self.links, local, remote, is_met)
    }

    /// Returns a policy of rnic's own that forbids an unprotected connection, if there is one.
    pub(crate) fn own_on_connection(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<&Policy> {
        self.own
            .on_connection(&self.links, local, remote, |_| false)
    }

    /// Returns a policy of rnic's own that forbids a listener to talk unprotected to some of its
    /// peers, if there is one.
    pub(crate) fn own_on_listener(&self, local: SocketAddr, peers: &Peers) -> Option<&Policy> {
        self.own.on_listener(&self.links, local, peers, |_| false)
    }

    /// Returns whether rnic can protect a connection both ways.
    pub(crate) fn can_protect(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.own.can_protect(local, remote)
    }

    /// Returns a policy that forbids a listener to talk unprotected to some of its peers, if there
    /// is one.
    pub(crate) fn on_listener(&self, local: SocketAddr, peers: &Peers) -> Option<&Policy> {
        let is_met = |policy: &Policy| self.own.protect_all_of(policy);
        self.policies.on_listener(&self.links, local, peers, is_met)
    }
}
