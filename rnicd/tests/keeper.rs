//! The keeper by itself, as systemd starts it: with the socket that listens as its standard input.

use std::fs::{self, File};
use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, id};

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect,
    listen, recv, sendmsg, socket,
};

fn unix_socket() -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap()
}

/// Starts a keeper that listens at a path.
fn start(path: &Path) -> Child {
    let listener = unix_socket();
    bind(listener.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnicd"));
    command.arg("--keep").stdin(listener).spawn().unwrap()
}

/// rnicd's end of a connection.
struct Rnicd(OwnedFd);

impl Rnicd {
    fn connect(path: &Path) -> Self {
        let there = unix_socket();
        connect(there.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        Self(there)
    }

    fn tell(&self, text: &str, descriptors: &[i32]) {
        let rights = [ControlMessage::ScmRights(descriptors)];
        let rights = if descriptors.is_empty() {
            &[][..]
        } else {
            &rights
        };
        let data = [IoSlice::new(text.as_bytes())];
        sendmsg::<()>(self.0.as_raw_fd(), &data, rights, MsgFlags::empty(), None).unwrap();
    }

    /// Returns what it says next, without its descriptors.
    fn hear(&self) -> String {
        let mut octets = [0; 1024];
        let len = recv(self.0.as_raw_fd(), &mut octets, MsgFlags::empty()).unwrap();
        String::from_utf8(octets[..len].to_vec()).unwrap()
    }

    fn ask(&self, text: &str) -> Vec<String> {
        self.tell(text, &[]);
        let heard = std::iter::repeat_with(|| self.hear());
        let mut kept: Vec<_> = heard
            .take_while(|text| text != r#"{"type":"done"}"#)
            .collect();
        kept.sort();
        kept
    }
}

fn path() -> PathBuf {
    std::env::temp_dir().join(format!("rnicd-keeper-{}", id()))
}

/// Waits for the end of what somebody else writes to: nobody has the other end open.
fn is_closed(mut reader: File) -> bool {
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text == "kept"
}

#[test]
fn it_holds_what_comes_until_it_is_told_and_ends_with_nothing_to_hold() {
    let path = path();
    let mut keeper = start(&path);
    let rnicd = Rnicd::connect(&path);
    assert!(rnicd.ask(r#"{"type":"list"}"#).is_empty());
    let pipes = [(); 3].map(|()| nix::unistd::pipe().unwrap());
    for (key, (_, writer)) in ["a", "b", "c"].into_iter().zip(&pipes) {
        File::from(writer.try_clone().unwrap())
            .write_all(b"kept")
            .unwrap();
        let keep = format!(r#"{{"type":"keep","key":"{key}"}}"#);
        rnicd.tell(&keep, &[writer.as_raw_fd()]);
    }
    let [a, b, c] = pipes.map(|(reader, _)| File::from(reader));
    // What makes no sense changes nothing.
    rnicd.tell(r#"{"type":"keep","key":""}"#, &[]);
    rnicd.tell(r#"{"type":"give"}"#, &[]);
    let kept = |key: &str| format!(r#"{{"type":"kept","key":"{key}"}}"#);
    assert_eq!(
        rnicd.ask(r#"{"type":"list"}"#),
        [kept("a"), kept("b"), kept("c")]
    );
    assert!(
        rnicd
            .ask(r#"{"type":"forget","keys":["b","d"]}"#)
            .is_empty()
    );
    assert!(is_closed(b));
    // The next rnicd finds the others.
    drop(rnicd);
    let next = Rnicd::connect(&path);
    assert_eq!(next.ask(r#"{"type":"list"}"#), [kept("a"), kept("c")]);
    assert!(keeper.try_wait().unwrap().is_none());
    next.ask(r#"{"type":"clear"}"#);
    assert!(is_closed(a) && is_closed(c));
    drop(next);
    assert!(keeper.wait().unwrap().success());
    // The socket is systemd's.
    fs::remove_file(&path).unwrap();
}
