//! How flows are brought to one receive queue of a device, for whoever has that queue and no other:
//! by a rule of the device, or by the hash (RSS) that it has anyway.
//!
//! Rules that this makes have no record of their own: they are found by the local port, which is
//! reserved as long as they exist.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::libc::EOPNOTSUPP;

use super::ntuple::{insert, remove_to};
use super::records::Flow;
use super::rss::Rss;
use crate::device::netlink::{Link, rx_queues};

/// A receive queue of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue<'a> {
    pub(crate) link: &'a Link,
    pub(crate) number: u32,
}

/// Why a flow does not come to a queue.
#[derive(Debug, thiserror::Error)]
#[error(
    "{netdev} takes no rule that brings segments to queue {queue} ({rule}), and {hash}; use a port that is no hardware queue, or let \
     RSS use that queue alone (`ethtool -X {netdev} start {queue} equal 1`)"
)]
pub(crate) struct Unplaced {
    netdev: String,
    queue: u32,
    rule: String,
    hash: String,
}

impl Queue<'_> {
    /// Returns whether all segments that the device receives come to it.
    pub(crate) fn is_only(&self) -> bool {
        rx_queues(self.link) == 1
    }

    /// Brings segments for a local port to the queue by a rule of the device: those of one peer, or
    /// of all.
    pub(crate) fn insert_rule(
        &self,
        local: SocketAddr,
        remote: Option<SocketAddr>,
    ) -> io::Result<()> {
        let any: IpAddr = match local {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let remote = remote.unwrap_or(SocketAddr::new(any, 0));
        insert(&self.link.name, Flow { remote, local }, self.number).map(drop)
    }

    /// Removes the rules that bring segments for a local port to the queue.
    pub(crate) fn remove_rules(&self, local: SocketAddr) -> io::Result<()> {
        match remove_to(&self.link.name, local, self.number) {
            // The device has none.
            Err(error) if error.raw_os_error() == Some(EOPNOTSUPP) => Ok(()),
            removed => removed,
        }
    }

    /// Fails unless the hash brings the segments of every peer to the queue. `rule` says why no
    /// rule does.
    pub(crate) fn check_all(&self, local: IpAddr, rule: &io::Error) -> Result<(), Unplaced> {
        match Rss::read(self.link, local) {
            Ok(rss) if rss.is_all(self.number) => Ok(()),
            Ok(_) => Err(self.unplaced(rule, "RSS spreads those of new peers over several queues")),
            Err(why) => Err(self.unplaced(rule, why)),
        }
    }

    /// Returns what tells from which local ports the hash brings a peer's segments to the queue.
    /// `rule` says why no rule does.
    pub(crate) fn suits(
        &self,
        remote: SocketAddr,
        rule: &io::Error,
    ) -> Result<impl Fn(SocketAddr) -> bool + use<>, Unplaced> {
        let rss = Rss::read(self.link, remote.ip()).map_err(|why| self.unplaced(rule, why))?;
        let queue = self.number;
        match rss.can_reach(|each| each == queue) {
            true => Ok(move |local| rss.queue(remote, local) == queue),
            false => Err(self.unplaced(rule, "no local port changes where RSS brings them")),
        }
    }

    /// Makes the error for a flow that neither a rule nor the hash brings here.
    pub(crate) fn unplaced(&self, rule: &io::Error, hash: impl ToString) -> Unplaced {
        Unplaced {
            netdev: self.link.name.clone(),
            queue: self.number,
            rule: rule.to_string(),
            hash: hash.to_string(),
        }
    }
}
