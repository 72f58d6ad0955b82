//! Atomic operations as they stand in a ring.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::verbs::sge::Sge;
use crate::wire::rdmap::AtomicOperation;

use super::{SHORT_INLINE, SendWr, WrOpcode};

/// The operands of an atomic, in the payload of its request.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
struct Operands {
    /// What to add, or the new bits.
    data: u64,
    /// The top bits of fields, or which bits are replaced.
    mask: u64,
    /// CmpSwap: the bits to be found.
    compare: u64,
    /// CmpSwap: which bits are compared.
    compare_mask: u64,
}

/// Where in the payload of an atomic its operands are.
const OPERANDS_AT: usize = size_of::<Sge>();
const _: () = assert!(OPERANDS_AT + size_of::<Operands>() <= SHORT_INLINE);

impl SendWr {
    /// Returns a signalled atomic operation that brings what the peer's memory held to `sink`,
    /// which is 8 octets: a number in this machine's byte order.
    pub fn atomic(wr_id: u64, operation: AtomicOperation, sink: Sge) -> Self {
        let (opcode, operands) = match operation {
            AtomicOperation::FetchAdd { add, mask } => (
                WrOpcode::FetchAdd,
                Operands {
                    data: add,
                    mask,
                    ..Operands::default()
                },
            ),
            AtomicOperation::CmpSwap {
                swap,
                swap_mask,
                compare,
                compare_mask,
            } => (
                WrOpcode::CmpSwap,
                Operands {
                    data: swap,
                    mask: swap_mask,
                    compare,
                    compare_mask,
                },
            ),
        };
        let mut wr = Self::new(wr_id, opcode);
        wr.payload[..OPERANDS_AT].copy_from_slice(sink.as_bytes());
        wr.payload[OPERANDS_AT..][..size_of::<Operands>()].copy_from_slice(operands.as_bytes());
        wr.sge_count = 1;
        wr.length = sink.length;
        wr
    }

    /// Returns what an atomic does; `None` of others, and of one that claims inline data.
    pub fn atomic_operation(&self) -> Option<AtomicOperation> {
        let (operands, _) = Operands::read_from_prefix(&self.payload[OPERANDS_AT..]).ok()?;
        let Operands {
            data,
            mask,
            compare,
            compare_mask,
        } = operands;
        match self.operation() {
            _ if self.is_inline() => None,
            Ok(WrOpcode::FetchAdd) => Some(AtomicOperation::FetchAdd { add: data, mask }),
            Ok(WrOpcode::CmpSwap) => Some(AtomicOperation::CmpSwap {
                swap: data,
                swap_mask: mask,
                compare,
                compare_mask,
            }),
            _ => None,
        }
    }
}
