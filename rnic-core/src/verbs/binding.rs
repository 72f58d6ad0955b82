//! Work requests that give an STag a meaning, or take it away.

use zerocopy::{FromBytes, IntoBytes};

use crate::memory::binding::Binding;
use crate::wire::ddp::Stag;

use super::wr::{SHORT_INLINE, SendWr, WrOpcode};

impl SendWr {
    /// Returns a signalled request that binds a memory window or registers memory.
    pub fn bind(wr_id: u64, opcode: WrOpcode, binding: &Binding) -> Self {
        let mut wr = Self::new(wr_id, opcode);
        wr.payload[..size_of::<Binding>()].copy_from_slice(binding.as_bytes());
        wr
    }

    /// Returns a signalled request that makes an STag of this side invalid.
    pub fn invalidate(wr_id: u64, stag: Stag) -> Self {
        Self {
            invalidate_stag: stag.0,
            ..Self::new(wr_id, WrOpcode::LocalInvalidate)
        }
    }

    /// Returns what it binds or registers.
    pub fn binding(&self) -> Binding {
        const { assert!(size_of::<Binding>() <= SHORT_INLINE) };
        Binding::read_from_prefix(&self.payload).map_or_else(|_| Binding::default(), |(it, _)| it)
    }
}
