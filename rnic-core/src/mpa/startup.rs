//! The start-up exchange: one Request and one Reply (RFC 5044 section 7.1). Revision 2 negotiates
//! read depths and the ready-to-receive message (RFC 6581).
//!
//! The roles return octets to be sent. The connection has the timeouts, and keeps a responder from
//! sending FPDUs before it has received one.

mod initiator;
mod responder;
#[cfg(test)]
mod tests;

pub use initiator::{MpaInitiator, MpaReply};
pub use responder::{MpaRequest, MpaResponder};

use super::{MpaError, frame, marker};
use crate::wire::mpa::{
    ENHANCED_LEN, Enhanced, Fpdu, MAX_DEPTH, MAX_PRIVATE_DATA, MpaWireError, STARTUP_LEN,
    StartupFrame,
};

/// A read depth that is not negotiated by MPA: the ULPs agree on it.
const NOT_NEGOTIATED: u16 = MAX_DEPTH;

/// Options of the start-up: what an initiator asks for, or what a responder accepts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpaOptions {
    /// 1 (RFC 5044) or 2 (RFC 6581). A responder uses the revision of the Request.
    pub revision: u8,
    /// Ask for CRCs. They are used if either side asks.
    pub crc: bool,
    /// Require markers of the peer (RFC 5044 section 4.3).
    pub markers: bool,
    /// The IRD of this side: inbound Reads that it takes at once, at most 16382.
    pub ird: u16,
    /// The ORD of this side: outbound Reads that it wants outstanding, at most 16382.
    pub ord: u16,
    /// The greatest IRD of an initiator whose responder wants more than `ird`.
    pub max_ird: u16,
    /// Whether the depths are negotiated. If not, the ULPs agree on them and they stay as they are,
    /// except towards a peer that states its own.
    pub negotiate_reads: bool,
    /// For an initiator with revision 2: the ready-to-receive messages that it can send. None: the
    /// connection is not peer-to-peer, and the initiator's ULP sends first.
    pub rtr: Rtr,
    /// Private data for the peer: at most 512 octets, 508 with the enhanced data of revision 2.
    pub private_data: Vec<u8>,
}

impl Default for MpaOptions {
    fn default() -> Self {
        Self {
            revision: 2,
            // rfc: 5044-2, 5044-30 CRCs are on by default
            crc: true,
            markers: false,
            ird: 16,
            ord: 16,
            max_ird: 128,
            negotiate_reads: true,
            rtr: Rtr::NONE,
            private_data: Vec::new(),
        }
    }
}

impl MpaOptions {
    fn ird(&self) -> u16 {
        self.ird.min(NOT_NEGOTIATED - 1)
    }

    fn ord(&self) -> u16 {
        self.ord.min(NOT_NEGOTIATED - 1)
    }

    /// Returns whether an initiator sends an enhanced Request (RFC 6581): it negotiates depths or a
    /// ready-to-receive message.
    // rfc: 6581-41 who wants none of the enhanced functions does not use the enhanced formats
    pub fn is_enhanced(&self) -> bool {
        self.revision >= 2 && (self.negotiate_reads || !self.rtr.is_none())
    }
}

/// What both sides agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpaNegotiated {
    /// The revision of MPA.
    pub revision: u8,
    /// Whether Request and Reply were enhanced (RFC 6581).
    pub enhanced: bool,
    /// Whether CRCs are generated and checked.
    pub crc: bool,
    /// Whether this side sends markers: the peer requires them.
    pub markers: bool,
    /// Whether the peer sends markers: this side requires them.
    pub peer_markers: bool,
    /// The offset of the peer's first FPDU in its stream: the length of its start-up frame.
    pub peer_start: u64,
    /// The IRD: inbound Reads that this side must take at once.
    pub ird: u16,
    /// The ORD: outbound Reads that this side may have outstanding.
    pub ord: u16,
    /// The IRD that the peer stated (16383: not negotiated), if any.
    pub peer_ird: Option<u16>,
    /// The ORD that the peer stated (16383: not negotiated), if any.
    pub peer_ord: Option<u16>,
    /// The ready-to-receive message: for an initiator, the one to send before any other FPDU; for a
    /// responder, those to expect.
    pub rtr: Rtr,
    /// The responder's private data. Empty for a responder: the initiator's are in the
    /// [`MpaRequest`].
    pub private_data: Vec<u8>,
}

/// Kinds of ready-to-receive message (RFC 6581 section 9.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rtr {
    /// A zero-length Send.
    pub send: bool,
    /// A zero-length Write.
    pub write: bool,
    /// A zero-length Read.
    pub read: bool,
}

impl Rtr {
    /// None: the connection is not peer-to-peer.
    pub const NONE: Self = Self {
        send: false,
        write: false,
        read: false,
    };
    /// All kinds.
    // rfc: 6581-27 a responder supports at least one such message
    pub const ALL: Self = Self {
        send: true,
        write: true,
        read: true,
    };

