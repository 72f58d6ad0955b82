//! Which frames are captured.

use std::net::IpAddr;

use super::frame::Direction;

/// Which frames are captured: those that match all of these.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Those that go there; both ways by default.
    pub direction: Option<Direction>,
    /// The most octets of each: by default, and at most, 65280.
    pub snap: u32,
    /// Those of one client, by its port.
    pub port: Option<u32>,
    /// TCP segments from or to this port, ours or the peer's.
    pub tcp_port: Option<u16>,
    /// TCP segments from or to these peers.
    pub peers: Option<Peers>,
}

/// A prefix of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peers {
    /// An address.
    pub address: IpAddr,
    /// How many of its first bits count.
    pub bits: u8,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            direction: None,
            snap: u32::MAX,
            port: None,
            tcp_port: None,
            peers: None,
        }
    }
}
