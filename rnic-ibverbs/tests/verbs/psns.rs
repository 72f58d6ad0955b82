//! The PSNs of two queue pairs that their programs connect: who does not know them gets nothing.

use std::io::Read;
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};

use crate::calls::*;
use crate::hosts::{CLIENT, SERVER};
use crate::itself::{
    PSNS, Side, Talk, ask, change, hello, hello_at, receive, request, say_request,
};

/// Returns what a peer says that names PSNs: the one that it expects, and the one that it sends.
fn hello_with(own: u32, peer: u32, expects: u32, sends: Option<u32>) -> Vec<u8> {
    let mut octets = hello(own, peer);
    octets[16..20].copy_from_slice(&expects.to_be_bytes());
    if let Some(sends) = sends {
        octets[20..24].copy_from_slice(&(1 << 24 | sends).to_be_bytes());
    }
    octets
}

/// Reads a Reply, which must reject. Returns the reason.
fn refusal(socket: &mut TcpStream) -> u8 {
    let mut reply = [0; 26];
    socket.read_exact(&mut reply).unwrap();
    assert_eq!(&reply[..16], b"MPA ID Rep Frame");
    assert_eq!(reply[16] & 0x20, 0x20, "a stranger was accepted");
    reply[25]
}

const OTHER_PEER: u8 = 2;
const WRONG_PSN: u8 = 3;

/// Makes a socket of the kernel that connects from this address.
fn bound_to(address: &str) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let made = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
    let at = SocketAddrV4::new(address.parse().unwrap(), 0);
    bind(made.as_raw_fd(), &SockaddrIn::from(at)).unwrap();
    made
}

/// An address of the server's host that is not the peer's.
const ELSEWHERE: &str = "192.0.2.77";

/// Runs `ip`.
fn ip(arguments: &str) {
    let ran = Command::new("ip").args(arguments.split(' ')).status();
    assert!(ran.unwrap().success(), "ip {arguments}");
}

/// A stranger at the peer's host, who knows everything but comes from another address of the host,
/// or says that it has another one.
fn come_from_elsewhere(own: u32, peer: u32) {
    let port = (peer >> 8) as u16;
    let [sends, expects] = PSNS;
    let with_psns = |mut octets: Vec<u8>| {
        octets[16..20].copy_from_slice(&expects.to_be_bytes());
        octets[20..24].copy_from_slice(&(1 << 24 | sends).to_be_bytes());
        octets
    };
    let mut liar = ask(port, &with_psns(hello_at(ELSEWHERE, own, peer)));
    assert_eq!(refusal(&mut liar), OTHER_PEER);
    ip(&format!("address replace {ELSEWHERE}/32 dev cm0"));
    for claimed in [ELSEWHERE, SERVER] {
        let octets = with_psns(hello_at(claimed, own, peer));
        let socket = bound_to(ELSEWHERE);
        let to = SocketAddrV4::new(CLIENT.parse().unwrap(), port);
        connect(socket.as_raw_fd(), &SockaddrIn::from(to)).unwrap();
        let mut other = TcpStream::from(socket);
        say_request(&mut other, &octets);
        assert_eq!(
            refusal(&mut other),
            OTHER_PEER,
            "says that it has {claimed}"
        );
    }
}

/// The server's host has a stranger, who knows address and numbers. The client's queue pair waits
/// to be connected, in RTR at first, then in RTS.
pub(crate) unsafe fn wrong(is_server: bool) {
    let mut talk = Talk::of(is_server);
    let side = Side::new(is_server);
    if !is_server {
        ip(&format!("route replace {ELSEWHERE}/32 dev cm1"));
    }
    for waits_in in [IBV_QPS_RTR, IBV_QPS_RTS] {
        let qp = side.queue_pair();
        let own = (*qp).qp_num;
        let peer = talk.exchange(own.into()) as u32;
        change(&side, qp, IBV_QPS_INIT, 0);
        receive(&side, qp, 0);
        if is_server {
            talk.meet();
            let port = (peer >> 8) as u16;
            let [sends, expects] = PSNS;
            let mut wrong = vec![(expects, Some(sends ^ 1)), (expects ^ 1, Some(sends ^ 1))];
            if waits_in == IBV_QPS_RTS {
                wrong.extend([(expects ^ 1, None), (expects ^ 1, Some(sends))]);
            }
            come_from_elsewhere(own, peer);
            for (expects, sends) in wrong {
                let mut socket = ask(port, &hello_with(own, peer, expects, sends));
                assert_eq!(refusal(&mut socket), WRONG_PSN, "{expects:#x}, {sends:x?}");
            }
            change(&side, qp, IBV_QPS_RTR, peer);
            change(&side, qp, IBV_QPS_RTS, peer);
        } else {
            change(&side, qp, IBV_QPS_RTR, peer);
            if waits_in == IBV_QPS_RTS {
                change(&side, qp, IBV_QPS_RTS, peer);
            }
            talk.meet();
        }
        // The peer comes through, also to one that only receives.
        if is_server {
            ok(request(&side, qp, IBV_WR_SEND, 8, (0, 0)));
        }
        assert_eq!(completion(side.cq).status, IBV_WC_SUCCESS);
        talk.meet();
        if !is_server {
            if waits_in == IBV_QPS_RTR {
                change(&side, qp, IBV_QPS_RTS, peer);
            }
            ok(request(&side, qp, IBV_WR_SEND, 8, (0, 0)));
        }
        assert_eq!(completion(side.cq).status, IBV_WC_SUCCESS);
        assert!(poll(side.cq).is_none());
        talk.meet();
        ok(ibv_destroy_qp(qp));
        talk.meet();
    }
    side.close();
}

/// A side connects in RTR too, where the other one is in RTS: it may only receive.
pub(crate) unsafe fn receiver(is_server: bool) {
    let mut talk = Talk::of(is_server);
    let side = Side::new(is_server);
    let qp = side.queue_pair();
    let peer = talk.exchange((*qp).qp_num.into()) as u32;
    change(&side, qp, IBV_QPS_INIT, 0);
    receive(&side, qp, 0);
    change(&side, qp, IBV_QPS_RTR, peer);
    // The server is the one that connects.
    if !is_server {
        change(&side, qp, IBV_QPS_RTS, peer);
        ok(request(&side, qp, IBV_WR_SEND, 8, (0, 0)));
    }
    assert_eq!(completion(side.cq).status, IBV_WC_SUCCESS);
    talk.meet();
    ok(ibv_destroy_qp(qp));
    side.close();
}
