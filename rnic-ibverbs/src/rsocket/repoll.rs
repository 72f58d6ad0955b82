//! `repoll_create` and its companions: epoll(7), for sockets and ordinary descriptors together.
//! Events are level-triggered, also with EPOLLET, which asks to be told less often.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use nix::libc::{EPOLLONESHOT, POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, epoll_event};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::poll;
use super::waiter::entry;
use crate::errno::{Errno, lock};
use crate::process::{self, Process};

/// What a program may wait for; errors and the end are always told. poll(2) and epoll(7) have the
/// same numbers.
const EVENTS: u32 = (POLLIN | POLLPRI | POLLOUT | POLLERR | POLLHUP) as u32;

static SETS: RwLock<Vec<Arc<Repoll>>> = RwLock::new(Vec::new());

/// A set of descriptors that are waited for.
#[derive(Debug)]
pub(super) struct Repoll {
    process: Process,
    /// The set's number. It holds a token for each thread that waits for descriptors which are no
    /// longer those of the set.
    changed: EventFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    interests: Vec<Interest>,
    /// How many changes there were.
    changes: u64,
    /// Threads that wait for the descriptors of now. The others have a token each.
    waiting: u64,
    closed: bool,
}

#[derive(Debug)]
struct Interest {
    fd: RawFd,
    /// None once it was told, if it was to be told once.
    events: Option<u32>,
    data: u64,
}

/// A change of a set: one of the operations of `epoll_ctl`.
#[derive(Debug)]
pub(super) enum Change {
    Add(epoll_event),
    Modify(epoll_event),
    Delete,
}

/// Makes a set, and returns its number.
pub(super) fn create(close_on_exec: bool) -> Result<RawFd, Errno> {
    let mut flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_SEMAPHORE;
    flags.set(EfdFlags::EFD_CLOEXEC, close_on_exec);
    let set = Arc::new(Repoll {
        process: Process::this(),
        changed: EventFd::from_value_and_flags(0, flags)?,
        state: Mutex::default(),
    });
    let number = set.number();
    let mut sets = SETS.write().unwrap_or_else(PoisonError::into_inner);
    sets.push(set);
    Ok(number)
}

/// Returns the set of this number.
pub(super) fn get(number: RawFd) -> Result<Arc<Repoll>, Errno> {
    let sets = SETS.read().unwrap_or_else(PoisonError::into_inner);
    let found = sets.iter().find(|set| set.number() == number);
    let set = found.cloned().ok_or(Errno::EINVAL)?;
    process::check(&set.process)?;
    Ok(set)
}

/// Returns the lock of the sets, which a child makes new. It keeps those of the parent, whose
/// numbers are taken, unless another thread was about to change them.
pub(super) fn renewed() -> &'static RwLock<impl Default> {
    &SETS
}

/// Closes the set of this number. Its number is free when no thread waits for it any more.
pub(super) fn close(number: RawFd) -> Result<(), Errno> {
    let mut sets = SETS.write().unwrap_or_else(PoisonError::into_inner);
    let place = sets.iter().position(|set| set.number() == number);
    let set = sets.swap_remove(place.ok_or(Errno::EBADF)?);
    drop(sets);
    if set.process.is_forked() {
        return Ok(());
    }
    let mut state = lock(&set.state);
    state.closed = true;
    set.wake_all(&mut state);
    Ok(())
}

impl Repoll {
    fn number(&self) -> RawFd {
        self.changed.as_raw_fd()
    }

    /// Changes what is waited for.
    pub(super) fn change(&self, fd: RawFd, change: Change) -> Result<(), Errno> {
        let mut state = lock(&self.state);
        let interests = &mut state.interests;
        let place = interests.iter().position(|interest| interest.fd == fd);
        let new = |event: epoll_event| Interest {
            fd,
            events: Some(event.events),
            data: event.u64,
        };
        match (change, place) {
            (Change::Add(_), Some(_)) => return Err(Errno::EEXIST),
            (Change::Add(event), None) => interests.push(new(event)),
            (_, None) => return Err(Errno::ENOENT),
            (Change::Modify(event), Some(place)) => interests[place] = new(event),
            (Change::Delete, Some(place)) => drop(interests.swap_remove(place)),
        }
        self.wake_all(&mut state);
        Ok(())
    }

    /// Wakes the threads that wait, so that they look at the set anew.
    fn wake_all(&self, state: &mut State) {
        state.changes += 1;
        let waiting = std::mem::take(&mut state.waiting);
        if waiting > 0 {
            // Fails only if 2^64 - 2 tokens are there.
            let _ = self.changed.write(waiting);
        }
    }

