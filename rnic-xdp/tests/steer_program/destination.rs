//! Which frames are for this process: address, port, VLAN, MAC address and peer.

use libbpf_rs::MapCore;

use crate::frames::{Ipv4, ON_VLAN, PLAIN, ipv4, ipv6};
use crate::host::{OTHERS, OURS, PLAIN_VLAN, VLAN, VLANS};
use crate::oracle::Verdict;
use crate::program::{XDP_PASS, XDP_REDIRECT, with_rig};

/// A tagged frame belongs to the VLAN device that has the address, whichever entry of the port is
/// the first.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn an_address_is_steered_in_its_vlan_only() {
    with_rig(|rig| {
        let untagged = [ipv4(&[], &PLAIN, 14, 9), ipv6(&[], 6, "fd00::1", 15, 9)];
        let of_vlan = [
            ipv4(&[0x8100], &ON_VLAN, 14, 9),
            ipv6(&[0x8100], 6, "fd00:100::1", 15, 9),
        ];
        for frame in untagged.iter().chain(&of_vlan) {
            assert_eq!(rig.check(frame), Verdict::Redirected);
        }
        let crossed = [
            ipv4(&[0x8100], &PLAIN, 14, 9),
            ipv6(&[0x8100], 6, "fd00::1", 15, 9),
            ipv4(&[], &ON_VLAN, 14, 9),
            ipv6(&[], 6, "fd00:100::1", 15, 9),
        ];
        for frame in crossed {
            assert_eq!(rig.check(&frame), Verdict::NotSteered);
        }
        for mut frame in of_vlan {
            // Priority and drop eligibility do not matter.
            frame[14] |= 0xf0;
            assert_eq!(rig.check(&frame), Verdict::Redirected);
            for other in [1, VLAN + 1, PLAIN_VLAN] {
                frame[14..16].copy_from_slice(&other.to_be_bytes());
                assert_eq!(rig.check(&frame), Verdict::NotSteered);
            }
        }
        // A priority tag (VLAN 0) is in no VLAN.
        for control in [0u16, 0xe000] {
            let mut frame = ipv4(&[0x8100], &PLAIN, 14, 9);
            frame[14..16].copy_from_slice(&control.to_be_bytes());
            assert_eq!(rig.check(&frame), Verdict::Redirected);
            let mut frame = ipv4(&[0x8100], &ON_VLAN, 14, 9);
            frame[14..16].copy_from_slice(&control.to_be_bytes());
            assert_eq!(rig.check(&frame), Verdict::NotSteered);
        }
    });
}

/// A device that removes tags shows frames of a VLAN without one. The address says which VLAN it
/// was, and there alone the frame is for us.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_frame_that_lost_its_tag_is_of_the_vlan_of_its_destination() {
    with_rig(|rig| {
        let of_vlan = [
            ipv4(&[], &ON_VLAN, 4420, 9),
            ipv4(&[], &ON_VLAN, 14, 9),
            ipv6(&[], 6, "fd00:100::1", 15, 9),
        ];
        let lost = [("10.1.100.3", VLAN), ("fd00:100::1", VLAN)];
        for removes in [false, true, false] {
            rig.remove_tags(if removes { &lost } else { &[] });
            for frame in &of_vlan {
                let expected = match removes {
                    true => (XDP_REDIRECT, Verdict::Redirected as usize),
                    // It was sent without a tag, and must not reach into the VLAN.
                    false => (XDP_PASS, Verdict::NotSteered as usize),
                };
                assert_eq!(rig.run(frame), expected, "{removes}");
            }
            // Those of the device itself, and those with a tag, are what they were.
            for frame in [
                ipv4(&[], &PLAIN, 14, 9),
                ipv6(&[], 6, "fd00::1", 15, 9),
                ipv4(&[0x8100], &ON_VLAN, 14, 9),
                ipv6(&[0x8100], 6, "fd00:100::1", 15, 9),
            ] {
                assert_eq!(rig.check(&frame), Verdict::Redirected);
            }
            for frame in [
                ipv4(&[0x8100], &PLAIN, 14, 9),
                ipv6(&[0x8100], 6, "fd00::1", 15, 9),
            ] {
                assert_eq!(rig.check(&frame), Verdict::NotSteered);
            }
        }
    });
}

