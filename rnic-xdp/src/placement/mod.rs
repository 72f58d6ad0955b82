//! Which worker the segments of a connection come to, and how to have them come to a certain one.
//!
//! A device chooses the receive queue of a segment by a hash of its addresses. For a connection that we open, the local port
//! is chosen so that the answers come to its worker's queues. Where the hash is not known, or another port would not change
//! it, a rule in the device chooses the queue. Where there is neither, as on a veth, whichever worker the answers come to
//! hands them over.

use std::io;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc::EOPNOTSUPP;

use crate::netlink::Link;
use crate::port::worker_of;

mod ioctl;
mod ntuple;
mod records;
mod rss;
mod toeplitz;

use ntuple::Rule;
use records::{Flow, Records};
use rss::Rss;
pub(crate) use rss::Unknown;

/// How an open device places flows.
#[derive(Debug)]
pub(crate) struct Placement {
    link: Link,
    workers: u32,
    /// The device has taken no rule, and is not asked again.
    takes_no_rules: AtomicBool,
    /// Of the rules that it has taken; made with the first.
    records: OnceLock<io::Result<Records>>,
}

/// Keeps a flow where it was placed, until it is dropped, which may block.
#[derive(Debug)]
pub(crate) struct Kept {
    _rule: Rule,
}

/// Where the answers to a connection from a certain port would come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// To the right worker, or nobody knows.
    Here,
    /// To another; those to another port may not.
    Elsewhere,
}

/// The way of the answers of one peer to one worker.
#[derive(Debug)]
pub(crate) struct Way {
    /// If it can be chosen by the local port.
    rss: Option<Rss>,
    worker: usize,
    workers: u32,
}

impl Way {
    /// Where answers would come.
    pub(crate) fn answers(&self, remote: SocketAddr, local: SocketAddr) -> Answers {
        match &self.rss {
            Some(rss) if worker_of(rss.queue(remote, local), self.workers) != self.worker => {
                Answers::Elsewhere
            }
            _ => Answers::Here,
        }
    }
}

impl Placement {
    /// Of a device that this process has just opened. Rules of processes that were killed go from it.
    pub(crate) fn new(link: &Link, workers: u32) -> Self {
        // What stays, the next one tries, and `doctor` tells of.
        let remove = |flows: &[Flow]| match ntuple::remove(&link.name, flows) {
            // Who switches rules off (`ethtool -K ntuple off`) has removed all.
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

    /// The way of the answers from a peer to a worker, as the device is set at this moment.
    pub(crate) fn way(&self, remote: SocketAddr, worker: usize) -> Way {
        let wanted = |queue| worker_of(queue, self.workers) == worker;
        let rss = if self.workers > 1 {
            Rss::read(&self.link, remote.ip()).ok()
        } else {
            None
        };
        Way {
            rss: rss.filter(|rss| rss.can_reach(wanted)),
            worker,
            workers: self.workers,
        }
    }

    /// Sees to it that the answers come by the way, as far as the device can be told.
    pub(crate) fn keep(&self, way: &Way, remote: SocketAddr, local: SocketAddr) -> Option<Kept> {
        let known = way.rss.is_some() && way.answers(remote, local) == Answers::Here;
        if self.workers == 1 || known || self.takes_no_rules.load(Ordering::Relaxed) {
            return None;
        }
        // A rule of which nobody would know who made it is better not made.
        let records = || Records::open(&records::directory(&self.link)?);
        let records = self.records.get_or_init(records).as_ref().ok()?;
        let flow = Flow { remote, local };
        // The first queue of a worker has its number.
        let rule = Rule::insert(&self.link.name, flow, way.worker as u32, records);
        if rule.as_ref().is_err_and(never_will) {
            self.takes_no_rules.store(true, Ordering::Relaxed);
        }
        rule.ok().map(|rule| Kept { _rule: rule })
    }
}

/// How many rules of processes that were killed stand in a device.
pub(crate) fn rules_left_behind(link: &Link) -> io::Result<usize> {
    Ok(records::left_behind(&records::directory(link)?)?.len())
}

/// Not for lack of room, but for good.
fn never_will(error: &io::Error) -> bool {
    use nix::libc::{EINVAL, EPERM};
    matches!(error.raw_os_error(), Some(EOPNOTSUPP | EINVAL | EPERM))
}

/// Whether a connection that this host opens finds its worker by its port; if not, why not.
pub(crate) fn by_port(link: &Link) -> Result<(), Unknown> {
    Rss::read(link, std::net::Ipv4Addr::UNSPECIFIED.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{RouteSocket, link_by_name};
    use crate::testing::{Namespace, VethEnd, is_root, veth_pair};

    #[test]
    fn a_port_suits_if_its_answers_come_to_the_queues_of_the_worker() {
        let rss = Rss::from_settings(rss::tests::settings(), 0xf0).unwrap();
        let remote = "192.0.2.1:4420".parse().unwrap();
        let local = |port| SocketAddr::from(([192, 0, 2, 2], port));
        let ways = [0, 1].map(|worker| Way {
            rss: Some(rss.clone()),
            worker,
            workers: 2,
        });
        for port in 50_000..50_200 {
            // Of four queues each worker has two.
            let right = rss.queue(remote, local(port)) as usize % 2;
            let answers = [0, 1].map(|worker: usize| ways[worker].answers(remote, local(port)));
            assert_eq!(answers[right], Answers::Here);
            assert_eq!(answers[1 - right], Answers::Elsewhere);
        }
        let unknown = Way {
            rss: None,
            worker: 1,
            workers: 2,
        };
        assert_eq!(unknown.answers(remote, local(1)), Answers::Here);
    }

    #[test]
    fn who_opens_a_device_removes_what_others_left_behind() {
        if !is_root("who_opens_a_device_removes_what_others_left_behind") {
            return;
        }
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
            let left = device.join("of-nobody");
            std::fs::create_dir_all(&left).unwrap();
            std::fs::write(left.join("192.0.2.1:1 192.0.2.2:2"), "").unwrap();
            assert_eq!(rules_left_behind(&link).unwrap(), 1);
            // A veth has no rules, so all are gone.
            Placement::new(&link, 2);
            assert_eq!(rules_left_behind(&link).unwrap(), 0);
            assert!(!device.exists(), "nothing is left behind");
        });
    }
}
