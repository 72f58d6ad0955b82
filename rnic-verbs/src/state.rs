//! The states of a queue pair, as its application knows them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The states of a queue pair, and what may be posted in each.
///
/// | state | ibverbs | `post_recv` | `post_send` |
/// |---|---|---|---|
/// | `Init` | `INIT` | waits for a message | fails, or waits if it sends nothing |
/// | `Connecting` | `RTR` | waits for a message | waits for the connection |
/// | `Rts` | `RTS` | waits for a message | is carried out |
/// | `Sqd` | `SQD` | waits for a message | flushed at the end |
/// | `Terminate` | `SQE` | flushed | flushed |
/// | `Error` | `ERR` | flushed | flushed |
///
/// `Init` becomes `Connecting` when the queue pair connects or accepts, and `Init` again when that
/// fails; `Connecting` becomes `Rts`; `Rts` becomes `Sqd` when the application disconnects. Every
/// state becomes `Error` when the connection ends, or when the application [asks](crate::Qp::fail);
/// `Rts` and `Sqd` become `Terminate` if the connection ends by a Terminate message. Both are
/// final.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    /// Not connected.
    #[default]
    Init = 0,
    /// Connecting or accepting.
    Connecting = 1,
    /// Connected.
    Rts = 2,
    /// Disconnecting in order: what was posted to the send queue before is carried out.
    Sqd = 3,
    /// The connection ended with a Terminate message, sent or received.
    Terminate = 4,
    /// The connection ended in another way.
    Error = 5,
}

impl QpState {
    /// Returns its name in ibverbs, without the `IBV_QPS_`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Init => "INIT",
            Self::Connecting => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Terminate => "SQE",
            Self::Error => "ERR",
        }
    }

    /// Returns whether the connection is over.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Terminate | Self::Error)
    }

    fn from_octet(octet: u8) -> Self {
        match octet {
            0 => Self::Init,
            1 => Self::Connecting,
            2 => Self::Rts,
            3 => Self::Sqd,
            4 => Self::Terminate,
            _ => Self::Error,
        }
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The state of one queue pair: changed under the lock of the mailboxes, read without it wherever
/// something is posted. Who sees a state, acquires what was set up for it before.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedState(Arc<AtomicU8>);

impl SharedState {
    pub(crate) fn get(&self) -> QpState {
        QpState::from_octet(self.0.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, state: QpState) {
        self.0.store(state as u8, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_round_trip() {
        use QpState::*;
        let shared = SharedState::default();
        assert_eq!(shared.get(), Init);
        for state in [Init, Connecting, Rts, Sqd, Terminate, Error] {
            shared.set(state);
            assert_eq!(shared.get(), state);
        }
    }
}