    /// Returns whether there is none.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Returns the kinds in both.
    fn and(self, other: Self) -> Self {
        Self {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// Returns the kinds whose flags are set. Without flag A there are none.
    // rfc: 6581-37 without A the flags B, C and D are ignored
    fn of(enhanced: &Enhanced) -> Self {
        Self {
            send: enhanced.peer_to_peer && enhanced.rtr_send,
            write: enhanced.peer_to_peer && enhanced.rtr_write,
            read: enhanced.peer_to_peer && enhanced.rtr_read,
        }
    }

    /// Makes enhanced data with these flags. A is set if there are any.
    // rfc: 6581-25, 6581-34, 6581-36 A is set for peer-to-peer; otherwise all flags are clear
    fn enhanced(self, ird: u16, ord: u16) -> Enhanced {
        Enhanced {
            ird,
            ord,
            peer_to_peer: !self.is_none(),
            rtr_send: self.send,
            rtr_write: self.write,
            rtr_read: self.read,
        }
    }
}

/// Returns the ORD towards a peer with IRD `peer_ird`.
// rfc: 6581-15, 6581-17, 6581-s2 the ORD is at most the peer's IRD
// rfc: 6581-22, 6581-23 it stays as it is where the peer's IRD is 0x3fff
fn outbound_depth(ord: u16, peer_ird: u16) -> u16 {
    if peer_ird == NOT_NEGOTIATED {
        ord
    } else {
        ord.min(peer_ird)
    }
}

/// Checks that the private data fit beside the enhanced data.
// rfc: 5044-69, 6581-9 private data are at most 512 octets, enhanced data included
fn check_private_data(private_data: &[u8], enhanced: bool) -> Result<(), MpaError> {
    let limit = MAX_PRIVATE_DATA - if enhanced { ENHANCED_LEN } else { 0 };
    if private_data.len() > limit {
        return Err(MpaError::PrivateData {
            len: private_data.len(),
            limit,
        });
    }
    Ok(())
}

/// Returns the octets of a frame whose private data were checked.
fn emit(frame: &StartupFrame) -> Vec<u8> {
    let mut octets = vec![0; frame.len()];
    frame.emit(&mut octets);
    octets
}

/// The peer's start-up frame as it arrives, in any pieces.
#[derive(Debug, Default)]
struct Incoming {
    octets: Vec<u8>,
}

impl Incoming {
    /// The length of the longest start-up frame.
    // rfc: 5044-81 there is room for the private data that arrive
    const LONGEST: usize = STARTUP_LEN + MAX_PRIVATE_DATA;

    /// Moves octets of the frame from the front of `input`, and returns the frame once it is
    /// complete.
    // rfc: 5044-49 FPDUs begin right behind the start-up frame
    // rfc: 5044-81 no more private data are taken than PD_Length says
    fn take(&mut self, input: &mut &[u8]) -> Result<Option<StartupFrame<'_>>, MpaError> {
        let before = self.octets.len();
        let room = Self::LONGEST - before;
        let (now, rest) = input.split_at(input.len().min(room));
        self.octets.extend_from_slice(now);
        match StartupFrame::parse(&self.octets)? {
            Some((frame, len)) => {
                *input = &input[len - before..];
                Ok(Some(frame))
            }
            None => {
                *input = rest;
                Ok(None)
            }
        }
    }

    /// Returns whether the peer's stream begins with a marker, or with an FPDU no longer than a
    /// start-up frame: no key begins so.
    fn begins_with_fpdu(&self, input: &[u8]) -> bool {
        let first = self.octets.first().or(input.first());
        first.is_some_and(|octet| usize::from(*octet) <= Self::LONGEST >> 8)
    }

    /// Accepts an FPDU in place of a start-up frame, no longer than one. Returns its ULPDU once it
    /// is complete.
    fn take_fpdu(
        &mut self,
        input: &mut &[u8],
        crc: bool,
        markers: bool,
    ) -> Result<Option<Vec<u8>>, MpaError> {
        let no_fpdu = MpaError::Frame(MpaWireError::Key);
        self.octets.extend_from_slice(input);
        *input = &[];
        let len = if markers {
            marker::fpdu_len(0, &self.octets)
        } else {
            frame::announced_fpdu_len(&self.octets)
        };
        let Some(len) = len else {
            return Ok(None);
        };
        if len > Self::LONGEST {
            return Err(no_fpdu);
        }
        let Some(octets) = self.octets.get(..len) else {
            return Ok(None);
        };
        let mut room = Vec::new();
        let ulpdu = match (markers, Fpdu::parse(octets)) {
            (true, _) => marker::open(octets, 0, crc, &mut room),
            (false, Some((fpdu, _))) => frame::open(&fpdu, crc),
            (false, None) => return Err(no_fpdu),
        };
        Ok(Some(ulpdu.map_err(|_| no_fpdu)?.to_vec()))
    }
}
