//! What waits: requests for queue pairs whose programs have not named the other side yet, and queue
//! pairs that are to try again.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rnic_core::wire::hello::Hello;
use rnic_verbs::ConnectRequest;

use crate::errno::lock;

/// How long a request waits. Then it is rejected: its sender asks again.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The most requests that wait. The engine keeps no more than 1024 of all kinds.
const MOST_REQUESTS: usize = 256;

/// What waits on an adapter. Whoever locks this locks nothing else meanwhile.
#[derive(Default)]
pub(super) struct Waiting(Mutex<Lists>);

#[derive(Default)]
struct Lists {
    /// The oldest first.
    requests: VecDeque<Parked>,
    /// Numbers of queue pairs, and when they are to go on.
    due: Vec<(Instant, u32)>,
}

/// A request that waits.
struct Parked {
    request: ConnectRequest,
    hello: Hello,
    since: Instant,
}

impl Parked {
    fn peer(&self) -> IpAddr {
        self.request.peer().ip()
    }
}

impl Waiting {
    /// Keeps a request until its queue pair has a peer. An earlier one that says the same is
    /// dropped, which rejects it. If there are too many, the oldest of the address that has most is.
    pub(super) fn keep(&self, request: ConnectRequest, hello: Hello) {
        let new = Parked {
            request,
            hello,
            since: Instant::now(),
        };
        let mut lists = lock(&self.0);
        let is_same = |old: &Parked| (old.peer(), old.hello) == (new.peer(), hello);
        let mut dropped: Vec<_> = lists
            .requests
            .iter()
            .position(is_same)
            .into_iter()
            .collect();
        if dropped.is_empty() && lists.requests.len() >= MOST_REQUESTS {
            dropped.extend(oldest_of_greediest(&lists.requests));
        }
        let dropped: Vec<_> = dropped
            .into_iter()
            .filter_map(|at| lists.requests.remove(at))
            .collect();
        lists.requests.push_back(new);
        drop(lists);
        drop(dropped);
    }

    /// Removes and returns the requests for a queue pair.
    pub(super) fn requests_for(&self, number: u32) -> Vec<(ConnectRequest, Hello)> {
        let mut lists = lock(&self.0);
        let all = std::mem::take(&mut lists.requests);
        let (those, others): (VecDeque<_>, _) =
            all.into_iter().partition(|one| one.hello.peer == number);
        lists.requests = others;
        drop(lists);
        let both = |parked: Parked| (parked.request, parked.hello);
        those.into_iter().map(both).collect()
    }

    /// Has a queue pair go on at this time, unless it goes on before.
    pub(super) fn again_by(&self, number: u32, at: Instant) {
        let due = &mut lock(&self.0).due;
        match due.iter_mut().find(|(_, known)| *known == number) {
            Some((known, _)) => *known = at.min(*known),
            None => due.push((at, number)),
        }
    }

    /// Removes and returns the queue pairs that are to go on now. Requests that have waited too long
    /// are rejected.
    pub(super) fn due(&self, now: Instant) -> Vec<u32> {
        let mut lists = lock(&self.0);
        let is_old = |parked: &Parked| now >= parked.since + PATIENCE;
        let old = lists.requests.iter().take_while(|one| is_old(one)).count();
        let old: Vec<_> = lists.requests.drain(..old).collect();
        let ready = lists.due.extract_if(.., |(at, _)| *at <= now);
        let ready = ready.map(|(_, number)| number).collect();
        drop(lists);
        drop(old);
        ready
    }

    /// Returns when the next of them is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let lists = lock(&self.0);
        let request = lists.requests.front().map(|oldest| oldest.since + PATIENCE);
        let queue_pair = lists.due.iter().map(|(at, _)| *at).min();
        request.into_iter().chain(queue_pair).min()
    }
}

/// Returns where the oldest request is of the address that has most.
fn oldest_of_greediest(requests: &VecDeque<Parked>) -> Option<usize> {
    let count = |of: IpAddr| requests.iter().filter(|one| one.peer() == of).count();
    let greediest = requests
        .iter()
        .map(Parked::peer)
        .max_by_key(|peer| count(*peer))?;
    requests.iter().position(|one| one.peer() == greediest)
}
