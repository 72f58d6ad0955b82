//! One association: a one-to-one style SCTP socket of the kernel that never waits.

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rnic_core::connection::{Arrived, AssociationSocket, LONGEST_CHUNK, OutgoingChunk, PathFacts};
use rnic_core::tcp::TcpFailure;
use rnic_manager::{Maker, PrivateFd};
use rustix::io::Errno;
use rustix::net::Shutdown;
use tracing::debug;

use crate::costs::Costs;
use crate::sctp::{self, Limits, Notification};
use crate::socket::{failure_of, retried};
use crate::sys;

/// How often the longest chunk is asked for until the kernel is asked again.
const ASKED_ANEW: u16 = 1024;

/// An association of the kernel. See [`AssociationSocket`] for what the calls do.
#[derive(Debug)]
pub struct KernelAssociation {
    /// None once it was aborted.
    fd: Option<PrivateFd>,
    /// What the kernel has delivered of a message in part.
    partial: Vec<u8>,
    /// The kernel has told that it failed.
    is_lost: bool,
    /// The least that chunks take which are not known to be acknowledged, and their sum.
    outstanding: VecDeque<u64>,
    least: u64,
    acknowledged: u64,
    costs: Costs,
    max_chunk: Cell<usize>,
    asks_left: Cell<u16>,
    /// What the kernel has by itself, once asked.
    own_limits: Option<Limits>,
    /// After how many retransmissions it is to fail at the earliest.
    least_retransmissions: u16,
    /// Probes without an answer.
    probes: u16,
    heard: u64,
    maker: Maker,
}

impl KernelAssociation {
    pub(crate) fn new(fd: PrivateFd) -> Self {
        Self {
            fd: Some(fd),
            partial: Vec::new(),
            is_lost: false,
            outstanding: VecDeque::new(),
            least: 0,
            acknowledged: 0,
            costs: Costs::default(),
            max_chunk: Cell::new(0),
            asks_left: Cell::new(0),
            own_limits: None,
            least_retransmissions: 0,
            probes: 0,
            heard: 0,
            maker: Maker::this(),
        }
    }

    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, TcpFailure> {
        Ok(self.fd.as_ref().ok_or(TcpFailure::Aborted)?.as_fd())
    }

    /// Has it fail after as many retransmissions as the sessions want, and not by probes without an
    /// answer: the kernel counts both.
    fn allow_retransmissions(&mut self) {
        let known = self.own_limits;
        let (least, probes) = (self.least_retransmissions, self.probes);
        let allow = |fd| {
            let own = known.map_or_else(|| sctp::limits(fd), Ok)?;
            let most = own.of_all.max(least).saturating_add(probes);
            // The kernel has no more for the association than for its ways together.
            let of_each = most.div_ceil(sctp::count_ways(fd)).max(own.of_each);
            let of_all = most;
            sctp::set_limits(fd, Limits { of_all, of_each })?;
            Ok::<_, Errno>(own)
        };
        match self.fd().map(allow) {
            Ok(Ok(own)) => self.own_limits = Some(own),
            Ok(Err(errno)) => debug!("an association keeps its number of retransmissions: {errno}"),
            Err(_) => {}
        }
    }

    /// Returns what a notification says.
    fn notified(&mut self, octets: &[u8]) -> Result<Arrived, TcpFailure> {
        match Notification::parse(octets) {
            Notification::Up { outbound, inbound } => Ok(Arrived::Up { outbound, inbound }),
            Notification::Indication(indication) => Ok(Arrived::Indication(indication)),
            Notification::Lost => {
                self.is_lost = true;
                Ok(Arrived::Other)
            }
            Notification::Restarted { outbound, inbound } => {
                // The kernel has dropped what was outstanding, and nobody has acknowledged it.
                self.partial.clear();
                self.outstanding.clear();
                self.least = 0;
                Ok(Arrived::Restarted { outbound, inbound })
            }
            Notification::Closed => Ok(Arrived::Closed),
            Notification::Other => Ok(Arrived::Other),
        }
    }

    /// Returns what a message says, or the part of it that has come.
    fn take(
        &mut self,
        received: &sys::SctpReceived,
        into: &mut [u8],
    ) -> Result<Arrived, TcpFailure> {
        let mut len = received.len;
        if received.is_notification {
            return self.notified(&into[..len]);
        }
        if !received.is_whole || !self.partial.is_empty() {
            self.partial.extend_from_slice(&into[..len]);
            if self.partial.len() > LONGEST_CHUNK.min(into.len()) {
                debug!("a message of SCTP is longer than any segment: the association ends");
                return Err(TcpFailure::Aborted);
            }
            if !received.is_whole {
                return Ok(Arrived::Other);
            }
            len = self.partial.len();
            into[..len].copy_from_slice(&self.partial);
            self.partial.clear();
        }
        Ok(Arrived::Chunk {
            stream: received.stream,
            protocol: received.protocol,
            len,
        })
    }
}

impl AssociationSocket for KernelAssociation {
    fn receive(&mut self, into: &mut [u8]) -> Result<Arrived, TcpFailure> {
        let fd = self.fd()?;
        match retried(|| sys::receive_sctp(fd, into)) {
            Ok(received) if received.len == 0 => match self.is_lost {
                true => Err(TcpFailure::Reset),
                false => Ok(Arrived::Closed),
            },
            Ok(received) => self.take(&received, into),
            Err(Errno::AGAIN) if self.is_lost => Err(TcpFailure::Reset),
            Err(Errno::AGAIN) => Ok(Arrived::Nothing),
            // No peer yet, or none any more.
            Err(Errno::NOTCONN) if !self.is_lost => Ok(Arrived::Nothing),
            Err(errno) => Err(failure_of(errno)),
        }
    }

