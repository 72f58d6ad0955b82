//! The names of what an application and an engine share: each layer knows them, and none owns them.

use std::fmt;

/// Names a queue pair of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpNumber(pub u32);

/// Names the stream of a queue pair, as long as there is one: never used again, unlike the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// Names a protection domain of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

/// Names a completion queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub u32);

impl fmt::Display for QpNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {}", self.0)
    }
}

impl fmt::Display for PdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PD {}", self.0)
    }
}

impl fmt::Display for CqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CQ {}", self.0)
    }
}

/// Names a shared receive queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub u32);

impl fmt::Display for SrqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SRQ {}", self.0)
    }
}

/// Names a listener; chosen by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// Names a connection request that waits for an answer; chosen by the engine, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

impl RequestId {
    /// The bits below those that name the engine.
    const COUNT_BITS: u32 = 48;

    /// Returns the first one of an engine.
    pub(crate) fn first_of(engine: u16) -> Self {
        Self(u64::from(engine) << Self::COUNT_BITS | 1)
    }

    /// Returns the engine that chose it, of several of a device.
    pub fn engine(self) -> usize {
        (self.0 >> Self::COUNT_BITS) as usize
    }
}
