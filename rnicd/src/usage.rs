//! What users have sent and received through a device: what their ports count, and what ports that
//! have ended had counted.
//!
//! No counter goes back when a port ends. Nor does it when rnicd does: all that was shown lies in a
//! file as long as the system runs.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rnic_manager::PoliceVerdict;
use rnic_manager::states::{KernelLink, SentFrames, UsageState};
use rnic_xdp::shared::PoliceCounters;
use serde::{Deserialize, Serialize};
use tracing::warn;

/// The most users of a device that are counted apart. Those who come later are counted together.
const MAX_USERS: usize = 256;

/// Frames and their octets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Count {
    frames: u64,
    octets: u64,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.frames = self.frames.saturating_add(other.frames);
        self.octets = self.octets.saturating_add(other.octets);
    }

    /// Adopts the values that have grown.
    fn advance(&mut self, now: Self) {
        self.frames = self.frames.max(now.frames);
        self.octets = self.octets.max(now.octets);
    }
}

/// What a port or a user has sent, by what became of it, and received.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Traffic {
    sent: BTreeMap<String, Count>,
    received: Count,
}

impl Traffic {
    fn add(&mut self, other: &Self) {
        for (verdict, &count) in &other.sent {
            self.sent.entry(verdict.clone()).or_default().add(count);
        }
        self.received.add(other.received);
    }

    /// Returns it in the form that messages have.
    pub(crate) fn state(&self, netdev: &str, uid: Option<u32>) -> UsageState {
        let sent = PoliceVerdict::ALL.map(|verdict| {
            let count = self.sent.get(verdict.name()).copied().unwrap_or_default();
            SentFrames {
                verdict: verdict.name().to_owned(),
                frames: count.frames,
                octets: count.octets,
            }
        });
        UsageState {
            netdev: netdev.to_owned(),
            uid,
            sent: sent.into(),
            received_frames: self.received.frames,
            received_octets: self.received.octets,
        }
    }
}

/// What the file has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Books {
    /// By ports that have ended, of each user that is counted apart.
    users: BTreeMap<u32, Traffic>,
    /// The same, of all others together.
    others: Option<Traffic>,
    /// By each port that is there, as it was seen last. A port is in here until its traffic is in
    /// the above.
    ports: BTreeMap<u32, Traffic>,
}

/// What the users of a device have sent and received.
#[derive(Debug)]
pub(crate) struct Usage {
    path: PathBuf,
    books: Books,
    /// Whether the file has all of it.
    is_kept: bool,
}

impl Usage {
    /// Uses a file, which need not exist. Only root may enter its directory.
    pub(crate) fn open(path: PathBuf) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o700).create(directory)?;
        }
        let books = match fs::read(&path) {
            Ok(octets) => serde_json::from_slice(&octets).unwrap_or_else(|error| {
                let path = path.display();
                warn!("{path} has no counters, which start at zero again: {error}");
                Books::default()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Books::default(),
            Err(error) => return Err(error),
        };
        Ok(Self {
            path,
            books,
            is_kept: true,
        })
    }

    /// Begins to count a port of a user, unless it is known.
    pub(crate) fn add_port(&mut self, port: u32, uid: u32) {
        let books = &mut self.books;
        if books.users.len() < MAX_USERS {
            books.users.entry(uid).or_default();
        } else if !books.users.contains_key(&uid) {
            books.others.get_or_insert_default();
        }
        books.ports.entry(port).or_default();
        self.is_kept = false;
    }

    /// Records what a port counts now, as far as that is known.
    pub(crate) fn see_port(
        &mut self,
        port: u32,
        sent: Option<&PoliceCounters>,
        host_end: Option<&KernelLink>,
    ) {
        let Some(traffic) = self.books.ports.get_mut(&port) else {
            return;
        };
        let before = traffic.clone();
        for (verdict, count) in sent.into_iter().flat_map(PoliceCounters::entries) {
            let (frames, octets) = (count.frames, count.octets);
            let slot = traffic.sent.entry(verdict.name().to_owned()).or_default();
            slot.advance(Count { frames, octets });
        }
        // What the host end sends is what the client receives.
        if let Some(link) = host_end {
            let (frames, octets) = (link.tx_packets, link.tx_octets);
            traffic.received.advance(Count { frames, octets });
        }
        self.is_kept &= *traffic == before;
    }

    /// Counts what a port had for its user, once the port has ended.
    pub(crate) fn end_port(&mut self, port: u32, uid: u32) {
        let books = &mut self.books;
        let Some(traffic) = books.ports.remove(&port) else {
            return;
        };
        let ended = match books.users.get_mut(&uid) {
            Some(user) => user,
            None => books.others.get_or_insert_default(),
        };
        ended.add(&traffic);
        self.is_kept = false;
    }

    /// Returns who is counted: the others first, if there are any, then each user.
    pub(crate) fn owners(&self) -> Vec<Option<u32>> {
        let others = self.books.others.iter().map(|_| None);
        others
            .chain(self.books.users.keys().map(|&uid| Some(uid)))
            .collect()
    }

    /// Returns as whom a user is counted.
    pub(crate) fn owner(&self, uid: u32) -> Option<u32> {
        self.books.users.contains_key(&uid).then_some(uid)
    }

    /// Returns what an owner has sent and received, with these ports, which are those of the owner
    /// that are there.
    pub(crate) fn of(&self, owner: Option<u32>, ports: &[u32]) -> Traffic {
        let ended = match owner {
            Some(uid) => self.books.users.get(&uid),
            None => self.books.others.as_ref(),
        };
        let mut sum = ended.cloned().unwrap_or_default();
        let there = ports.iter().filter_map(|port| self.books.ports.get(port));
        there.for_each(|port| sum.add(port));
        sum
    }

    /// Brings the file up to date. Without it, counters go back when rnicd is started again.
    pub(crate) fn keep(&mut self) {
        if self.is_kept {
            return;
        }
        match write(&self.path, &self.books) {
            Ok(()) => self.is_kept = true,
            Err(error) => warn!("cannot keep counters in {}: {error}", self.path.display()),
        }
    }
}

