//! What can be seen of two hosts.

use std::fmt;
use std::rc::Rc;

use rnic_core::connection::Event;
use rnic_core::time::Instant;
use rnic_core::verbs::wr::Completion;
use rnic_core::wire::packet::{Checksums, parse};

/// A frame: it is seen, and on its way.
pub(super) type Frame = Rc<Vec<u8>>;

/// What can be seen of a world, in its order.
#[derive(Clone, PartialEq)]
pub(crate) enum Seen {
    Sent {
        host: usize,
        now: Instant,
        frame: Frame,
    },
    Completed {
        host: usize,
        connection: usize,
        completion: Completion,
    },
    Told {
        host: usize,
        event: Event,
    },
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sent { host, now, frame } => {
                let header =
                    parse(frame, Checksums::Unnecessary).map(|packet| packet.segment.header);
                write!(f, "{host} sends at {now:?} {header:?}, {frame:02x?}")
            }
            Self::Completed {
                host,
                connection,
                completion,
            } => {
                write!(f, "{host} completes on {connection}: {completion:?}")
            }
            Self::Told { host, event } => write!(f, "{host} tells {event:?}"),
        }
    }
}

/// What a case came to, for tests that ask whether cases get anywhere.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reached {
    /// Frames sent.
    pub(crate) frames: u64,
    /// Successful completions.
    pub(crate) completions: u64,
    /// Connections that ended before their time.
    pub(crate) ended: u64,
}
