//! The program of a device that many clients share.

use libbpf_rs::{MapCore, MapFlags};

use crate::frames::{Ipv4, ON_VLAN, PLAIN, ipv4, ipv6};
use crate::host::{OTHERS, VLAN};
use crate::program::{Rig, XDP_DROP, XDP_PASS, XDP_REDIRECT, with_rig, with_shared_rig};

const REDIRECTED: (u32, usize) = (XDP_REDIRECT, 0);
const NOT_STEERED: (u32, usize) = (XDP_PASS, 2);
const OTHER_HOST: (u32, usize) = (XDP_PASS, 6);
const STRANGER: (u32, usize) = (XDP_PASS, 7);
const TO_PORT: (u32, usize) = (XDP_REDIRECT, 8);
const NO_PORT: (u32, usize) = (XDP_PASS, 9);
const LOOPBACK: (u32, usize) = (XDP_PASS, 10);
const WRONG_QUEUE: (u32, usize) = (XDP_DROP, 11);

/// The word for a client whose port is a hardware queue.
fn on_queue(port: u32, queue: u32) -> u32 {
    port | (queue + 1) << 16
}

/// Connects the client with this port to a device: that of the loopback, which any namespace has.
pub(crate) fn connect(rig: &Rig<'_>, client: u32) {
    rig.allow(client, None);
    let device = [1u32, 0].map(u32::to_ne_bytes).concat();
    let devices = &rig.skeleton.maps.steer_devices;
    let told = devices.update(&client.to_ne_bytes(), &device, MapFlags::ANY);
    told.unwrap();
}

/// Each frame goes to its own client: of two, only one has a device at a time.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_go_to_the_client_that_has_the_entry() {
    with_shared_rig(|rig| {
        rig.steer_to("10.1.2.3:6000", 0, 5);
        rig.steer_to("10.1.2.4:6000", 0, 6);
        rig.steer_to("0.0.0.0:6001", 0, 5);
        rig.steer_to("[fd00::1]:6000", 0, 6);
        rig.steer_to("10.1.100.3:6002", VLAN, 6);
        let second = Ipv4 {
            destination: [10, 1, 2, 4],
            ..PLAIN
        };
        let of_five = [ipv4(&[], &PLAIN, 6000, 9), ipv4(&[], &second, 6001, 9)];
        let of_six = [
            ipv4(&[], &second, 6000, 9000),
            ipv6(&[], 6, "fd00::1", 6000, 9),
            ipv4(&[0x8100], &ON_VLAN, 6002, 9),
        ];
        let expect = |frames: &[Vec<u8>], expected| {
            for frame in frames {
                assert_eq!(rig.run(frame), expected, "{:02x?}", &frame[..60]);
            }
        };
        // Nobody may speak with a client of which nothing is said.
        expect(&of_five, STRANGER);
        rig.allow(5, None);
        expect(&of_five, NO_PORT);
        connect(rig, 5);
        expect(&of_five, TO_PORT);
        rig.allow(6, None);
        expect(&of_six, NO_PORT);
        connect(rig, 6);
        expect(&of_six, TO_PORT);
        // The device may remove tags.
        rig.steer_to("10.1.100.3:6004", VLAN, 6);
        let untagged = ipv4(&[], &ON_VLAN, 6004, 9);
        assert_eq!(rig.run(&untagged), NOT_STEERED);
        rig.remove_tags(&[("10.1.100.3", VLAN)]);
        assert_eq!(rig.run(&untagged), TO_PORT);
        rig.remove_tags(&[]);
        assert_eq!(rig.run(&untagged), NOT_STEERED);
        // Another address, another VLAN, another host.
        assert_eq!(rig.run(&ipv4(&[], &PLAIN, 6002, 9)), NOT_STEERED);
        let mut frame = ipv4(&[], &PLAIN, 6000, 9);
        frame[..6].copy_from_slice(&OTHERS);
        assert_eq!(rig.run(&frame), OTHER_HOST);
        // An entry without a client goes to the socket of the queue.
        assert_eq!(rig.run(&ipv4(&[], &PLAIN, 4420, 9)), REDIRECTED);
        // A number that no client can have.
        rig.steer_to("10.1.2.3:6003", 0, 1024);
        assert_eq!(rig.run(&ipv4(&[], &PLAIN, 6003, 9)), STRANGER);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn clients_entries_have_limits_too() {
    with_shared_rig(|rig| {
        connect(rig, 5);
        // All frames come from 10.9.9.9 or fd00::99.
        rig.steer_to_for("10.1.2.3:6000", 5, &[&[10, 9]]);
        rig.steer_to_for("10.1.2.3:6001", 5, &[&[10, 8]]);
        rig.steer_to_for("[::]:6000", 5, &[&[0xfd]]);
        assert_eq!(rig.run(&ipv4(&[], &PLAIN, 6000, 9)), TO_PORT);
        assert_eq!(rig.run(&ipv4(&[], &PLAIN, 6001, 9)), STRANGER);
        assert_eq!(rig.run(&ipv6(&[], 6, "fd00::1", 6000, 9)), TO_PORT);
    });
}

/// Whatever a client's leases are for: its rule says with whom it may speak, which bounds what
/// comes as well as what goes.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn nothing_comes_from_those_with_whom_a_client_may_not_speak() {
    with_shared_rig(|rig| {
        for client in [5, 6, 7] {
            connect(rig, client);
        }
        rig.steer_to("10.1.2.3:6000", 0, 5);
        rig.steer_to_for("0.0.0.0:6001", 5, &[&[10]]);
        rig.steer_to("10.1.2.3:6002", 0, 6);
        rig.steer_to("10.1.2.3:6003", 0, on_queue(7, 0));
        rig.allow(5, Some(&[10, 9, 9]));
        rig.allow(6, Some(&[10, 8]));
        rig.allow(7, Some(&[10, 8]));
        for (port, expected) in [
            (6000, TO_PORT),
            (6001, TO_PORT),
            (6002, STRANGER),
            (6003, STRANGER),
        ] {
            // From 10.9.9.9.
            assert_eq!(rig.run(&ipv4(&[], &PLAIN, port, 9)), expected, "{port}");
        }
        let mut frame = ipv4(&[], &PLAIN, 6000, 9);
        frame[28] = 8;
        assert_eq!(rig.run(&frame), STRANGER);
    });
}

/// Clients lease ports at loopback addresses for each other; no frame from a network may come
/// there.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn loopback_addresses_from_the_network_are_never_steered() {
    with_shared_rig(|rig| {
        connect(rig, 5);
        rig.steer_to("127.0.0.1:6000", 0, 5);
        rig.steer_to("0.0.0.0:6001", 0, 5);
        rig.steer_to("[::1]:6000", 0, 5);
        rig.steer_to("[::]:6001", 0, 5);
        for port in [6000, 6001, 80] {
            for destination in [[127, 0, 0, 1], [127, 255, 0, 9]] {
                let ip = Ipv4 {
                    destination,
                    ..PLAIN
                };
                assert_eq!(rig.run(&ipv4(&[], &ip, port, 9)), LOOPBACK);
            }
            assert_eq!(rig.run(&ipv6(&[], 6, "::1", port, 9)), LOOPBACK);
        }
        // From such an address.
        let mut frame = ipv4(&[], &PLAIN, 6001, 9);
        assert_eq!(rig.run(&frame), TO_PORT);
        frame[26..30].copy_from_slice(&[127, 0, 0, 1]);
        assert_eq!(rig.run(&frame), LOOPBACK);
        let mut frame = ipv6(&[], 6, "fd00::1", 6001, 9);
        assert_eq!(rig.run(&frame), TO_PORT);
        frame[22..38].fill(0);
        assert_eq!(rig.run(&frame), TO_PORT);
        frame[37] = 1;
        assert_eq!(rig.run(&frame), LOOPBACK);
        // Addresses that look alike are others.
        for alike in ["126.0.0.1", "128.0.0.1", "1::1"] {
            rig.own(alike, true);
        }
        for destination in [[126, 0, 0, 1], [128, 0, 0, 1]] {
            let ip = Ipv4 {
                destination,
                ..PLAIN
            };
            assert_eq!(rig.run(&ipv4(&[], &ip, 6001, 9)), TO_PORT);
        }
        assert_eq!(rig.run(&ipv6(&[], 6, "1::1", 6001, 9)), TO_PORT);
    });
}

