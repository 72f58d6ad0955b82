//! From where a client may send: its own leases at this host's addresses.

use libbpf_rs::MapCore;
use rnic_manager::PoliceVerdict::{Loopback, NotLeased, Source, ToNic, ToPort, Unknown};

use crate::frames::{OURS, Segment, VLAN, VLANS, allowed, segment};
use crate::program::with_rig;

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_device_without_a_client_sends_nothing() {
    with_rig(|rig| {
        let frame = allowed()[0].octets();
        rig.expect(&frame, ToNic);
        let clients = &rig.skeleton.maps.police_clients;
        clients.delete(&1u32.to_ne_bytes()).unwrap();
        rig.expect(&frame, Unknown);
        rig.expect(&frame[..14], Unknown);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn forged_addresses_do_not_go_out() {
    with_rig(|rig| {
        let out = "10.9.9.9:50000";
        for source in [
            "10.1.2.5:4420",
            "10.9.9.9:4420",
            "0.0.0.0:4420",
            "0.0.0.0:7",
        ] {
            rig.expect(&segment(source, out).octets(), Source);
        }
        let out = "[fd00::99]:50000";
        for source in ["[fd00::2]:4420", "[::]:8", "[::ffff:10.1.2.3]:4420"] {
            rig.expect(&segment(source, out).octets(), Source);
        }
        // An address belongs to its VLAN, and to no other.
        let crossed = [
            segment("10.1.100.3:4420", "10.9.9.9:50000"),
            Segment {
                vlan: Some(VLAN),
                source_mac: VLANS,
                ..segment("10.1.2.3:4420", "10.9.9.9:50000")
            },
            Segment {
                vlan: Some(VLAN),
                source_mac: OURS,
                ..segment("[fd00::1]:4420", "[fd00::99]:50000")
            },
        ];
        for segment in crossed {
            rig.expect(&segment.octets(), Source);
        }
    });
}

// rfc: 5040-116, 5041-94, 5042-2 nobody acts in the place of others
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn ports_of_others_and_of_nobody_do_not_go_out() {
    with_rig(|rig| {
        let out = "10.9.9.9:50000";
        for port in [1, 9, 4419, 4421, 5000, 9000, 65535] {
            let source = format!("10.1.2.3:{port}");
            rig.expect(&segment(&source, out).octets(), NotLeased);
            let source = format!("[fd00::1]:{port}");
            let frame = segment(&source, "[fd00::99]:50000").octets();
            rig.expect(&frame, NotLeased);
        }
        // Leased at another address of this host, or in the other family.
        rig.expect(&segment("10.1.2.4:4420", out).octets(), NotLeased);
        rig.expect(&segment("10.1.2.3:8", out).octets(), NotLeased);
        let six = "[fd00::99]:50000";
        rig.expect(&segment("[fd00::1]:7", six).octets(), NotLeased);
        // In the other client's VLAN lease.
        let of_other = Segment {
            vlan: Some(VLAN),
            ..segment("10.1.100.3:5000", out)
        };
        rig.expect(&of_other.octets(), NotLeased);
        // Leased at any address: from each address of this host, in each VLAN.
        rig.expect(&segment("10.1.2.3:7", out).octets(), ToNic);
        rig.expect(&segment("10.1.2.4:7", out).octets(), ToNic);
        rig.expect(&segment("[fd00::1]:8", six).octets(), ToNic);
        let in_vlan = Segment {
            vlan: Some(VLAN),
            ..segment("10.1.100.3:7", out)
        };
        rig.expect(&in_vlan.octets(), ToNic);
    });
}

/// The map by port has an entry of its own, with which the program compares at once.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_entry_in_the_map_by_port_has_an_owner_too() {
    with_rig(|rig| {
        let frame = segment("10.1.2.3:4500", "10.9.9.9:50000").octets();
        for (owner, verdict) in [(5u32, ToNic), (6, NotLeased), (0, NotLeased)] {
            let mut port = [0; 28];
            port[..4].copy_from_slice(&[10, 1, 2, 3]);
            port[16] = 4;
            port[24..].copy_from_slice(&owner.to_ne_bytes());
            let ports = &rig.skeleton.maps.steer_ports;
            let key = 4500u32.to_ne_bytes();
            ports.update(&key, &port, libbpf_rs::MapFlags::ANY).unwrap();
            rig.expect(&frame, verdict);
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn loopback_addresses_never_leave_the_host() {
    with_rig(|rig| {
        for (source, destination, verdict) in [
            ("127.0.0.1:9000", "10.9.9.9:50000", Loopback),
            ("127.9.9.9:7", "10.9.9.9:50000", Loopback),
            ("[::1]:9000", "[fd00::99]:50000", Loopback),
            ("127.0.0.1:9001", "10.9.9.9:50000", NotLeased),
            ("127.0.0.1:9000", "127.0.0.1:9001", ToPort),
            ("127.0.0.1:9000", "10.1.2.3:5000", ToPort),
            ("10.1.2.3:4420", "127.0.0.1:9001", ToPort),
            ("[::1]:9000", "[::1]:9001", ToPort),
            ("[::1]:9000", "[fd00::1]:5000", ToPort),
        ] {
            rig.expect(&segment(source, destination).octets(), verdict);
        }
    });
}
