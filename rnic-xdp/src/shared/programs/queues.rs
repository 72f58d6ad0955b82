//! The ports of a shared device that are hardware queues of it, and the map of sockets to which the
//! steering program redirects.
//!
//! The kernel removes a socket from that map when nobody has it any more. So the map says which of
//! these ports still exist, also to the next process.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use aya::maps::{MapData, XskMap};
use nix::libc;

use super::error::SharingError;
use super::policy::check_port;
use crate::device::steering::{Maps, io_error};

/// Sets an entry only if there is none (`BPF_NOEXIST`).
const NEW: u64 = 1;

/// The sockets of queues, and the ports that have them.
pub(super) struct Queues {
    sockets: XskMap<MapData>,
    /// The queue of each port.
    ports: BTreeMap<u32, u32>,
}

impl Queues {
    pub(super) fn new(maps: &Maps) -> io::Result<Self> {
        Ok(Self {
            sockets: maps.get("steer_sockets")?,
            ports: BTreeMap::new(),
        })
    }

    /// Returns the queue of a port, if it is one.
    pub(super) fn of(&self, port: u32) -> Option<u32> {
        self.ports.get(&port).copied()
    }

    /// Adds the queue of a port, to which the socket is bound.
    pub(super) fn add(
        &mut self,
        port: u32,
        queue: u32,
        socket: &impl AsRawFd,
    ) -> Result<(), SharingError> {
        check_port(port)?;
        let most = self.sockets.len();
        if queue >= most {
            return Err(SharingError::NewQueue { queue, most });
        }
        let set = self.sockets.set(queue, socket.as_raw_fd(), 0);
        set.map_err(io_error).map_err(SharingError::system(
            "hand the socket of a queue to the steering program",
        ))?;
        self.ports.insert(port, queue);
        Ok(())
    }

    /// Takes over a port that a former process has given a queue.
    pub(super) fn adopt(&mut self, port: u32, queue: u32) -> Result<(), SharingError> {
        check_port(port)?;
        self.ports.insert(port, queue);
        Ok(())
    }

    /// Removes the queue of a port. Its socket stays in the map as long as somebody has it.
    pub(super) fn remove(&mut self, port: u32) {
        self.ports.remove(&port);
    }

    /// Returns whether the map has a socket of a queue. The kernel does not read this map for
    /// processes: it says whether there is room for another socket, which leaves the map when it is
    /// closed here.
    pub(super) fn has_socket(
        &mut self,
        queue: u32,
        another: OwnedFd,
    ) -> Result<bool, SharingError> {
        if queue >= self.sockets.len() {
            return Ok(false);
        }
        match self
            .sockets
            .set(queue, another.as_raw_fd(), NEW)
            .map_err(io_error)
        {
            Ok(()) => Ok(false),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(true),
            Err(error) => Err(SharingError::system("look for the socket of a queue")(
                error,
            )),
        }
    }
}
