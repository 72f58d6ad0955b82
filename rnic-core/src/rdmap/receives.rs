//! Messages that take up a receive: Sends and Immediate Data.

use crate::memory::epoch::Guard;
use crate::verbs::{Completion, QueuePair, WcOpcode, WcStatus, cq::CqTable, wr::completion_flags};
use crate::wire::ddp::{Stag, UntaggedHeader};
use crate::wire::rdmap::{IMMEDIATE_LEN, Opcode, RdmapWireError, SEND_IMMEDIATE_LEN};

use super::error::RdmapError;
use super::message::UntaggedMessage;
use super::opcode::{brings_immediate, invalidates};

/// Completes the receive that holds a Send.
// rfc: 5040-53, 5040-57 a Send takes up a buffer, even without payload
// rfc: 5040-54, 5040-69, 5040-75 Sends are told in their order, after DDP has delivered them
pub(super) fn receive(
    opcode: Opcode,
    header: &UntaggedHeader,
    length: u32,
    qp: &mut QueuePair,
    cqs: &mut CqTable,
    guard: &Guard<'_>,
) -> Result<(), RdmapError> {
    use Opcode::{SendSolicited, SendSolicitedImmediate, SendSolicitedInvalidate};
    check_backlog(qp, cqs)?;
    let solicited = matches!(
        opcode,
        SendSolicited | SendSolicitedInvalidate | SendSolicitedImmediate
    );
    let invalidate = invalidates(opcode);
    if invalidate {
        // rfc: 5040-60a, 5040-93, 5040-94 the STag to be invalidated is valid and the stream's
        // rfc: 5040-60b it is invalidated before the Send is told
        // rfc: 5040-111 a peer cannot invalidate an STag that several streams may use
        guard
            .invalidate(Stag(header.ulp32), qp.origin())
            .map_err(RdmapError::CannotInvalidate)?;
    }
    let wr = qp.rq.pop().ok_or(RdmapError::Queues)?;
    let mut completion = Completion::new(
        wr.wr_id,
        qp.number,
        WcOpcode::Recv,
        WcStatus::Success,
        length,
    );
    if solicited {
        completion.flags |= completion_flags::SOLICITED;
    }
    if invalidate {
        completion.flags |= completion_flags::WITH_INVALIDATE;
        completion.invalidated_stag = header.ulp32;
    }
    if brings_immediate(opcode) {
        completion.flags |= completion_flags::WITH_IMMEDIATE;
        completion.immediate[..SEND_IMMEDIATE_LEN].copy_from_slice(&header.ulp32.to_be_bytes());
    }
    cqs.complete(qp.recv_cq, completion, solicited);
    Ok(())
}

/// Completes a receive with Immediate Data. Its buffer is not written; the octets that it tells are
/// those of the Write in front of them, as they were placed.
// rfc: 7306-48, 7306-49 they take up one buffer, and are told in the order sent
pub(super) fn receive_immediate(
    opcode: Opcode,
    message: &UntaggedMessage<'_>,
    qp: &mut QueuePair,
    cqs: &mut CqTable,
) -> Result<(), RdmapError> {
    check_backlog(qp, cqs)?;
    let UntaggedMessage { length, octets, .. } = *message;
    let wrong = RdmapWireError::Length {
        header: "Immediate Data",
        octets: length as usize,
    };
    // rfc: 7306-53, 7306-54b Immediate Data are exactly 8 octets, or a Terminate is sent
    let immediate = match <[u8; IMMEDIATE_LEN]>::try_from(octets) {
        Ok(immediate) if length as usize == IMMEDIATE_LEN => immediate,
        // rfc: 7306-54b an error in a received message is told by a Terminate
        _ => return Err(RdmapError::Malformed(wrong)),
    };
    let used_up = qp.rq.pop().ok_or(RdmapError::Queues)?;
    let mut completion = Completion::new(
        used_up.wr_id,
        qp.number,
        WcOpcode::RecvImmediate,
        WcStatus::Success,
        message.written_before,
    );
    completion.flags |= completion_flags::WITH_IMMEDIATE;
    completion.immediate = immediate;
    let solicited = opcode == Opcode::ImmediateSolicited;
    if solicited {
        completion.flags |= completion_flags::SOLICITED;
    }
    cqs.complete(qp.recv_cq, completion, solicited);
    Ok(())
}

/// Checks that no more completions wait for room in the completion queue than the receive queue has
/// entries.
fn check_backlog(qp: &QueuePair, cqs: &CqTable) -> Result<(), RdmapError> {
    let waiting = cqs.backlog(qp.recv_cq);
    if waiting >= qp.rq.capacity() as usize {
        return Err(RdmapError::Overrun(waiting));
    }
    Ok(())
}
