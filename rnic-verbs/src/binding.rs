//! Bindings: to which memory a request binds a window or a fast registration.

use rnic_core::memory::binding;
use rnic_core::verbs::wr::{SendWr, WrOpcode};
use rnic_core::wire::ddp::Stag;

use crate::address::{RemoteAddress, Sge};

/// What a request binds an STag to: some octets, the tagged offset of the first, and rights.
/// [`SendRequest::bind`](crate::SendRequest::bind) posts it.
///
/// The STag is known at once, so that the next request can advertise it to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    opcode: WrOpcode,
    inner: binding::Binding,
}

impl Binding {
    pub(crate) fn new(opcode: WrOpcode, inner: binding::Binding) -> Self {
        Self { opcode, inner }
    }

    /// Sets the tagged offset of the first octet. The default is the offset that a window's region
    /// has there, and the virtual address for a fast registration. 0 makes it zero-based.
    pub fn base(mut self, base: u64) -> Self {
        self.inner.base = base;
        self
    }

    /// Sets the key, the last octet of the STag. The default is unpredictable and differs from the
    /// previous key. If a key is used again, a peer that remembers the STag reaches what it is
    /// bound to now.
    pub fn key(mut self, key: u8) -> Self {
        self.inner.stag = self.stag().with_key(key).0;
        self
    }

    /// Returns the STag, which is valid from when the request is carried out until it is
    /// invalidated.
    pub fn stag(&self) -> Stag {
        self.inner.stag()
    }

    /// Returns what the peer needs to know to read or write from octet `offset` on.
    pub fn remote(&self, offset: usize) -> RemoteAddress {
        RemoteAddress {
            stag: self.stag(),
            offset: self.inner.base.wrapping_add(offset as u64),
        }
    }

    /// Returns a scatter/gather element of `length` octets from octet `offset` on, for a local
    /// request on the same queue pair. A window has none: use its region's.
    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        let at = self.inner.base.wrapping_add(offset as u64);
        Sge::new(self.stag(), at, length)
    }

    pub(crate) fn encode(&self, wr_id: u64) -> SendWr {
        SendWr::bind(wr_id, self.opcode, &self.inner)
    }
}
