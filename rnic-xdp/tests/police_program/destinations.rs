//! Where a client may send, and where its frames go.

use rnic_manager::PoliceVerdict::{
    Destination, NextHop, NoDevice, Nobody, Peer, Source, Stranger, ToNic, ToPort,
};

use crate::frames::{GATEWAY, OURS, Segment, VLAN, VLANS, allowed, segment};
use crate::host::{BROADCAST, CLIENT, OTHER};
use crate::program::{FREE, LISTED, NIC, ON_LINK, Policy, with_rig};

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_for_no_host_do_not_go_out() {
    with_rig(|rig| {
        for address in [
            "0.0.0.0",
            "0.0.0.1",
            "0.255.255.255",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            // Of the network of this host.
            BROADCAST,
        ] {
            let destination = format!("{address}:50000");
            let frame = segment("10.1.2.3:4420", &destination).octets();
            rig.expect(&frame, Destination);
        }
        for address in ["::", "ff02::1", "ffff::", "::ffff:10.9.9.9"] {
            let destination = format!("[{address}]:50000");
            let frame = segment("[fd00::1]:4420", &destination).octets();
            rig.expect(&frame, Destination);
        }
        for address in ["223.255.255.255", "1.0.0.0", "10.1.3.255"] {
            let destination = format!("{address}:50000");
            rig.expect(&segment("10.1.2.3:4420", &destination).octets(), ToNic);
        }
        for address in ["feff::1", "64:ff9b::10.9.9.9"] {
            let destination = format!("[{address}]:50000");
            rig.expect(&segment("[fd00::1]:4420", &destination).octets(), ToNic);
        }
        // Nor do they come from there.
        rig.lease(CLIENT, "10.1.2.255:4420", 0, None);
        let frame = segment("10.1.2.255:4420", "10.9.9.9:1").octets();
        rig.expect(&frame, Source);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_go_to_neighbours_only() {
    with_rig(|rig| {
        // Three in one slot, and one in another.
        let [first, second, third] = [0, 4, 8].map(|high| [2, 9, 9, 9, high, 77]);
        let elsewhere = [2, 9, 9, 9, 0, 78];
        let to = |destination_mac: [u8; 6]| {
            let segment = segment("10.1.2.3:4420", "10.9.9.9:1");
            Segment {
                destination_mac,
                ..segment
            }
            .octets()
        };
        for mac in [first, second, third, elsewhere, OURS, [0; 6]] {
            rig.expect(&to(mac), NextHop);
        }
        rig.add_neighbour(first, Some(0));
        rig.add_neighbour(second, None);
        rig.expect(&to(second), NextHop);
        rig.add_neighbour(first, Some(1));
        for (mac, verdict) in [
            (first, ToNic),
            (second, ToNic),
            (third, NextHop),
            (elsewhere, NextHop),
            (GATEWAY, ToNic),
        ] {
            rig.expect(&to(mac), verdict);
        }
        // What turns around is for no neighbour.
        let local = segment("10.1.2.3:4420", "10.1.2.3:5000");
        let destination_mac = elsewhere;
        rig.expect(
            &Segment {
                destination_mac,
                ..local
            }
            .octets(),
            ToPort,
        );
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_may_be_held_to_the_networks_of_the_device() {
    with_rig(|rig| {
        rig.allow(CLIENT, ON_LINK);
        let to = |to: &str| segment("10.1.2.3:4420", to).octets();
        for destination in ["10.9.9.9:1", "10.1.2.9:1", "10.1.2.3:5000"] {
            rig.expect(&to(destination), Peer);
        }
        // The first network, with which the program compares, and another one.
        rig.set_network([10, 1, 2, 0], [255, 255, 255, 0]);
        rig.permit(NIC, true, &[172, 16]);
        for (destination, verdict) in [
            ("10.1.2.9:1", ToNic),
            ("10.1.2.3:5000", ToPort),
            ("127.0.0.1:9001", ToPort),
            ("172.16.0.1:1", ToNic),
            ("172.17.0.1:1", Peer),
            ("10.9.9.9:1", Peer),
        ] {
            rig.expect(&to(destination), verdict);
        }
        // With some others.
        rig.permit(CLIENT, true, &[10, 9]);
        rig.expect(&to("10.9.9.9:1"), Peer);
        rig.allow(CLIENT, ON_LINK | LISTED);
        rig.expect(&to("10.9.9.9:1"), ToNic);
        rig.expect(&to("10.8.9.9:1"), Peer);
        rig.allow(CLIENT, 0);
        rig.expect(&to("10.1.2.9:1"), Peer);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_that_may_not_speak_with_another_is_not_reached_by_it() {
    with_rig(|rig| {
        let frame = segment("10.1.2.3:4420", "10.1.2.3:5000").octets();
        rig.expect(&frame, ToPort);
        rig.allow(OTHER, LISTED);
        rig.expect(&frame, Stranger);
        rig.permit(OTHER, true, &[10, 1, 2, 3]);
        rig.expect(&frame, ToPort);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_sends_to_its_peers_only() {
    with_rig(|rig| {
        let limited = Policy {
            all_peers: false,
            ..FREE
        };
        rig.set_client(limited);
        let four = |to: &str| segment("10.1.2.3:4420", to).octets();
        let six = |to: &str| segment("[fd00::1]:4420", to).octets();
        rig.expect(&four("10.9.9.9:1"), Peer);
        rig.expect(&six("[fd00::99]:1"), Peer);
        // Of another client, and of the other family.
        rig.permit(OTHER, true, &[]);
        rig.permit(CLIENT, false, &[10, 9]);
        rig.expect(&four("10.9.9.9:1"), Peer);
        rig.permit(CLIENT, true, &[10, 9]);
        rig.permit(CLIENT, false, &[0xfd, 0, 0]);
        for (to, verdict) in [
            ("10.9.0.1:1", ToNic),
            ("10.9.255.255:1", ToNic),
            ("10.8.255.255:1", Peer),
            ("10.10.0.0:1", Peer),
            // Also for addresses of this host.
            ("10.1.2.3:5000", Peer),
            ("127.0.0.1:9001", Peer),
        ] {
            rig.expect(&four(to), verdict);
        }
        rig.expect(&six("[fd00::99]:1"), ToNic);
        rig.expect(&six("[fd00:100::99]:1"), Peer);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_for_this_host_turn_around() {
    with_rig(|rig| {
        let in_vlan = Segment {
            vlan: Some(VLAN),
            source_mac: VLANS,
            ..segment("10.1.100.3:4420", "10.1.100.3:5000")
        };
        let to_other = [
            segment("10.1.2.3:4420", "10.1.2.3:5000"),
            segment("[fd00::1]:4420", "[fd00::1]:5000"),
            segment("127.0.0.1:9000", "127.0.0.1:9001"),
            in_vlan,
        ];
        let to_itself = [
            segment("10.1.2.3:4420", "10.1.2.3:7"),
            segment("10.1.2.3:4420", "10.1.2.3:4420"),
            segment("10.1.2.3:7", "127.0.0.1:9000"),
            segment("[fd00::1]:4420", "[fd00::1]:8"),
        ];
        // Each goes to its own device: of three, two are there.
        for (segments, device) in [(&to_other, OTHER), (&to_itself, CLIENT)] {
            for segment in segments {
                let frame = segment.octets();
                rig.expect(&frame, ToPort);
                rig.connect(device, false);
                rig.expect(&frame, NoDevice);
                rig.connect(device, true);
            }
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_for_nobody_and_for_others_peers_are_dropped() {
    with_rig(|rig| {
        for to in [
            "10.1.2.3:80",
            "10.1.2.4:5000",
            "127.0.0.1:80",
            "127.0.0.2:9001",
        ] {
            rig.expect(&segment("10.1.2.3:4420", to).octets(), Nobody);
        }
        // An address in a VLAN is another one elsewhere.
        rig.expect(&segment("10.1.2.3:4420", "10.1.100.3:5000").octets(), ToNic);
        // An entry without a client is for a process that has the device for itself.
        rig.lease(0, "10.1.2.3:6000", 0, None);
        rig.expect(&segment("10.1.2.3:4420", "10.1.2.3:6000").octets(), Nobody);
        // A port that is a hardware queue, whatever else has its number.
        let on_queue = OTHER | 1 << 16;
        rig.lease(on_queue, "10.1.2.3:6004", 0, None);
        rig.expect(&segment("10.1.2.3:4420", "10.1.2.3:6004").octets(), Nobody);
        rig.lease(OTHER, "10.1.2.3:6001", 0, Some(&[&[10, 8]]));
        rig.lease(OTHER, "10.1.2.3:6002", 0, Some(&[&[10, 1, 2]]));
        rig.lease(OTHER, "0.0.0.0:6003", 0, Some(&[&[10, 8]]));
        for (port, verdict) in [(6001, Stranger), (6002, ToPort), (6003, Stranger)] {
            let to = format!("10.1.2.3:{port}");
            rig.expect(&segment("10.1.2.3:4420", &to).octets(), verdict);
        }
        // The limits of a client's own lease are for those who connect to it.
        rig.lease(CLIENT, "10.1.2.3:6004", 0, Some(&[&[10, 8]]));
        rig.expect(&segment("10.1.2.3:6004", "10.9.9.9:1").octets(), ToNic);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_for_the_network_go_to_the_nic() {
    with_rig(|rig| {
        for index in [CLIENT, OTHER] {
            rig.connect(index, false);
        }
        for segment in allowed() {
            let frame = segment.octets();
            rig.expect(&frame, ToNic);
            rig.connect(NIC, false);
            rig.expect(&frame, NoDevice);
            rig.connect(NIC, true);
        }
    });
}
