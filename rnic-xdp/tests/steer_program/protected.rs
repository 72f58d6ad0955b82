//! ESP of associations that are a process's own, or a client's.

use libbpf_rs::{MapCore, MapFlags};

use crate::frames::{Ipv4, PLAIN, ipv4, ipv6};
use crate::host::OTHERS;
use crate::program::{Rig, XDP_DROP, XDP_PASS, XDP_REDIRECT, with_esp_rig, with_shared_rig};
use crate::shared::connect;

const REDIRECTED: (u32, usize) = (XDP_REDIRECT, 0);
const FRAGMENT: (u32, usize) = (XDP_PASS, 3);
const NOT_TCP: (u32, usize) = (XDP_PASS, 4);
const OTHER_HOST: (u32, usize) = (XDP_PASS, 6);
const TO_PORT: (u32, usize) = (XDP_REDIRECT, 8);
const NO_PORT: (u32, usize) = (XDP_PASS, 9);
const UNPROTECTED: (u32, usize) = (XDP_DROP, 12);

const PROTECTED: u32 = 1 << 31;
/// The first octets of the TCP headers of these frames: the source's port, 443, and the
/// destination's.
const SPI: [u8; 4] = [1, 187, 23, 112];

fn key(receiver: &[u8], spi: [u8; 4]) -> Vec<u8> {
    let family: u32 = if receiver.len() == 4 { 4 } else { 6 };
    let mut key = receiver.to_vec();
    key.resize(16, 0);
    [&key[..], &spi, &family.to_ne_bytes()].concat()
}

/// Steers an association to the client with this port; 0 is the socket of the queue. What comes from
/// `source` is counted.
fn steer(rig: &Rig<'_>, client: u32, receiver: &[u8], source: &[u8]) {
    steer_in_udp(rig, client, receiver, source, 0);
}

/// The same, with packets in UDP that come to `port`, unless it is 0.
fn steer_in_udp(rig: &Rig<'_>, client: u32, receiver: &[u8], source: &[u8], port: u32) {
    let mut value = [&client.to_ne_bytes()[..], &[0; 4], source].concat();
    value.resize(24, 0);
    value.extend(port.to_ne_bytes());
    value.resize(48, 0);
    let map = &rig.skeleton.maps.steer_sas;
    let told = map.update(&key(receiver, SPI), &value, MapFlags::ANY);
    told.unwrap();
}

/// Returns what was counted of an association: packets and octets.
fn counted(rig: &Rig<'_>, receiver: &[u8]) -> [u64; 2] {
    let map = &rig.skeleton.maps.steer_sas;
    let value = map.lookup(&key(receiver, SPI), MapFlags::ANY);
    let value = value.unwrap().unwrap();
    [32, 40].map(|at| u64::from_ne_bytes(value[at..at + 8].try_into().unwrap()))
}

/// Returns the address from which a frame comes.
fn frame_source(frame: &[u8], at: std::ops::Range<usize>) -> Vec<u8> {
    frame[at].to_vec()
}

/// Makes a frame of ESP.
fn esp() -> Vec<u8> {
    let ip = Ipv4 {
        protocol: 50,
        ..PLAIN
    };
    with_spi(ipv4(&[], &ip, 6000, 100), 34)
}

