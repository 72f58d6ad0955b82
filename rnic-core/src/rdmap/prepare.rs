//! Checks work requests and makes messages of them.

use super::message::{Outbound, PayloadSource, Token, tagged, untagged};
use super::outstanding::identifier;
use crate::memory::epoch::Guard;
use crate::memory::table::{Access, BindError, Origin};
use crate::verbs::wr::{MAX_INLINE, MAX_SGE, SHORT_INLINE, SHORT_SGE, send_flags};
use crate::verbs::{QueuePair, SendWr, Sge, WcStatus, WrOpcode, total_length};
use crate::wire::ddp::{DdpHeader, QueueNumber, Stag, TaggedOffset};
use crate::wire::rdmap::{AtomicRequest, IMMEDIATE_LEN, Opcode, ReadRequest};

/// Octets of the operand of an atomic.
const VALUE_LEN: u32 = size_of::<u64>() as u32;

/// Checks work request `number`, and makes its message. `rc`: the peers have agreed on the opcodes
/// of RC.
pub(super) fn prepare(
    wr: &SendWr,
    number: u64,
    ord: u16,
    rc: bool,
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
        // These are executed without a message.
        (WrOpcode::BindWindow | WrOpcode::FastRegister | WrOpcode::LocalInvalidate, _) => {
            return Err(WcStatus::LocalQpOperationError);
        }
        // rfc: 5040-6, 5040-24, 5040-25 a Write is a tagged message
        (WrOpcode::Write | WrOpcode::WriteImmediate, _) => tagged(
            Opcode::Write,
            Stag(wr.remote_stag),
            TaggedOffset(wr.remote_offset),
        ),
        // rfc: 5040-51, 5040-52, 5040-55 a Send is an untagged message to queue 0
        // rfc: 5040-12 its Invalidate STag field is zero
        (WrOpcode::Send, false) => untagged(Opcode::Send, QueueNumber::SEND, 0),
        (WrOpcode::Send, true) => untagged(Opcode::SendSolicited, QueueNumber::SEND, 0),
        // rfc: 5040-58, 5040-59 a Send with Invalidate names an STag
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
        (WrOpcode::SendImmediate, solicited) if rc => send_immediate(wr, solicited),
        // The peer has no such message.
        (WrOpcode::SendImmediate, _) => return Err(WcStatus::LocalQpOperationError),
    };
    Ok(Outbound {
        header,
        length: wr.length,
        source: source(wr, number, origin, guard)?,
        token: Token::Request(number),
    })
}

/// Makes the header of a Send with Immediate: where Send with Invalidate has an STag it has the
/// octets.
fn send_immediate(wr: &SendWr, solicited: bool) -> DdpHeader {
    let opcode = match solicited {
        false => Opcode::SendImmediate,
        true => Opcode::SendSolicitedImmediate,
    };
    let [a, b, c, d, ..] = wr.immediate;
    untagged(opcode, QueueNumber::SEND, u32::from_be_bytes([a, b, c, d]))
}

/// Returns the sink that a Read Request of a Read names, the request counted from 0, and how many
/// octets those before it ask for.
///
/// A Read Response names one sink STag. So each piece of the sink has a Read Request of its own.
/// Pieces without octets have none, unless there are no octets at all.
pub(super) fn read_sink(wr: &SendWr, request: usize) -> Option<(Sge, u32)> {
    let mut before = 0;
    let mut sinks = wr.sges().iter().filter(|sge| sge.length > 0);
    for sge in sinks.by_ref().take(request) {
        before += sge.length;
    }
    match sinks.next() {
        Some(sink) => Some((*sink, before)),
        None if request == 0 => Some((wr.sges().first().copied().unwrap_or_default(), 0)),
        None => None,
    }
}

/// Returns how many Read Requests a Read has.
pub(super) fn read_requests(wr: &SendWr) -> u16 {
    let sinks = wr.sges().iter().filter(|sge| sge.length > 0);
    sinks.count().max(1) as u16
}

/// Makes the first Read Request of a Read, all of whose sink is checked.
fn prepare_read(
    wr: &SendWr,
    number: u64,
    ord: u16,
    origin: Origin,
    guard: &Guard<'_>,
) -> Result<Outbound, WcStatus> {
    if ord == 0 || wr.is_inline() {
        return Err(WcStatus::LocalQpOperationError);
    }
    for sink in sges(wr)?.iter().filter(|sink| sink.length > 0) {
        check_sink(sink, origin, guard)?;
    }
    read_request(wr, number, 0, origin, guard)
}