/// The VLAN's device may have a MAC address of its own, or be down.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_frame_that_lost_its_tag_is_for_a_mac_address_of_the_vlan() {
    const REDIRECTED: (u32, usize) = (XDP_REDIRECT, 0);
    const OTHER_HOST: (u32, usize) = (XDP_PASS, 6);
    with_rig(|rig| {
        // 10.1.2.4 is in a VLAN that is down, where only a listener at any address would get its
        // frames.
        rig.remove_tags(&[("10.1.100.3", VLAN), ("10.1.2.4", VLAN + 1)]);
        let down = Ipv4 {
            destination: [10, 1, 2, 4],
            ..PLAIN
        };
        for (ip, port, mac, expected) in [
            (&ON_VLAN, 4420, OURS, REDIRECTED),
            (&ON_VLAN, 4420, VLANS, REDIRECTED),
            (&ON_VLAN, 4420, OTHERS, OTHER_HOST),
            // Listeners at any address: compared with, and looked up.
            (&ON_VLAN, 7, VLANS, REDIRECTED),
            (&ON_VLAN, 12, VLANS, REDIRECTED),
            (&PLAIN, 7, VLANS, OTHER_HOST),
            (&PLAIN, 7, OURS, REDIRECTED),
            (&down, 7, OURS, OTHER_HOST),
        ] {
            let mut frame = ipv4(&[], ip, port, 9);
            frame[..6].copy_from_slice(&mac);
            assert_eq!(rig.run(&frame), expected, "{port} {mac:02x?}");
        }
    });
}

/// A listener at any address also listens in the VLANs for which the host has a device, and in no
/// other.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn any_address_is_one_of_ours_in_a_vlan_of_ours() {
    with_rig(|rig| {
        // Compared with, and looked up.
        for port in [7, 12] {
            let mut frame = ipv4(&[0x8100], &PLAIN, port, 9);
            for (vlan, verdict) in [
                (VLAN, Verdict::Redirected),
                (PLAIN_VLAN, Verdict::Redirected),
                (0, Verdict::Redirected),
                (VLAN + 1, Verdict::OtherHost),
                (1, Verdict::OtherHost),
            ] {
                frame[14..16].copy_from_slice(&vlan.to_be_bytes());
                assert_eq!(rig.check(&frame), verdict, "{vlan}");
            }
        }
    });
}

/// What a router forwards, and what it translates, is for others, whatever port it has.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn any_address_is_one_of_this_hosts_own() {
    with_rig(|rig| {
        let pod = Ipv4 {
            destination: [10, 244, 1, 5],
            ..PLAIN
        };
        // Compared with, and looked up.
        let frames = || {
            let ports = [7, 12].into_iter();
            ports.flat_map(|port| [ipv4(&[], &pod, port, 9), ipv4(&[0x8100], &pod, port, 9)])
        };
        let six = || [9, 12].map(|port| ipv6(&[], 6, "fd01::5", port, 9));
        let all = |rig: &crate::program::Rig<'_>, expected| {
            for frame in frames().chain(six()) {
                assert_eq!(rig.run(&frame), expected);
            }
        };
        const PASSED: (u32, usize) = (XDP_PASS, Verdict::NotSteered as usize);
        const REDIRECTED: (u32, usize) = (XDP_REDIRECT, Verdict::Redirected as usize);
        all(rig, PASSED);
        for is_own in [true, false] {
            for address in ["10.244.1.5", "fd01::5"] {
                rig.own(address, is_own);
            }
            all(rig, if is_own { REDIRECTED } else { PASSED });
        }
        // The addresses that are compared with.
        let five: [u8; 16] = "fd01::5".parse::<std::net::Ipv6Addr>().unwrap().octets();
        for at in 0..2 {
            let (mut own, mut own6) = ([[0xff; 4]; 2], [[0xff; 16]; 2]);
            (own[at], own6[at]) = ([10, 244, 1, 5], five);
            rig.compare_with(own, own6);
            all(rig, REDIRECTED);
        }
        rig.compare_with([[10, 244, 1, 6]; 2], [[0xff; 16]; 2]);
        all(rig, PASSED);
    });
}

/// Nothing arrives at an address that was removed from this host, until it is back.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn an_address_that_is_gone_is_not_steered() {
    with_rig(|rig| {
        // Compared with, and looked up.
        let frames = [
            ipv4(&[], &PLAIN, 4420, 9),
            ipv4(&[], &PLAIN, 14, 9),
            ipv6(&[], 6, "fd00::1", 4420, 9),
            ipv6(&[], 6, "fd00::1", 15, 9),
        ];
        for is_own in [false, true] {
            for address in ["10.1.2.3", "fd00::1"] {
                rig.own(address, is_own);
            }
            let expected = match is_own {
                true => (XDP_REDIRECT, Verdict::Redirected as usize),
                false => (XDP_PASS, Verdict::NotSteered as usize),
            };
            for frame in &frames {
                assert_eq!(rig.run(frame), expected);
            }
        }
    });
}

