//! Start-up frames of MPA, and the control messages that are equivalent (RFC 6581 section 7).

use crate::wire::mpa::{StartupFrame, StartupKind};
use crate::wire::session::{Function, SessionControl};

/// Returns the control message for a start-up frame.
// rfc: 6581-7 an enhanced Reject has a code of its own, and no enhanced data
pub(super) fn message_of<'a>(frame: &StartupFrame<'a>) -> SessionControl<'a> {
    let rejection = match frame.enhanced {
        Some(_) => Function::EnhancedReject,
        None => Function::Reject,
    };
    SessionControl {
        function: match (frame.kind, frame.reject) {
            (StartupKind::Request, _) => Function::Initiate,
            (StartupKind::Reply, false) => Function::Accept,
            (StartupKind::Reply, true) => rejection,
        },
        enhanced: frame.enhanced.filter(|_| !frame.reject),
        private_data: frame.private_data,
    }
}

/// Returns the start-up frame for a control message. In the form of RFC 5043 alone it is one of
/// `revision`.
// rfc: 5043-6, 5043-s1, 5043-s2, 6581-s1 the application gets private data and depths, and decides
pub(super) fn frame_of(message: &SessionControl<'_>, revision: u8) -> Vec<u8> {
    let frame = StartupFrame {
        kind: match message.function {
            Function::Initiate => StartupKind::Request,
            _ => StartupKind::Reply,
        },
        markers: false,
        crc: false,
        reject: matches!(
            message.function,
            Function::Reject | Function::EnhancedReject
        ),
        enhanced_bit: message.enhanced.is_some(),
        reserved: 0,
        revision: if message.enhanced.is_some() {
            2
        } else {
            revision
        },
        enhanced: message.enhanced,
        private_data: message.private_data,
    };
    let mut octets = vec![0; frame.len()];
    frame.emit(&mut octets);
    octets
}
