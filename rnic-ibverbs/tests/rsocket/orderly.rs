//! Connections that both sides shut down one direction at a time, from a port that the client has
//! chosen.

use std::time::{Duration, Instant};

use nix::libc::*;

use crate::calls::Socket;
use crate::roles::{listen, receive_exactly, server};

/// Connections one after the other: whether a side hears of the peer's `rclose` before its own last
/// word completes is a matter of time.
const ROUNDS: u8 = 40;
const CLIENT_PORT: u16 = 5555;

/// Plays a role, if it is one of these.
pub(crate) fn play(role: &str) -> bool {
    match role {
        "halver" => halver(),
        "halver-client" => halver_client(),
        "crosser" => crosser(),
        "crosser-client" => crosser_client(),
        _ => return false,
    }
    true
}

/// Reads to the end of what the peer sends, however often it asks.
fn nothing_more(socket: &Socket) {
    for _ in 0..3 {
        assert_eq!(socket.recv(&mut [0; 10], 0).unwrap(), 0);
    }
    assert_eq!(socket.poll(POLLIN, -1) & (POLLIN | POLLERR), POLLIN);
    assert_eq!(socket.error(), 0);
}

fn halver() {
    let listener = listen();
    for round in 0..ROUNDS {
        let socket = listener.accept().unwrap();
        assert_eq!(socket.peer().unwrap().1, CLIENT_PORT);
        assert_eq!(receive_exactly(&socket, 1), [round]);
        nothing_more(&socket);
        socket.send(b"answer", 0).unwrap();
        socket.shutdown(SHUT_WR).unwrap();
        nothing_more(&socket);
    }
}

/// Connects from the port of the connection before. That ends in order, which takes a moment, but
/// not the minute for which it is remembered.
fn connected_from_port() -> Socket {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let socket = Socket::new();
        socket.set(SOL_SOCKET, SO_REUSEADDR, 1).unwrap();
        // Any address of this host; the connections before were from one of them.
        socket.bind(&format!("0.0.0.0:{CLIENT_PORT}")).unwrap();
        match socket.connect(&server()) {
            Ok(_) => return socket,
            Err(error) if error.raw_os_error() == Some(EADDRINUSE) && Instant::now() < deadline => {
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn halver_client() {
    for round in 0..ROUNDS {
        let socket = connected_from_port();
        socket.send(&[round], 0).unwrap();
        socket.shutdown(SHUT_WR).unwrap();
        assert_eq!(receive_exactly(&socket, 6), b"answer");
        nothing_more(&socket);
    }
}

/// Octets that one side has sent and not seen arrive when the other shuts down its direction.
const ON_THE_WAY: usize = 120_000;

fn crosser() {
    let listener = listen();
    for _ in 0..ROUNDS {
        let socket = listener.accept().unwrap();
        let mut buffer = vec![0; ON_THE_WAY];
        let mut received = socket.recv(&mut buffer, 0).unwrap();
        socket.shutdown(SHUT_WR).unwrap();
        loop {
            match socket.recv(&mut buffer, 0).unwrap() {
                0 => break,
                octets => received += octets,
            }
        }
        assert_eq!(received, ON_THE_WAY);
    }
}

fn crosser_client() {
    let octets = vec![7; ON_THE_WAY];
    for _ in 0..ROUNDS {
        let socket = Socket::connected(&server());
        let mut left = octets.as_slice();
        while !left.is_empty() {
            left = &left[socket.send(left, 0).unwrap()..];
        }
        socket.shutdown(SHUT_WR).unwrap();
        assert_eq!(socket.recv(&mut [0; 10], 0).unwrap(), 0);
    }
}
