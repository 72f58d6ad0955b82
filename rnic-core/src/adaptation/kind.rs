//! Kinds of chunks, and which may follow which (RFC 5043 section 6).

use std::fmt;

use crate::wire::session::{Body, Function};

/// The kind of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// A DDP segment.
    Segment,
    /// A control message.
    Control(Function),
}

impl From<&Body<'_>> for ChunkKind {
    fn from(body: &Body<'_>) -> Self {
        match body {
            Body::Segment(_) => Self::Segment,
            Body::Control(control) => Self::Control(control.function),
        }
    }
}

impl fmt::Display for ChunkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Segment => "a segment",
            Self::Control(Function::Initiate) => "an Initiate",
            Self::Control(Function::Accept) => "an Accept",
            Self::Control(Function::Reject) => "a Reject",
            Self::Control(Function::EnhancedReject) => "an enhanced Reject",
            Self::Control(Function::Terminate) => "a Terminate",
        })
    }
}

/// Which side of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that asks for it.
    Active,
    /// The other.
    Passive,
}

impl Role {
    /// Returns the role of the peer.
    pub fn other(self) -> Self {
        match self {
            Self::Active => Self::Passive,
            Self::Passive => Self::Active,
        }
    }
}

/// What one side has sent so far, in the order of DDP-SSNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Nothing.
    Begins,
    /// The active side: its Initiate, and no segment.
    Asks,
    /// Segments may follow.
    Open,
    /// Its last chunk.
    Ended,
}

impl Direction {
    /// Returns what there is behind one more chunk of a side with this role, while the other has
    /// sent what `other` says. `None`: no pattern has such a chunk there.
    // rfc: 5043-9, 5043-15 what a side sends follows one of the patterns, and of no others
    pub(super) fn behind(self, role: Role, kind: ChunkKind, other: Self) -> Option<Self> {
        use Function::{Accept, EnhancedReject, Initiate, Reject, Terminate};
        use {ChunkKind::Control, ChunkKind::Segment};
        match (role, self, kind) {
            (Role::Active, Self::Begins, Control(Initiate)) => Some(Self::Asks),
            // rfc: 5043-18 segments follow what the passive side has answered
            (Role::Active, Self::Asks | Self::Open, Segment) if other == Self::Open => {
                Some(Self::Open)
            }
            // The passive side has ended the session already: these were under way.
            (Role::Active, Self::Asks | Self::Open, Segment) if other == Self::Ended => {
                Some(Self::Open)
            }
            (Role::Active, Self::Asks | Self::Open, Control(Terminate)) => Some(Self::Ended),
            (Role::Passive, Self::Begins, Control(Accept)) => Some(Self::Open),
            (Role::Passive, Self::Begins, Control(Reject | EnhancedReject | Terminate)) => {
                Some(Self::Ended)
            }
            (Role::Passive, Self::Open, Segment) => Some(Self::Open),
            (Role::Passive, Self::Open, Control(Terminate)) => Some(Self::Ended),
            _ => None,
        }
    }
}
