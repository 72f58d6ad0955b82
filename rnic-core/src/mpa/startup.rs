//! The start-up exchange: one Request, one Reply (RFC 5044 section 7.1), and with revision 2 the read depths
//! and the ready-to-receive message (RFC 6581).
//!
//! Neither role sends an octet by itself: both hand out what is to be sent. Who waits how long is up to the
//! connection, as is that a responder sends no FPDU before it has received one.

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

/// A read depth that says: not negotiated here, the ULP sees to it.
const NOT_NEGOTIATED: u16 = MAX_DEPTH;

/// How a connection starts up: what an initiator asks for, or what a responder accepts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpaOptions {
    /// 1 (RFC 5044) or 2 (RFC 6581). A responder answers with what was asked.
    pub revision: u8,
    /// Ask for CRCs. They are used if either side asks.
    pub crc: bool,
    /// Require markers of the peer (RFC 5044 section 4.3).
    pub markers: bool,
    /// Reads that this side takes at once, 16382 at most.
    pub ird: u16,
    /// Reads that this side wants to have outstanding, 16382 at most.
    pub ord: u16,
    /// How far an initiator raises its `ird` if the responder wants more.
    pub max_ird: u16,
    /// Whether the depths are settled by the exchange. If not, the ULP sees to it, and they stay as they are, but for a
    /// peer that states its own all the same.
    pub negotiate_reads: bool,
    /// MpaInitiator with revision 2: the ready-to-receive messages that it can start with. None: the connection
    /// is not peer-to-peer, and the ULP of the initiator sends first.
    pub rtr: Rtr,
    /// Handed to the peer: at most 512 octets, 508 beside the enhanced data of revision 2.
    pub private_data: Vec<u8>,
}

impl Default for MpaOptions {
    fn default() -> Self {
        Self {
            revision: 2,
            // rfc: 5044-2, 5044-30
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

    /// Whether an initiator asks in the form of RFC 6581: there is something to ask for that is new in it.
    // rfc: 6581-41
    pub fn is_enhanced(&self) -> bool {
        self.revision >= 2 && (self.negotiate_reads || !self.rtr.is_none())
    }
}

/// What both sides agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The revision of MPA.
    pub revision: u8,
    /// Whether the depths and the rest of RFC 6581 were exchanged.
    pub enhanced: bool,
    /// Whether CRCs are generated and checked.
    pub crc: bool,
    /// Whether this side sends markers: the peer requires them.
    pub markers: bool,
    /// Whether the peer sends markers: this side requires them.
    pub peer_markers: bool,
    /// Where the peer's FPDUs begin in its stream: behind its start-up frame of so many octets.
    pub peer_start: u64,
    /// Reads that this side must take at once.
    pub ird: u16,
    /// Reads that this side may have outstanding.
    pub ord: u16,
    /// The IRD that the peer stated (16383: not negotiated), if any.
    pub peer_ird: Option<u16>,
    /// The ORD that the peer stated (16383: not negotiated), if any.
    pub peer_ord: Option<u16>,
    /// The ready-to-receive message: the one that an initiator must send before any other FPDU, or those that
    /// a responder must expect.
    pub rtr: Rtr,
    /// What the responder handed over; empty on the responder, which saw the initiator's in the [`MpaRequest`].
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
    /// No message: the connection is not peer-to-peer.
    pub const NONE: Self = Self {
        send: false,
        write: false,
        read: false,
    };
    /// Any.
    // rfc: 6581-27
    pub const ALL: Self = Self {
        send: true,
        write: true,
        read: true,
    };

    /// Whether there is none.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Those in both.
    fn and(self, other: Self) -> Self {
        Self {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// What the flags of a frame name. Without flag A the others mean nothing.
    // rfc: 6581-37
    fn of(enhanced: &Enhanced) -> Self {
        Self {
            send: enhanced.peer_to_peer && enhanced.rtr_send,
            write: enhanced.peer_to_peer && enhanced.rtr_write,
            read: enhanced.peer_to_peer && enhanced.rtr_read,
        }
    }

    /// Enhanced data with these flags; A is set unless there is none.
    // rfc: 6581-25, 6581-34, 6581-36
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

/// How many reads may be outstanding towards a peer that takes `peer_ird` at once.
// rfc: 6581-15, 6581-17, 6581-22, 6581-23, 6581-s2
fn outbound_depth(ord: u16, peer_ird: u16) -> u16 {
    if peer_ird == NOT_NEGOTIATED {
        ord
    } else {
        ord.min(peer_ird)
    }
}

/// Refuses private data that do not fit beside the enhanced data.
// rfc: 5044-69, 6581-9
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

/// The octets of a frame whose private data have been checked.
fn emit(frame: &StartupFrame) -> Vec<u8> {
    let mut octets = vec![0; frame.len()];
    frame.emit(&mut octets);
    octets
}

/// The peer's start-up frame as it comes in, in whatever pieces: one frame at most.
#[derive(Debug, Default)]
struct Incoming {
    octets: Vec<u8>,
}

impl Incoming {
    /// Octets at most.
    const LONGEST: usize = STARTUP_LEN + MAX_PRIVATE_DATA;

    /// Takes octets from the front of `input` up to the end of the frame, and yields it once it is whole.
    // rfc: 5044-49, 5044-81
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

    /// Whether the peer's stream begins with an FPDU that is short enough, or with a marker: no key does.
    fn begins_with_fpdu(&self, input: &[u8]) -> bool {
        let first = self.octets.first().or(input.first());
        first.is_some_and(|octet| usize::from(*octet) <= Self::LONGEST >> 8)
    }

    /// Takes an FPDU in the place of a frame, which is no longer than one, and yields its ULPDU once it is whole.
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
