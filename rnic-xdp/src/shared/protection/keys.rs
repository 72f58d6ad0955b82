//! Who had the keys of associations that are no more. The kernel may get an association again that
//! it had forgotten, under its name or another one: its key is known to a client.

use std::collections::{BTreeSet, VecDeque};

/// The port of those that have ended. No client has it, and the programs drop their packets.
pub(super) const NOBODY: u32 = u32::MAX;

/// The keys that are remembered: those of the associations that were forgotten last.
const MOST: usize = 1024;

/// Fingerprints of keys, with the ports that had them: [`NOBODY`] where that port is no more.
#[derive(Debug, Default)]
pub(super) struct FormerKeys(VecDeque<(u32, u32)>);

impl FormerKeys {
    /// Notes the port that had a key.
    pub(super) fn note(&mut self, print: u32, port: u32) {
        self.0.retain(|(known, _)| *known != print);
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((print, port));
    }

    /// Returns the port that had a key.
    pub(super) fn port_of(&self, print: u32) -> Option<u32> {
        let found = self.0.iter().find(|(known, _)| *known == print);
        found.map(|(_, port)| *port)
    }

    /// Notes that a port is no more: another one may have its number.
    pub(super) fn end_port(&mut self, port: u32) {
        self.end(|of| of == port);
    }

    /// Notes that all ports but these are no more.
    pub(super) fn end_others(&mut self, ports: &BTreeSet<u32>) {
        self.end(|of| !ports.contains(&of));
    }

    fn end(&mut self, is_gone: impl Fn(u32) -> bool) {
        for (_, port) in &mut self.0 {
            if is_gone(*port) {
                *port = NOBODY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_of_the_port_that_had_it_as_long_as_that_is_there() {
        let mut keys = FormerKeys::default();
        assert_eq!(keys.port_of(7), None);
        keys.note(7, 1);
        keys.note(8, 2);
        assert_eq!((keys.port_of(7), keys.port_of(8)), (Some(1), Some(2)));
        keys.end_port(1);
        assert_eq!((keys.port_of(7), keys.port_of(8)), (Some(NOBODY), Some(2)));
        keys.end_others(&BTreeSet::from([1]));
        assert_eq!(keys.port_of(8), Some(NOBODY));
        keys.note(8, 3);
        assert_eq!(keys.port_of(8), Some(3));
    }

    #[test]
    fn the_last_keys_are_remembered() {
        let mut keys = FormerKeys::default();
        for print in 0..=MOST as u32 {
            keys.note(print, 1);
        }
        assert_eq!((keys.port_of(0), keys.port_of(1)), (None, Some(1)));
    }
}
