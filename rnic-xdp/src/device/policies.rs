//! The IPsec policies that apply to the connections of a device.

use std::net::SocketAddr;

use rnic_core::engine::Peers;

use crate::device::netlink::{
    Link, NetlinkError, Policies, Policy, PolicySocket, RouteSocket, link_by_index,
};

/// The IPsec policies of the host, and those links named by them that this device carries.
#[derive(Default)]
pub(crate) struct KnownPolicies {
    policies: Policies,
    links: Vec<u32>,
}

impl KnownPolicies {
    /// Reads the policies for a device.
    pub(crate) fn read(
        socket: &mut PolicySocket,
        routes: &mut RouteSocket,
        device: u32,
    ) -> Result<Self, NetlinkError> {
        let policies = socket.read()?;
        let mut links = vec![device];
        for index in policies.links() {
            let link = link_by_index(routes, index)?;
            let on_device = |link: Link| link.vlan_on(device).is_some();
            if link.is_some_and(on_device) {
                links.push(index);
            }
        }
        Ok(Self { policies, links })
    }

    /// Returns a policy that forbids an unprotected connection, if there is one.
    pub(crate) fn on_connection(&self, local: SocketAddr, remote: SocketAddr) -> Option<&Policy> {
        self.policies.on_connection(&self.links, local, remote)
    }

    /// Returns a policy that forbids a listener to talk unprotected to some of its peers, if there
    /// is one.
    pub(crate) fn on_listener(&self, local: SocketAddr, peers: &Peers) -> Option<&Policy> {
        self.policies.on_listener(&self.links, local, peers)
    }
}
