//! A responder that knows RFC 5044 alone, on sockets of the kernel.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use nix::libc;

use crate::hosts::{READY, SERVER};

/// What it does with a Request of revision 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It closes the connection.
    Closes,
    /// It resets the connection.
    Resets,
    /// It replies in its own revision.
    Replies,
    /// It replies in the Request's revision, without enhanced data.
    RepliesPlainly,
}

pub(crate) const ANSWERS: [Answer; 4] = [
    Answer::Closes,
    Answer::Resets,
    Answer::Replies,
    Answer::RepliesPlainly,
];

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

/// Flags of a start-up frame: C, R, and S of RFC 6581.
const CRC: u8 = 0x40;
const REJECTS: u8 = 0x20;
const ENHANCED: u8 = 0x10;

/// Reads a Request. Returns its flags, revision and private data.
fn read_request(peer: &mut TcpStream) -> (u8, u8, Vec<u8>) {
    let mut header = [0; 20];
    peer.read_exact(&mut header).unwrap();
    assert_eq!(&header[..16], REQUEST);
    let mut data = vec![0; u16::from_be_bytes([header[18], header[19]]).into()];
    peer.read_exact(&mut data).unwrap();
    (header[16], header[17], data)
}

fn write_reply(peer: &mut TcpStream, revision: u8) {
    let data = b"welcome";
    let rest = [CRC, revision, 0, data.len() as u8];
    peer.write_all(&[&REPLY[..], &rest, data].concat()).unwrap();
}

/// Makes the end of a connection reset it.
fn reset(peer: &TcpStream) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    nix::sys::socket::setsockopt(peer, nix::sys::socket::sockopt::Linger, &linger).unwrap();
}

/// Answers a client that asks in each form.
fn serve(listener: &TcpListener, answer: Answer) {
    let (mut peer, _) = listener.accept().unwrap();
    let (flags, revision, data) = read_request(&mut peer);
    assert_eq!((flags & ENHANCED, revision), (ENHANCED, 2), "{answer:?}");
    assert_eq!(&data[4..], b"hello");
    match answer {
        Answer::Closes => {}
        Answer::Resets => reset(&peer),
        Answer::Replies => write_reply(&mut peer, 1),
        Answer::RepliesPlainly => write_reply(&mut peer, 2),
    }
    if answer != Answer::Resets {
        // What the client says before it goes.
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        peer.read_to_end(&mut rest).unwrap();
    }
    drop(peer);

    let (mut peer, _) = listener.accept().unwrap();
    let asked = read_request(&mut peer);
    assert_eq!(asked, (CRC, 1, b"hello".to_vec()), "{answer:?}");
    write_reply(&mut peer, 1);
    let mut rest = Vec::new();
    peer.read_to_end(&mut rest).unwrap();
}

pub(crate) fn server(port: u16) {
    let listener = TcpListener::bind((SERVER, port)).unwrap();
    println!("\n{READY}");
    for answer in ANSWERS {
        serve(&listener, answer);
    }
    for _ in 0..2 {
        let (mut peer, _) = listener.accept().unwrap();
        read_request(&mut peer);
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "asked a third time");
}

/// Answers questions for datagrams: accepts two connections, and says something there at once, and
/// then a queue pair as rnic does.
pub(crate) fn answer_questions(port: u16) {
    /// Depths of 8, and that it takes a Write to begin with.
    const ENHANCED_DATA: [u8; 4] = [0x80, 8, 0x80, 8];
    let listener = TcpListener::bind((SERVER, port)).unwrap();
    println!("\n{READY}");
    let accepted = (CRC | ENHANCED, &b""[..], &[0x55; 64][..]);
    let numbers = b"RNRS\x01\0\0\0\0\x40\0\x01\0\0\0\x4dhere";
    let answered = (CRC | ENHANCED | REJECTS, &numbers[..], &b""[..]);
    for (flags, data, behind) in [accepted, accepted, answered] {
        let (mut peer, _) = listener.accept().unwrap();
        let (_, revision, asked) = read_request(&mut peer);
        assert_eq!((revision, &asked[4..]), (2, &b"RNRS\x01\0\0\0hello"[..]));
        let rest = [flags, 2, 0, (ENHANCED_DATA.len() + data.len()) as u8];
        let reply = [&REPLY[..], &rest, &ENHANCED_DATA, data, behind].concat();
        peer.write_all(&reply).unwrap();
        // It may be reset for what it has said.
        let _ = peer.read_to_end(&mut Vec::new());
    }
}
