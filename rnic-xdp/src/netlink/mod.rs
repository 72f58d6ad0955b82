//! Netlink: the kernel's links, addresses, routes, neighbours, policies and device features.
//!
//! The kernel replies to requests within the call, and notifications are read without blocking, so that a worker can
//! follow changes from its loop without an asynchronous runtime.

use std::io;

mod address;
mod firewall;
mod generic;
mod link;
mod message;
mod neighbour;
mod policy;
mod route;
mod socket;

pub(crate) use address::{Address, addresses};
pub(crate) use firewall::firewall_tables;
pub(crate) use generic::{Generic, RssSettings, XdpFeatures};
#[cfg(test)]
pub(crate) use link::Vlan;
pub(crate) use link::{AttachedXdp, Link, LinkChange, link_by_index, link_by_name, links};
pub(crate) use message::Message;
pub(crate) use neighbour::{Neighbour, ask_for_neighbour, neighbour};
pub(crate) use policy::{Policies, Policy, PolicySocket};
pub(crate) use route::{Route, route};
pub(crate) use socket::{Groups, RouteSocket, Socket};

/// Why a netlink request failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The netlink socket does not work.
    #[error("cannot talk to the kernel over netlink to {doing}: {source}")]
    Socket {
        /// What was asked.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The kernel refused.
    #[error("the kernel refused to {doing}: {source}")]
    Refused {
        /// What was asked.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The reply is missing or not of the expected form.
    #[error("the kernel's reply makes no sense while trying to {doing}")]
    BadReply {
        /// What was asked.
        doing: &'static str,
    },
}

impl NetlinkError {
    /// Returns the error number of a refusal.
    pub(crate) fn refusal(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}
