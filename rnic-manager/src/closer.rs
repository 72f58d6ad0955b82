//! Closing what somebody else has sent. The last close of a descriptor can take as long as its
//! sender likes (a socket that lingers, a file of a file system in user space): a thread that does
//! nothing else does it.

use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};

use crossbeam_channel::{Sender, TrySendError, bounded};

/// Descriptors that may wait.
const ROOM: usize = 1024;

/// A thread that closes descriptors. It ends with the last clone of this, once it has closed all.
#[derive(Clone, Debug)]
pub struct Closer {
    queue: Sender<OwnedFd>,
}

impl Closer {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let (queue, descriptors) = bounded::<OwnedFd>(ROOM);
        let thread = std::thread::Builder::new().name("rnicd-closer".into());
        thread.spawn(move || descriptors.into_iter().for_each(drop))?;
        Ok(Self { queue })
    }

    /// Queues descriptors to be closed, and does not wait for it. Those that there is no room for
    /// stay open: the thread hangs.
    pub fn close(&self, descriptors: impl IntoIterator<Item = OwnedFd>) {
        for descriptor in descriptors {
            if let Err(TrySendError::Full(rest) | TrySendError::Disconnected(rest)) =
                self.queue.try_send(descriptor)
            {
                let _stays_open = rest.into_raw_fd();
            }
        }
    }
}