/// Makes a Read Request of a Read, counted from 0.
// rfc: 5040-13 a request has its RDMA header, and no payload of the application
// rfc: 5040-30, 5040-31, 5040-35, 5040-36 a Read Request is an untagged message to queue 1
pub(super) fn read_request(
    wr: &SendWr,
    number: u64,
    request: usize,
    origin: Origin,
    guard: &Guard<'_>,
) -> Result<Outbound, WcStatus> {
    let (sink, before) = read_sink(wr, request).ok_or(WcStatus::LocalQpOperationError)?;
    // The memory of a later one may have been revoked since the first.
    if request > 0 {
        check_sink(&sink, origin, guard)?;
    }
    let request = ReadRequest {
        sink_stag: sink.stag(),
        sink_offset: sink.tagged_offset(),
        length: sink.length,
        source_stag: Stag(wr.remote_stag),
        source_offset: TaggedOffset(wr.remote_offset.wrapping_add(before.into())),
    };
    let mut octets = [0; SHORT_INLINE];
    let length = request.emit(&mut octets) as u32;
    let header = untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST, 0);
    Ok(Outbound {
        header,
        length,
        source: PayloadSource::Octets(octets),
        token: Token::Request(number),
    })
}

/// Makes an Atomic Request. The value from the peer's memory comes back to one piece of 8 octets.
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
    let mut octets = [0; SHORT_INLINE];
    let length = request.emit(&mut octets) as u32;
    // rfc: 7306-2a, 7306-2b, 7306-2c it has version 1, an opcode of figure 2, and no STag
    // rfc: 7306-15, 7306-19, 7306-20, 7306-25, 7306-26 an Atomic Request is untagged, to queue 1
    Ok(Outbound {
        header: untagged(Opcode::AtomicRequest, QueueNumber::READ_REQUEST, 0),
        length,
        source: PayloadSource::Octets(octets),
        token: Token::Request(number),
    })
}

/// Checks that a response may be written to this piece of memory.
fn check_sink(sink: &Sge, origin: Origin, guard: &Guard<'_>) -> Result<(), WcStatus> {
    let (stag, offset, len) = (sink.stag(), sink.tagged_offset(), sink.length as usize);
    guard
        .for_placement(stag, offset, len, origin, Access::LOCAL_WRITE)
        .map(|_| ())
        .map_err(|_| WcStatus::LocalProtectionError)
}

/// Makes a message of Immediate Data: the only message of a work request, or the one behind its
/// Write.
// rfc: 7306-46, 7306-47, 7306-50, 7306-51 Immediate Data are 8 octets, untagged, to queue 0
pub(super) fn immediate(wr: &SendWr, number: u64) -> Outbound {
    let opcode = if wr.flags & send_flags::SOLICITED != 0 {
        Opcode::ImmediateSolicited
    } else {
        Opcode::Immediate
    };
    let mut octets = [0; SHORT_INLINE];
    octets[..IMMEDIATE_LEN].copy_from_slice(&wr.immediate);
    Outbound {
        header: untagged(opcode, QueueNumber::SEND, 0),
        length: IMMEDIATE_LEN as u32,
        source: PayloadSource::Octets(octets),
        token: Token::Request(number),
    }
}

/// Returns the scatter/gather list of a work request, if it is as long as the request says.
fn sges(wr: &SendWr) -> Result<&[Sge], WcStatus> {
    if usize::from(wr.sge_count) > MAX_SGE {
        return Err(WcStatus::LocalQpOperationError);
    }
    // rfc: 5041-50 messages are shorter than 2^32 octets
    if total_length(wr.sges()) != u64::from(wr.length) {
        return Err(WcStatus::LocalLengthError);
    }
    Ok(wr.sges())
}

/// Returns where the payload of a Send or Write comes from. Empty pieces are not checked.
fn source(
    wr: &SendWr,
    number: u64,
    origin: Origin,
    guard: &Guard<'_>,
) -> Result<PayloadSource, WcStatus> {
    if wr.is_inline() {
        let len = wr.length as usize;
        return if len <= SHORT_INLINE {
            Ok(PayloadSource::Octets(wr.short_payload()))
        } else if len <= MAX_INLINE {
            Ok(PayloadSource::Queued(number))
        } else {
            Err(WcStatus::LocalLengthError)
        };
    }
    let list = sges(wr)?;
    for sge in list.iter().filter(|sge| sge.length > 0) {
        let (offset, len) = (sge.tagged_offset(), sge.length as usize);
        guard
            .for_reading(sge.stag(), offset, len, origin, Access::LOCAL_READ)
            .map_err(|_| WcStatus::LocalProtectionError)?;
    }
    let count = list.len();
    if count > SHORT_SGE {
        return Ok(PayloadSource::Queued(number));
    }
    let sges = wr.short_sges();
    Ok(PayloadSource::Sges { sges, count })
}

/// Executes a local work request, which sends nothing.
// rfc: 5040-108, 5041-80 the binding of a buffer to an STag and its range can be made and revoked
// rfc: 5040-109, 5041-81 rights, and the STag itself, can be given and revoked
pub(super) fn execute(wr: &SendWr, qp: &QueuePair, guard: &Guard<'_>) -> Result<(), BindError> {
    match wr.operation() {
        Ok(WrOpcode::BindWindow) => guard.bind_window(&wr.binding(), qp.pd, qp.stream),
        Ok(WrOpcode::FastRegister) => guard.fast_register(&wr.binding(), qp.pd, qp.stream),
        _ => Ok(guard.invalidate(Stag(wr.invalidate_stag), qp.origin())?),
    }
}