/// Writes the file. A reader finds the old one or the new one.
fn write(path: &Path, books: &Books) -> io::Result<()> {
    let part = path.with_extension("part");
    fs::write(&part, serde_json::to_vec(books)?)?;
    fs::rename(part, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(tx_packets: u64) -> KernelLink {
        KernelLink {
            name: "rnic2-1".into(),
            ifindex: 9,
            up: true,
            mtu: 1500,
            program: None,
            xdp: None,
            rx_packets: 0,
            rx_octets: 0,
            rx_dropped: 0,
            tx_packets,
            tx_octets: 100 * tx_packets,
            tx_dropped: 0,
        }
    }

    fn received(usage: &Usage, owner: Option<u32>, ports: &[u32]) -> u64 {
        usage.of(owner, ports).received.frames
    }

    fn path(name: &str) -> PathBuf {
        let directory = format!("rnicd-usage-{}-{name}", std::process::id());
        std::env::temp_dir().join(directory).join("eth1.json")
    }

    #[test]
    fn a_port_that_ends_is_counted_once_also_by_the_next_rnicd() {
        let path = path("once");
        let mut usage = Usage::open(path.clone()).unwrap();
        usage.add_port(1, 1000);
        usage.add_port(2, 1000);
        usage.see_port(1, None, Some(&link(5)));
        usage.see_port(2, None, Some(&link(7)));
        assert_eq!(received(&usage, Some(1000), &[1, 2]), 12);
        usage.end_port(1, 1000);
        usage.end_port(1, 1000);
        assert_eq!(received(&usage, Some(1000), &[2]), 12);
        usage.keep();

        let mut next = Usage::open(path.clone()).unwrap();
        assert_eq!(next.books, usage.books);
        next.add_port(2, 1000);
        next.end_port(1, 1000);
        // It ended when no rnicd ran: its host end is gone.
        next.see_port(2, None, None);
        next.end_port(2, 1000);
        assert_eq!(received(&next, Some(1000), &[]), 12);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn users_over_the_bound_are_counted_together_and_for_good() {
        let path = path("bound");
        let mut usage = Usage::open(path.clone()).unwrap();
        let most = MAX_USERS as u32;
        for uid in 0..most + 2 {
            usage.add_port(uid + 1, uid);
            usage.see_port(uid + 1, None, Some(&link(3)));
        }
        assert_eq!(usage.owners().len(), MAX_USERS + 1);
        assert_eq!(usage.owner(most - 1), Some(most - 1));
        assert_eq!(usage.owner(most), None);
        assert_eq!(received(&usage, None, &[most + 1, most + 2]), 6);
        for uid in 0..most + 2 {
            usage.end_port(uid + 1, uid);
        }
        usage.add_port(1, most);
        assert_eq!(received(&usage, None, &[1]), 6);
        assert_eq!(received(&usage, Some(0), &[]), 3);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_file_without_sense_starts_again() {
        let path = path("sense");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "{").unwrap();
        let usage = Usage::open(path.clone()).unwrap();
        assert_eq!(usage.books, Books::default());
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
