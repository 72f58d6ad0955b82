//! The kernel's TCP sockets that listen. `/proc` tells them on every host; netlink needs a module for
//! it.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The state LISTEN in the kernel's list.
const LISTEN: &str = "0A";

/// A socket in the kernel's list.
struct TcpSocket {
    at: SocketAddr,
    listens: bool,
    user: u32,
}

/// Returns the users whose TCP sockets listen at an address, in the network namespace of this
/// thread. Sockets of any address are among them; those of IPv6 may be for IPv4 too.
pub fn users_listening(local: SocketAddr) -> io::Result<Vec<u32>> {
    let mut users = Vec::new();
    // Those that listen come first.
    each_socket(|socket| {
        if socket.listens && serves(socket.at, local) {
            users.push(socket.user);
        }
        socket.listens
    })?;
    Ok(users)
}

/// Returns whether TCP connections have a local address and port, or have had them a moment ago.
pub(crate) fn has_connections(local: SocketAddr) -> io::Result<bool> {
    let mut found = false;
    each_socket(|socket| {
        found |= !socket.listens && serves(socket.at, local);
        !found
    })?;
    Ok(found)
}

/// Shows the TCP sockets, of each family as long as `goes_on` says so.
fn each_socket(mut goes_on: impl FnMut(&TcpSocket) -> bool) -> io::Result<()> {
    for list in ["tcp", "tcp6"] {
        let file = match File::open(format!("/proc/thread-self/net/{list}")) {
            // A host without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        for line in BufReader::new(file).lines().skip(1) {
            let socket = socket_in(&line?);
            if !socket.is_none_or(|socket| goes_on(&socket)) {
                break;
            }
        }
    }
    Ok(())
}

/// Reads a line.
fn socket_in(line: &str) -> Option<TcpSocket> {
    let mut words = line.split_whitespace().skip(1);
    let (address, port) = words.next()?.split_once(':')?;
    let listens = words.nth(1)? == LISTEN;
    let user = words.nth(3)?.parse().ok()?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let at = SocketAddr::new(address_in(address)?, port);
    Some(TcpSocket { at, listens, user })
}

/// Reads an address: words of 32 bits, each as a number of this processor.
fn address_in(hex: &str) -> Option<IpAddr> {
    let mut octets = [0; 16];
    for (place, word) in octets.chunks_exact_mut(4).zip(hex.as_bytes().chunks(8)) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        place.copy_from_slice(&word.to_ne_bytes());
    }
    match hex.len() {
        8 => {
            let [a, b, c, d, ..] = octets;
            Some(Ipv4Addr::new(a, b, c, d).into())
        }
        32 => Some(Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

/// Returns whether a socket at one address gets connections to the other, or to some of any address.
fn serves(at: SocketAddr, local: SocketAddr) -> bool {
    if at.port() != local.port() {
        return false;
    }
    // One of IPv6 may be bound to an address of IPv4.
    match (at.ip().to_canonical(), local.ip()) {
        (IpAddr::V6(at), IpAddr::V4(_)) => at.is_unspecified(),
        (IpAddr::V4(_), IpAddr::V6(_)) => false,
        (at, local) => at == local || at.is_unspecified() || local.is_unspecified(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn listening_sockets_are_found_with_their_user() {
        let own = nix::unistd::getuid().as_raw();
        for ip in ["127.0.0.1", "::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            let Ok(listener) = TcpListener::bind((ip, 0)) else {
                assert!(ip.is_ipv6(), "a host has IPv4");
                continue;
            };
            let at = listener.local_addr().unwrap();
            assert_eq!(users_listening(at).unwrap(), [own]);
            let any: IpAddr = match ip {
                IpAddr::V4(_) => [0; 4].into(),
                IpAddr::V6(_) => [0; 16].into(),
            };
            let any = SocketAddr::new(any, at.port());
            assert_eq!(users_listening(any).unwrap(), [own]);
        }
    }

    #[test]
    fn a_socket_serves_its_address_or_all() {
        let both = |at: &str, local: &str| serves(at.parse().unwrap(), local.parse().unwrap());
        assert!(both("192.0.2.1:80", "192.0.2.1:80") && both("192.0.2.1:80", "0.0.0.0:80"));
        assert!(both("0.0.0.0:80", "192.0.2.1:80") && both("[::]:80", "192.0.2.1:80"));
        assert!(!both("192.0.2.1:80", "192.0.2.2:80") && !both("192.0.2.1:80", "192.0.2.1:81"));
        assert!(both("[::ffff:192.0.2.1]:80", "192.0.2.1:80"));
        assert!(both("[::ffff:192.0.2.1]:80", "0.0.0.0:80"));
        assert!(!both("192.0.2.1:80", "[::]:80") && !both("[2001:db8::1]:80", "192.0.2.1:80"));
    }

    #[test]
    fn lines_are_read() {
        let line = |state| {
            format!(
                "   0: 0100007F:1F90 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0"
            )
        };
        let socket = socket_in(&line("0A")).unwrap();
        assert_eq!(socket.at, "127.0.0.1:8080".parse().unwrap());
        assert_eq!((socket.listens, socket.user), (true, 1000));
        assert!(!socket_in(&line("01")).unwrap().listens);
        assert!(socket_in("sl  local_address").is_none());
    }

    #[test]
    fn what_connections_leave_behind_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        assert!(!has_connections(at).unwrap());
        let _client = std::net::TcpStream::connect(at).unwrap();
        let _server = listener.accept().unwrap();
        assert!(has_connections(at).unwrap());
    }
}
