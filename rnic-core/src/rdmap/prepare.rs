//! Making a message of a work request, once all of it was checked.

use super::message::{Outbound, Source, Token, tagged, untagged};
use super::outstanding::identifier;
use crate::memory::epoch::Guard;
use crate::memory::table::{Access, BindError, Origin};
use crate::verbs::wr::{MAX_INLINE, MAX_SGE, send_flags};
use crate::verbs::{QueuePair, SendWr, Sge, WcStatus, WrOpcode, total_length};
use crate::wire::ddp::{QueueNumber, Stag, TaggedOffset};
use crate::wire::rdmap::{AtomicRequest, IMMEDIATE_LEN, Opcode, ReadRequest};

/// Octets of the value that an atomic works on.
const VALUE_LEN: u32 = size_of::<u64>() as u32;

/// Checks request `number` and makes its message.
pub(super) fn prepare(
    wr: &SendWr,
    number: u64,
    ord: u16,
    origin: Origin,
    guard: &Guard<'_>,
) -> Result<Outbound, WcStatus> {
    let operation = wr
        .operation()
        .map_err(|_| WcStatus::LocalQpOperationError)?;
    let solicited = wr.flags & send_flags::SOLICITED != 0;
    let header = match (operation, solicited) {
        (WrOpcode::Read, _) => return prepare_read(wr, number, ord, origin, guard),
        (WrOpcode::FetchAdd | WrOpcode::CmpSwap, _) => {
            return prepare_atomic(wr, number, ord, origin, guard);
        }
        (WrOpcode::Immediate, _) => {
            return (wr.length == 0)
                .then(|| immediate(wr, number))
                .ok_or(WcStatus::LocalLengthError);
        }
        // Carried out without a message.
        (WrOpcode::BindWindow | WrOpcode::FastRegister | WrOpcode::LocalInvalidate, _) => {
            return Err(WcStatus::LocalQpOperationError);
        }
        // rfc: 5040-6, 5040-24, 5040-25
        (WrOpcode::Write | WrOpcode::WriteImmediate, _) => tagged(
            Opcode::Write,
            Stag(wr.remote_stag),
            TaggedOffset(wr.remote_offset),
        ),
        // rfc: 5040-51, 5040-52, 5040-55, 5040-12
        (WrOpcode::Send, false) => untagged(Opcode::Send, QueueNumber::SEND, 0),
        (WrOpcode::Send, true) => untagged(Opcode::SendSolicited, QueueNumber::SEND, 0),
        // rfc: 5040-58, 5040-59
        (WrOpcode::SendInvalidate, false) => untagged(
            Opcode::SendInvalidate,
            QueueNumber::SEND,
            wr.invalidate_stag,
        ),
        (WrOpcode::SendInvalidate, true) => untagged(
            Opcode::SendSolicitedInvalidate,
            QueueNumber::SEND,
            wr.invalidate_stag,
        ),
    };
    Ok(Outbound {
        header,
        length: wr.length,
        source: source(wr, origin, guard)?,
        token: Token::Request(number),
    })
}

/// A Read Request. A Read has one sink: the peer's response names one STag, so more pieces than one are refused.
// rfc: 5040-13, 5040-30, 5040-31, 5040-35, 5040-36
fn prepare_read(
    wr: &SendWr,
    number: u64,
    ord: u16,
    origin: Origin,
    guard: &Guard<'_>,
) -> Result<Outbound, WcStatus> {
    if ord == 0 || wr.is_inline() || wr.sge_count > 1 {
        return Err(WcStatus::LocalQpOperationError);
    }
    let sink = sges(wr)?.first().copied().unwrap_or_default();
    if sink.length > 0 {
        check_sink(&sink, origin, guard)?;
    }
    let request = ReadRequest {
        sink_stag: sink.stag(),
        sink_offset: sink.tagged_offset(),
        length: wr.length,
        source_stag: Stag(wr.remote_stag),
        source_offset: TaggedOffset(wr.remote_offset),
    };
    let mut octets = [0; MAX_INLINE];
    let length = request.emit(&mut octets) as u32;
    let header = untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST, 0);
    Ok(Outbound {
        header,
        length,
        source: Source::Octets(octets),
        token: Token::Request(number),
    })
}

