//! The kernel's TCP sockets that listen.

use std::net::SocketAddr;

use nix::libc;
use rustix::net::netlink;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::error::NetlinkError;
use super::message::Builder;
use super::socket::{Groups, ReplyMode, Socket};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// The state LISTEN, as a mask.
const LISTEN: u32 = 1 << 10;

/// `struct inet_diag_sockid`
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SocketId {
    source_port: U16,
    destination_port: U16,
    source: [u8; 16],
    destination: [u8; 16],
    interface: u32,
    cookie: [u32; 2],
}

/// `struct inet_diag_req_v2`
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Request {
    family: u8,
    protocol: u8,
    extensions: u8,
    pad: u8,
    states: u32,
    id: SocketId,
}

/// `struct inet_diag_msg`
#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Reply {
    family: u8,
    state: u8,
    timer: u8,
    retransmits: u8,
    id: SocketId,
    expires: u32,
    receive_queue: u32,
    send_queue: u32,
    uid: u32,
    inode: u32,
}

/// Returns the users whose TCP sockets listen at an address, in the network namespace of this
/// thread. Sockets of any address are among them; those of IPv6 may be for IPv4 too.
pub fn users_listening(local: SocketAddr) -> Result<Vec<u32>, NetlinkError> {
    let doing = "list the TCP sockets that listen";
    let socket = Socket::open(netlink::SOCK_DIAG, Groups::NONE);
    let mut socket = socket.map_err(|source| NetlinkError::Socket { doing, source })?;
    let mut users = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let request = Request {
            family: family as u8,
            protocol: libc::IPPROTO_TCP as u8,
            states: LISTEN,
            id: SocketId {
                source_port: local.port().into(),
                ..SocketId::default()
            },
            ..Request::default()
        };
        let replies = socket.request(doing, ReplyMode::Dump, |flags| {
            Builder::new(SOCK_DIAG_BY_FAMILY, flags, &request)
        })?;
        let replies = replies.iter().filter_map(|reply| reply.split::<Reply>());
        let at = replies.filter(|(reply, _)| reply.serves(local));
        users.extend(at.map(|(reply, _)| reply.uid));
    }
    Ok(users)
}

impl Reply {
    /// Returns whether the socket gets connections to an address, or to some of any address.
    fn serves(&self, local: SocketAddr) -> bool {
        if self.id.source_port.get() != local.port() {
            return false;
        }
        let is_v6 = i32::from(self.family) == libc::AF_INET6;
        let any = self.id.source == [0; 16];
        match local {
            SocketAddr::V4(v4) => {
                any || (!is_v6
                    && (v4.ip().is_unspecified() || self.id.source[..4] == v4.ip().octets()))
            }
            SocketAddr::V6(v6) => {
                is_v6 && (any || v6.ip().is_unspecified() || self.id.source == v6.ip().octets())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn listening_sockets_are_found_with_their_user() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let own = nix::unistd::getuid().as_raw();
        assert_eq!(users_listening(at).unwrap(), [own]);
        let any = SocketAddr::from(([0; 4], at.port()));
        assert_eq!(users_listening(any).unwrap(), [own]);
        let other = SocketAddr::from(([127, 0, 0, 2], at.port()));
        assert!(users_listening(other).unwrap().is_empty());
        drop(listener);
        assert!(users_listening(at).unwrap().is_empty());
    }
}
