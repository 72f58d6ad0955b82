//! Netlink: the kernel's links, addresses, routes, neighbours, policies and device features.
//!
//! The kernel replies to requests within the call, and notifications are read without blocking, so
//! that a worker can follow changes from its loop without an asynchronous runtime.

mod address;
mod association;
mod demand;
mod error;
mod firewall;
mod generic;
mod iwpmd;
mod link;
mod lower;
mod message;
mod neighbour;
mod policy;
mod policy_layout;
mod route;
mod socket;
mod veth;
mod xdp;

pub(crate) use address::{Address, addresses};
#[cfg(test)]
pub(crate) use association::tests::example_association;
pub(crate) use association::{Association, AssociationSocket, Spent};
pub(crate) use demand::Selected;
pub use error::NetlinkError;
pub(crate) use firewall::firewall_tables;
pub use generic::link_speed;
pub(crate) use generic::{Generic, QueueNapi, RssSettings, XdpFeatures, rx_queues};
pub(crate) use iwpmd::Iwpmd;
#[cfg(test)]
pub(crate) use link::Vlan;
pub(crate) use link::{
    AttachedXdp, Link, LinkChange, XdpAttachment, link_by_index, link_by_name, links,
};
pub use link::{device_name, link_mtu};
pub(crate) use lower::Lower;
pub(crate) use message::Message;
pub(crate) use neighbour::{Neighbour, ask_for_neighbour, neighbour, neighbours};
pub(crate) use policy::{Policies, Policy, PolicySocket};
pub(crate) use route::{Route, route};
pub(crate) use socket::{Groups, RouteSocket, Socket};
pub(crate) use veth::{make_veth, remove_link, start_silent, stop_link};
pub(crate) use xdp::{XdpMode, set_xdp};
