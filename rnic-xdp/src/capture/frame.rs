//! A captured frame.

use rnic_manager::PoliceVerdict;

/// Where a frame goes, as seen from this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To this host.
    Received,
    /// From this host.
    Sent,
}

/// A frame that the kernel does not see, or as much of it as was wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// When it was captured, in nanoseconds: of `CLOCK_MONOTONIC` where it comes from a ring, since
    /// 1970-01-01 UTC for users of [`Capture`](super::Capture).
    pub time: u64,
    /// Where it goes.
    pub direction: Direction,
    /// The port of the client that receives or sends it. `None`: the process that has the device
    /// for itself.
    pub port: Option<u32>,
    /// The port of the client of this host to which it was turned around.
    pub to_port: Option<u32>,
    /// What the XDP program returned: `enum xdp_action`. `None` if it passed no program.
    pub action: Option<u8>,
    /// What became of a client's frame.
    pub verdict: Option<PoliceVerdict>,
    /// Its length in octets.
    pub len: u32,
    /// Its first octets.
    pub octets: Vec<u8>,
}