/// The frames of these tests arrive at queue 0, which has a socket.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_with_a_hardware_queue_has_what_arrives_there_alone() {
    with_shared_rig(|rig| {
        // That of a port with this number would be another.
        connect(rig, 5);
        rig.allow(6, None);
        rig.steer_to("10.1.2.3:6000", 0, on_queue(5, 0));
        rig.steer_to("10.1.2.3:6001", 0, on_queue(6, 1));
        rig.steer_to("[fd00::1]:6000", 0, on_queue(5, 0));
        rig.steer_to("[fd00::1]:6001", 0, on_queue(5, 65_534));
        let four = |port| rig.run(&ipv4(&[], &PLAIN, port, 9));
        let six = |port| rig.run(&ipv6(&[], 6, "fd00::1", port, 9));
        assert_eq!((four(6000), six(6000)), (TO_PORT, TO_PORT));
        assert_eq!((four(6001), six(6001)), (WRONG_QUEUE, WRONG_QUEUE));
        // The others are as they were.
        rig.steer_to("10.1.2.3:6002", 0, 5);
        assert_eq!(rig.run(&ipv4(&[], &PLAIN, 6002, 9)), TO_PORT);
        assert_eq!(rig.run(&ipv4(&[], &PLAIN, 4420, 9)), REDIRECTED);
        // Nobody has the socket any more.
        let sockets = &rig.skeleton.maps.steer_sockets;
        sockets.delete(&0u32.to_ne_bytes()).unwrap();
        assert_eq!(rig.run(&ipv4(&[], &PLAIN, 6000, 9)), NO_PORT);
        assert_eq!(rig.run(&ipv4(&[], &PLAIN, 6001, 9)), WRONG_QUEUE);
        assert_eq!(rig.run(&ipv4(&[], &PLAIN, 6002, 9)), TO_PORT);
    });
}

/// A process that has the device for itself pays nothing for what clients need: the verifier has
/// removed it.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn exclusive_use_has_no_code_for_clients() {
    with_rig(|rig| {
        rig.steer_to("127.0.0.1:6000", 0, 5);
        rig.own("127.0.0.1", true);
        let ip = Ipv4 {
            destination: [127, 0, 0, 1],
            ..PLAIN
        };
        // To the socket, whatever client the entry names.
        connect(rig, 5);
        assert_eq!(rig.run(&ipv4(&[], &ip, 6000, 9)), REDIRECTED);
        let exclusive = rig.translated();
        let shared = std::sync::Mutex::new(0);
        with_shared_rig(|rig| {
            *shared.lock().unwrap() = rig.translated();
        });
        let shared = shared.into_inner().unwrap();
        assert!(
            exclusive + 30 <= shared,
            "{exclusive} and {shared} instructions"
        );
    });
}
