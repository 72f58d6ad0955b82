//! How many connections clients have. rnicd does not know: it is what each client says of itself.

use std::collections::HashMap;
use std::time::Duration;

use rnic_manager::states::PortState;
use rnic_manager::{Administrator, AskError};
use rnic_verbs::resource::Resource;

use crate::objects::rates::key;
use crate::objects::said;

/// What was asked for.
const SUMMARY: &str = "summary";

/// How many clients are asked in a look, and how long they may take. Those that do not answer hold
/// up the look for that long, and no longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) most: usize,
    pub(super) within: Duration,
}

/// What tells a port from a later one of the same number.
type Key = (u32, u64, i32);

/// What clients said when they were asked last.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    counts: HashMap<Key, u32>,
    /// The port that was asked last: the next ones have their turn in the next look.
    last: u32,
}

impl Connections {
    /// Asks some of the clients.
    pub(super) fn ask(
        &mut self,
        administrator: &mut Administrator,
        ports: &[PortState],
        patience: Patience,
    ) -> Result<(), AskError> {
        let turn = self.turn(ports, patience.most);
        let within = patience.within;
        administrator.inspect(&turn, SUMMARY, within, |_, answers| {
            for (of, answer) in answers {
                let port = ports.iter().find(|port| port.port == of);
                let Some(port) = port else { continue };
                let mut count = None;
                said::read(&answer, (SUMMARY, within), |one| {
                    if let Resource::Summary(summary) = one {
                        count = count.or(summary.connected);
                    }
                });
                match count {
                    Some(count) => self.counts.insert(key(port), count),
                    None => self.counts.remove(&key(port)),
                };
            }
            true
        })
    }

    /// Returns whose turn it is, and forgets those that are gone.
    fn turn(&mut self, ports: &[PortState], most: usize) -> Vec<u32> {
        self.counts
            .retain(|known, _| ports.iter().any(|port| key(port) == *known));
        let numbers = ports.iter().map(|port| port.port);
        let (before, behind): (Vec<_>, Vec<_>) = numbers.partition(|port| *port <= self.last);
        let turn: Vec<_> = behind.into_iter().chain(before).take(most).collect();
        self.last = turn.last().copied().unwrap_or(0);
        turn
    }

    /// Returns how many connections the client of a port has, if it says so.
    pub(super) fn of(&self, port: &PortState) -> Option<u32> {
        self.counts.get(&key(port)).copied()
    }

    #[cfg(test)]
    pub(super) fn known(port: &PortState, count: u32) -> Self {
        Self {
            counts: HashMap::from([(key(port), count)]),
            last: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(port: u32) -> PortState {
        let json = format!(
            r#"{{"port":{port},"netdev":"eth1","uid":0,"program":"p","pid":9,"connected":true,
                "frames":1,"huge_octets":0,"leases":0,"since":0,"sent":[],"host_end":null}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn all_have_their_turn_and_who_is_gone_is_forgotten() {
        let ports = [port(1), port(3), port(4)];
        let mut connections = Connections::known(&port(2), 7);
        assert_eq!(connections.of(&port(2)), Some(7));
        assert_eq!(connections.turn(&ports, 2), [1, 3]);
        assert_eq!(connections.of(&port(2)), None);
        assert_eq!(connections.turn(&ports, 2), [4, 1]);
        assert_eq!(connections.turn(&ports, 9), [3, 4, 1]);
        assert_eq!(connections.turn(&[], 9), [0; 0]);
    }
}
