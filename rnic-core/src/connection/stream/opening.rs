//! The ready-to-receive message of a peer-to-peer connection (RFC 6581 section 9.2).

use crate::connection::Context;
use crate::connection::terminate::StreamError;
use crate::connection::upper::LocalUlp;
use crate::ddp::DdpStream;
use crate::mpa::startup::Rtr;
use crate::rdmap::RtrMessage;
use crate::wire::ddp::{DdpHeader, DdpSegment};

/// Returns the ready-to-receive message that an initiator begins with.
pub(super) fn message(rtr: Rtr) -> Option<RtrMessage> {
    match rtr {
        Rtr { write: true, .. } => Some(RtrMessage::Write),
        Rtr { read: true, .. } => Some(RtrMessage::Read),
        Rtr { send: true, .. } => Some(RtrMessage::Send),
        Rtr::NONE => None,
    }
}

/// Returns whether the initiator's first FPDU is a ready-to-receive message that is a Send.
// rfc: 6581-27 a responder takes a Send as RTR message
fn is_opening(ulpdu: &[u8]) -> bool {
    DdpSegment::parse(ulpdu).is_ok_and(|segment| RtrMessage::is_send(&segment))
}

/// Receives the first segment of an initiator.
pub(super) fn receive(
    ulpdu: &[u8],
    ddp: &mut DdpStream,
    user: &mut LocalUlp,
    acked: u64,
    context: &mut Context<'_, '_>,
) -> Result<u32, StreamError> {
    if is_opening(ulpdu) {
        return deliver_without_buffer(ddp, ulpdu);
    }
    let guard = context.guard;
    ddp.receive(ulpdu, &mut user.receiving(context, acked), guard)
}

/// Delivers a ready-to-receive Send, which takes no receive of the application.
fn deliver_without_buffer(ddp: &mut DdpStream, ulpdu: &[u8]) -> Result<u32, StreamError> {
    match DdpSegment::parse(ulpdu)?.header {
        DdpHeader::Untagged(header) => ddp.deliver_without_buffer(&header)?,
        DdpHeader::Tagged(_) => {}
    }
    Ok(0)
}
