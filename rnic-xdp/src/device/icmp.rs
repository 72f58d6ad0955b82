//! ICMP messages of routers about our packets. They reach the kernel, which does not know our
//! connections. Raw sockets get copies.

mod filter;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use rnic_core::wire::icmp::{PACKET_TOO_BIG, Report, UNREACHABLE};

use self::filter::{ICMP_FILTER, ICMPV6_FILTER, block};
use crate::device::error::OpenError;

/// Octets read of a message. A message that is cut off cannot be checked, so this is more than
/// routers quote (576 octets, RFC 1812 section 4.3.2.3; 1280, RFC 4443 section 2.4).
const MESSAGE: usize = 2048;
/// Messages taken at a time, so that a flood of them does not delay other work.
const PER_TURN: usize = 16;

/// Receives ICMP messages in one network namespace.
#[derive(Debug)]
pub(crate) struct Icmp {
    v4: OwnedFd,
    /// None on a host without IPv6.
    v6: Option<OwnedFd>,
    buffer: [u8; MESSAGE],
}

impl Icmp {
    /// Opens the sockets in the network namespace of this thread.
    pub(crate) fn open() -> Result<Self, OpenError> {
        let failed = |source: Errno| match source {
            Errno::EPERM | Errno::EACCES => OpenError::NotPermitted {
                doing: "receive ICMP messages",
            },
            source => OpenError::System {
                doing: "open a raw socket for ICMP",
                source: source.into(),
            },
        };
        let v4 = raw(AddressFamily::Inet, SockProtocol::Icmp).map_err(failed)?;
        block(&v4, ICMP_FILTER, &[!(1 << UNREACHABLE)]).map_err(failed)?;
        let v6 = match raw(AddressFamily::Inet6, SockProtocol::IcmpV6) {
            Ok(v6) => {
                let mut blocked = [u32::MAX; 8];
                blocked[usize::from(PACKET_TOO_BIG) / 32] &= !(1 << (PACKET_TOO_BIG % 32));
                block(&v6, ICMPV6_FILTER, &blocked).map_err(failed)?;
                Some(v6)
            }
            Err(Errno::EAFNOSUPPORT) => None,
            Err(source) => return Err(failed(source)),
        };
        Ok(Self {
            v4,
            v6,
            buffer: [0; MESSAGE],
        })
    }

    /// Calls a function with each "packet too big" that has arrived. Does not block.
    pub(crate) fn poll(&mut self, mut handle: impl FnMut(Report)) {
        let buffer = &mut self.buffer;
        drain(&self.v4, buffer, |message| {
            Report::parse_v4(message).map(&mut handle);
        });
        if let Some(v6) = &self.v6 {
            drain(v6, buffer, |message| {
                Report::parse_v6(message).map(&mut handle);
            });
        }
    }

    /// Returns what to wait on.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(&self.v4), self.v6.as_ref()]
            .into_iter()
            .flatten()
            .map(AsFd::as_fd)
    }
}

fn drain(fd: &OwnedFd, buffer: &mut [u8], mut handle: impl FnMut(&[u8])) {
    for _ in 0..PER_TURN {
        match recv(fd.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(len) => handle(&buffer[..len]),
            // No more messages, or one with a wrong checksum, which the kernel drops.
            Err(_) => return,
        }
    }
}

fn raw(family: AddressFamily, protocol: SockProtocol) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(family, SockType::Raw, flags, protocol)
}