/// An Atomic Request. What the peer's memory held comes back to one piece of 8 octets.
fn prepare_atomic(
    wr: &SendWr,
    number: u64,
    ord: u16,
    origin: Origin,
    guard: &Guard<'_>,
) -> Result<Outbound, WcStatus> {
    let invalid = WcStatus::LocalQpOperationError;
    let operation = wr.atomic_operation().ok_or(invalid)?;
    let &[sink] = sges(wr)? else {
        return Err(invalid);
    };
    if ord == 0 {
        return Err(invalid);
    }
    if sink.length != VALUE_LEN {
        return Err(WcStatus::LocalLengthError);
    }
    check_sink(&sink, origin, guard)?;
    let request = AtomicRequest {
        identifier: identifier(number),
        stag: Stag(wr.remote_stag),
        offset: TaggedOffset(wr.remote_offset),
        operation,
    };
    let mut octets = [0; MAX_INLINE];
    let length = request.emit(&mut octets) as u32;
    // rfc: 7306-2a, 7306-2b, 7306-2c, 7306-15, 7306-19, 7306-20, 7306-25, 7306-26
    Ok(Outbound {
        header: untagged(Opcode::AtomicRequest, QueueNumber::READ_REQUEST, 0),
        length,
        source: Source::Octets(octets),
        token: Token::Request(number),
    })
}

/// Whether a response can go to this piece of memory, as far as can be said beforehand.
fn check_sink(sink: &Sge, origin: Origin, guard: &Guard<'_>) -> Result<(), WcStatus> {
    let (stag, offset, len) = (sink.stag(), sink.tagged_offset(), sink.length as usize);
    guard
        .for_placement(stag, offset, len, origin, Access::LOCAL_WRITE)
        .map(|_| ())
        .map_err(|_| WcStatus::LocalProtectionError)
}

/// Immediate Data: a request's only message, or the one behind its Write.
// rfc: 7306-46, 7306-47, 7306-50, 7306-51
pub(super) fn immediate(wr: &SendWr, number: u64) -> Outbound {
    let opcode = if wr.flags & send_flags::SOLICITED != 0 {
        Opcode::ImmediateSolicited
    } else {
        Opcode::Immediate
    };
    let mut octets = [0; MAX_INLINE];
    octets[..IMMEDIATE_LEN].copy_from_slice(&wr.immediate);
    Outbound {
        header: untagged(opcode, QueueNumber::SEND, 0),
        length: IMMEDIATE_LEN as u32,
        source: Source::Octets(octets),
        token: Token::Request(number),
    }
}

/// The scatter/gather list of a request, if its length is what the request says.
fn sges(wr: &SendWr) -> Result<&[Sge], WcStatus> {
    if usize::from(wr.sge_count) > MAX_SGE {
        return Err(WcStatus::LocalQpOperationError);
    }
    // rfc: 5041-50
    if total_length(wr.sges()) != u64::from(wr.length) {
        return Err(WcStatus::LocalLengthError);
    }
    Ok(wr.sges())
}

/// Where the octets of a Send or Write come from. Pieces without octets name no memory.
fn source(wr: &SendWr, origin: Origin, guard: &Guard<'_>) -> Result<Source, WcStatus> {
    if wr.is_inline() {
        let fits = wr.length as usize <= MAX_INLINE;
        return fits
            .then_some(Source::Octets(wr.payload))
            .ok_or(WcStatus::LocalLengthError);
    }
    let list = sges(wr)?;
    for sge in list.iter().filter(|sge| sge.length > 0) {
        let (offset, len) = (sge.tagged_offset(), sge.length as usize);
        guard
            .for_reading(sge.stag(), offset, len, origin, Access::LOCAL_READ)
            .map_err(|_| WcStatus::LocalProtectionError)?;
    }
    let count = list.len();
    let sges = wr.all_sges();
    Ok(Source::Sges { sges, count })
}

/// Carries out a request that sends nothing.
// rfc: 5040-108, 5040-109, 5041-80, 5041-81
pub(super) fn execute(wr: &SendWr, qp: &QueuePair, guard: &Guard<'_>) -> Result<(), BindError> {
    match wr.operation() {
        Ok(WrOpcode::BindWindow) => guard.bind_window(&wr.binding(), qp.pd, qp.stream),
        Ok(WrOpcode::FastRegister) => guard.fast_register(&wr.binding(), qp.pd, qp.stream),
        _ => Ok(guard.invalidate(Stag(wr.invalidate_stag), qp.origin())?),
    }
}
