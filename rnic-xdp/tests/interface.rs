//! Interfaces on real veth pairs: frames, steering, reserved ports.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use common::{SOON, eventually, frame, open, open_net, open_with, pair, receive, send};
use rnic_core::connection::PortReservation;
use rnic_core::engine::{Net, NetError};
use rnic_core::memory::frames::TxFrames;
use rnic_xdp::steering::{self, Mode, ModeChoice};
use rnic_xdp::testing::Namespace;
use rnic_xdp::{InterfaceConfig, QueueStatistics, XdpInterface, ZeroCopy};

/// Opens an interface with this number of frames to receive into, and steers an address to it.
fn listen_with(west: &Namespace, rx_frames: u32) -> (XdpInterface, SocketAddr, PortReservation) {
    let config = InterfaceConfig {
        rx_frames,
        ..InterfaceConfig::new("west")
    };
    let (interface, net) = open_net(west, config);
    let listened = west.run(|| net.listen("10.77.0.2:4420".parse().unwrap()));
    let (local, lease) = listened.unwrap();
    (interface, local, lease)
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_cross_between_two_ports() {
    let (east, west) = pair("cross", 1);
    let mut one = open(&east, "east").unwrap();
    let (mut other, net) = open_net(&west, InterfaceConfig::new("west"));
    assert_eq!(one.report().mode, Mode::Native);
    assert_eq!(
        one.report().zero_copy,
        ZeroCopy::Off("the driver has no zero-copy".into())
    );
    assert_eq!((one.report().mtu, one.report().chunk), (1500, 2048));
    let (local, _lease) = west
        .run(|| net.listen("10.77.0.2:4420".parse().unwrap()))
        .unwrap();

    // Many more than the port has, so that each is used again and again.
    let rounds = 400;
    for round in 0..rounds {
        let sent: Vec<_> = (0..50)
            .map(|at| frame(local.port(), (round + at * 29) % 1461))
            .collect();
        for octets in &sent {
            send(&mut one, octets);
        }
        one.tx.kick();
        assert_eq!(receive(&mut other, sent.len()), sent);
    }
    eventually("all frames are free again", || {
        one.tx.kick();
        one.tx.available() == InterfaceConfig::new("").tx_frames as usize
    });
    let counters = other.steering_counters().unwrap();
    assert_eq!(counters.redirected, 50 * rounds as u64);
    // The kernel may have sent something of its own in between.
    let read = west.run(|| steering::counters("west")).unwrap();
    assert_eq!(read.redirected, counters.redirected);
    assert_eq!(west.run(|| steering::entries("west")).unwrap(), [local]);
}

/// The kernel publishes received frames before it releases their entries in the fill ring: frames
/// that go back to the ring at that moment must not get lost.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn no_frame_is_lost_in_a_flood() {
    const FRAMES: usize = 64;
    let (east, west) = pair("flood", 1);
    let mut one = open(&east, "east").unwrap();
    let (mut other, local, _lease) = listen_with(&west, FRAMES as u32);
    let octets = frame(local.port(), 10);
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            for round in 0..300_000 {
                (0..1 + round % 16).for_each(|_| send(&mut one, &octets));
                one.tx.kick();
            }
        });
        while !flood.is_finished() {
            for queue in other.rx.queues_mut() {
                if queue.receive() > 0 {
                    queue.refill();
                }
            }
        }
    });
    eventually("silence", || {
        one.tx.kick();
        let mut found = 0;
        other
            .rx
            .queues_mut()
            .for_each(|queue| found += queue.receive());
        found == 0 && !one.tx.is_pending()
    });

    // All of them still receive.
    (0..FRAMES).for_each(|_| send(&mut one, &octets));
    one.tx.kick();
    assert_eq!(receive(&mut other, FRAMES).len(), FRAMES);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_frame_stays_its_owners_until_released() {
    let (east, west) = pair("own", 1);
    let mut one = open(&east, "east").unwrap();
    let (mut other, net) = open_net(&west, InterfaceConfig::new("west"));
    let (local, _lease) = west
        .run(|| net.listen("0.0.0.0:0".parse().unwrap()))
        .unwrap();
    assert_ne!(local.port(), 0);

    let free = one.tx.available();
    let octets = frame(local.port(), 700);
    let id = one.tx.allocate().unwrap();
    one.tx.bytes_mut(id)[..octets.len()].copy_from_slice(&octets);
    for _ in 0..3 {
        one.tx.transmit(id, octets.len());
        one.tx.kick();
        assert_eq!(receive(&mut other, 1), [&octets[..]]);
        eventually("the device is done with it", || {
            one.tx.kick();
            !one.tx.busy(id)
        });
        assert_eq!(one.tx.available(), free - 1);
        assert_eq!(one.tx.bytes(id)[..octets.len()], octets);
    }
    one.tx.release(id);
    assert_eq!(one.tx.available(), free);
    assert_eq!(
        one.tx.allocate(),
        Some(id),
        "the frame last freed is used first"
    );
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn every_queue_receives() {
    let (east, west) = pair("queues", 2);
    let (mut other, net) = open_net(&west, InterfaceConfig::new("west"));
    assert_eq!(other.report().queues, 2);
    let (local, _lease) = west
        .run(|| net.listen("10.77.0.2:4420".parse().unwrap()))
        .unwrap();

    // The kernel spreads its SYNs over the transmit queues, each of which leads to one receive
    // queue.
    let mut received = [0; 2];
    eventually("both queues receive", || {
        east.run(|| TcpStream::connect_timeout(&local, Duration::from_millis(1)))
            .unwrap_err();
        for (queue, count) in other.rx.queues_mut().zip(&mut received) {
            *count += queue.receive();
        }
        received.iter().all(|count| *count > 0)
    });
    assert_eq!(other.steering_counters().unwrap().no_socket, 0);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn other_traffic_reaches_the_kernel() {
    let (east, west) = pair("pass", 1);
    let _one = open(&east, "east").unwrap();
    let (other, net) = open_net(&west, InterfaceConfig::new("west"));
    let (ours, lease) = west
        .run(|| net.listen("10.77.0.2:4420".parse().unwrap()))
        .unwrap();

    for address in ["10.77.0.2:80", "[fd77::2]:80"] {
        let address: SocketAddr = address.parse().unwrap();
        let listener = west.run(|| TcpListener::bind(address)).unwrap();
        let mut client = east
            .run(|| TcpStream::connect_timeout(&address, SOON))
            .unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[7; 100_000]).unwrap();
        drop(client);
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        assert_eq!(received, [7; 100_000]);
    }
    let before = other.steering_counters().unwrap();
    assert_eq!(before.redirected, 0);
    assert!(before.not_steered > 10);

    // For a steered port the kernel gets no segments: it neither accepts nor refuses.
    let connect = || TcpStream::connect_timeout(&ours, Duration::from_millis(200));
    let error = east.run(connect).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert!(other.steering_counters().unwrap().redirected > 0);
    // When the port is released, the kernel refuses.
    drop(lease);
    eventually("refusal", || {
        let error = east.run(connect).unwrap_err();
        error.kind() == std::io::ErrorKind::ConnectionRefused
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn generic_mode_carries_frames_too() {
    let (east, west) = pair("generic", 1);
    let generic = |netdev| InterfaceConfig {
        mode: ModeChoice::Generic,
        ..InterfaceConfig::new(netdev)
    };
    let mut one = open_with(&east, &generic("east")).unwrap();
    let (mut other, net) = open_net(&west, generic("west"));
    let (local, _lease) = west
        .run(|| net.listen("10.77.0.2:4420".parse().unwrap()))
        .unwrap();
    let sent: Vec<_> = (0..40).map(|at| frame(local.port(), at * 30)).collect();
    for octets in &sent {
        send(&mut one, octets);
    }
    one.tx.kick();
    assert_eq!(receive(&mut other, sent.len()), sent);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn ports_are_reserved_in_the_kernel_too() {
    let (east, west) = pair("reserve", 1);
    let (_port, net) = open_net(&east, InterfaceConfig::new("east"));
    east.run(|| {
        let wanted: SocketAddr = "10.77.0.1:4420".parse().unwrap();
        let (local, lease) = net.listen(wanted).unwrap();
        assert_eq!(local, wanted);
        assert!(TcpListener::bind(wanted).is_err());
        let error = net.listen(wanted).err().unwrap();
        assert!(matches!(error, NetError::InUse(_)), "{error}");
        let error = net.listen("10.99.0.1:1".parse().unwrap()).err().unwrap();
        assert!(matches!(error, NetError::NotLocal(..)), "{error}");
        let error = net.listen("127.0.0.1:4421".parse().unwrap()).err().unwrap();
        assert!(matches!(error, NetError::NotLocal(..)), "{error}");
        assert_eq!(steering::entries("east").unwrap(), [wanted]);
        drop(lease);
        assert_eq!(steering::entries("east").unwrap(), []);
        eventually("the port is free", || TcpListener::bind(wanted).is_ok());

        for (remote, source) in [("10.77.0.2:1", "10.77.0.1"), ("[fd77::2]:1", "fd77::1")] {
            let (local, lease) = net.active(remote.parse().unwrap(), None, 0).unwrap();
            assert_eq!(local.ip().to_string(), source);
            assert!(local.port() > 1024);
            assert_eq!(steering::entries("east").unwrap(), [local]);
            drop(lease);
        }
        let link_local = |namespace: &Namespace, netdev| {
            let shown = namespace
                .ip(&format!("-o -6 addr show dev {netdev} scope link"))
                .unwrap();
            let address = shown
                .split_whitespace()
                .skip_while(|word| *word != "inet6")
                .nth(1)
                .unwrap();
            let address = address.split('/').next().unwrap().to_string();
            SocketAddr::new(address.parse().unwrap(), 1)
        };
        eventually("link-local addresses can be used", || {
            let shown = east.ip("-6 addr show dev east tentative").unwrap();
            shown.trim().is_empty()
        });
        let (local, lease) = net.active(link_local(&west, "west"), None, 0).unwrap();
        assert_eq!(local.ip(), link_local(&east, "east").ip());
        drop(lease);
        let stated: SocketAddr = "10.77.0.1:5000".parse().unwrap();
        let (local, _lease) = net
            .active("10.77.0.2:1".parse().unwrap(), Some(stated), 0)
            .unwrap();
        assert_eq!(local, stated);
        for unreachable in [
            "192.0.2.1:1",
            "10.77.0.1:1",
            "127.0.0.1:1",
            "[2001:db8::1]:1",
        ] {
            let error = net
                .active(unreachable.parse().unwrap(), None, 0)
                .err()
                .unwrap();
            assert!(
                matches!(error, NetError::NoRoute(..)),
                "{unreachable}: {error}"
            );
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_a_queue_lost_is_counted() {
    let (east, west) = pair("count", 2);
    let mut one = open(&east, "east").unwrap();
    let (mut other, local, _lease) = listen_with(&west, 32);
    let statistics = other.statistics();
    for _ in 0..100 {
        send(&mut one, &frame(local.port(), 10));
        one.tx.kick();
    }
    let first = || statistics.read().unwrap()[0];
    eventually("the rest is lost", || first().fill_ring_empty == 68);
    assert_eq!(first().frames_received, 0, "nobody has taken them");
    assert_eq!(receive(&mut other, 32).len(), 32);
    let queues = statistics.read().unwrap();
    assert_eq!(queues.len(), 2);
    let lost = QueueStatistics {
        frames_received: 32,
        fill_ring_empty: 68,
        rx_dropped: 68,
        ..QueueStatistics::default()
    };
    assert_eq!(queues[0], lost);
    let nothing = QueueStatistics {
        queue: 1,
        ..QueueStatistics::default()
    };
    assert_eq!(queues[1], nothing);
    drop(other);
    assert_eq!(statistics.read().unwrap(), []);
    // The reader of the statistics does not keep the queues open.
    open(&west, "west").unwrap();
}

/// Each time that frames are left waiting until none is free, there are twice as many the next
/// time.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_queue_that_was_full_has_more_frames_the_next_time() {
    let (east, west) = pair("grow", 1);
    let mut one = open(&east, "east").unwrap();
    let (mut other, local, _lease) = listen_with(&west, 128);
    let statistics = other.statistics();
    for room in [128, 256, 512, 1024, 1024] {
        let lost = || statistics.read().unwrap()[0].fill_ring_empty as usize;
        let before = lost();
        (0..1200).for_each(|_| send(&mut one, &frame(local.port(), 10)));
        eventually("the rest is lost", || {
            one.tx.kick();
            lost() == before + 1200 - room
        });
        assert_eq!(receive(&mut other, room).len(), room);
    }
}

/// Otherwise the frames of the queue would still go to a ring that nothing empties, and not to the
/// kernel.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn dropping_a_share_closes_its_queue() {
    let (_east, west) = pair("shares", 2);
    let mut shares = west
        .run(|| XdpInterface::open_shares(&InterfaceConfig::new("west"), 2))
        .unwrap();
    let statistics = shares[0].statistics();
    let open = || -> Vec<u32> {
        let queues = statistics.read().unwrap();
        queues.iter().map(|queue| queue.queue).collect()
    };
    assert_eq!(open(), [0, 1]);
    shares.truncate(1);
    assert_eq!(open(), [0]);
}
