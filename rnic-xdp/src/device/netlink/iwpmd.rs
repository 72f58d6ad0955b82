//! The port mapper of rdma-core, `iwpmd`, as far as it takes listeners from others than the kernel.
//!
//! It reads its netlink socket without a look at the sender, and keeps what it is told for a client
//! number. The kernel's iWARP has the number 2. Ours is one that the kernel does not know, because
//! the kernel would keep what `iwpmd` reports of peers.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    MsgFlags, NetlinkAddr, bind, getsockname, recv, sendto, setsockopt, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};

use super::message::{Builder, Message, parse};

/// Our number as a client of `iwpmd`, which has room for 64.
const CLIENT: u16 = 63;
/// The multicast group by which the kernel looks for it (`RDMA_NL_GROUP_IWPM`), as a mask.
const GROUP: u32 = 0x2;

const OP_REGISTER: u16 = 0;
const OP_REMOVE: u16 = 3;
const OP_MAPPING: u16 = 6;
const OP_COUNT: u16 = 7;

const FLAG_REQUEST: u16 = 0x1;
/// `iwpmd` reserves no TCP port for the listener: it has one.
const NO_PORT_MAP: u32 = 0x1;
/// What `iwpmd` demands of the library that speaks with it.
const LIBRARY: &str = "iWarpPortMapperUser";

const REPLY_TIMEOUT_SECONDS: i64 = 1;
const STORAGE_LEN: usize = 128;

/// A running `iwpmd`.
#[derive(Debug)]
pub(crate) struct Iwpmd {
    socket: OwnedFd,
    ours: u32,
    theirs: u32,
}

impl Iwpmd {
    /// Returns the one that runs in the network namespace of this thread, if any. Speaking with it
    /// takes CAP_NET_ADMIN.
    pub(crate) fn find() -> Option<Self> {
        let sockets = fs::read_to_string("/proc/thread-self/net/netlink").ok()?;
        let theirs = sockets.lines().find_map(iwpmd_in)?;
        Self::open(theirs).ok()
    }

    fn open(theirs: u32) -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::RDMA),
        )?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        let timeout = TimeVal::seconds(REPLY_TIMEOUT_SECONDS);
        setsockopt(&socket, sockopt::ReceiveTimeout, &timeout)?;
        let name: NetlinkAddr = getsockname(socket.as_raw_fd())?;
        Ok(Self {
            socket,
            ours: name.pid(),
            theirs,
        })
    }

    /// Makes it tell peers that who asked to listen at an address listens at this TCP port. With
    /// `anew`, what it was told of the address before is forgotten. Returns whether it does: another
    /// listener may have the address.
    pub(crate) fn tell(&self, local: SocketAddr, mapped: u16, anew: bool) -> io::Result<bool> {
        // This comes first: its answer is the first message of our number, and `iwpmd` takes an
        // error to its first one for one to its own greeting of the kernel.
        self.send(OP_REGISTER, |message| {
            message
                .attribute(1, &0u32.to_ne_bytes())
                .string(2, "rnic")
                .string(3, "rnic")
                .string(4, LIBRARY)
        })?;
        self.reply(OP_REGISTER)?;
        if anew {
            self.forget(local);
        }
        let before = self.count()?;
        let listener = SocketAddr::new(local.ip(), mapped);
        self.send(OP_MAPPING, |message| {
            message
                .attribute(1, &storage(local))
                .attribute(2, &storage(listener))
                .attribute(3, &NO_PORT_MAP.to_ne_bytes())
        })?;
        Ok(self.count()? != before)
    }

    /// Makes it forget the listener at an address.
    pub(crate) fn forget(&self, local: SocketAddr) {
        // If it has ended, it knows none.
        let _ = self.send(OP_REMOVE, |message| {
            message
                .attribute(1, &0u32.to_ne_bytes())
                .attribute(2, &storage(local))
        });
    }

    /// Returns how many listeners it has taken from our number.
    fn count(&self) -> io::Result<u32> {
        self.send(OP_COUNT, |message| {
            message
                .attribute(1, &0u32.to_ne_bytes())
                .attribute(2, &0u32.to_ne_bytes())
        })?;
        let reply = self.reply(OP_COUNT)?;
        let (_, attributes) = reply.split::<[u8; 0]>().ok_or(io::ErrorKind::InvalidData)?;
        attributes.value(3).ok_or(io::ErrorKind::InvalidData.into())
    }

    fn send(&self, operation: u16, build: impl Fn(Builder) -> Builder) -> io::Result<()> {
        let message = Builder::new(kind(operation), FLAG_REQUEST, &[0u8; 0]);
        let octets = build(message).from(self.ours).finish(0);
        let to = NetlinkAddr::new(self.theirs, 0);
        sendto(self.socket.as_raw_fd(), &octets, &to, MsgFlags::empty())?;
        Ok(())
    }

    /// Waits for its reply to an operation.
    fn reply(&self, operation: u16) -> io::Result<Message> {
        let mut buffer = [0; 4096];
        loop {
            let received = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty());
            let len = match received {
                Err(Errno::EINTR) => continue,
                received => received?,
            };
            let mut messages = parse(&buffer[..len]).into_iter();
            if let Some(reply) = messages.find(|message| message.kind == kind(operation)) {
                return Ok(reply);
            }
        }
    }
}

fn kind(operation: u16) -> u16 {
    (CLIENT << 10) + operation
}

/// Returns the port of `iwpmd`, if a line of the kernel's list of netlink sockets is its.
fn iwpmd_in(line: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    let protocol: u32 = words.next()?.parse().ok()?;
    let port: u32 = words.next()?.parse().ok()?;
    let groups = u32::from_str_radix(words.next()?, 16).ok()?;
    let is_iwpmd = protocol == netlink::RDMA.as_raw().get() && groups & GROUP != 0;
    (is_iwpmd && port != 0).then_some(port)
}

/// Returns an address as C's `sockaddr_storage`.
fn storage(address: SocketAddr) -> [u8; STORAGE_LEN] {
    let mut octets = [0; STORAGE_LEN];
    octets[2..4].copy_from_slice(&address.port().to_be_bytes());
    let family = match address {
        SocketAddr::V4(v4) => {
            octets[4..8].copy_from_slice(&v4.ip().octets());
            nix::libc::AF_INET
        }
        SocketAddr::V6(v6) => {
            octets[8..24].copy_from_slice(&v6.ip().octets());
            octets[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            nix::libc::AF_INET6
        }
    };
    octets[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    octets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iwpmd_is_found_among_netlink_sockets() {
        let line = |protocol, port, groups| {
            iwpmd_in(&format!(
                "0000000000000000 {protocol:<3} {port:<10} {groups} 0 0 0 2 0 12345"
            ))
        };
        assert_eq!(line(20, 731, "00000003"), Some(731));
        // The kernel's own, `rdma monitor`, and another protocol.
        assert_eq!(line(20, 0, "00000002"), None);
        assert_eq!(line(20, 732, "00000008"), None);
        assert_eq!(line(0, 733, "00000003"), None);
        let heading = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks";
        assert_eq!(iwpmd_in(heading), None);
    }

    #[test]
    fn addresses_are_as_c_has_them() {
        let v4 = storage("192.0.2.1:7174".parse().unwrap());
        assert_eq!(v4[..8], [2, 0, 0x1c, 0x06, 192, 0, 2, 1]);
        let v6 = storage("[2001:db8::1]:7174".parse().unwrap());
        assert_eq!(v6[..4], [10, 0, 0x1c, 0x06]);
        assert_eq!((v6[8], v6[23], v6[24]), (0x20, 1, 0));
    }
}
