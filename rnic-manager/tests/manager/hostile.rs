//! The transport, when the other end does not keep to the protocol.

use std::io::{IoSlice, PipeReader, Read, Write, pipe};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use rnic_manager::Closer;
use rnic_manager::channel::{Channel, ChannelError, MAX_DESCRIPTORS, refuse_descriptors};
use rnic_manager::protocol::{DecodeError, FromDaemon, MAX_MESSAGE, Message, Request};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::channel::pair;
use crate::values::{from_daemon, hello, requests};

/// Sends any octets with any descriptors.
fn send(socket: &OwnedFd, octets: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut room = vec![MaybeUninit::uninit(); 1024];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let sent = sendmsg(
        socket,
        &[IoSlice::new(octets)],
        &mut control,
        SendFlags::empty(),
    );
    assert_eq!(sent, Ok(octets.len()));
}

/// Sends octets with so many copies of a pipe's end, and returns the other end: it ends when all
/// copies are closed.
fn send_with_pipe(socket: &OwnedFd, octets: &[u8], copies: usize) -> PipeReader {
    let (read, write) = pipe().unwrap();
    send(socket, octets, &vec![write.as_fd(); copies]);
    read
}

fn ends(mut read: PipeReader) {
    assert_eq!(read.read(&mut [0]).unwrap(), 0);
}

fn ends_of_rnicd() -> (OwnedFd, Channel) {
    let (wild, rnicd) = pair();
    (wild, rnicd.into())
}

#[test]
fn a_message_that_is_too_long_is_an_error() {
    let (wild, rnicd) = ends_of_rnicd();
    let mut octets = hello().encode().unwrap();
    octets.resize(MAX_MESSAGE, b' ');
    send(&wild, &octets, &[]);
    assert_eq!(rnicd.receive::<Request>().unwrap().0, hello());
    octets.push(b' ');
    let read = send_with_pipe(&wild, &octets, 1);
    let error = rnicd.receive::<Request>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the other end sent a message of more than 65536 octets"
    );
    ends(read);
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let (wild, rnicd) = ends_of_rnicd();
    for (request, json) in requests() {
        let read = send_with_pipe(&wild, json.as_bytes(), 1);
        let error = rnicd.receive::<Request>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the other end sent 1 descriptors with a message that has 0",
            "{request:?}"
        );
        ends(read);
    }
    // Those of what is no message too.
    let read = send_with_pipe(&wild, b"{}", MAX_DESCRIPTORS);
    let error = rnicd.receive::<Request>().unwrap_err();
    assert!(matches!(error, ChannelError::Decode(_)), "{error}");
    ends(read);
}

#[test]
fn a_client_gets_as_many_descriptors_as_belong_to_a_message() {
    let (wild, client) = ends_of_rnicd();
    for (message, json) in from_daemon() {
        let expected = message.descriptors();
        for came in (0..=MAX_DESCRIPTORS).filter(|came| *came != expected) {
            let read = send_with_pipe(&wild, json.as_bytes(), came);
            let error = client.receive::<FromDaemon>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("the other end sent {came} descriptors with a message that has {expected}")
            );
            ends(read);
        }
    }
}

#[test]
fn more_descriptors_than_there_may_be_are_closed() {
    let (wild, rnicd) = ends_of_rnicd();
    let octets = hello().encode().unwrap();
    for copies in [MAX_DESCRIPTORS + 1, 2 * MAX_DESCRIPTORS, 200] {
        let read = send_with_pipe(&wild, &octets, copies);
        let error = rnicd.receive::<Request>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the other end sent more than 4 descriptors, or this process can open no more; raise its limit of open files \
             (`ulimit -n`)"
        );
        ends(read);
    }
    // Nothing of that is left in the next message.
    send(&wild, &octets, &[]);
    assert_eq!(rnicd.receive::<Request>().unwrap().0, hello());
}

#[test]
fn an_empty_message_is_an_end() {
    let (wild, rnicd) = ends_of_rnicd();
    send(&wild, &[], &[]);
    let error = rnicd.receive::<Request>().unwrap_err();
    assert!(matches!(error, ChannelError::Closed), "{error}");
}

