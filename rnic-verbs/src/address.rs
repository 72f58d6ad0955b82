//! Addresses of memory: local pieces, and where the peer's memory is.

use rnic_core::verbs::sge;
use rnic_core::wire::ddp::Stag;

/// A scatter/gather element: a piece of registered local memory. [`Mr::sge`](crate::Mr::sge) makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge(pub(crate) sge::Sge);

impl Sge {
    /// Makes one from its parts.
    pub fn new(stag: Stag, offset: u64, length: u32) -> Self {
        Self(sge::Sge {
            offset,
            length,
            lkey: stag.0,
        })
    }

    /// Returns the number of octets.
    pub fn length(&self) -> u32 {
        self.0.length
    }
}

/// An address in the peer's memory, as the peer advertised it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The peer's Steering Tag.
    pub stag: Stag,
    /// The tagged offset in it.
    pub offset: u64,
}
