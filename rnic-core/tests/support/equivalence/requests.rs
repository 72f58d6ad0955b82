//! Work requests, made of what a case says of them.

use rnic_core::memory::{binding::Binding, table::Access};
use rnic_core::verbs::{
    sge::Sge,
    wr::{SendWr, WrOpcode},
};
use rnic_core::wire::ddp::{Stag, TaggedOffset};
use rnic_core::wire::rdmap::AtomicOperation;

use super::case::{Operation, Request};
use super::side::{RECEIVES_AT, Side};

/// Where the atomics of several connections act in the first region: nothing is sent from there.
/// They are executed when a connection has its turn to send, and which of several has it first is
/// not compared.
const ATOMICS_AT: u64 = (64 << 10) - 4 * ATOMICS_EACH;
/// Octets for the atomics of each connection.
const ATOMICS_EACH: u64 = 64;

/// The request that a case asks for on a connection of the side that is `ours`, with this number:
/// the `time`-th of several alike.
pub(super) fn work_request(
    (ours, theirs): (&Side, &Side),
    connection: usize,
    id: u64,
    request: &Request,
    time: usize,
) -> SendWr {
    let len = request.len;
    let of = |stags: [u32; 4], which: usize| stags.get(which).copied().unwrap_or(0x0a0b_0c0d);
    let (lkey, remote) = (
        of(ours.stags(), request.local),
        of(theirs.stags(), request.remote),
    );
    let opcode = match request.operation {
        Operation::Write => WrOpcode::Write,
        Operation::Send => WrOpcode::Send,
        Operation::Read => WrOpcode::Read,
        Operation::SendInvalidate => WrOpcode::SendInvalidate,
        Operation::WriteImmediate => WrOpcode::WriteImmediate,
        Operation::Immediate => WrOpcode::Immediate,
        Operation::LocalInvalidate => WrOpcode::LocalInvalidate,
        Operation::FetchAdd | Operation::CmpSwap | Operation::BindWindow => {
            return special(ours, connection, id, request, lkey, remote);
        }
    };
    let piece = |from: usize, len: usize| Sge {
        offset: (id * 64 % 4096) + from as u64,
        length: len as u32,
        lkey,
    };
    let half = len / 2;
    let octets = [id as u8; 64];
    let wr = SendWr {
        invalidate_stag: match request.operation {
            Operation::LocalInvalidate => ours.window.0,
            _ => theirs.window.0,
        },
        ..SendWr::new(id, opcode)
    };
    let wr = match request.inline {
        true => wr.with_inline(&octets[..len]),
        false if request.gathered => wr.with_sges(&[piece(0, half), piece(half + 100, len - half)]),
        false => wr.with_sges(&[piece(0, len)]),
    };
    let step = (time * len % 4096) as u64;
    wr.expect("no longer than there may be")
        .with_remote(
            Stag(remote),
            TaggedOffset(request.offset.wrapping_add(step)),
        )
        .with_immediate([id as u8; 8])
        .with_flags(request.flags)
}

/// Atomics, and what is done without a message.
fn special(
    ours: &Side,
    connection: usize,
    id: u64,
    request: &Request,
    lkey: u32,
    remote: u32,
) -> SendWr {
    let target = match ours.qps.len() {
        1 => request.offset,
        _ => ATOMICS_AT + connection as u64 * ATOMICS_EACH + request.offset % ATOMICS_EACH,
    };
    let wr = match request.operation {
        Operation::BindWindow => {
            let binding = Binding {
                stag: ours.window.0,
                region: ours.regions[0].0,
                length: 8192,
                access: (Access::REMOTE_WRITE | Access::REMOTE_READ).0,
                ..Binding::default()
            };
            SendWr::bind(id, WrOpcode::BindWindow, &binding)
        }
        operation => {
            let sink = Sge {
                offset: RECEIVES_AT - 8,
                length: 8,
                lkey,
            };
            let operation = match operation {
                Operation::FetchAdd => AtomicOperation::FetchAdd { add: id, mask: 0 },
                _ => AtomicOperation::CmpSwap {
                    swap: id,
                    swap_mask: u64::MAX,
                    compare: 0,
                    compare_mask: 0,
                },
            };
            SendWr::atomic(id, operation, sink)
        }
    };
    wr.with_remote(Stag(remote), TaggedOffset(target & !7))
        .with_flags(request.flags)
}
