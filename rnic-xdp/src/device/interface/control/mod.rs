//! The thread that serves the workers of a port, and the channels between them.

mod handle;
mod thread;

#[cfg(test)]
mod tests;

pub(crate) use handle::{
    Control, ControlHandle, FollowedWorker, HostIpsec, Joining, Request, WorkerNotice,
};
pub(super) use thread::start;
