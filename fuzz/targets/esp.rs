//! Any packet of ESP, one with a right ICV too: opening it does not panic, what comes out is no ESP,
//! and is within the policies.
#![no_main]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use ring::hmac::{HMAC_SHA256, Key, sign};
use rnic_core::esp::{
    Action, Algorithm, Change, Demand, InboundSa, Keys, Mode, Ports, Protection, Sa, SaId,
    Selector, Template, Window,
};
use rnic_core::wire::checksum::Checksums;
use rnic_core::wire::encapsulation::UdpPorts;
use rnic_core::wire::ip::{IpPacket, emit_outer};
use rnic_core::wire::packet::addresses;
use rnic_core::wire::prefix::Prefix;

const KEY: [u8; 32] = [7; 32];
const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
const REMOTE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

/// The ports of what is in UDP.
const PORTS: UdpPorts = UdpPorts {
    source: 4500,
    destination: 4501,
};

fn protection(mode: Mode, in_udp: bool) -> Protection {
    let sa = Sa {
        id: SaId {
            spi: 0x1001,
            destination: LOCAL,
        },
        source: REMOTE,
        mode,
        algorithm: Algorithm::NullHmacSha256,
        extended: true,
        encapsulation: in_udp.then_some(PORTS),
        request: 1,
    };
    let keys = Keys::new(Vec::new(), KEY.to_vec());
    let mut protection = Protection::default();
    protection.apply(Change::Addresses(vec![LOCAL]));
    protection.apply(Change::Demands(vec![Demand {
        outgoing: false,
        selector: Selector {
            local: Prefix::new(LOCAL, 24),
            local_ports: Ports::ALL,
            remote: Prefix::new(REMOTE, 32),
            remote_ports: Ports::ALL,
        },
        action: Action::Protect(Template {
            request: 1,
            mode,
            local: LOCAL,
            remote: REMOTE,
        }),
    }]));
    let inbound = InboundSa::new(sa, &keys, Window::new(64, true, 0)).expect("the key fits");
    protection.apply(Change::Inbound(Arc::new(inbound)));
    protection
}

/// Puts what is to be protected into a frame, with a right ICV.
fn sealed(number: u32, text: &[u8], in_udp: bool) -> Vec<u8> {
    let mut esp = 0x1001_u32.to_be_bytes().to_vec();
    esp.extend(number.to_be_bytes());
    esp.extend(text);
    let mut authenticated = esp.clone();
    authenticated.extend([0; 4]);
    let icv = sign(&Key::new(HMAC_SHA256, &KEY), &authenticated);
    esp.extend(&icv.as_ref()[..16]);
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.resize(14 + 20, 0);
    let mut protocol = 50;
    if in_udp {
        protocol = 17;
        esp.splice(..0, [0; 8]);
        PORTS.emit(&mut esp, REMOTE, LOCAL);
    }
    emit_outer(&mut frame[14..], (REMOTE, LOCAL), (protocol, 3), esp.len());
    frame.extend(esp);
    frame
}

fuzz_target!(|input: ([bool; 3], u32, Vec<u8>)| {
    let ([tunnel, genuine, in_udp], number, octets) = input;
    if octets.len() > 2000 {
        return;
    }
    let mode = match tunnel {
        true => Mode::Tunnel,
        false => Mode::Transport,
    };
    let mut protection = protection(mode, in_udp);
    let frame = match genuine {
        true => sealed(number, &octets, in_udp),
        false => octets,
    };
    let frames = || [(&frame, Checksums::None)].into_iter();
    protection.opener.open(frames());
    let counts = protection.take_counts();
    let again = frames().map(|frame| move || frame);
    for (opened, checksums) in protection.opener.frames(again) {
        if counts.opened == 0 {
            assert_eq!(opened.as_ref(), frame);
            continue;
        }
        let packet = IpPacket::of_frame(opened.as_ref(), Checksums::None).expect("a packet");
        let (remote, local): (SocketAddr, SocketAddr) = addresses(opened.as_ref()).expect("ends");
        assert_eq!(
            (packet.protocol == 50, remote.ip(), local.ip()),
            (false, REMOTE, LOCAL)
        );
        assert_eq!(checksums, Checksums::Unnecessary);
    }
});
