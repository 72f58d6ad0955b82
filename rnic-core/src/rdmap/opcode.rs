//! Which opcodes may stand in a segment.

use crate::wire::ddp::{DdpHeader, QueueNumber};
use crate::wire::rdmap::{Control, Opcode, VERSION};

use super::error::RdmapError;

/// Returns the opcode of a segment, if it is valid for its buffer or queue (RFC 5040 figure 4).
/// `rc`: the peers have agreed on the opcodes of RC.
///
/// DDP refuses queues that do not exist, and other versions of its own.
// rfc: 5040-4, 5040-8 the bits of the control octet, and the opcodes
// rfc: 5040-7, 5040-96, 7306-57 the opcode is checked against buffer and queue
// rfc: 5040-97, 7306-58, 5044-93 the version is checked, and the same both ways
pub(super) fn opcode(header: &DdpHeader, rc: bool) -> Result<Opcode, RdmapError> {
    let control = Control::from(header.ulp());
    // rfc: 5040-92 the version is checked
    if control.version != VERSION {
        return Err(RdmapError::Version(control.version));
    }
    let unexpected = RdmapError::UnexpectedOpcode(control);
    let opcode = Opcode::try_from(control.opcode).map_err(|_| unexpected)?;
    let in_place = match header {
        DdpHeader::Tagged(_) => opcode.is_tagged(),
        DdpHeader::Untagged(header) => match header.queue {
            // rfc: 5040-91, 5040-96 the opcode is checked
            QueueNumber::SEND => is_send(opcode),
            QueueNumber::READ_REQUEST => {
                matches!(opcode, Opcode::ReadRequest | Opcode::AtomicRequest)
            }
            QueueNumber::TERMINATE => opcode == Opcode::Terminate,
            QueueNumber::ATOMIC_RESPONSE => opcode == Opcode::AtomicResponse,
            _ => !opcode.is_tagged() && !opcode.is_of_rc(),
        },
    };
    if in_place || (rc && is_in_place_for_rc(opcode, header)) {
        Ok(opcode)
    } else {
        Err(unexpected)
    }
}

/// Returns whether this is an opcode of RC, in its place.
#[cold]
fn is_in_place_for_rc(opcode: Opcode, header: &DdpHeader) -> bool {
    let sends = matches!(header, DdpHeader::Untagged(header) if header.queue == QueueNumber::SEND);
    sends && opcode.is_of_rc()
}

/// Returns whether a segment is of a request: a message that its sender's requester makes, other
/// than a response, a Terminate or a Control message. What is malformed counts as a request.
pub fn is_request(header: &DdpHeader) -> bool {
    let others = [
        Opcode::ReadResponse,
        Opcode::AtomicResponse,
        Opcode::Terminate,
        Opcode::FlowControl,
    ];
    !opcode(header, true).is_ok_and(|opcode| others.contains(&opcode))
}

/// Returns whether a message takes up a receive.
// rfc: 7306-46, 7306-50 Immediate Data go to untagged buffers of queue 0
fn is_send(opcode: Opcode) -> bool {
    use Opcode::{
        Immediate, ImmediateSolicited, Send, SendInvalidate, SendSolicited, SendSolicitedInvalidate,
    };
    matches!(
        opcode,
        Send | SendInvalidate
            | SendSolicited
            | SendSolicitedInvalidate
            | Immediate
            | ImmediateSolicited
    )
}

/// Returns whether a message has Immediate Data in its header, where Send with Invalidate has its
/// STag.
pub(super) fn brings_immediate(opcode: Opcode) -> bool {
    opcode.is_of_rc()
}

/// Returns whether a message has an STag to be invalidated.
pub(super) fn invalidates(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate
    )
}
