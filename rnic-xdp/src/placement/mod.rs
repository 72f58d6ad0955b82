//! Which worker the segments of a connection come to, and how to have them come to a certain one.
//!
//! A device chooses the receive queue of a segment by a hash of its addresses. For a connection that we open, the local port
//! is chosen so that the answers come to its worker's queues. Where the hash is not known, or another port would not change
//! it, a rule in the device chooses the queue. Where there is neither, as on a veth, whichever worker the answers come to
//! hands them over.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::netlink::Link;
use crate::port::worker_of;

mod ioctl;
mod ntuple;
mod rss;
mod toeplitz;

use ntuple::Rule;
use rss::Rss;
pub(crate) use rss::Unknown;

/// How an open device places flows.
#[derive(Debug)]
pub(crate) struct Placement {
    link: Link,
    workers: u32,
    /// The device has taken no rule, and is not asked again.
    takes_no_rules: AtomicBool,
}

/// Keeps a flow where it was placed.
#[derive(Debug)]
pub(crate) struct Kept {
    _rule: Option<Rule>,
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
    pub(crate) fn new(link: &Link, workers: u32) -> Self {
        Self {
            link: link.clone(),
            workers,
            takes_no_rules: AtomicBool::new(false),
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
    pub(crate) fn keep(&self, way: &Way, remote: SocketAddr, local: SocketAddr) -> Kept {
        let known = way.rss.is_some() && way.answers(remote, local) == Answers::Here;
        if self.workers == 1 || known || self.takes_no_rules.load(Ordering::Relaxed) {
            return Kept { _rule: None };
        }
        // The first queue of a worker has its number.
        let rule = Rule::insert(&self.link.name, remote, local, way.worker as u32);
        if rule.as_ref().is_err_and(never_will) {
            self.takes_no_rules.store(true, Ordering::Relaxed);
        }
        Kept { _rule: rule.ok() }
    }
}

/// Not for lack of room, but for good.
fn never_will(error: &io::Error) -> bool {
    use nix::libc::{EINVAL, EOPNOTSUPP, EPERM};
    matches!(error.raw_os_error(), Some(EOPNOTSUPP | EINVAL | EPERM))
}

/// Whether a connection that this host opens finds its worker by its port; if not, why not.
pub(crate) fn by_port(link: &Link) -> Result<(), Unknown> {
    Rss::read(link, std::net::Ipv4Addr::UNSPECIFIED.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
