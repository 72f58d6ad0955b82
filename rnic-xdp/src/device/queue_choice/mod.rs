//! Which worker the segments of a connection come to, and how to bring them to a certain one.
//!
//! A device chooses the receive queue of a segment by a hash of its addresses. For a connection
//! that we open, the local port is chosen so that the peer's segments come to its worker's queues.
//! Where the hash is not known, or another port would not change it, a rule in the device chooses
//! the queue. Where there is neither, as on a veth, the worker that receives the segments hands
//! them over.

use std::io;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc::EOPNOTSUPP;

use crate::device::netlink::Link;

mod ioctl;
mod ntuple;
mod records;
mod rss;
mod single;
mod toeplitz;

use ntuple::Rule;
use records::{Flow, Records};
use rss::Rss;
pub(crate) use rss::UnpredictableQueue;
pub(crate) use single::Queue;

/// How an open device places flows.
#[derive(Debug)]
pub(crate) struct QueueChoice {
    link: Link,
    workers: u32,
    /// The device has taken no rule, and is not asked again.
    takes_no_rules: AtomicBool,
    /// Records of the rules that it has taken; made with the first.
    records: OnceLock<io::Result<Records>>,
}

/// An ntuple rule that brings a flow to its worker. Dropping it removes the rule, which may block.
#[derive(Debug)]
pub(crate) struct FlowRule {
    _rule: Rule,
}

/// Which worker the received segments of a connection from a certain local port would come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The right worker, or it is not known.
    Here,
    /// Another one; with another local port it may be the right one.
    Elsewhere,
}

/// How the segments of one peer can be brought to one worker.
#[derive(Debug)]
pub(crate) struct FlowPlacement {
    /// The hash (RSS), if the local port can bring them there.
    rss: Option<Rss>,
    worker: usize,
    workers: u32,
}

impl FlowPlacement {
    /// Returns which worker the segments would come to.
    pub(crate) fn arrival(&self, remote: SocketAddr, local: SocketAddr) -> Arrival {
        match &self.rss {
            Some(rss) if worker_of(rss.queue(remote, local), self.workers) != self.worker => {
                Arrival::Elsewhere
            }
            _ => Arrival::Here,
        }
    }
}

impl QueueChoice {
    /// Reads the placement of a device that this process has just opened, and removes the rules of
    /// killed processes.
    pub(crate) fn new(link: &Link, workers: u32) -> Self {
        // The next process tries again what fails here, and `doctor` reports it.
        let remove = |flows: &[Flow]| match ntuple::remove(&link.name, flows) {
            // Switching rules off (`ethtool -K ntuple off`) removed them all.
            Err(error) if error.raw_os_error() == Some(EOPNOTSUPP) => Ok(()),
            removed => removed,
        };
        let _ = records::directory(link).and_then(|device| records::sweep(&device, remove));
        Self {
            link: link.clone(),
            workers,
            takes_no_rules: AtomicBool::new(false),
            records: OnceLock::new(),
        }
    }

    /// Reads how segments of a peer can be brought to a worker, as the device is configured now.
    pub(crate) fn flow(&self, remote: SocketAddr, worker: usize) -> FlowPlacement {
        let wanted = |queue| worker_of(queue, self.workers) == worker;
        let rss = if self.workers > 1 {
            Rss::read(&self.link, remote.ip()).ok()
        } else {
            None
        };
        FlowPlacement {
            rss: rss.filter(|rss| rss.can_reach(wanted)),
            worker,
            workers: self.workers,
        }
    }

    /// Installs a rule in the device if the hash does not bring the segments to the worker.
    pub(crate) fn install_rule(
        &self,
        placed: &FlowPlacement,
        remote: SocketAddr,
        local: SocketAddr,
    ) -> Option<FlowRule> {
        let known = placed.rss.is_some() && placed.arrival(remote, local) == Arrival::Here;
        if self.workers == 1 || known || self.takes_no_rules.load(Ordering::Relaxed) {
            return None;
        }
        // The record lets the next process remove the rule if this one is killed.
        let records = || Records::open(&records::directory(&self.link)?);
        let records = self.records.get_or_init(records).as_ref().ok()?;
        let flow = Flow { remote, local };
        // The first queue of a worker has its number.
        let rule = Rule::insert(&self.link.name, flow, placed.worker as u32, records);
        if rule.as_ref().is_err_and(never_will) {
            self.takes_no_rules.store(true, Ordering::Relaxed);
        }
        rule.ok().map(|rule| FlowRule { _rule: rule })
    }
}

/// Returns the worker that has a receive queue.
pub(crate) fn worker_of(queue: u32, workers: u32) -> usize {
    (queue % workers) as usize
}

/// Counts the rules in a device that killed processes left behind.
pub(crate) fn rules_left_behind(link: &Link) -> io::Result<usize> {
    Ok(records::left_behind(&records::directory(link)?)?.len())
}

/// Returns whether the device refuses rules for good, and not for lack of room.
pub(crate) fn never_will(error: &io::Error) -> bool {
    use nix::libc::{EINVAL, EPERM};
    matches!(error.raw_os_error(), Some(EOPNOTSUPP | EINVAL | EPERM))
}

/// Checks whether the local port can bring a connection that this host opens to its worker.
pub(crate) fn by_port(link: &Link) -> Result<(), UnpredictableQueue> {
    Rss::read(link, std::net::Ipv4Addr::UNSPECIFIED.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::netlink::{RouteSocket, link_by_name};
    use crate::testing::{Namespace, VethEnd, veth_pair};

    #[test]
    fn a_port_suits_if_its_segments_arrive_at_a_queue_of_the_worker() {
        let rss = Rss::from_settings(rss::tests::settings(), 0xf0).unwrap();
        let remote = "192.0.2.1:4420".parse().unwrap();
        let local = |port| SocketAddr::from(([192, 0, 2, 2], port));
        let flows = [0, 1].map(|worker| FlowPlacement {
            rss: Some(rss.clone()),
            worker,
            workers: 2,
        });
        for port in 50_000..50_200 {
            // Of four queues each worker has two.
            let right = rss.queue(remote, local(port)) as usize % 2;
            let arrivals = [0, 1].map(|worker: usize| flows[worker].arrival(remote, local(port)));
            assert_eq!(arrivals[right], Arrival::Here);
            assert_eq!(arrivals[1 - right], Arrival::Elsewhere);
        }
        let unknown = FlowPlacement {
            rss: None,
            worker: 1,
            workers: 2,
        };
        assert_eq!(unknown.arrival(remote, local(1)), Arrival::Here);
    }

    #[test]
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    fn opening_a_device_removes_the_rules_that_killed_processes_left() {
        let namespace = Namespace::new("left").unwrap();
        let end = |name| VethEnd {
            namespace: &namespace,
            name,
            addresses: "",
        };
        veth_pair(end("one"), end("other"), 2).unwrap();
        namespace.run(|| {
            let mut socket = RouteSocket::open().unwrap();
            let link = link_by_name(&mut socket, "one").unwrap().unwrap();
            let device = records::directory(&link).unwrap();
            let left = device.join("of-a-killed-process");
            std::fs::create_dir_all(&left).unwrap();
            std::fs::write(left.join("192.0.2.1:1 192.0.2.2:2"), "").unwrap();
            assert_eq!(rules_left_behind(&link).unwrap(), 1);
            // A veth has no rules: there is nothing to remove but the record.
            QueueChoice::new(&link, 2);
            assert_eq!(rules_left_behind(&link).unwrap(), 0);
            assert!(!device.exists(), "nothing is left behind");
        });
    }
}
