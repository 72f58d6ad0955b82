//! Host ends of ports that were taken from their clients. Such a veth pair lives as long as
//! somebody has the port's AF_XDP socket, and shows by that what the port still costs.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use super::host_end::{HostEnd, remove_host_end};
use crate::device::error::OpenError;
use crate::device::netlink::{Groups, LinkChange, RouteSocket, Socket, link_by_index, links};

/// Follows host ends until they are gone, in the network namespace of the thread that has made it.
pub struct HostEnds {
    requests: RouteSocket,
    changes: Socket,
}

impl HostEnds {
    /// Begins to follow the network devices of this host.
    pub fn open() -> Result<Self, OpenError> {
        let changes = Socket::open(None, Groups::ALL);
        let changes = changes.map_err(|source| OpenError::System {
            doing: "follow the network devices of this host",
            source,
        })?;
        let requests = RouteSocket::open()?;
        Ok(Self { requests, changes })
    }

    /// Returns whether a host end is still there.
    pub fn is_there(&mut self, end: &HostEnd) -> Result<bool, OpenError> {
        let link = link_by_index(&mut self.requests, end.ifindex)?;
        Ok(link.is_some_and(|link| link.name == end.name))
    }

    /// Removes a host end, also while a process has the socket.
    pub fn remove(&mut self, end: &HostEnd) -> Result<(), OpenError> {
        if self.is_there(end)? {
            remove_host_end(&mut self.requests, end.ifindex);
        }
        Ok(())
    }

    /// Returns which of these are gone, as far as the kernel has reported it.
    pub fn poll<'a>(
        &mut self,
        followed: impl Iterator<Item = (u32, &'a HostEnd)>,
    ) -> Result<Vec<u32>, OpenError> {
        let followed: BTreeMap<_, _> = followed
            .map(|(port, end)| (end.ifindex, (port, end)))
            .collect();
        if let Ok(Some(messages)) = self.changes.notifications() {
            let gone =
                messages
                    .iter()
                    .filter_map(|message| match LinkChange::from_message(message) {
                        Some(LinkChange::Gone(index)) => {
                            followed.get(&index).map(|(port, _)| *port)
                        }
                        _ => None,
                    });
            return Ok(gone.collect());
        }
        // Some were lost.
        let there = links(&mut self.requests)?;
        let is_there = |end: &HostEnd| {
            let mut there = there.iter();
            there.any(|link| link.index == end.ifindex && link.name == end.name)
        };
        let gone = followed.values().filter(|(_, end)| !is_there(end));
        Ok(gone.map(|(port, _)| *port).collect())
    }
}

impl AsFd for HostEnds {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}
