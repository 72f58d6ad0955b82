//! Ports whose frames take several chunks.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};

use common::{SOON, eventually, frame, open_net, open_with, pair, receive, send, turn_round};
use rnic_core::engine::Net;
use rnic_core::memory::frames::TxFrames;
use rnic_xdp::InterfaceConfig;
use rnic_xdp::steering::{Mode, ModeChoice};
use rnic_xdp::testing::Namespace;

const HEADERS: usize = 14 + 40;

/// Makes two joined namespaces whose link has this MTU.
fn jumbo_pair(name: &str, mtu: u32) -> (Namespace, Namespace) {
    let (east, west) = pair(name, 1);
    east.ip(&format!("link set dev east mtu {mtu}")).unwrap();
    west.ip(&format!("link set dev west mtu {mtu}")).unwrap();
    (east, west)
}

/// Sends frames of each length in each direction, so many that rings wrap, and checks every octet.
fn frames_cross(mtu: u32, mode: ModeChoice, lengths: &[usize]) {
    let (east, west) = jumbo_pair("jumbo", mtu);
    let config = |netdev| InterfaceConfig {
        mode,
        ..InterfaceConfig::new(netdev)
    };
    let (mut one, one_net) = open_net(&east, config("east"));
    let (mut other, other_net) = open_net(&west, config("west"));
    assert_eq!((one.report().mtu, one.report().link_mtu), (mtu, mtu));
    let free = one.tx.available();
    // Each end is found by its port.
    let listen = |namespace: &Namespace, net: &rnic_xdp::XdpNet, port: u16| {
        let any = std::net::SocketAddr::from(([0, 0, 0, 0], port));
        namespace.run(|| net.listen(any)).unwrap().1
    };
    let _leases = (
        listen(&east, &one_net, 4420),
        listen(&west, &other_net, 4421),
    );
    for round in 0..60 {
        let sent = |port| -> Vec<_> {
            lengths
                .iter()
                .map(|len| frame(port, len - HEADERS - round % 7 * usize::from(*len > 100)))
                .collect()
        };
        let (there, mut back) = (sent(4421), sent(4420));
        back.iter_mut().for_each(|octets| turn_round(octets));
        there.iter().for_each(|octets| send(&mut one, octets));
        one.tx.kick();
        assert_eq!(receive(&mut other, there.len()), there);
        back.iter().for_each(|octets| send(&mut other, octets));
        other.tx.kick();
        assert_eq!(receive(&mut one, back.len()), back);
    }
    eventually("all frames are free again", || {
        one.tx.kick();
        one.tx.available() == free && !one.tx.is_pending()
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_of_several_chunks_cross() {
    // Lengths at and around those that fill chunks: the first one holds 3840 octets.
    let lengths = [
        9014, 60, 9014, 3840, 3841, 7680, 7681, 3839, 7936, 7937, 8192, 60, 9013, 9014, 9014,
    ];
    // More descriptors than are taken at once: frames begin in one batch and end in the next.
    frames_cross(9000, ModeChoice::Native, &lengths.repeat(5));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_longest_frames_cross() {
    frames_cross(65535, ModeChoice::Native, &[65549, 60, 40000]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn generic_mode_has_frames_of_several_chunks_too() {
    frames_cross(9000, ModeChoice::Generic, &[9014, 60, 3840, 9014]);
}

/// The octets of a frame that waits for its acknowledgment do not change while others are sent.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_frame_of_several_chunks_stays_its_owners_until_released() {
    let (east, west) = jumbo_pair("own", 9000);
    let mut one = open_with(&east, &InterfaceConfig::new("east")).unwrap();
    let (mut other, net) = open_net(&west, InterfaceConfig::new("west"));
    let listen = || net.listen("0.0.0.0:4421".parse().unwrap());
    let (local, _lease) = west.run(listen).unwrap();

    let octets = frame(local.port(), 9000 - 40);
    let (kept, free) = (one.tx.allocate().unwrap(), one.tx.available());
    one.tx.bytes_mut(kept)[..octets.len()].copy_from_slice(&octets);
    for _ in 0..3 {
        one.tx.transmit(kept, octets.len());
        assert!(one.tx.busy(kept));
        for _ in 0..20 {
            send(&mut one, &frame(local.port(), 5000));
        }
        one.tx.kick();
        assert_eq!(receive(&mut other, 21)[0], octets);
        eventually("the device is done with them", || {
            one.tx.kick();
            one.tx.available() == free
        });
        assert!(!one.tx.busy(kept));
        assert_eq!(one.tx.bytes(kept)[..octets.len()], octets);
    }
    one.tx.release(kept);
    assert_eq!(one.tx.available(), free + 1);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn without_multi_buffer_the_mtu_is_limited_to_a_chunk() {
    let (east, west) = jumbo_pair("mtu", 9000);
    let config = |netdev| InterfaceConfig {
        multi_buffer: false,
        ..InterfaceConfig::new(netdev)
    };
    let mut one = open_with(&east, &config("east")).unwrap();
    let (mut other, net) = open_net(&west, config("west"));
    let report = one.report().clone();
    assert_eq!(
        (report.link_mtu, report.mtu, report.chunk, report.chunks),
        (9000, 3818, 4096, 1)
    );
    assert!(
        report
            .to_string()
            .ends_with("frames of 4096, MTU 3818 (of 9000: without multi-buffer frames)"),
        "{report}"
    );
    assert_eq!(report.mode, Mode::Native);
    let listen = || net.listen("10.77.0.2:4420".parse().unwrap());
    let (local, _lease) = west.run(listen).unwrap();
    let sent: Vec<_> = [3818 - 40, 3000, 1]
        .map(|payload| frame(local.port(), payload))
        .into();
    sent.iter().for_each(|octets| send(&mut one, octets));
    one.tx.kick();
    assert_eq!(receive(&mut other, sent.len()), sent);
}

/// Large frames for the kernel pass, in both directions.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn large_frames_of_others_reach_the_kernel() {
    let (east, west) = jumbo_pair("others", 9000);
    let _one = open_with(&east, &InterfaceConfig::new("east")).unwrap();
    let (other, _net) = open_net(&west, InterfaceConfig::new("west"));
    for (from, to, address) in [(&east, &west, "10.77.0.2:9"), (&west, &east, "10.77.0.1:9")] {
        let socket = to.run(|| UdpSocket::bind(address)).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        let datagram = [7; 9000 - 28];
        from.run(|| {
            UdpSocket::bind("0.0.0.0:0")
                .unwrap()
                .send_to(&datagram, address)
        })
        .unwrap();
        let mut received = [0; 10_000];
        let len = socket.recv(&mut received).unwrap();
        assert!(received[..len] == datagram);
    }
    let listener = west.run(|| TcpListener::bind("10.77.0.2:80")).unwrap();
    let mut client = east.run(|| TcpStream::connect("10.77.0.2:80")).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let octets: Vec<u8> = (0..1_000_000).map(|at| (at % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&octets).unwrap();
            drop(client);
        });
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        assert!(received == octets);
    });
    assert_eq!(other.steering_counters().unwrap().redirected, 0);
}
