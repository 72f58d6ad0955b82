//! What each user has done of late: how much of it is written to the log, and how often the kernel
//! looks something up for it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::shared::ClientKey;

/// Lines of the log that a user can cause at once, and in a second.
const LINES: (f64, f64) = (32.0, 1.0);
/// Next hops that are looked up for a user at once, and in a second.
const LOOKUPS: (f64, f64) = (128.0, 256.0);
/// How long a user gets no connection that has sent descriptors: closing them can take as long as
/// it likes.
const PENALTY: Duration = Duration::from_secs(60);
/// Users of whom something is kept without a reason.
const MAX_IDLE: usize = 1024;

/// So much at once, and so much in a second.
#[derive(Clone, Debug)]
struct Bucket {
    most: f64,
    each_second: f64,
    /// What is left; below zero, what is owed.
    left: f64,
    at: Instant,
}

impl Bucket {
    fn new((most, each_second): (f64, f64), now: Instant) -> Self {
        Self {
            most,
            each_second,
            left: most,
            at: now,
        }
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = self.most.min(self.left + passed * self.each_second);
        self.at = now;
    }

    /// Uses up one, if there is one. Returns whether there was.
    fn take(&mut self, now: Instant) -> bool {
        self.fill(now);
        let has_one = self.left >= 1.0;
        if has_one {
            self.left -= 1.0;
        }
        has_one
    }

    /// Uses up one, and returns how long it takes until nothing is owed.
    fn owe(&mut self, now: Instant) -> Duration {
        self.fill(now);
        self.left -= 1.0;
        Duration::from_secs_f64((-self.left).max(0.0) / self.each_second)
    }

    fn is_full(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.left >= self.most
    }
}

/// A user.
#[derive(Clone, Debug)]
struct User {
    lines: Bucket,
    /// Lines that were left out since the last one.
    left_out: u64,
    lookups: Bucket,
    /// Until when it gets no connection.
    shut_out_until: Option<Instant>,
    /// Its connection that was served last.
    served: ClientKey,
}

/// Users, by the number under which they count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Users(HashMap<u32, User>);

impl Users {
    fn of(&mut self, account: u32, now: Instant) -> &mut User {
        self.0.entry(account).or_insert_with(|| User {
            lines: Bucket::new(LINES, now),
            left_out: 0,
            lookups: Bucket::new(LOOKUPS, now),
            shut_out_until: None,
            served: 0,
        })
    }

    /// Returns whether another line that a user has caused is written, and then how many were left
    /// out before.
    pub(crate) fn line(&mut self, account: u32) -> Option<u64> {
        let now = Instant::now();
        let user = self.of(account, now);
        if user.lines.take(now) {
            return Some(std::mem::take(&mut user.left_out));
        }
        user.left_out += 1;
        None
    }

    /// Returns whose lines were left out, and how many, as far as there is room for that in the log
    /// again.
    pub(crate) fn left_out(&mut self) -> Vec<(u32, u64)> {
        let now = Instant::now();
        let users = self.0.iter_mut();
        let told = users.filter_map(|(&account, user)| {
            let due = user.left_out > 0 && user.lines.take(now);
            due.then(|| (account, std::mem::take(&mut user.left_out)))
        });
        told.collect()
    }

    /// Counts a lookup for a user. Returns how long nothing more is to be done for the connection
    /// that has asked.
    pub(crate) fn look_up(&mut self, account: u32) -> Duration {
        let now = Instant::now();
        self.of(account, now).lookups.owe(now)
    }

    /// Refuses a user's connections for a while.
    pub(crate) fn shut_out(&mut self, account: u32) {
        let now = Instant::now();
        self.of(account, now).shut_out_until = Some(now + PENALTY);
    }

    /// Returns whether a user gets no connection now.
    pub(crate) fn is_shut_out(&self, account: u32) -> bool {
        let until = self.0.get(&account).and_then(|user| user.shut_out_until);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Notes which connection of a user was served last.
    pub(crate) fn serve(&mut self, account: u32, key: ClientKey) {
        self.of(account, Instant::now()).served = key;
    }

    /// Returns which connection of a user was served last.
    pub(crate) fn served(&self, account: u32) -> ClientKey {
        self.0.get(&account).map_or(0, |user| user.served)
    }

    /// Forgets those of whom there is nothing to know, if they are many.
    pub(crate) fn forget_idle(&mut self) {
        if self.0.len() <= MAX_IDLE {
            return;
        }
        let now = Instant::now();
        self.0.retain(|_, user| {
            let is_shut_out = user.shut_out_until.is_some_and(|until| now < until);
            let is_idle = user.lines.is_full(now) && user.lookups.is_full(now);
            is_shut_out || user.left_out > 0 || !is_idle
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_what_has_come_in() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut bucket = Bucket::new((2.0, 10.0), start);
        assert!(bucket.take(start) && bucket.take(start) && !bucket.take(start));
        assert!(!bucket.take(at(99)) && bucket.take(at(200)));
        assert!(bucket.is_full(at(1000)));
        assert_eq!(bucket.owe(at(1000)), Duration::ZERO);
        assert_eq!(bucket.owe(at(1000)), Duration::ZERO);
        assert_eq!(bucket.owe(at(1000)), Duration::from_millis(100));
        assert_eq!(bucket.owe(at(1000)), Duration::from_millis(200));
        assert_eq!(bucket.owe(at(1100)), Duration::from_millis(200));
    }

    #[test]
    fn lines_of_a_user_are_counted_by_themselves() {
        let mut users = Users::default();
        let (most, _) = LINES;
        let written = (0..1000).filter(|_| users.line(7).is_some()).count();
        assert!((most as usize..40).contains(&written), "{written}");
        assert_eq!(users.line(8), Some(0));
        let user = users.0.get_mut(&7).unwrap();
        assert_eq!(user.left_out, 1000 - written as u64);
        user.lines.left = 1.0;
        assert_eq!(users.left_out(), [(7, 1000 - written as u64)]);
    }
}
