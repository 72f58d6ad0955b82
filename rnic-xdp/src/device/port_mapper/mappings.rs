//! Which TCP port each RDMA listener of a device has, by the one that its program asked for.

use std::net::SocketAddr;

use rnic_core::wire::port_mapper::{Kind, Message};

/// A listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listening {
    /// Who has it: listeners of one owner may replace each other.
    pub(crate) owner: u32,
    /// The user whose TCP sockets may have its number. Without one, anybody's may.
    pub(crate) user: Option<u32>,
    /// The address and TCP port that its program asked for.
    pub(crate) local: SocketAddr,
    /// The TCP port at which it listens.
    pub(crate) mapped: u16,
}

impl Listening {
    /// Returns whether its TCP port is another one than its number.
    pub(super) fn is_mapped(&self) -> bool {
        self.local.port() != self.mapped
    }
}

/// A listener in the table, and by what it goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: u64,
    pub(super) listening: Listening,
}

/// The listeners.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    entries: Vec<Entry>,
    next_id: u64,
}

impl Mappings {
    /// Adds a listener, and returns its id. Returns `None` if another owner has one at that address.
    /// An earlier one of the same owner is not found any more.
    pub(super) fn add(&mut self, listening: Listening) -> Option<u64> {
        let mut at = self.entries.iter().map(|entry| entry.listening);
        let is_others = |other: Listening| {
            other.owner != listening.owner && overlap(other.local, listening.local)
        };
        if at.any(is_others) {
            return None;
        }
        self.next_id += 1;
        let id = self.next_id;
        self.entries.push(Entry { id, listening });
        Some(id)
    }

    /// Removes a listener, and returns it.
    pub(super) fn remove(&mut self, id: u64) -> Option<Entry> {
        let at = self.entries.iter().position(|entry| entry.id == id)?;
        Some(self.entries.remove(at))
    }

    /// Returns the listeners.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the answer to a message that came to a local address, if it is to be answered.
    /// Nothing is kept of it: who gets no answer asks again.
    pub(super) fn answer(&self, asked: &Message, to: SocketAddr) -> Option<Message> {
        if asked.kind != Kind::Request {
            return None;
        }
        // The newest of one owner counts.
        let mut newest_first = self.entries.iter().rev();
        let found = newest_first.find(|entry| overlap(entry.listening.local, asked.acceptor));
        let is_here = asked.acceptor.ip() == to.ip();
        Some(match found.filter(|_| is_here) {
            Some(entry) => {
                let mut acceptor = asked.acceptor;
                acceptor.set_port(entry.listening.mapped);
                Message {
                    kind: Kind::Accept,
                    acceptor,
                    ..*asked
                }
            }
            None => Message {
                kind: Kind::Reject,
                ..*asked
            },
        })
    }
}

/// Returns whether a listener at one address gets connections to the other.
pub(super) fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port()
        && one.is_ipv4() == other.is_ipv4()
        && (is_any || one.ip() == other.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "192.0.2.9:3935";

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn add(mappings: &mut Mappings, owner: u32, local: &str, mapped: u16) -> Option<u64> {
        mappings.add(Listening {
            owner,
            user: None,
            local: at(local),
            mapped,
        })
    }

    fn ask(mappings: &Mappings, acceptor: &str) -> Message {
        let asked = Message {
            kind: Kind::Request,
            handle: 7,
            acceptor: at(acceptor),
            connector: at("192.0.2.1:5"),
        };
        let answer = mappings.answer(&asked, at(HERE)).unwrap();
        assert_eq!((answer.handle, answer.connector), (7, asked.connector));
        answer
    }

    fn accepts(mappings: &Mappings, acceptor: &str) -> Option<u16> {
        let answer = ask(mappings, acceptor);
        (answer.kind == Kind::Accept).then_some(answer.acceptor.port())
    }

    #[test]
    fn a_listener_is_found_by_what_its_program_asked_for() {
        let mut mappings = Mappings::default();
        let one = add(&mut mappings, 1, "192.0.2.9:7174", 40000).unwrap();
        add(&mut mappings, 2, "0.0.0.0:80", 40001).unwrap();
        assert_eq!(accepts(&mappings, "192.0.2.9:7174"), Some(40000));
        assert_eq!(accepts(&mappings, "192.0.2.9:80"), Some(40001));
        assert_eq!(accepts(&mappings, "192.0.2.9:40000"), None);
        // Not an address to which this one came.
        assert_eq!(accepts(&mappings, "192.0.2.8:80"), None);
        assert_eq!(ask(&mappings, "192.0.2.9:81").kind, Kind::Reject);
        mappings.remove(one).unwrap();
        assert_eq!(accepts(&mappings, "192.0.2.9:7174"), None);
    }

    #[test]
    fn an_address_has_one_owner_whose_newest_listener_counts() {
        let mut mappings = Mappings::default();
        let first = add(&mut mappings, 1, "192.0.2.9:80", 40000).unwrap();
        assert_eq!(add(&mut mappings, 2, "192.0.2.9:80", 40001), None);
        assert_eq!(add(&mut mappings, 2, "0.0.0.0:80", 40001), None);
        add(&mut mappings, 2, "[::]:80", 40001).unwrap();
        add(&mut mappings, 1, "192.0.2.9:80", 40002).unwrap();
        assert_eq!(accepts(&mappings, "192.0.2.9:80"), Some(40002));
        mappings.remove(first).unwrap();
        assert_eq!(accepts(&mappings, "192.0.2.9:80"), Some(40002));
    }

    #[test]
    fn answers_are_not_answered() {
        let mappings = Mappings::default();
        for kind in [Kind::Accept, Kind::Acknowledgment, Kind::Reject] {
            let message = Message {
                kind,
                handle: 7,
                acceptor: at("192.0.2.9:80"),
                connector: at("192.0.2.1:5"),
            };
            assert_eq!(mappings.answer(&message, at(HERE)), None);
        }
    }
}
