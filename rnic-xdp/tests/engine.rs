//! Two engines over AF_XDP on a veth pair, through the verbs that an application uses.

#[path = "common/rig.rs"]
mod rig;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rig::{End, Rig, Runs, SOON};
use rnic_verbs::{ConnectError, ConnectionOptions, EndReason, SendRequest};
use rnic_xdp::steering;
use rnic_xdp::testing::Namespace;

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn everything_works_over_a_veth_pair() {
    let spinning = Runs::Thread(Duration::from_secs(1));
    for (mtu, queues, runs) in [
        (1500, 1, Runs::Inline),
        (1500, 2, spinning),
        (9000, 1, Runs::Inline),
        (1280, 1, Runs::Thread(Duration::ZERO)),
    ] {
        let rig = Rig::new(mtu, queues, runs);
        let mut open = Vec::new();
        for address in ["10.77.0.2:4420", "[fd77::2]:4420"] {
            let (mut client, mut server) = rig.connect(address, 4 << 20);
            for len in [0, 1, 64, 1461, 65_536, 4 << 20] {
                rig.exchange(&mut client, &mut server, len);
            }
            open.push((client, server));
        }
        // The kernel's TCP received nothing: it would have sent RST.
        for (namespace, netdev) in [(&rig.east, "east"), (&rig.west, "west")] {
            let counters = namespace.run(|| steering::counters(netdev)).unwrap();
            assert!(counters.redirected > 1000, "{counters:?}");
            assert_eq!(
                (counters.no_socket, counters.not_steered),
                (0, 0),
                "{counters:?}"
            );
        }
    }
}

/// Returns how many packets and octets a device has received.
fn received(namespace: &Namespace, netdev: &str) -> (u64, u64) {
    let shown = namespace
        .ip(&format!("-s -s link show dev {netdev}"))
        .unwrap();
    let mut numbers = shown
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("RX:"))
        .nth(1)
        .unwrap()
        .split_whitespace()
        .map(|number| number.parse().unwrap());
    let octets = numbers.next().unwrap();
    (numbers.next().unwrap(), octets)
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn segments_fill_a_large_mtu() {
    const LEN: usize = 4 << 20;
    for (mtu, least) in [(9000, 8900), (3000, 2900), (65_535, 60_000)] {
        let rig = Rig::new(mtu, 1, Runs::Inline);
        let (mut client, server) = rig.connect("10.77.0.2:4420", LEN);
        let octets: Vec<u8> = (0..LEN).map(|at| (at / 7) as u8).collect();
        client.mr.write(0, &octets).unwrap();
        let before = received(&rig.west, "west");
        for wr_id in 1..=4 {
            let sge = [client.mr.sge(0, LEN as u32)];
            let write = SendRequest::write(server.mr.remote(0)).memory(&sge);
            client.qp.post_send(&write.wr_id(wr_id)).unwrap();
            rig.until("a write", || rig.poll(&mut client, wr_id));
        }
        let mut found = vec![0; LEN];
        server.mr.read(0, &mut found).unwrap();
        assert!(found == octets);
        let after = received(&rig.west, "west");
        let (packets, octets) = (after.0 - before.0, after.1 - before.1);
        assert!(
            octets / packets > least,
            "{octets} octets in {packets} packets at MTU {mtu}"
        );
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn sixty_four_connections_share_a_link() {
    const LEN: usize = 100_000;
    let rig = Rig::new(1500, 1, Runs::Inline);
    let mut ends: Vec<(End, End)> = (0..64)
        .map(|port| rig.connect(&format!("10.77.0.2:{}", 5000 + port), LEN))
        .collect();
    for (number, (client, server)) in ends.iter_mut().enumerate() {
        client.mr.write(0, &vec![number as u8 + 1; LEN]).unwrap();
        let sge = [client.mr.sge(0, LEN as u32)];
        let write = SendRequest::write(server.mr.remote(0)).memory(&sge);
        client.qp.post_send(&write.wr_id(1)).unwrap();
        server
            .qp
            .post_recv(2, &[server.mr.sge(0, LEN as u32)])
            .unwrap();
    }
    // All write at once; then each sends the first octets of what it has written.
    for (client, server) in &mut ends {
        rig.until("a write", || rig.poll(client, 1));
        let sge = [client.mr.sge(0, 10)];
        let send = SendRequest::send().memory(&sge).wr_id(3);
        client.qp.post_send(&send).unwrap();
        rig.until("a receive", || rig.poll(server, 2));
    }
    for (number, (_, server)) in ends.iter().enumerate() {
        let mut found = vec![0; LEN];
        server.mr.read(0, &mut found).unwrap();
        assert!(found.iter().all(|octet| *octet == number as u8 + 1));
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_message_of_a_gibibyte() {
    const LEN: usize = 1 << 30;
    const PIECE: usize = 1 << 20;
    let rig = Rig::new(1500, 1, Runs::Inline);
    let (mut client, server) = rig.connect("10.77.0.2:4420", LEN);
    let piece = |number: usize| -> Vec<u8> {
        let word = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let words = (0..PIECE / 8).map(|at| word.wrapping_mul(at as u64 + 1));
        words.flat_map(u64::to_le_bytes).collect()
    };
    for number in 0..LEN / PIECE {
        client.mr.write(number * PIECE, &piece(number)).unwrap();
    }
    let sge = [client.mr.sge(0, LEN as u32)];
    let write = SendRequest::write(server.mr.remote(0)).memory(&sge);
    client.qp.post_send(&write.wr_id(1)).unwrap();
    let deadline = Instant::now() + 60 * SOON;
    while !rig.poll(&mut client, 1) {
        rig.server.drive();
        assert!(Instant::now() < deadline, "the write does not end");
    }
    let mut found = vec![0; PIECE];
    for number in 0..LEN / PIECE {
        server.mr.read(number * PIECE, &mut found).unwrap();
        assert!(found == piece(number), "piece {number}");
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_connection_that_fails_says_why() {
    let rig = Rig::new(1500, 1, Runs::Thread(Duration::from_millis(1)));
    let connect = |to: &str| {
        let mut end = End::new(&rig.client, 4096);
        let to: SocketAddr = to.parse().unwrap();
        let error = rig.east.run(|| {
            end.qp
                .connect_blocking(to, None, ConnectionOptions::default())
        });
        drop(end.pd);
        error.err().unwrap()
    };
    let refused = connect("10.77.0.2:9");
    assert!(
        matches!(refused, ConnectError::Failed(EndReason::Refused)),
        "{refused}"
    );
    // No neighbour has this address: the kernel gives up after some seconds.
    let absent = connect("10.77.0.99:9");
    assert!(
        matches!(absent, ConnectError::Failed(EndReason::Unreachable)),
        "{absent}"
    );
}