/// Each part of a message, and each message with an octet spoilt.
#[test]
fn half_and_spoilt_messages_are_refused_and_the_next_is_read() {
    let (wild, rnicd) = ends_of_rnicd();
    for (request, json) in requests() {
        let json = json.as_bytes();
        for len in 1..json.len() {
            send(&wild, &json[..len], &[]);
            let error = rnicd.receive::<Request>().unwrap_err();
            let malformed = matches!(
                error,
                ChannelError::Decode(DecodeError::Malformed { id: 0, .. })
            );
            assert!(malformed, "{error}");
        }
        for at in 0..json.len() {
            let mut spoilt = json.to_vec();
            spoilt[at] = 0xff;
            send(&wild, &spoilt, &[]);
            let error = rnicd.receive::<Request>().unwrap_err();
            assert!(matches!(error, ChannelError::Decode(_)), "{error}");
        }
        send(&wild, json, &[]);
        assert_eq!(rnicd.receive::<Request>().unwrap().0, request);
    }
}

/// Returns a descriptor whose close takes minutes, and what its peer has of it.
fn lingering() -> (OwnedFd, (TcpListener, TcpStream)) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    one.set_nonblocking(true).unwrap();
    while one.write(&[0; 65536]).is_ok() {}
    let minutes = linger {
        l_onoff: 1,
        l_linger: 600,
    };
    setsockopt(&one, sockopt::Linger, &minutes).unwrap();
    (one.into(), (listener, other))
}

#[test]
fn a_close_that_takes_long_is_not_waited_for() {
    let closer = Closer::start().unwrap();
    let (wild, rnicd) = ends_of_rnicd();
    let rnicd = rnicd.closing_by(&closer);
    // What comes with a message, with more than there may be, and with what was not read.
    let mut peers = Vec::new();
    for copies in [1, 2, 200] {
        let (one, peer) = lingering();
        send(
            &wild,
            &hello().encode().unwrap(),
            &vec![one.as_fd(); copies],
        );
        peers.push(peer);
        // In flight, it is closed here at once.
        drop(one);
    }
    for _ in 0..2 {
        let error = rnicd.receive::<Request>().unwrap_err();
        assert!(
            matches!(
                error,
                ChannelError::Descriptors { .. } | ChannelError::DescriptorsLost
            ),
            "{error}"
        );
    }
    rnicd.close();
    // Peers that reset their connections end it.
    drop(peers);
}

#[test]
#[cfg_attr(not(passrights), ignore = "needs Linux 6.16")]
fn the_kernel_refuses_descriptors_where_it_can() {
    let closer = Closer::start().unwrap();
    let (wild, rnicd) = pair();
    assert!(refuse_descriptors(&rnicd));
    let rnicd = Channel::from(rnicd).without_descriptors(&closer);
    let (read, write) = pipe().unwrap();
    let mut room = vec![MaybeUninit::uninit(); 64];
    let mut control = SendAncillaryBuffer::new(&mut room);
    let rights = [write.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&rights)));
    let octets = hello().encode().unwrap();
    let data = [IoSlice::new(&octets)];
    let sent = sendmsg(&wild, &data, &mut control, SendFlags::empty());
    assert_eq!(sent, Err(rustix::io::Errno::PERM));
    drop(write);
    ends(read);
    send(&wild, &octets, &[]);
    assert_eq!(rnicd.receive::<Request>().unwrap().0, hello());
}

#[test]
fn who_has_not_read_all_is_known() {
    let (there, rnicd) = ends_of_rnicd();
    assert!(rnicd.is_read());
    let mut messages = from_daemon().into_iter().map(|(message, _)| message);
    let message = messages.find(|message| message.descriptors() == 0);
    rnicd.send(&message.unwrap(), &[]).unwrap();
    assert!(!rnicd.is_read());
    Channel::from(there).receive::<FromDaemon>().unwrap();
    assert!(rnicd.is_read());
    assert!(rnicd.shares_user_namespace());
}
