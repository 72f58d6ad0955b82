//! What can go wrong in MPA, and what is then to be done with the connection.

use crate::wire::mpa::{MpaWireError, StartupKind};

/// Why MPA cannot go on with a connection.
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
        /// What the octets of the FPDU give.
        computed: u32,
    },
    /// An FPDU that a marker showed ahead of order turns out to begin inside another FPDU (RFC 5044 section 8, code 3).
    #[error("an FPDU that a marker showed does not start where the stream before it ends")]
    Boundary,
    /// A marker of a received FPDU does not point to its start (RFC 5044 section 8, code 3).
    #[error(
        "FPDU with a marker that points {pointer} octets back: it starts {distance} octets back"
    )]
    Marker {
        /// Octets back to where the marker points.
        pointer: usize,
        /// Octets back to the length field, as the lengths of the FPDUs before and of this one have it; 0 where the marker
        /// stands in front of it.
        distance: usize,
    },
    /// No well-formed start-up frame (RFC 5044 section 8, code 4).
    #[error("MPA start-up frame: {0}")]
    Frame(#[from] MpaWireError),
    /// Both sides play the same role.
    #[error(
        "the peer sent an MPA {}: both sides {}, one of them must do the opposite",
        match .0 { StartupKind::Request => "Request", StartupKind::Reply => "Reply" },
        match .0 { StartupKind::Request => "initiate", StartupKind::Reply => "respond" }
    )]
    SameRole(StartupKind),
    /// A Request of a revision that does not exist here.
    #[error("the peer asks for MPA revision {0}: 1 and 2 are spoken here")]
    RequestRevision(u8),
    /// A Reply of another revision than was asked.
    #[error(
        "the peer answers MPA revision {answered} to revision {asked}: \
         ask it for revision 1 if it does not know RFC 6581"
    )]
    ReplyRevision {
        /// What the Request said.
        asked: u8,
        /// What the Reply says.
        answered: u8,
    },
    /// A Reply without the enhanced connection data that it owes to an enhanced Request.
    #[error("the peer's Reply lacks the enhanced connection data: ask it for revision 1")]
    ReplyNotEnhanced,
    /// A Reply with enhanced connection data that the Request did not ask for.
    #[error("the peer's Reply has enhanced connection data, and was not asked for any")]
    ReplyEnhanced,
    /// The responder wants to have more reads outstanding than this side can take (RFC 6581 section 9.1;
    /// Terminate layer 2, type 0, code 6).
    #[error(
        "the peer wants {wanted} reads outstanding, this side takes {limit}: \
         lower the ORD there or raise the IRD here"
    )]
    InsufficientIrd {
        /// The responder's ORD.
        wanted: u16,
        /// The most that this side takes.
        limit: u16,
    },
    /// The responder accepts no ready-to-receive message that this side sends, or disagrees about there being
    /// one (RFC 6581 section 9.2; Terminate layer 2, type 0, code 7).
    #[error(
        "no agreement with the peer on the ready-to-receive message of a peer-to-peer connection"
    )]
    NoMatchingRtr,
    /// The caller's private data are too long.
    #[error("private data of {len} octets: at most {limit} fit in this start-up frame")]
    PrivateData {
        /// What was given.
        len: usize,
        /// What fits.
        limit: usize,
    },
    /// This side gives up during start-up, for a reason of its own (RFC 6581 section 9.3; Terminate layer 2, type 0,
    /// code 5).
    #[error("the connection was given up before the peer's MPA Reply came")]
    GivenUp,
    /// The caller asks for a peer-to-peer connection in a revision that has none.
    #[error("peer-to-peer connections take MPA revision 2")]
    PeerToPeer,
    /// The caller asks for a revision that does not exist.
    #[error("MPA revision {0} cannot be asked for: choose 1 or 2")]
    Revision(u8),
    /// The caller answers where no Request waits for an answer.
    #[error("no MPA Request waits for an answer")]
    NoRequest,
}

/// What an error asks of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The peer made no mistake, the caller did: the connection stands as before.
    Nothing,
    /// Close the TCP connection.
    Close,
    /// Send a Terminate message, then close the TCP connection.
    Terminate,
}

impl MpaError {
    /// What the error asks of the connection.
    pub fn action(&self) -> Action {
        match self {
            // rfc: 5044-88, 6581-18, 6581-32
            Self::Crc { .. }
            | Self::Boundary
            | Self::Marker { .. }
            | Self::InsufficientIrd { .. }
            | Self::NoMatchingRtr
            | Self::GivenUp => Action::Terminate,
            // rfc: 5044-66, 5044-72, 5044-75, 5044-78, 5044-85d, 5044-86
            Self::Frame(_)
            | Self::SameRole(_)
            | Self::RequestRevision(_)
            | Self::ReplyRevision { .. }
            | Self::ReplyNotEnhanced
            | Self::ReplyEnhanced => Action::Close,
            Self::PrivateData { .. } | Self::PeerToPeer | Self::Revision(_) | Self::NoRequest => {
                Action::Nothing
            }
        }
    }
}
