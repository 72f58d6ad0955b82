//! Next hops in namespaces: resolved by the kernel, and followed.

use std::net::{IpAddr, Ipv4Addr};
use std::thread::sleep;
use std::time::{Duration, Instant as Clock};

use rnic_core::connection::{AddressPair, NextHop};
use rnic_core::time::Instant;
use rnic_core::wire::ethernet::MacAddr;

use crate::device::netlink::{Neighbour, RouteSocket, link_by_name, neighbour};
use crate::testing::{Namespace, VethEnd, veth_pair};

use super::{LOOKUPS_PER_POLL, LinkState, Routes, Update};

mod choice;

/// A path to a destination, from whichever source the route prefers.
fn to(destination: &str) -> AddressPair {
    to_address(destination.parse().unwrap())
}

fn to_address(remote: IpAddr) -> AddressPair {
    AddressPair {
        local: Ipv4Addr::UNSPECIFIED.into(),
        remote,
    }
}

/// Two namespaces, and the routes of the first one's device.
struct Rig {
    east: Namespace,
    west: Namespace,
    routes: Routes,
    started: Clock,
}

impl Rig {
    fn new(name: &str) -> Self {
        let (east, west) = (Namespace::new(name).unwrap(), Namespace::new(name).unwrap());
        let end = |namespace, name, addresses| VethEnd {
            namespace,
            name,
            addresses,
        };
        veth_pair(
            end(&east, "east", "10.77.0.1/24 fd77::1/64"),
            end(&west, "west", "10.77.0.2/24 fd77::2/64"),
            1,
        )
        .unwrap();
        let routes = east.run(|| {
            let link = link_by_name(&mut RouteSocket::open().unwrap(), "east")
                .unwrap()
                .unwrap();
            Routes::open(&link, 3818, None).unwrap()
        });
        Self {
            east,
            west,
            routes,
            started: Clock::now(),
        }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.started.elapsed().as_nanos() as u64 + 1)
    }

    fn request(&mut self, destination: &str) {
        self.routes.request(to(destination));
    }

    /// Returns the kernel's entry for a neighbour.
    fn neighbour(&mut self, address: &str) -> Option<Neighbour> {
        let device = self.routes.device;
        let requests = &mut self.routes.requests;
        neighbour(requests, device, address.parse().unwrap()).unwrap()
    }

    /// Waits until the kernel's entry for a neighbour is as wanted, without reading notifications.
    fn until(&mut self, address: &str, known: impl Fn(Neighbour) -> bool) {
        let deadline = Clock::now() + Duration::from_secs(20);
        while !self.neighbour(address).is_some_and(&known) {
            assert!(Clock::now() < deadline, "{:?}", self.neighbour(address));
            sleep(Duration::from_millis(1));
        }
    }

    fn poll(&mut self) -> Option<Update> {
        let now = self.now();
        self.routes.poll(now);
        self.routes.poll_update()
    }

    /// Waits for the next update.
    fn update(&mut self) -> Update {
        let deadline = Clock::now() + Duration::from_secs(20);
        loop {
            if let Some(update) = self.poll() {
                return update;
            }
            assert!(Clock::now() < deadline, "no update");
            sleep(Duration::from_millis(1));
        }
    }

    /// Waits for a destination to be resolved.
    fn set(&mut self, destination: &str) -> NextHop {
        self.set_path(to(destination))
    }

    /// Waits for a path to be resolved.
    fn set_path(&mut self, wanted: AddressPair) -> NextHop {
        match self.update() {
            Update::Set(path, hop) if path == wanted => hop,
            other => panic!("{other:?}"),
        }
    }

    fn mac(&self, namespace: &Namespace, netdev: &str) -> MacAddr {
        namespace.run(|| {
            let link = link_by_name(&mut RouteSocket::open().unwrap(), netdev);
            link.unwrap().unwrap().mac
        })
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn neighbours_on_the_link_are_resolved() {
    let mut rig = Rig::new("onlink");
    let expected = NextHop {
        source_mac: rig.mac(&rig.east, "east"),
        destination_mac: rig.mac(&rig.west, "west"),
        vlan: None,
        mtu: 1500,
        advertised_mss: None,
    };
    for destination in ["10.77.0.2", "fd77::2"] {
        rig.request(destination);
        assert_eq!(rig.set(destination), expected);
        // A second request gets an update too.
        rig.request(destination);
        assert_eq!(rig.set(destination), expected);
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn destinations_behind_a_gateway_have_its_mac_address() {
    let mut rig = Rig::new("gateway");
    rig.east
        .ip("route add 192.0.2.0/24 via 10.77.0.2 mtu 1400")
        .unwrap();
    rig.east
        .ip("route add 2001:db8::/64 via fd77::2 advmss 1000")
        .unwrap();
    rig.east
        .ip("route add 198.51.100.0/24 via inet6 fd77::2")
        .unwrap();
    let gateway = rig.mac(&rig.west, "west");
    for (destination, mtu, advertised_mss) in [
        ("192.0.2.9", 1400, None),
        ("2001:db8::9", 1500, Some(1000)),
        ("198.51.100.1", 1500, None),
    ] {
        rig.request(destination);
        let hop = rig.set(destination);
        assert_eq!(
            (
                hop.destination_mac,
                hop.mtu,
                hop.advertised_mss.map(u16::from)
            ),
            (gateway, mtu, advertised_mss),
            "{destination}"
        );
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(vlan)), ignore = "needs a kernel with VLANs")]
fn vlans_are_found_by_their_routes() {
    let mut rig = Rig::new("vlan");
    for (namespace, netdev, address) in [(&rig.east, "east", 1), (&rig.west, "west", 2)] {
        namespace
            .ip(&format!("link add link {netdev} name v42 type vlan id 42"))
            .unwrap();
        namespace
            .ip(&format!("addr add 10.42.0.{address}/24 dev v42"))
            .unwrap();
        namespace.ip("link set dev v42 mtu 1300 up").unwrap();
    }
    rig.request("10.42.0.2");
    let hop = rig.set("10.42.0.2");
    assert_eq!((hop.vlan, hop.mtu), (Some(42), 1300));
    assert_eq!(hop.destination_mac, rig.mac(&rig.west, "west"));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_state_of_the_device_is_followed() {
    let mut rig = Rig::new("carrier");
    let wait = |rig: &mut Rig, expected| {
        let deadline = Clock::now() + Duration::from_secs(20);
        loop {
            rig.poll();
            match rig.routes.poll_device() {
                Some(state) if state == expected => return,
                // When it was opened it may not have had a carrier yet.
                Some(_) | None => assert!(Clock::now() < deadline, "{expected:?}"),
            }
            sleep(Duration::from_millis(1));
        }
    };
    // The carrier goes with the other end, then the device itself goes down, then it is deleted.
    for netdev in ["west", "east"] {
        let namespace = |rig: &mut Rig, state: &str| {
            let side = if netdev == "west" {
                &rig.west
            } else {
                &rig.east
            };
            side.ip(&format!("link set dev {netdev} {state}")).unwrap();
        };
        namespace(&mut rig, "down");
        wait(&mut rig, LinkState::Inactive);
        namespace(&mut rig, "up");
        wait(&mut rig, LinkState::Active);
    }
    // A bridge that releases a port sends a message of the same type as for a deleted device.
    rig.east.ip("link add bridge type bridge").unwrap();
    rig.east.ip("link set dev east master bridge").unwrap();
    rig.east.ip("link set dev east nomaster").unwrap();
    rig.west.ip("link set dev west down").unwrap();
    wait(&mut rig, LinkState::Inactive);
    rig.east.ip("link del dev east").unwrap();
    wait(&mut rig, LinkState::Gone);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_device_in_another_namespace_is_gone_and_stays_so() {
    let mut rig = Rig::new("moved");
    let other = rig.west.name().to_owned();
    rig.east
        .ip(&format!("link set dev east netns {other}"))
        .unwrap();
    let deadline = Clock::now() + Duration::from_secs(20);
    while rig.routes.poll_device() != Some(LinkState::Gone) {
        rig.poll();
        assert!(Clock::now() < deadline);
        sleep(Duration::from_millis(1));
    }
    let own = rig.east.name().to_owned();
    rig.west
        .ip(&format!("link set dev east netns {own}"))
        .unwrap();
    rig.east.ip("link set dev east up").unwrap();
    rig.request("10.77.0.2");
    for _ in 0..100 {
        rig.poll();
        assert_eq!(rig.routes.poll_device(), None);
        sleep(Duration::from_millis(1));
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn changes_are_followed() {
    let mut rig = Rig::new("change");
    rig.request("10.77.0.2");
    rig.set("10.77.0.2");
    let wait = |rig: &mut Rig| rig.set("10.77.0.2");

    rig.east
        .ip("neigh replace 10.77.0.2 lladdr 02:00:00:00:00:99 dev east nud permanent")
        .unwrap();
    assert_eq!(
        wait(&mut rig).destination_mac,
        MacAddr([2, 0, 0, 0, 0, 0x99])
    );

    rig.east.ip("link set dev east mtu 1280").unwrap();
    assert_eq!(wait(&mut rig).mtu, 1280);

    // When the address of a device changes, the kernel drops its neighbours, and must resolve them
    // again.
    rig.east
        .ip("link set dev east address 02:00:00:00:00:77")
        .unwrap();
    while wait(&mut rig).source_mac != MacAddr([2, 0, 0, 0, 0, 0x77]) {}

    rig.east.ip("addr del 10.77.0.1/24 dev east").unwrap();
    assert_eq!(rig.update(), Update::Unreachable(to("10.77.0.2")));
    rig.east.ip("addr add 10.77.0.1/24 dev east").unwrap();
    wait(&mut rig);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn unreachable_destinations_are_reported() {
    let mut rig = Rig::new("silent");
    // Without a route, local, and multicast destinations.
    for destination in [
        "203.0.113.1",
        "10.77.0.1",
        "127.0.0.1",
        "224.0.0.1",
        "2001:db8::1",
    ] {
        rig.request(destination);
        assert_eq!(rig.poll(), Some(Update::Unreachable(to(destination))));
    }
    // On the link, but without a reply: the kernel gives up after some seconds.
    rig.request("10.77.0.3");
    assert_eq!(rig.poll(), None);
    assert_eq!(rig.update(), Update::Unreachable(to("10.77.0.3")));
    // A second request gets an update too, also while the destination is being looked up.
    rig.request("203.0.113.1");
    assert_eq!(rig.update(), Update::Unreachable(to("203.0.113.1")));
    rig.west.ip("addr add 10.77.0.3/24 dev west").unwrap();
    assert_eq!(
        rig.set("10.77.0.3").destination_mac,
        rig.mac(&rig.west, "west")
    );
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_lost_destination_is_looked_up_until_it_is_reachable_again() {
    let mut rig = Rig::new("lost");
    rig.request("10.77.0.2");
    rig.set("10.77.0.2");
    rig.west.ip("addr del 10.77.0.2/24 dev west").unwrap();
    rig.east.ip("neigh flush dev east").unwrap();
    assert_eq!(rig.update(), Update::Unreachable(to("10.77.0.2")));
    rig.west.ip("addr add 10.77.0.2/24 dev west").unwrap();
    assert_eq!(
        rig.set("10.77.0.2").destination_mac,
        rig.mac(&rig.west, "west")
    );
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn of_two_devices_with_the_same_network_the_given_one_is_used() {
    let mut rig = Rig::new("rails");
    // A second device with a better route to the same network.
    let end = |namespace, name, addresses| VethEnd {
        namespace,
        name,
        addresses,
    };
    let (east, west) = (&rig.east, &rig.west);
    veth_pair(
        end(east, "rail", "10.77.0.11/24"),
        end(west, "lair", "10.77.0.12/24"),
        1,
    )
    .unwrap();
    east.ip("route replace 10.77.0.0/24 dev rail metric 0")
        .unwrap();
    east.ip("route add 10.99.0.0/24 dev rail").unwrap();
    rig.request("10.77.0.2");
    let hop = rig.set("10.77.0.2");
    assert_eq!(hop.source_mac, rig.mac(&rig.east, "east"));
    rig.request("10.99.0.1");
    let elsewhere = Update::Unreachable(to("10.99.0.1"));
    assert_eq!(
        rig.poll(),
        Some(elsewhere),
        "it is not in a network of this device"
    );
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_destination_is_followed_until_it_is_forgotten() {
    let mut rig = Rig::new("many");
    rig.request("10.77.0.2");
    rig.set("10.77.0.2");
    // All are behind one router, because all namespaces share the kernel's table of neighbours,
    // which is small.
    rig.west.ip("addr add 10.77.0.3/24 dev west").unwrap();
    rig.east
        .ip("route add 100.64.0.0/10 via 10.77.0.3")
        .unwrap();
    let others = (0..20_000).map(|number| IpAddr::V4((0x6440_0000 + number).into()));
    for other in others.clone() {
        rig.routes.request(to_address(other));
        rig.update();
    }
    rig.east
        .ip("neigh replace 10.77.0.2 lladdr 02:00:00:00:00:99 dev east nud permanent")
        .unwrap();
    let hop = loop {
        match rig.update() {
            Update::Set(path, hop) if path == to("10.77.0.2") => break hop,
            _ => {}
        }
    };
    assert_eq!(hop.destination_mac, MacAddr([2, 0, 0, 0, 0, 0x99]));
    for other in others {
        rig.routes.forget(to_address(other));
    }
    assert_eq!(rig.routes.paths.len(), 1);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_destination_forgotten_during_its_lookup_can_be_requested_again() {
    let mut rig = Rig::new("again");
    for _ in 0..3 {
        rig.request("10.77.0.2");
        rig.routes.forget(to("10.77.0.2"));
    }
    rig.request("10.77.0.2");
    rig.set("10.77.0.2");
    assert_eq!(rig.poll(), None);
    assert!(rig.routes.queue.is_empty());
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn after_lost_notifications_destinations_are_looked_up_again() {
    let mut rig = Rig::new("news");
    rig.request("10.77.0.2");
    assert_eq!(rig.poll(), None);
    rig.until("10.77.0.2", |neighbour| neighbour.mac.is_some());
    assert!(rig.routes.changes.notifications().unwrap().is_some());
    rig.set("10.77.0.2");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn an_old_notification_is_not_taken_for_the_result_of_a_new_request() {
    let mut rig = Rig::new("old");
    rig.east.ip("route add 192.0.2.0/24 via 10.77.0.3").unwrap();
    rig.request("192.0.2.1");
    assert_eq!(rig.poll(), None);
    rig.until("10.77.0.3", |neighbour| neighbour.failed);
    rig.west.ip("addr add 10.77.0.3/24 dev west").unwrap();
    rig.request("192.0.2.2");
    let first = to("192.0.2.1");
    assert_eq!(rig.update(), Update::Unreachable(first));
    // The second one is found in the end.
    let second = to("192.0.2.2");
    loop {
        match rig.update() {
            Update::Set(path, _) if path == second => break,
            update => assert!(matches!(update, Update::Set(found, _) if found == first)),
        }
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn after_a_change_destinations_are_looked_up_some_at_a_time() {
    let mut rig = Rig::new("some");
    rig.east
        .ip("route add 100.64.0.0/10 via 10.77.0.2")
        .unwrap();
    let count = 10 * LOOKUPS_PER_POLL;
    for number in 0..count as u32 {
        rig.routes
            .request(to_address(IpAddr::V4((0x6440_0000 + number).into())));
    }
    for _ in 0..count {
        rig.update();
    }

    rig.east.ip("link set dev east mtu 1280").unwrap();
    let mut polls = 0;
    let mut changed = 0;
    let deadline = Clock::now() + Duration::from_secs(20);
    while changed < count {
        assert!(Clock::now() < deadline, "{changed} of {count} changed");
        let mut update = rig.poll();
        polls += usize::from(update.is_some());
        let before = changed;
        while let Some(Update::Set(_, hop)) = update {
            changed += usize::from(hop.mtu == 1280);
            update = rig.routes.poll_update();
        }
        assert!(changed - before <= LOOKUPS_PER_POLL);
    }
    assert!(polls >= 10, "{polls}");
}
