//! Routes that the kernel chooses by more than the destination: by the source, and by next hops
//! with a name.

use super::*;

/// The MAC address of a router that nobody needs to ask for.
fn router(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

/// Makes the kernel know a router on the link of "east".
fn add_router(rig: &Rig, last: u8) {
    let MacAddr(mac) = router(last);
    let mac = mac.map(|octet| format!("{octet:02x}")).join(":");
    rig.east
        .ip(&format!(
            "neigh replace 10.77.0.{last} lladdr {mac} dev east nud permanent"
        ))
        .unwrap();
}

fn path(local: &str, remote: &str) -> AddressPair {
    AddressPair {
        local: local.parse().unwrap(),
        remote: remote.parse().unwrap(),
    }
}

/// A host whose second NIC is reached by a rule, as clouds set it up: everything leaves by "rail",
/// but what comes from an address of "east" leaves there, and its second address has a router of
/// its own.
fn with_rules(name: &str) -> Rig {
    let rig = Rig::new(name);
    let end = |namespace, name, addresses| VethEnd {
        namespace,
        name,
        addresses,
    };
    veth_pair(
        end(&rig.east, "rail", "10.78.0.1/24"),
        end(&rig.west, "liar", "10.78.0.2/24"),
        1,
    )
    .unwrap();
    add_router(&rig, 71);
    add_router(&rig, 72);
    for command in [
        "addr add 10.77.0.11/24 dev east",
        "route add default via 10.78.0.2 dev rail",
        "route add default via 10.77.0.71 dev east table 100",
        "route add default via 10.77.0.72 dev east table 101",
        "rule add from 10.77.0.1 lookup 100 pref 1000",
        "rule add from 10.77.0.11 lookup 101 pref 1001",
    ] {
        rig.east.ip(command).unwrap();
    }
    rig
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_source_chooses_the_router() {
    let mut rig = with_rules("source");
    let [first, second] = ["10.77.0.1", "10.77.0.11"].map(|local| path(local, "192.0.2.9"));
    for (path, gateway) in [(first, 71), (second, 72)] {
        rig.routes.request(path);
        assert_eq!(rig.set_path(path).destination_mac, router(gateway));
    }
    // Without a source there is a route too: from an address of the device.
    rig.request("192.0.2.9");
    assert_eq!(rig.set("192.0.2.9").destination_mac, router(71));

    // The rule goes, and its sources leave by another device.
    rig.east.ip("rule del pref 1001").unwrap();
    assert_eq!(rig.update(), Update::Unreachable(second));
    rig.east
        .ip("rule add from 10.77.0.11 lookup 100 pref 1001")
        .unwrap();
    assert_eq!(rig.set_path(second).destination_mac, router(71));

    // A source that this host has no more reaches nobody, until it is back.
    rig.east.ip("addr del 10.77.0.11/24 dev east").unwrap();
    assert_eq!(rig.update(), Update::Unreachable(second));
    rig.east.ip("addr add 10.77.0.11/24 dev east").unwrap();
    assert_eq!(rig.set_path(second).destination_mac, router(71));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_source_chooses_the_router_of_ipv6_too() {
    let mut rig = with_rules("srcsix");
    let MacAddr(mac) = router(71);
    let mac = mac.map(|octet| format!("{octet:02x}")).join(":");
    for command in [
        &format!("neigh replace fd77::71 lladdr {mac} dev east nud permanent"),
        "-6 route add default via fd77::71 dev east table 100",
        "-6 rule add from fd77::1 lookup 100 pref 1000",
    ] {
        rig.east.ip(command).unwrap();
    }
    let path = path("fd77::1", "2001:db8::9");
    rig.routes.request(path);
    assert_eq!(rig.set_path(path).destination_mac, router(71));
    rig.east.ip("-6 rule del pref 1000").unwrap();
    assert_eq!(rig.update(), Update::Unreachable(path));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_next_hop_with_a_name_is_followed() {
    let mut rig = Rig::new("named");
    // Without this mode the kernel says nothing of routes whose next hop is replaced.
    let mode = "/proc/sys/net/ipv4/nexthop_compat_mode";
    rig.east.run(|| std::fs::write(mode, "0")).unwrap();
    rig.east
        .ip("nexthop add id 7 via 10.77.0.71 dev east")
        .unwrap();
    add_router(&rig, 71);
    add_router(&rig, 72);
    rig.east.ip("route add 192.0.2.0/24 nhid 7").unwrap();
    rig.request("192.0.2.9");
    assert_eq!(rig.set("192.0.2.9").destination_mac, router(71));
    rig.east
        .ip("nexthop replace id 7 via 10.77.0.72 dev east")
        .unwrap();
    assert_eq!(rig.set("192.0.2.9").destination_mac, router(72));
}

/// Clouds give a host its address alone, and routed fabrics a router without an IPv4 address.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn routers_need_not_be_in_a_network_of_the_device() {
    let mut rig = Rig::new("routers");
    for command in [
        "addr flush dev east scope global",
        "addr add 10.77.0.1/32 dev east",
        "neigh replace 10.9.9.9 lladdr 02:00:00:00:00:47 dev east nud permanent",
        "neigh replace fe80::48 lladdr 02:00:00:00:00:48 dev east nud permanent",
        "route add 198.51.100.0/24 via 10.9.9.9 dev east onlink",
        "route add 203.0.113.0/24 via inet6 fe80::48 dev east",
    ] {
        rig.east.ip(command).unwrap();
    }
    for (destination, last) in [("198.51.100.1", 0x47), ("203.0.113.1", 0x48)] {
        rig.request(destination);
        assert_eq!(rig.set(destination).destination_mac, router(last));
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn each_way_of_a_multipath_route_is_used_until_it_goes() {
    let mut rig = Rig::new("ways");
    add_router(&rig, 71);
    add_router(&rig, 72);
    let ways = |ways: &str| format!("route replace 192.0.2.0/24 {ways}");
    let both = ways("nexthop via 10.77.0.71 dev east nexthop via 10.77.0.72 dev east");
    rig.east.ip(&both).unwrap();
    let destinations: Vec<_> = (1..=64).map(|last| format!("192.0.2.{last}")).collect();
    let mut by_first = Vec::new();
    for destination in &destinations {
        rig.request(destination);
        let hop = rig.set(destination).destination_mac;
        assert!([router(71), router(72)].contains(&hop), "{hop}");
        if hop == router(71) {
            by_first.push(destination.clone());
        }
    }
    let count = by_first.len();
    assert!((8..=56).contains(&count), "{count} of 64 go the first way");
    // Those that went there go the other way; nothing changes for the others.
    rig.east.ip(&ways("via 10.77.0.72 dev east")).unwrap();
    while !by_first.is_empty() {
        match rig.update() {
            Update::Set(path, hop) => {
                assert_eq!(hop.destination_mac, router(72));
                let moved = by_first.iter().position(|each| to(each) == path);
                by_first.swap_remove(moved.expect("one that went the first way"));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Makes the kernel doubt soon what it knows of neighbours.
fn with_impatience(rig: &Rig) {
    rig.east.run(|| {
        for (what, value) in [
            ("base_reachable_time_ms", "500"),
            ("delay_first_probe_time", "1"),
            ("retrans_time_ms", "100"),
        ] {
            let file = format!("/proc/sys/net/ipv4/neigh/east/{what}");
            std::fs::write(file, value).unwrap();
        }
    });
}

/// Another router takes an address over: it says so by a gratuitous ARP, or the old one is dead and
/// nobody says anything.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_router_whose_address_moves_is_followed_whether_it_is_announced_or_not() {
    for announced in [true, false] {
        let mut rig = Rig::new("moved");
        if !announced {
            with_impatience(&rig);
        }
        let notify = if announced { "1" } else { "0" };
        rig.west.run(|| {
            let file = "/proc/sys/net/ipv4/conf/west/arp_notify";
            std::fs::write(file, notify).unwrap();
        });
        rig.east.ip("route add 192.0.2.0/24 via 10.77.0.2").unwrap();
        rig.request("192.0.2.9");
        let before = rig.mac(&rig.west, "west");
        assert_eq!(rig.set("192.0.2.9").destination_mac, before);
        rig.west
            .ip("link set dev west address 02:00:00:00:00:55")
            .unwrap();
        let started = Clock::now();
        loop {
            match rig.update() {
                Update::Set(_, hop) if hop.destination_mac == router(0x55) => break,
                // While the kernel looks for it.
                Update::Unreachable(_) if !announced => {}
                other => panic!("{other:?}"),
            }
        }
        let limit = Duration::from_secs(if announced { 2 } else { 10 });
        assert!(started.elapsed() < limit, "{:?}", started.elapsed());
    }
}
