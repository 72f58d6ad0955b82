//! What the worker must be told. What it has no room for waits here, the newest of each kind, and
//! the thread reads on: a worker that is driven by who waits for an answer of rnicd takes nothing
//! before the answer is there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use rnic_core::connection::AddressPair;
use rnic_core::wire::icmp::Report;

use super::protection::PortProtection;
use crate::device::interface::{FollowedWorker, WorkerNotice};
use crate::device::routes::{LinkState, Update};
use crate::device::vlans::Untagged;

/// The worker, once it has begun, and what waits for it.
#[derive(Default)]
pub(super) struct WorkerNews {
    worker: Option<FollowedWorker>,
    link: Option<LinkState>,
    untagged: Option<Untagged>,
    /// Local addresses and ports that it has no more.
    revoked: BTreeSet<SocketAddr>,
    /// The next hops of paths that it follows.
    hops: BTreeMap<AddressPair, Update>,
}

impl WorkerNews {
    /// Begins to tell a worker.
    pub(super) fn join(&mut self, worker: FollowedWorker) {
        self.worker = Some(worker);
    }

    pub(super) fn set_link(&mut self, state: LinkState) {
        self.link = Some(state);
    }

    pub(super) fn set_untagged(&mut self, untagged: Untagged) {
        self.untagged = Some(untagged);
    }

    pub(super) fn set_hop(&mut self, path: AddressPair, update: Update) {
        self.hops.insert(path, update);
    }

    /// Forgets the next hop of a path that is not followed any more.
    pub(super) fn forget_hop(&mut self, path: AddressPair) {
        self.hops.remove(&path);
    }

    pub(super) fn revoke(&mut self, local: SocketAddr) {
        self.revoked.insert(local);
    }

    /// Returns whether it waits to be told that it has an address and port no more.
    pub(super) fn is_revoked(&self, local: SocketAddr) -> bool {
        self.revoked.contains(&local)
    }

    /// Tells it of a packet that was too big, if there is room: routers say so again.
    pub(super) fn mention(&self, report: Report) {
        if let Some(worker) = &self.worker {
            worker.tell(WorkerNotice::TooBig(report));
        }
    }

    /// Tells the worker as much as it has room for.
    pub(super) fn pass_on(&mut self, mut protection: Option<&mut PortProtection>) {
        while self.worker.as_ref().is_some_and(FollowedWorker::has_room) {
            let protection = protection.as_deref_mut();
            let Some(next) = self.next().or_else(|| next_change(protection)) else {
                return;
            };
            if let Some(worker) = &self.worker {
                worker.tell(next);
            }
        }
    }

    fn next(&mut self) -> Option<WorkerNotice> {
        let revoked = || self.revoked.pop_first().map(WorkerNotice::Revoked);
        let link = self.link.take().map(WorkerNotice::Link);
        link.or_else(revoked)
            .or_else(|| self.untagged.take().map(WorkerNotice::Untagged))
            .or_else(|| {
                let hop = self.hops.pop_first();
                hop.map(|(_, update)| WorkerNotice::NextHop(update))
            })
    }

    /// Returns whether the worker had no room for something.
    pub(super) fn waits(&self, protection: Option<&PortProtection>) -> bool {
        let has_some = self.link.is_some()
            || self.untagged.is_some()
            || !self.revoked.is_empty()
            || !self.hops.is_empty()
            || protection.is_some_and(PortProtection::has_changes);
        self.worker.is_some() && has_some
    }
}

fn next_change(protection: Option<&mut PortProtection>) -> Option<WorkerNotice> {
    let change = protection?.poll_change()?;
    Some(WorkerNotice::Protection(change))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::task::Waker;

    use crossbeam_channel::{Receiver, unbounded};

    use super::*;
    use crate::device::interface::{Control, HostIpsec, Request};

    /// Returns the news of a worker that takes nothing by itself, and where it takes it.
    fn joined() -> (WorkerNews, Receiver<WorkerNotice>) {
        let (sender, made) = unbounded();
        let control = Control::start(HostIpsec::default(), move |requests, _| {
            for request in requests {
                match request {
                    Request::Join(joining) => {
                        let mut news = WorkerNews::default();
                        news.join(joining.worker);
                        joining.joined.send(Ok(Vec::new())).unwrap();
                        sender.send(news).unwrap();
                    }
                    _ => return,
                }
            }
        });
        let control = control.unwrap();
        let (notices, _) = control.handle().join(0, Waker::noop().clone()).unwrap();
        (made.recv().unwrap(), notices)
    }

    fn path(number: u16) -> AddressPair {
        let remote = IpAddr::from([10, 0, (number >> 8) as u8, number as u8]);
        AddressPair {
            local: [192, 0, 2, 1].into(),
            remote,
        }
    }

    #[test]
    fn what_there_is_no_room_for_is_told_later_and_once() {
        let (mut news, notices) = joined();
        for _ in 0..3 {
            for number in 0..1000 {
                let path = path(number);
                news.set_hop(path, Update::Unreachable(path));
            }
            news.pass_on(None);
        }
        let local = "192.0.2.1:7471".parse().unwrap();
        news.revoke(local);
        news.set_link(LinkState::Inactive);
        news.set_link(LinkState::Active);
        news.forget_hop(path(999));
        assert!(news.waits(None) && news.is_revoked(local));
        let (mut hops, mut others) = (Vec::new(), Vec::new());
        while news.waits(None) || !notices.is_empty() {
            for notice in notices.try_iter() {
                match notice {
                    WorkerNotice::NextHop(Update::Unreachable(path)) => hops.push(path),
                    WorkerNotice::Revoked(of) => others.push(of.to_string()),
                    WorkerNotice::Link(state) => others.push(format!("{state:?}")),
                    _ => panic!("nothing else was said"),
                }
            }
            news.pass_on(None);
        }
        assert_eq!(others, ["Active", "192.0.2.1:7471"]);
        assert!(!news.is_revoked(local));
        hops.sort();
        let all: Vec<_> = (0..999).map(path).collect();
        let twice = hops.len() - all.len();
        // Those that the worker got before they were said again.
        assert_eq!(twice, 256);
        hops.dedup();
        assert_eq!(hops, all);
    }
}