/// A promiscuous device also receives frames for other hosts, which the kernel drops.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_for_another_mac_address_pass() {
    with_rig(|rig| {
        let broadcast = [0xff; 6];
        let groups = [broadcast, [0x33, 0x33, 0, 0, 0, 1], [3, 0, 0, 0, 0, 1]];
        let strangers = [OTHERS, VLANS, [0; 6]].into_iter().chain(groups);
        // Each octet counts.
        let near = (0..6).map(|at| {
            let mut mac = OURS;
            mac[at] ^= 0x80;
            mac
        });
        let strangers: Vec<_> = strangers.chain(near).collect();
        for port in [4420, 7, 12] {
            let mut frame = ipv4(&[], &PLAIN, port, 9);
            assert_eq!(rig.check(&frame), Verdict::Redirected);
            for mac in &strangers {
                frame[..6].copy_from_slice(mac);
                assert_eq!(rig.check(&frame), Verdict::OtherHost, "{mac:02x?}");
            }
        }
        let mut frame = ipv4(&[0x8100], &ON_VLAN, 4420, 9);
        for (mac, verdict) in [
            (OURS, Verdict::Redirected),
            (VLANS, Verdict::Redirected),
            (OTHERS, Verdict::OtherHost),
            (broadcast, Verdict::OtherHost),
        ] {
            frame[..6].copy_from_slice(&mac);
            assert_eq!(rig.check(&frame), verdict, "{mac:02x?}");
        }
        // A VLAN without a device has no MAC address, and the zeroes in its entry are none.
        let mut frame = ipv4(&[0x8100], &PLAIN, 7, 9);
        frame[..6].copy_from_slice(&[0; 6]);
        frame[14..16].copy_from_slice(&(VLAN + 1).to_be_bytes());
        assert_eq!(rig.check(&frame), Verdict::OtherHost);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn every_entry_of_a_port_counts() {
    with_rig(|rig| {
        let to = |octet| Ipv4 {
            destination: [10, 1, 2, octet],
            ..PLAIN
        };
        for (port, steered) in [(11, [true, true, false]), (12, [true; 3]), (13, [false; 3])] {
            for (octet, steered) in [3, 4, 5].into_iter().zip(steered) {
                let verdict = rig.check(&ipv4(&[], &to(octet), port, 10));
                assert_eq!(verdict == Verdict::Redirected, steered, "{port}, {octet}");
            }
            let verdict = rig.check(&ipv6(&[], 6, "fd00::5", port, 10));
            assert_eq!(verdict == Verdict::Redirected, port != 13, "{port}");
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_queue_without_socket_passes_and_counts() {
    with_rig(|rig| {
        let slot = 0u32.to_ne_bytes();
        rig.skeleton.maps.steer_sockets.delete(&slot).unwrap();
        let (action, counter) = rig.run(&ipv4(&[], &PLAIN, 4420, 0));
        assert_eq!((action, counter), (XDP_PASS, 1));
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn strangers_are_left_to_the_kernel() {
    const REDIRECTED: (u32, usize) = (XDP_REDIRECT, 0);
    const STRANGER: (u32, usize) = (XDP_PASS, 7);
    with_rig(|rig| {
        // All frames come from 10.9.9.9 or fd00::99.
        rig.steer_for("10.1.2.3:5000", &[&[10, 8], &[10, 9]]);
        rig.steer_for("10.1.2.3:5001", &[&[10, 8], &[10, 9, 8], &[10, 9, 9, 8]]);
        rig.steer_for("0.0.0.0:5002", &[&[10, 9, 9, 9]]);
        rig.steer_for("0.0.0.0:5003", &[]);
        rig.steer_for("0.0.0.0:5004", &[&[]]);
        rig.steer_for("[fd00::1]:5000", &[&[0xfd]]);
        rig.steer_for("[fd00::1]:5001", &[&[0xfc], &[0xfe, 0x80]]);
        rig.steer_for("[::]:5002", &[&[0xfd, 0]]);
        rig.steer_for("[::]:5003", &[&[0xfd, 1]]);
        rig.steer_for("[::]:5004", &[&[]]);
        for (port, expected) in [
            (5000, REDIRECTED),
            (5001, STRANGER),
            (5002, REDIRECTED),
            (5003, STRANGER),
            (5004, REDIRECTED),
        ] {
            assert_eq!(rig.run(&ipv4(&[], &PLAIN, port, 9)), expected, "{port}");
            let frame = ipv6(&[], 6, "fd00::1", port, 9);
            assert_eq!(rig.run(&frame), expected, "{port}");
        }
        // At another address nobody is let in.
        let elsewhere = ipv6(&[], 6, "fd00::2", 5000, 9);
        assert_eq!(rig.run(&elsewhere), (XDP_PASS, 2));
    });
}
