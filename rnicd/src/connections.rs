//! Connections: who gets one, whose turn it is, and what is written of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rnic_manager::channel::ChannelError;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use tracing::{debug, info, warn};

use crate::client::Client;
use crate::listeners::Role;
use crate::server::Server;
use crate::shared::ClientKey;

/// Connections accepted at a time, so that clients have their turn.
const ACCEPTED_PER_TURN: usize = 16;
/// The most connections of clients: each costs a descriptor.
const MAX_CLIENTS: usize = 4096;
/// The most connections of administrators, and of observers: none of the others can take them away.
const MAX_PER_ROLE: usize = 64;
/// The most connections of one user, so that others have theirs.
const MAX_PER_USER: usize = 256;
/// A user gets another one only while it has at most this part of those that are left: however many
/// users there are, one that comes later has some.
const PART_OF_REST: usize = 4;
/// How long to accept none when the kernel has no descriptor for one.
const PAUSE: Duration = Duration::from_millis(100);

impl Server {
    /// Returns whether there may be another connection of this kind.
    pub(crate) fn has_room(&self, role: Role) -> bool {
        let most = match role {
            Role::Client => MAX_CLIENTS,
            Role::Observer | Role::Administrator => MAX_PER_ROLE,
        };
        self.connections(role) < most
    }

    fn connections(&self, role: Role) -> usize {
        let clients = self.clients.iter();
        clients.filter(|(_, client)| client.role == role).count()
    }

    /// Accepts some connections.
    pub(crate) fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPTED_PER_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(&self.listeners[listener], flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(error) => return self.pause_accepting(error),
            };
            self.pause = None;
            match Client::new(socket, &self.listeners[listener], &self.closer) {
                Ok(client) => self.admit(client, listener),
                Err(error) => debug!("cannot serve a connection: {error}"),
            }
        }
    }

    /// Waits before the next connection, which stays in line: a client that ends frees a
    /// descriptor.
    fn pause_accepting(&mut self, error: Errno) {
        if self.pause.is_none() {
            warn!("cannot accept connections now: {error}");
        }
        self.pause = Some(Instant::now() + PAUSE);
    }

    /// Keeps a connection, unless its user has too many.
    fn admit(&mut self, mut client: Client, listener: usize) {
        client.enter(&self.listeners[listener], &self.settings.policy);
        let (account, role) = (client.account, client.role);
        let all = self.connections(role);
        let of_user = self.clients.iter().filter(|(_, other)| {
            let is_same = other.account == account;
            is_same && other.role == role
        });
        let most = MAX_PER_USER.min(MAX_CLIENTS.saturating_sub(all) / PART_OF_REST);
        let has_room = self.has_room(role) && (role != Role::Client || of_user.count() < most);
        // What a container's root does must not shut out this host's.
        let is_shut_out = role == Role::Client && self.users.is_shut_out(account);
        if has_room && !is_shut_out {
            self.clients.insert(client);
        } else {
            // At this level only: it can be said as often as somebody connects.
            debug!("uid {account} gets no other connection");
            client.close();
        }
    }

    /// Returns how long the loop may wait for the sake of those who say nothing, or rest.
    pub(crate) fn until_waking(&self) -> Option<Duration> {
        let clients = self.clients.iter();
        let at = clients.filter_map(|(_, client)| client.wakes_at()).min()?;
        Some(at.saturating_duration_since(Instant::now()))
    }

    /// Wakes clients that have rested, and ends connections that say nothing.
    pub(crate) fn wake_clients(&mut self, now: Instant) {
        let mut silent = Vec::new();
        for (key, client) in &mut self.clients {
            client.wake(now);
            if client.is_silent(now) {
                silent.push(key);
            }
        }
        for key in silent {
            self.disconnect(key, &ChannelError::Closed);
        }
    }

    /// Carries out a request of each of these clients, until time is over: those whose turn it is
    /// first.
    pub(crate) fn serve_clients(&mut self, asking: Vec<ClientKey>, until: Instant) {
        let (mut first, mut others) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
        for key in asking {
            match self.clients.get(key) {
                Some(client) if client.role == Role::Client => {
                    others.entry(client.account).or_default().push(key);
                }
                Some(_) => first.push(key),
                None => {}
            }
        }
        for key in first {
            self.serve_client(key);
        }
        for (account, keys) in &mut others {
            let served = self.users.served(*account);
            keys.sort_unstable_by_key(|key| (*key <= served, *key));
        }
        for (account, key) in in_turn(others, self.served) {
            self.serve_client(key);
            self.served = account;
            self.users.serve(account, key);
            if Instant::now() >= until {
                return;
            }
        }
    }

    /// Writes to the log what a user has caused, but not without end.
    pub(crate) fn log(&mut self, account: u32, what: &str) {
        match self.users.line(account) {
            Some(0) => info!("{what}"),
            Some(left_out) => {
                info!("{what} ({left_out} lines for uid {account} were left out before)")
            }
            None => {}
        }
    }

    /// Logs how many lines were left out.
    pub(crate) fn say_what_was_left_out(&mut self) {
        for (account, lines) in self.users.left_out() {
            info!("{lines} lines for uid {account} were left out");
        }
    }
}

/// Returns the connections of users in the order in which they have their turn: one of each user,
/// beginning behind the user that was served last, then another one of each, and so on.
fn in_turn(users: BTreeMap<u32, Vec<ClientKey>>, served: u32) -> Vec<(u32, ClientKey)> {
    let mut turns = Vec::new();
    for (account, keys) in users {
        let ranked = keys.into_iter().enumerate();
        turns.extend(ranked.map(|(rank, key)| (rank, account <= served, account, key)));
    }
    turns.sort_unstable();
    let turns = turns.into_iter();
    turns.map(|(_, _, account, key)| (account, key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_its_turn_however_many_connections_others_have() {
        let users = || BTreeMap::from([(1, vec![7, 8, 9]), (2, vec![3]), (5, vec![1, 2])]);
        let all = [(2, 3), (5, 1), (1, 7), (5, 2), (1, 8), (1, 9)];
        assert_eq!(in_turn(users(), 1), all);
        assert_eq!(in_turn(users(), 4)[..3], [(5, 1), (1, 7), (2, 3)]);
        assert_eq!(in_turn(BTreeMap::new(), 4), []);
    }
}
