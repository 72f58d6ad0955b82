//! The interfaces of a capture: the device, and a client's port each.

use std::collections::HashMap;
use std::path::Path;

use nix::unistd::{Uid, User};
use rnic_manager::Administrator;
use rnic_manager::states::PortState;

use crate::out::printable;

/// The device itself.
pub(super) const DEVICE: u32 = 0;

/// The number of each interface, and how many frames it has.
#[derive(Debug)]
pub(super) struct Interfaces {
    by_port: HashMap<u32, u32>,
    /// By the number.
    frames: Vec<u64>,
}

impl Interfaces {
    /// Begins with the device.
    pub(super) fn new() -> Self {
        Self {
            by_port: HashMap::new(),
            frames: vec![0],
        }
    }

    /// Returns the interface of a client's port, or of the device, and whether it is new. Counts a
    /// frame of it.
    pub(super) fn count(&mut self, port: Option<u32>) -> (u32, bool) {
        let known = port.map_or(Some(DEVICE), |port| self.by_port.get(&port).copied());
        let number = known.unwrap_or(self.frames.len() as u32);
        if known.is_none() {
            self.by_port.extend(port.map(|port| (port, number)));
            self.frames.push(0);
        }
        self.frames[number as usize] += 1;
        (number, known.is_none())
    }

    /// Returns each interface with its frames.
    pub(super) fn frames(&self) -> impl Iterator<Item = (u32, u64)> {
        (0..).zip(self.frames.iter().copied())
    }
}

/// Returns the name of the interface of a client's port, with whose it is if rnicd says so.
pub(super) fn name(netdev: &str, port: u32, rnicd: &Path) -> String {
    let asked = Administrator::connect(rnicd).and_then(|mut rnicd| rnicd.ports());
    let ports = asked.unwrap_or_default();
    let found = ports
        .iter()
        .find(|state| state.port == port && state.netdev == netdev);
    let whose = found.map_or_else(String::new, whose);
    format!("{netdev} port {port}{whose}")
}

fn whose(port: &PortState) -> String {
    let user = User::from_uid(Uid::from_raw(port.uid)).ok().flatten();
    let user = user.map_or_else(|| port.uid.to_string(), |user| user.name);
    let program = printable(&port.program);
    format!(" ({user}, {program}, pid {})", port.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_has_an_interface() {
        let mut interfaces = Interfaces::new();
        assert_eq!(interfaces.count(None), (0, false));
        assert_eq!(interfaces.count(Some(7)), (1, true));
        assert_eq!(interfaces.count(Some(3)), (2, true));
        assert_eq!(interfaces.count(Some(7)), (1, false));
        let frames: Vec<_> = interfaces.frames().collect();
        assert_eq!(frames, [(0, 1), (1, 2), (2, 1)]);
    }
}
