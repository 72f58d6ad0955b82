//! The names of what an application and an engine share.

/// Names a listener; chosen by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// Names a connection request that waits for an answer; chosen by the engine, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

impl RequestId {
    /// The bits below those that name the engine.
    const COUNT_BITS: u32 = 48;

    /// The first one of an engine.
    pub(crate) fn first_of(engine: u16) -> Self {
        Self(u64::from(engine) << Self::COUNT_BITS | 1)
    }

    /// The engine that chose it, of several of a device.
    pub fn engine(self) -> usize {
        (self.0 >> Self::COUNT_BITS) as usize
    }
}
