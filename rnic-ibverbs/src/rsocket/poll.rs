//! `rpoll` and `rselect`: sockets and ordinary descriptors together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, pollfd};

use super::config::Config;
use super::endpoint::Endpoint;
use super::index;
use super::socket::Socket;
use super::waiter::{Waiter, entry, poll_fds};
use crate::errno::{Errno, lock};

/// The entries of a call, told apart.
struct Watched {
    /// Those of sockets, with their places.
    sockets: Vec<(usize, Arc<Socket>)>,
    /// The others, and their places.
    others: Vec<pollfd>,
    places: Vec<usize>,
}

impl Watched {
    fn new(fds: &[pollfd]) -> Self {
        let mut watched = Self {
            sockets: Vec::new(),
            others: Vec::new(),
            places: Vec::new(),
        };
        for (place, fd) in fds.iter().enumerate() {
            match index::find(fd.fd) {
                Some(socket) => watched.sockets.push((place, socket)),
                None => {
                    watched.others.push(entry(fd.fd, fd.events));
                    watched.places.push(place);
                }
            }
        }
        watched
    }

    /// Writes what there is to the entries, and returns how many have something. Whoever is going
    /// to sleep has the completion queues armed.
    fn check(&mut self, fds: &mut [pollfd], arming: bool) -> Result<usize, Errno> {
        let mut ready = 0;
        for (place, socket) in &self.sockets {
            let wanted = fds[*place].events;
            let mut flow = lock(&socket.flow);
            let mut events = if flow.closed {
                POLLNVAL
            } else {
                socket.events(&mut flow, wanted)
            };
            if events == 0 && arming && socket.arm(&mut flow) {
                events = socket.events(&mut flow, wanted);
            }
            fds[*place].revents = events;
            ready += usize::from(events != 0);
        }
        if !self.others.is_empty() {
            ready += poll_fds(&mut self.others, Some(Duration::ZERO))?;
        }
        for (other, place) in self.others.iter().zip(&self.places) {
            fds[*place].revents = other.revents;
        }
        Ok(ready)
    }

    /// Sleeps until something may have changed.
    fn sleep(&self, waiter: &Waiter, most: Option<Duration>) -> Result<(), Errno> {
        let channels = self.sockets.iter().map(|(_, socket)| {
            let channel = socket.endpoint.get().map_or(-1, Endpoint::fd);
            entry(channel, POLLIN)
        });
        let others = self.others.iter().copied();
        let mut all: Vec<pollfd> = [entry(waiter.fd(), POLLIN)]
            .into_iter()
            .chain(channels)
            .chain(others)
            .collect();
        poll_fds(&mut all, most)?;
        for (channel, (_, socket)) in all[1..].iter().zip(&self.sockets) {
            if channel.revents != 0 {
                socket.take_event(waiter);
            }
        }
        Ok(())
    }
}

/// poll(2), for sockets too.
pub(super) fn poll(fds: &mut [pollfd], most: Option<Duration>) -> Result<usize, Errno> {
    let mut watched = Watched::new(fds);
    if watched.sockets.is_empty() {
        return poll_fds(fds, most);
    }
    let ready = watched.check(fds, false)?;
    if ready > 0 || most == Some(Duration::ZERO) {
        return Ok(ready);
    }
    let begin = Instant::now();
    let polling = Config::get().polling;
    while begin.elapsed() < most.unwrap_or(polling).min(polling) {
        let ready = watched.check(fds, false)?;
        if ready > 0 {
            return Ok(ready);
        }
    }
    let waiter = Waiter::current()?;
    let sockets = watched
        .sockets
        .iter()
        .map(|(_, socket)| socket.clone())
        .collect::<Vec<_>>();
    let _watches = sockets
        .iter()
        .map(|socket| socket.watchers.add(&waiter))
        .collect::<Vec<_>>();
    loop {
        waiter.clear();
        let ready = watched.check(fds, true)?;
        let left = most.map(|most| most.saturating_sub(begin.elapsed()));
        if ready > 0 || left == Some(Duration::ZERO) {
            return Ok(ready);
        }
        watched.sleep(&waiter, left)?;
    }
}

/// A set of descriptors as select(2) has it: a bit each.
pub(super) struct Set<'bits>(pub(super) Option<&'bits mut [u64]>);

impl Set<'_> {
    fn has(&self, fd: usize) -> bool {
        self.0
            .as_ref()
            .is_some_and(|bits| bits[fd / 64] >> (fd % 64) & 1 != 0)
    }

    fn keep(&mut self, fd: usize, is: bool) -> usize {
        let keeps = is && self.has(fd);
        if let Some(bits) = &mut self.0
            && !keeps
        {
            bits[fd / 64] &= !(1 << (fd % 64));
        }
        keeps.into()
    }
}

/// select(2), for sockets too. The sets are those of reading, writing and exceptions.
pub(super) fn select(
    fds: usize,
    mut sets: [Set<'_>; 3],
    most: Option<Duration>,
) -> Result<usize, Errno> {
    let wanted = |fd: usize| {
        let bits = [POLLIN, POLLOUT, POLLPRI];
        sets.iter()
            .zip(bits)
            .filter(|(set, _)| set.has(fd))
            .fold(0, |events, (_, bit)| events | bit)
    };
    let entries = (0..fds).map(|fd| entry(fd as i32, wanted(fd)));
    let mut entries: Vec<pollfd> = entries.filter(|entry| entry.events != 0).collect();
    poll(&mut entries, most)?;
    if entries.iter().any(|entry| entry.revents & POLLNVAL != 0) {
        return Err(Errno::EBADF);
    }
    let conditions = [POLLIN | POLLHUP | POLLERR, POLLOUT | POLLERR, POLLPRI];
    let mut ready = 0;
    for entry in entries {
        for (set, events) in sets.iter_mut().zip(conditions) {
            ready += set.keep(entry.fd as usize, entry.revents & events != 0);
        }
    }
    Ok(ready)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use nix::sys::eventfd::EventFd;

    use super::*;

    #[test]
    fn ordinary_descriptors_are_polled() {
        let (full, empty) = (EventFd::from_value(1).unwrap(), EventFd::new().unwrap());
        let mut fds = [
            entry(full.as_raw_fd(), POLLIN),
            entry(empty.as_raw_fd(), POLLIN),
            entry(-1, POLLIN),
        ];
        assert_eq!(poll(&mut fds, None), Ok(1));
        assert_eq!(fds.map(|fd| fd.revents), [POLLIN, 0, 0]);
        assert_eq!(poll(&mut fds[1..], Some(Duration::from_millis(1))), Ok(0));
    }

    #[test]
    fn sets_keep_what_is_ready() {
        let (full, empty) = (EventFd::from_value(1).unwrap(), EventFd::new().unwrap());
        let numbers = [full.as_raw_fd() as usize, empty.as_raw_fd() as usize];
        let bits = numbers.iter().fold([0u64; 16], |mut bits, fd| {
            bits[fd / 64] |= 1 << (fd % 64);
            bits
        });
        let only = |fd: usize| {
            let mut bits = [0u64; 16];
            bits[fd / 64] = 1 << (fd % 64);
            bits
        };
        let (mut read, mut written) = (bits, only(numbers[1]));
        let sets = [Set(Some(&mut read)), Set(Some(&mut written)), Set(None)];
        assert_eq!(select(1024, sets, None), Ok(2));
        assert_eq!((read, written), (only(numbers[0]), only(numbers[1])));
    }
}
