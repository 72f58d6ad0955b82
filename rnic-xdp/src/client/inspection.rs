//! An inspection, as the client of a port gets it.

use std::os::fd::OwnedFd;
use std::time::Duration;

/// Somebody who may know asks what this process says of itself.
#[derive(Debug)]
pub struct Inspection {
    /// What is wanted. A newer version may ask for what this one does not know.
    pub what: String,
    /// How long the answer is waited for.
    pub within: Duration,
    /// Where to write it: a socket or a pipe, which may block, and whose reader may be gone. An
    /// answer ends when it is closed.
    pub answer: OwnedFd,
}
