//! How headers are read: every kind, cut off, in several buffers, and random ones.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::frames::{Ipv4, ON_VLAN, PLAIN, ethernet, ipv4, ipv6};
use crate::host::{OTHERS, OURS, VLANS};
use crate::oracle::Verdict;
use crate::program::{XDP_PASS, XDP_REDIRECT, with_rig};

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_of_every_kind_get_their_verdict() {
    with_rig(|rig| {
        for (tags, v4, v6) in [
            (&[][..], PLAIN, "fd00::1"),
            (&[0x8100], ON_VLAN, "fd00:100::1"),
        ] {
            let to = |port| ipv4(tags, &v4, port, 100);
            assert_eq!(rig.check(&to(4420)), Verdict::Redirected);
            assert_eq!(rig.check(&to(7)), Verdict::Redirected);
            assert_eq!(rig.check(&to(9)), Verdict::NotSteered);
            let to = |ip, port| ipv6(tags, 6, ip, port, 100);
            assert_eq!(rig.check(&to(v6, 4420)), Verdict::Redirected);
            assert_eq!(rig.check(&to("fd00::2", 9)), Verdict::Redirected);
            assert_eq!(rig.check(&to("fd00::2", 7)), Verdict::NotSteered);
            assert_eq!(rig.check(&ethernet(tags, 0x0806)), Verdict::NotTcp);
        }
        // A provider's tag (802.1ad), and VLANs inside VLANs.
        for tags in [&[0x88a8][..], &[0x88a8, 0x8100], &[0x8100; 2], &[0x8100; 3]] {
            for ip in [PLAIN, ON_VLAN] {
                assert_eq!(rig.check(&ipv4(tags, &ip, 4420, 0)), Verdict::NotTcp);
            }
        }
        for options in 1..=10 {
            let ip = Ipv4 { options, ..PLAIN };
            assert_eq!(rig.check(&ipv4(&[], &ip, 4420, 10)), Verdict::Redirected);
        }
        for fragment in [0x2000, 0x0001, 0x3fff, 0x1fff] {
            let ip = Ipv4 { fragment, ..PLAIN };
            assert_eq!(rig.check(&ipv4(&[], &ip, 4420, 10)), Verdict::Fragment);
        }
        for protocol in [1, 17, 132] {
            let ip = Ipv4 { protocol, ..PLAIN };
            assert_eq!(rig.check(&ipv4(&[], &ip, 4420, 10)), Verdict::NotTcp);
        }
        for next_header in [0, 43, 60, 58, 17, 51] {
            let frame = ipv6(&[], next_header, "fd00::1", 4420, 10);
            assert_eq!(rig.check(&frame), Verdict::NotTcp);
        }
        assert_eq!(
            rig.check(&ipv6(&[], 44, "fd00::1", 4420, 10)),
            Verdict::Fragment
        );
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_cut_anywhere_pass_as_truncated() {
    with_rig(|rig| {
        let options = Ipv4 {
            options: 3,
            ..ON_VLAN
        };
        let whole = [
            ipv4(&[0x8100], &options, 4420, 8),
            ipv6(&[0x8100], 6, "fd00:100::1", 4420, 8),
        ];
        for frame in whole {
            // The kernel does not run the program on less than an Ethernet header.
            for len in 14..frame.len() {
                rig.check(&frame[..len]);
            }
            assert_eq!(rig.check(&frame), Verdict::Redirected);
        }
    });
}

/// A driver may leave any number of octets in the first buffer of a frame that has several.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(
    all(root, not(cut_frames)),
    ignore = "needs a kernel that runs programs on cut frames"
)]
fn headers_beyond_the_first_buffer_are_read() {
    with_rig(|rig| {
        let options = Ipv4 {
            options: 10,
            ..ON_VLAN
        };
        for (frame, action) in [
            (ipv4(&[], &PLAIN, 4420, 8000), XDP_REDIRECT),
            (ipv4(&[0x8100], &options, 4420, 8000), XDP_REDIRECT),
            (ipv6(&[0x8100], 6, "fd00:100::1", 4420, 8000), XDP_REDIRECT),
            (ipv4(&[0x8100], &PLAIN, 9, 8000), XDP_PASS),
            (ipv6(&[], 6, "fd00::1", 80, 8000), XDP_PASS),
        ] {
            for linear in (14..120).chain([1000, 3000]) {
                let found = rig.run_in_pieces(&frame, linear);
                assert_eq!(found, action, "{linear} octets of {:02x?}", &frame[..100]);
            }
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_of_several_buffers_are_steered_by_their_first() {
    with_rig(|rig| {
        assert_eq!(
            rig.check(&ipv4(&[], &PLAIN, 4420, 9000)),
            Verdict::Redirected
        );
        assert_eq!(
            rig.check(&ipv6(&[], 6, "fd00::3", 80, 9000)),
            Verdict::NotSteered
        );
    });
}

/// Frames that are mostly right, with a few octets changed and a cut.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let tags = prop::collection::vec(prop::sample::select(vec![0x8100u16, 0x88a8]), 0..4);
    let port = prop::sample::select(vec![4420u16, 7, 9, 11, 12, 14, 15, 0, 80, 65535]);
    let v4 = (
        prop::sample::select(vec![[10, 1, 2, 3], [10, 1, 2, 4], [10, 1, 100, 3], [0; 4]]),
        0usize..=10,
        prop::sample::select(vec![0u16, 0x4000, 0x8000, 0x2000, 0x00ff]),
        prop::sample::select(vec![6u8, 6, 6, 17]),
    );
    let v6 = (
        prop::sample::select(vec!["fd00::1", "fd00::2", "fd00:100::1", "::"]),
        prop::sample::select(vec![6u8, 6, 6, 0, 44, 17]),
    );
    let frame = (tags, port, v4, v6, any::<bool>(), 0usize..80).prop_map(
        |(tags, port, v4, v6, is_v4, payload)| {
            let (destination, options, fragment, protocol) = v4;
            let ip = Ipv4 {
                options,
                fragment,
                protocol,
                destination,
            };
            match is_v4 {
                true => ipv4(&tags, &ip, port, payload),
                false => ipv6(&tags, v6.1, v6.0, port, payload),
            }
        },
    );
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let mac = prop::sample::select(vec![OURS, OURS, OURS, VLANS, OTHERS]);
    let frame = (frame, mac).prop_map(|(mut frame, mac)| {
        frame[..6].copy_from_slice(&mac);
        frame
    });
    (frame, changes, any::<bool>(), any::<prop::sample::Index>()).prop_map(
        |(mut frame, changes, cut, at)| {
            for (index, octet) in changes {
                let at = index.index(frame.len());
                frame[at] = octet;
            }
            if cut {
                frame.truncate(14 + at.index(frame.len() - 14));
            }
            frame
        },
    )
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn random_frames_agree_with_the_oracle() {
    with_rig(|rig| {
        let mut runner = TestRunner::new(Config {
            cases: 20_000,
            failure_persistence: None,
            ..Config::default()
        });
        let test = |frame: Vec<u8>| {
            rig.check(&frame);
            Ok(())
        };
        runner.run(&any_frame(), test).unwrap();
    });
}