fn with_spi(mut frame: Vec<u8>, at: usize) -> Vec<u8> {
    frame[at..at + 4].copy_from_slice(&SPI);
    frame
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn associations_go_to_the_process_that_has_the_device() {
    with_esp_rig(false, |rig| {
        assert_eq!(rig.run(&esp()), NOT_TCP);
        steer(rig, 0, &[10, 1, 2, 3], &[]);
        assert_eq!(rig.run(&esp()), REDIRECTED);
        let mut other = esp();
        other[37] ^= 1;
        assert_eq!(rig.run(&other), NOT_TCP);
        // A first fragment goes where the others would, which the kernel gets.
        let fragment = |fragment| {
            let ip = Ipv4 {
                protocol: 50,
                fragment,
                ..PLAIN
            };
            with_spi(ipv4(&[], &ip, 6000, 100), 34)
        };
        assert_eq!(rig.run(&fragment(0x2000)), REDIRECTED);
        assert_eq!(rig.run(&fragment(0x2001)), FRAGMENT);
        // Nobody asks what a process does that has the device for itself.
        assert_eq!(counted(rig, &[10, 1, 2, 3]), [0, 0]);
    });
}

/// Where the SPI of a frame of ESP in UDP is, with IPv4 and IPv6. The first octets of these frames'
/// TCP headers, the ports, are those of UDP.
const SPIS_IN_UDP: [usize; 2] = [14 + 20 + 8, 14 + 40 + 8];

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn associations_in_udp_are_told_by_their_port_too() {
    with_esp_rig(false, |rig| {
        let udp = Ipv4 {
            protocol: 17,
            ..PLAIN
        };
        let four = with_spi(ipv4(&[], &udp, 4500, 100), SPIS_IN_UDP[0]);
        let six = with_spi(ipv6(&[], 17, "fd00::1", 4500, 100), SPIS_IN_UDP[1]);
        let address: std::net::Ipv6Addr = "fd00::1".parse().unwrap();
        for (frame, at, receiver) in [
            (four, SPIS_IN_UDP[0], vec![10, 1, 2, 3]),
            (six, SPIS_IN_UDP[1], address.octets().to_vec()),
        ] {
            assert_eq!(rig.run(&frame), NOT_TCP);
            // It is not in UDP.
            steer(rig, 0, &receiver, &[]);
            assert_eq!(rig.run(&frame), NOT_TCP);
            steer_in_udp(rig, 0, &receiver, &[], 4501);
            assert_eq!(rig.run(&frame), NOT_TCP);
            steer_in_udp(rig, 0, &receiver, &[], 4500);
            assert_eq!(rig.run(&frame), REDIRECTED);
            // What the key managers say to each other begins with zero.
            let mut ike = frame.clone();
            ike[at..at + 4].fill(0);
            assert_eq!(rig.run(&ike), NOT_TCP);
            // It keeps a translator's entry alive.
            assert_eq!(rig.run(&frame[..at + 1]), NOT_TCP);
        }
        assert_eq!(rig.run(&esp()), NOT_TCP, "not in UDP");
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn associations_go_to_their_clients_and_are_counted() {
    with_esp_rig(true, |rig| {
        assert_eq!(rig.run(&esp()), NOT_TCP);
        steer(rig, 5, &[10, 1, 2, 3], &frame_source(&esp(), 26..30));
        assert_eq!(rig.run(&esp()), NO_PORT);
        connect(rig, 5);
        assert_eq!(rig.run(&esp()), TO_PORT);
        assert_eq!(counted(rig, &[10, 1, 2, 3]), [2, 2 * esp().len() as u64]);
        // Whoever knows the SPI can send with it, but not as the peer: that is the client's to drop.
        let mut forged = esp();
        forged[29] ^= 1;
        assert_eq!(rig.run(&forged), TO_PORT);
        assert_eq!(counted(rig, &[10, 1, 2, 3]), [2, 2 * esp().len() as u64]);
        let mut others = esp();
        others[..6].copy_from_slice(&OTHERS);
        assert_eq!(rig.run(&others), OTHER_HOST);
        let six = with_spi(ipv6(&[], 50, "fd00::1", 6000, 100), 54);
        assert_eq!(rig.run(&six), NOT_TCP);
        let address: std::net::Ipv6Addr = "fd00::1".parse().unwrap();
        steer(rig, 6, &address.octets(), &frame_source(&six, 22..38));
        connect(rig, 6);
        assert_eq!(rig.run(&six), TO_PORT);
        assert_eq!(counted(rig, &address.octets()), [1, six.len() as u64]);
        let mut forged = six.clone();
        forged[37] ^= 1;
        assert_eq!(rig.run(&forged), TO_PORT);
        assert_eq!(counted(rig, &address.octets()), [1, six.len() as u64]);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn nothing_unprotected_comes_to_a_protected_lease() {
    with_esp_rig(true, |rig| {
        let plain = ipv4(&[], &PLAIN, 7471, 9);
        connect(rig, 5);
        rig.steer_to("10.1.2.3:7471", 0, 5 | PROTECTED);
        assert_eq!(rig.run(&plain), UNPROTECTED);
        // Beside it there are others.
        rig.steer_to("10.1.2.3:6000", 0, 5);
        assert_eq!(rig.run(&ipv4(&[], &PLAIN, 6000, 9)), TO_PORT);
        rig.steer_to("10.1.2.4:7471", 0, 5);
        assert_eq!(rig.run(&plain), UNPROTECTED);
    });
    // Where clients have no associations any more, it is nobody's.
    with_shared_rig(|rig| {
        connect(rig, 5);
        rig.steer_to("10.1.2.3:7471", 0, 5 | PROTECTED);
        let (action, _) = rig.run(&ipv4(&[], &PLAIN, 7471, 9));
        assert_eq!(action, XDP_DROP);
    });
}