    /// Waits until a descriptor has an event. Writes as many events as there is room for, and
    /// returns their number.
    pub(super) fn wait(
        &self,
        room: &mut [epoll_event],
        most: Option<Duration>,
    ) -> Result<usize, Errno> {
        let begin = Instant::now();
        loop {
            let mut state = lock(&self.state);
            if state.closed {
                return Err(Errno::EBADF);
            }
            let wanted = state.interests.iter().filter_map(|interest| {
                let events = interest.events? & EVENTS;
                Some(entry(interest.fd, events as i16))
            });
            let mut fds: Vec<_> = [entry(self.number(), POLLIN)]
                .into_iter()
                .chain(wanted)
                .collect();
            let waiting = Waiting::begin(self, &mut state);
            drop(state);
            let left = most.map(|most| most.saturating_sub(begin.elapsed()));
            poll::poll(&mut fds, left)?;
            drop(waiting);
            let mut state = lock(&self.state);
            let found = fds[1..].iter().filter(|fd| fd.revents != 0);
            let count = state.tell(found.map(|fd| (fd.fd, fd.revents)), room);
            if count > 0 || most.is_some_and(|most| begin.elapsed() >= most) {
                return Ok(count);
            }
        }
    }
}

/// A thread that waits. It may be cancelled, which unwinds.
struct Waiting<'set> {
    set: &'set Repoll,
    /// The changes that it knows of.
    changes: u64,
}

impl<'set> Waiting<'set> {
    fn begin(set: &'set Repoll, state: &mut State) -> Self {
        state.waiting += 1;
        Self {
            set,
            changes: state.changes,
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.set.state);
        if state.changes == self.changes {
            state.waiting -= 1;
        } else {
            // Its token is there.
            let _ = self.set.changed.read();
        }
    }
}

impl State {
    /// Writes the events that were found, and returns how many there was room for.
    fn tell(
        &mut self,
        found: impl Iterator<Item = (RawFd, i16)>,
        room: &mut [epoll_event],
    ) -> usize {
        let mut count = 0;
        for (fd, events) in found {
            let Some(place) = self.interests.iter().position(|interest| interest.fd == fd) else {
                continue;
            };
            if events & POLLNVAL != 0 {
                // It was closed, which takes it out of the set.
                self.interests.swap_remove(place);
                continue;
            }
            let (Some(slot), interest) = (room.get_mut(count), &mut self.interests[place]) else {
                break;
            };
            *slot = epoll_event {
                events: events as u32 & EVENTS,
                u64: interest.data,
            };
            if interest
                .events
                .is_some_and(|events| events & EPOLLONESHOT as u32 != 0)
            {
                interest.events = None;
            }
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn event(events: i32, data: u64) -> epoll_event {
        epoll_event {
            events: events as u32,
            u64: data,
        }
    }

    fn told(set: &Repoll, most: Option<Duration>) -> Vec<(u32, u64)> {
        let mut room = [event(0, 0); 2];
        let count = set.wait(&mut room, most).unwrap();
        room[..count]
            .iter()
            .map(|told| (told.events, told.u64))
            .collect()
    }

    #[test]
    fn descriptors_are_waited_for_as_the_set_has_them() {
        let number = create(true).unwrap();
        let set = get(number).unwrap();
        let now = Some(Duration::ZERO);
        let (one, two) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let (first, second) = (one.as_raw_fd(), two.as_raw_fd());
        let input = i32::from(POLLIN);
        assert_eq!(told(&set, now), []);
        set.change(first, Change::Add(event(input, 1))).unwrap();
        let again = set.change(first, Change::Add(event(input, 1)));
        assert_eq!(again, Err(Errno::EEXIST));
        assert_eq!(set.change(second, Change::Delete), Err(Errno::ENOENT));
        set.change(second, Change::Add(event(input | EPOLLONESHOT, 2)))
            .unwrap();
        assert_eq!(told(&set, Some(Duration::from_millis(1))), []);
        one.write(1).unwrap();
        assert_eq!(told(&set, None), [(input as u32, 1)]);
        two.write(1).unwrap();
        assert_eq!(told(&set, None), [(input as u32, 1), (input as u32, 2)]);
        assert_eq!(
            told(&set, None),
            [(input as u32, 1)],
            "the second was told once"
        );
        set.change(first, Change::Delete).unwrap();
        assert_eq!(told(&set, now), []);
        set.change(second, Change::Modify(event(input, 3))).unwrap();
        assert_eq!(told(&set, None), [(input as u32, 3)]);
        drop(two);
        assert_eq!(told(&set, now), [], "what was closed is not told");
        assert_eq!(set.change(second, Change::Delete), Err(Errno::ENOENT));
        close(number).unwrap();
        assert_eq!(close(number), Err(Errno::EBADF));
        assert_eq!(set.wait(&mut [event(0, 0)], None), Err(Errno::EBADF));
    }

    #[test]
    fn threads_that_wait_see_changes() {
        let set = get(create(true).unwrap()).unwrap();
        let full = EventFd::from_value(1).unwrap();
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| told(&set, None))).collect();
            while lock(&set.state).waiting < 3 {
                thread::yield_now();
            }
            let output = i32::from(POLLOUT);
            set.change(full.as_raw_fd(), Change::Add(event(output, 5)))
                .unwrap();
            for thread in waiting {
                assert_eq!(thread.join().unwrap(), [(output as u32, 5)]);
            }
        });
        close(set.number()).unwrap();
    }
}
