//! The ready-to-receive message of a peer-to-peer connection (RFC 6581 section 9.2).

use std::time::Duration;

use crate::connection::Context;
use crate::connection::terminate::StreamError;
use crate::connection::upper::{LocalUlp, RdmapUser};
use crate::ddp::DdpStream;
use crate::mpa::startup::Rtr;
use crate::rdmap::RtrMessage;
use crate::time::Instant;
use crate::wire::ddp::{DdpHeader, DdpSegment};

use super::Stream;

/// After how long without an answer an initiator sends its ready-to-receive Write again.
const AGAIN: [Duration; 3] = [
    Duration::from_millis(30),
    Duration::from_millis(120),
    Duration::from_millis(480),
];

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

impl Stream {
    /// Sends the ready-to-receive Write again, a few times, unless the peer sends something. Such a
    /// Write has no effect, and its peer reads what lies before it: the kernel's siw can overlook
    /// what has come right behind its Reply until more comes.
    pub(super) fn repeat_opening(&mut self, now: Instant) {
        // Both sides of a connection with the semantics of RC are ours.
        if self.opens_with_write && !self.rc {
            self.wakes_at = Some(now + AGAIN[0]);
            self.repeats_left = AGAIN.len() as u8;
        }
    }

    /// Sends it again now, and says when next.
    pub(super) fn open_again(&mut self, now: Instant) {
        let LocalUlp::Rdmap(RdmapUser { rdmap, .. }) = &mut self.user else {
            return;
        };
        if self.ddp.is_finishing() || self.ddp.has_failed() {
            return;
        }
        rdmap.begin_with_rtr(RtrMessage::Write);
        self.between_messages = false;
        self.repeats_left -= 1;
        let done = AGAIN.len() - usize::from(self.repeats_left);
        self.wakes_at = AGAIN.get(done).map(|&gap| now + gap);
    }
}
