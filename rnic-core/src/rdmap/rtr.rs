//! The ready-to-receive message of a peer-to-peer connection (RFC 6581 section 9.2): an ordinary
//! message without payload, which neither application sees.

use super::message::{Outbound, PayloadSource, Token, tagged, untagged};
use crate::verbs::wr::SHORT_INLINE;
use crate::wire::ddp::{DdpHeader, DdpSegment, QueueNumber, Stag, TaggedOffset};
use crate::wire::rdmap::{Control, Opcode, ReadRequest};

/// The message that the initiator of a peer-to-peer connection sends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtrMessage {
    /// A Send without payload.
    Send,
    /// A Write without payload.
    Write,
    /// A Read without payload.
    Read,
}

impl RtrMessage {
    /// Makes the message. Its STags and offsets are not checked by the peer, because there is no
    /// payload.
    pub(super) fn message(self) -> Outbound {
        let mut octets = [0; SHORT_INLINE];
        let (header, length) = match self {
            Self::Send => (untagged(Opcode::Send, QueueNumber::SEND, 0), 0),
            Self::Write => (tagged(Opcode::Write, Stag(0), TaggedOffset(0)), 0),
            Self::Read => {
                let nothing = ReadRequest {
                    sink_stag: Stag(0),
                    sink_offset: TaggedOffset(0),
                    length: 0,
                    source_stag: Stag(0),
                    source_offset: TaggedOffset(0),
                };
                let length = nothing.emit(&mut octets) as u32;
                let queue = QueueNumber::READ_REQUEST;
                (untagged(Opcode::ReadRequest, queue, 0), length)
            }
        };
        Outbound {
            header,
            length,
            source: PayloadSource::Octets(octets),
            token: Token::Rtr,
        }
    }

    /// Returns whether the first segment of a stream is a whole ready-to-receive Send.
    pub fn is_send(segment: &DdpSegment<'_>) -> bool {
        let DdpHeader::Untagged(header) = &segment.header else {
            return false;
        };
        header.last
            && header.queue == QueueNumber::SEND
            && Control::from(header.ulp) == Control::new(Opcode::Send)
            && segment.payload.is_empty()
    }
}