    fn send(&mut self, chunk: &OutgoingChunk<'_>) -> Result<bool, TcpFailure> {
        let fd = self.fd()?;
        let len = chunk.octets.len();
        let flags = sctp::chunk_flags(chunk.urgent);
        let is_unsure = self.costs.is_unsure(len);
        let before = is_unsure.then(|| sys::send_memory(fd));
        let (stream, protocol, octets) = (chunk.stream, chunk.protocol, chunk.octets);
        let send = || retried(|| sys::send_sctp(fd, stream, protocol, flags, octets));
        let mut sent = send();
        let is_cut = sent == Err(Errno::MSGSIZE);
        if is_cut {
            // The path has become narrower since it was built, or takes less than 516 octets.
            self.asks_left.set(0);
            sent = sctp::set_cutting(fd, true).and_then(|()| send());
            sctp::set_cutting(fd, false).map_err(failure_of)?;
        }
        match sent {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(false),
            Err(errno) => return Err(failure_of(errno)),
        }
        if let Some(Ok(before)) = before
            && let Ok(after) = sys::send_memory(fd)
            && !is_cut
        {
            self.costs.learn(len, after.saturating_sub(before));
        }
        // Of its parts each may be the last one.
        let least = if is_cut { 1 } else { self.costs.least(len) };
        self.outstanding.push_back(least);
        self.least += least;
        Ok(true)
    }

    fn acknowledged(&mut self) -> u64 {
        let Ok(Ok(memory)) = self.fd().map(sys::send_memory) else {
            return self.acknowledged;
        };
        // An association that fails drops everything, too: asked behind it, it is no more.
        if self.least <= memory || self.is_lost || self.fd().is_ok_and(|fd| !sctp::is_there(fd)) {
            return self.acknowledged;
        }
        // All that is outstanding takes `memory`, and would take `least` or more with the first.
        while self.least > memory
            && let Some(first) = self.outstanding.pop_front()
        {
            self.least -= first;
            self.acknowledged += 1;
        }
        self.acknowledged
    }

    fn max_chunk(&self) -> usize {
        if let Some(left) = self.asks_left.get().checked_sub(1) {
            self.asks_left.set(left);
        } else if let Ok(fd) = self.fd()
            && let Ok(longest) = sctp::max_chunk(fd)
        {
            self.max_chunk.set(longest);
            self.asks_left.set(ASKED_ANEW - 1);
        }
        self.max_chunk.get()
    }

    fn heard(&mut self) -> u64 {
        if let Ok(Ok(heard)) = self.fd().map(sctp::packets_received)
            && heard != self.heard
        {
            self.heard = heard;
            if std::mem::take(&mut self.probes) > 0 {
                self.allow_retransmissions();
            }
        }
        self.heard
    }

    fn probe(&mut self) {
        self.probes = self.probes.saturating_add(1);
        self.allow_retransmissions();
        if let Ok(Err(errno)) = self.fd().map(sctp::send_heartbeat) {
            debug!("a peer of SCTP is not probed: {errno}");
        }
    }

    fn outlast(&mut self, patience: Option<Duration>) {
        self.least_retransmissions = patience.map_or(0, sctp::retransmissions_of);
        self.allow_retransmissions();
    }

    fn path(&self) -> Option<PathFacts> {
        sctp::path(self.fd().ok()?).ok()
    }

    fn abort(&mut self) {
        // Closing sends the ABORT then. The kernel refuses SCTP_ABORT on one-to-one style sockets.
        if let Ok(fd) = self.fd()
            && let Err(errno) = rustix::net::sockopt::set_socket_linger(fd, Some(Duration::ZERO))
        {
            debug!("an association cannot be aborted: {errno}");
        }
        self.fd = None;
    }
}

impl Drop for KernelAssociation {
    fn drop(&mut self) {
        // As with TCP: closing does not end it while a forked process has a copy.
        if let Some(fd) = &self.fd
            && !self.maker.is_forked()
        {
            let _ = rustix::net::shutdown(fd, Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Hands a message to an association. Returns the octets of the chunk, if it is whole.
    fn take(
        association: &mut KernelAssociation,
        octets: &[u8],
        (is_notification, is_whole): (bool, bool),
    ) -> Option<Vec<u8>> {
        let mut room = [0; 64];
        room[..octets.len()].copy_from_slice(octets);
        let received = sys::SctpReceived {
            len: octets.len(),
            is_notification,
            is_whole,
            stream: 0,
            protocol: 16,
        };
        match association.take(&received, &mut room) {
            Ok(Arrived::Chunk { len, .. }) => Some(room[..len].to_vec()),
            Ok(_) => None,
            Err(failure) => panic!("{failure:?}"),
        }
    }

    #[test]
    fn what_has_come_in_part_before_a_restart_is_gone() {
        let (one, _other) = UnixStream::pair().unwrap();
        let mut association = KernelAssociation::new(OwnedFd::from(one).into());
        assert_eq!(take(&mut association, b"old ", (false, false)), None);
        // `struct sctp_assoc_change` with SCTP_RESTART, and four streams each way.
        let words: [u16; 10] = [0x8001, 0, 20, 0, 2, 0, 4, 4, 0, 0];
        let restart: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(take(&mut association, &restart, (true, true)), None);
        let new = take(&mut association, b"new", (false, true));
        assert_eq!(new.as_deref(), Some(&b"new"[..]));
    }
}
