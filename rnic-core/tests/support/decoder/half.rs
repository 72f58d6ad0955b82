//! One direction of a connection, and what it has carried so far.

use std::collections::VecDeque;

use super::headers::{ReadRequest, Target};
use super::stream::Stream;

/// Queues that RDMAP uses: Sends, Read Requests, Terminates, Atomic Responses, and on connections
/// with the semantics of RC Control messages.
const QUEUES: usize = 5;

/// One direction of a connection.
pub(super) struct Half {
    pub(super) initiator: bool,
    pub(super) judged: bool,
    pub(super) stream: Stream,
    /// Octets of the other half's stream that it has acknowledged.
    pub(super) acknowledged: u64,
    pub(super) startup: Option<Startup>,
    pub(super) mpa: MpaState,
    pub(super) ddp: DdpState,
    pub(super) rdmap: RdmapState,
    /// It has sent a Terminate.
    pub(super) terminated: bool,
    /// Octets that have been read.
    pub(super) read: u64,
    /// It sent something wrong, so that what follows cannot be judged.
    pub(super) wrong: bool,
}

impl Half {
    pub(super) fn new(initiator: bool) -> Self {
        Self {
            initiator,
            judged: false,
            stream: Stream::default(),
            acknowledged: 0,
            startup: None,
            mpa: MpaState::default(),
            ddp: DdpState::default(),
            rdmap: RdmapState::default(),
            terminated: false,
            read: 0,
            wrong: false,
        }
    }
}

/// An IRD or ORD that is not negotiated.
pub(super) const NOT_NEGOTIATED: u16 = 0x3fff;

/// The content of a start-up frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Startup {
    /// M: the other half must send markers.
    pub(super) markers: bool,
    /// C.
    pub(super) crc: bool,
    /// R.
    pub(super) reject: bool,
    pub(super) revision: u8,
    pub(super) enhanced: Option<Enhanced>,
    /// Octets of the frame.
    pub(super) len: u64,
}

/// The data of RFC 6581 section 9.
#[derive(Clone, Copy, Debug)]
pub(super) struct Enhanced {
    /// A.
    pub(super) peer_to_peer: bool,
    /// B, C, D: by a Send, a Write, a Read.
    pub(super) ready: [bool; 3],
    pub(super) ird: u16,
    pub(super) ord: u16,
}

/// What it has carried of MPA so far.
#[derive(Default)]
pub(super) struct MpaState {
    pub(super) fpdus: u64,
    /// Where the first one ended.
    pub(super) first_end: Option<u64>,
}

/// A message whose last segment was not sent yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenMessage {
    pub(super) opcode: u8,
    /// The offset that the next segment must have.
    pub(super) next: Target,
    pub(super) length: u64,
}

/// What it has carried of DDP so far.
#[derive(Default)]
pub(super) struct DdpState {
    /// Messages begun in each queue.
    pub(super) begun: [u32; QUEUES],
    pub(super) open: Option<OpenMessage>,
    /// Header and length of each segment.
    pub(super) said: Vec<(Vec<u8>, usize)>,
}

impl DdpState {
    /// Returns whether a segment with this header and of this length was sent.
    pub(super) fn has_said(&self, header: &[u8], len: usize) -> bool {
        self.said
            .iter()
            .rev()
            .any(|(said, said_len)| said == header && *said_len == len)
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Read(ReadRequest),
    Atomic { identifier: u32 },
}

/// A Read or an Atomic that waits for its Response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    pub(super) asked: Asked,
    /// Where it ends in the stream.
    pub(super) end: u64,
}

/// What it has carried of RDMAP so far.
#[derive(Default)]
pub(super) struct RdmapState {
    /// Requests of this half that wait for a Response, oldest first.
    pub(super) waiting: VecDeque<Outstanding>,
    /// Where, in the other half's stream, the Responses end that this half is not known to have
    /// received.
    pub(super) answered: VecDeque<u64>,
    /// Every Read Request so far, and its MSN.
    pub(super) reads: Vec<(u32, ReadRequest)>,
    /// How many XOFFs it has sent, and whether no XON came behind the last.
    pub(super) xoffs: (u64, bool),
    /// The octets that its last receipt was for.
    pub(super) receipt: u64,
}
