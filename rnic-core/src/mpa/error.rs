//! Errors of MPA, and what the connection does about them.

use crate::wire::mpa::{MpaWireError, StartupKind};

/// Why MPA cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MpaError {
    /// The CRC of a received FPDU is wrong (RFC 5044 section 8, code 2).
    #[error(
        "FPDU with a bad CRC: it carries {received:#010x}, its octets give {computed:#010x}; \
         something on the path altered the stream and TCP's checksum did not see it"
    )]
    Crc {
        /// The CRC field.
        received: u32,
        /// The CRC of the octets.
        computed: u32,
    },
    /// An FPDU that was located ahead of order by a marker begins inside another FPDU (RFC 5044
    /// section 8, code 3).
    #[error("an FPDU that a marker showed does not start where the stream before it ends")]
    Boundary,
    /// A marker of a received FPDU does not point to its start (RFC 5044 section 8, code 3).
    #[error(
        "FPDU with a marker that points {pointer} octets back: it starts {distance} octets back"
    )]
    Marker {
        /// The distance that the marker gives, in octets back.
        pointer: usize,
        /// The distance from the marker back to the length field, by the lengths of the FPDUs; 0
        /// where the marker stands in front of it.
        distance: usize,
    },
    /// A malformed start-up frame (RFC 5044 section 8, code 4).
    #[error("MPA start-up frame: {0}")]
    Frame(#[from] MpaWireError),
    /// Both sides play the same role.
    #[error(
        "the peer sent an MPA {}: both sides {}, one of them must do the opposite",
        match .0 { StartupKind::Request => "Request", StartupKind::Reply => "Reply" },
        match .0 { StartupKind::Request => "initiate", StartupKind::Reply => "respond" }
    )]
    SameRole(StartupKind),
    /// The Request has a revision that is not supported here.
    #[error("the peer asks for MPA revision {0}: 1 and 2 are spoken here")]
    RequestRevision(u8),
    /// The Reply has another revision than the Request.
    #[error(
        "the peer replies with MPA revision {replied} to revision {asked}: \
         ask it for revision 1 if it does not know RFC 6581"
    )]
    ReplyRevision {
        /// The revision of the Request.
        asked: u8,
        /// The revision of the Reply.
        replied: u8,
    },
    /// The Reply to an enhanced Request has no enhanced connection data.
    #[error("the peer's Reply lacks the enhanced connection data: ask it for revision 1")]
    ReplyNotEnhanced,
    /// The Reply to a plain Request has enhanced connection data.
    #[error("the peer's Reply has enhanced connection data, and was not asked for any")]
    ReplyEnhanced,
    /// The responder wants an ORD greater than this side's IRD can be (RFC 6581 section 9.1;
    /// Terminate layer 2, type 0, code 6).
    #[error(
        "the peer wants {wanted} reads outstanding, this side takes {limit}: \
         lower the ORD there or raise the IRD here"
    )]
    InsufficientIrd {
        /// The responder's ORD.
        wanted: u16,
        /// The greatest IRD of this side.
        limit: u16,
    },
    /// The responder accepts none of the ready-to-receive messages that this side can send, or does
    /// not agree that there is one (RFC 6581 section 9.2; Terminate layer 2, type 0, code 7).
    #[error(
        "no agreement with the peer on the ready-to-receive message of a peer-to-peer connection"
    )]
    NoMatchingRtr,
    /// The caller's private data are too long.
    #[error("private data of {len} octets: at most {limit} fit in this start-up frame")]
    PrivateData {
        /// Octets given.
        len: usize,
        /// Octets that fit.
        limit: usize,
    },
    /// This side gives up during start-up, for a local reason (RFC 6581 section 9.3; Terminate
    /// layer 2, type 0, code 5).
    #[error("the connection was given up before the peer's MPA Reply came")]
    GivenUp,
    /// The initiator has sent something before the Reply that is no Terminate.
    #[error("the peer sent an FPDU before the MPA Reply")]
    Early,
    /// The caller asks for a peer-to-peer connection in revision 1, which has none.
    #[error("peer-to-peer connections take MPA revision 2")]
    PeerToPeer,
    /// The caller asks for a revision that is not supported.
    #[error("MPA revision {0} cannot be asked for: choose 1 or 2")]
    Revision(u8),
    /// The caller accepts or rejects, and no Request is there.
    #[error("no MPA Request waits for a decision")]
    NoRequest,
}

/// What the connection does after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing: the caller made the mistake, not the peer.
    Nothing,
    /// Close the TCP connection.
    Close,
    /// Close the TCP connection. A peer that speaks RFC 6581 gets a Terminate first, for an error
    /// without a code of its own ([`MpaError::GivenUp`]).
    GiveUp,
    /// Send a Terminate message, then close the TCP connection.
    Terminate,
}

impl MpaError {
    /// Returns whether the peer has answered an enhanced Request as one does that knows RFC 5044
    /// alone.
    pub fn is_not_enhanced(&self) -> bool {
        match self {
            Self::ReplyRevision { asked, replied } => replied < asked,
            Self::ReplyNotEnhanced => true,
            _ => false,
        }
    }

    /// Returns what the connection does after this error.
    pub fn action(&self) -> Action {
        match self {
            // rfc: 5044-88 after a CRC or marker error MPA does not close the connection itself
            // rfc: 6581-18, 6581-32 for a Reply that cannot be met a Terminate is sent
            Self::Crc { .. }
            | Self::Boundary
            | Self::Marker { .. }
            | Self::InsufficientIrd { .. }
            | Self::NoMatchingRtr
            | Self::GivenUp => Action::Terminate,
            // rfc: 5044-72, 5044-75, 5044-85d, 5044-86 an invalid frame closes the connection
            // rfc: 5044-66, 5044-78 and so does another revision or key
            Self::Frame(_) | Self::SameRole(_) | Self::RequestRevision(_) | Self::ReplyEnhanced => {
                Action::Close
            }
            // rfc: 6581-38 what is wrong here has no code: Terminate 2/0/5 before the end
            Self::ReplyRevision { .. } | Self::ReplyNotEnhanced | Self::Early => Action::GiveUp,
            Self::PrivateData { .. } | Self::PeerToPeer | Self::Revision(_) | Self::NoRequest => {
                Action::Nothing
            }
        }
    }
}
