//! At which addresses of a host a port is steered.

mod common;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use common::{eventually, frame, open, open_net, pair, send};
use rnic_core::connection::PortReservation;
use rnic_core::engine::{EngineConfig, Net, NetError, Turn, mailbox};
use rnic_core::memory::table::StagTable;
use rnic_xdp::steering::SteeringCounters;
use rnic_xdp::testing::Namespace;
use rnic_xdp::{InterfaceConfig, Worker, XdpInterface, XdpNet, bell};

/// Returns a [`frame`] with another destination address.
fn frame_to(to: SocketAddr) -> Vec<u8> {
    let mut octets = frame(to.port(), 10);
    match to.ip() {
        IpAddr::V4(address) => octets[30..34].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => {
            let mut header = vec![0x60, 0, 0, 0, 0, 30, 6, 64];
            header.extend("fd77::1".parse::<Ipv6Addr>().unwrap().octets());
            header.extend(address.octets());
            octets[12..14].copy_from_slice(&[0x86, 0xdd]);
            octets.splice(14..34, header);
        }
    }
    octets
}

/// A host with several addresses, and one that sends to them.
struct Addresses {
    west: Namespace,
    one: XdpInterface,
    other: XdpInterface,
    net: XdpNet,
    _east: Namespace,
}

impl Addresses {
    /// Returns the addresses that frames are sent to.
    fn all() -> [SocketAddr; 5] {
        let all = ["10.77.0.2", "10.77.0.3", "10.77.0.4", "fd77::2", "fd77::3"];
        all.map(|ip| SocketAddr::new(ip.parse().unwrap(), 4420))
    }

    fn new(name: &str) -> Self {
        let (east, west) = pair(name, 1);
        for address in ["10.77.0.3/24", "10.77.0.4/24", "fd77::3/64"] {
            let command = format!("addr add {address} dev west nodad");
            west.ip(&command).unwrap();
        }
        let one = open(&east, "east").unwrap();
        let (other, net) = open_net(&west, InterfaceConfig::new("west"));
        Self {
            west,
            one,
            other,
            net,
            _east: east,
        }
    }

    /// Listens. It tries again while the port is in use: a child that another test has just forked
    /// has our sockets open until it runs its program.
    fn listen(&self, local: SocketAddr) -> PortReservation {
        let Self { west, net, .. } = self;
        let mut listened = west.run(|| net.listen(local));
        eventually("the port is free again", || {
            let is_in_use = matches!(listened, Err(NetError::InUse(_)));
            if is_in_use {
                listened = west.run(|| net.listen(local));
            }
            !is_in_use
        });
        listened.unwrap().1
    }

    /// Sends a frame to this address, and returns whether it was redirected.
    fn is_steered(&mut self, to: SocketAddr) -> bool {
        let counters = || self.other.steering_counters().unwrap();
        let seen = |of: &SteeringCounters| of.redirected + of.not_steered;
        let before = counters();
        send(&mut self.one, &frame_to(to));
        self.one.tx.kick();
        let mut after = before;
        eventually("the program sees a frame", || {
            after = counters();
            seen(&after) == seen(&before) + 1
        });
        after.redirected > before.redirected
    }
}

/// A port can be ours at some of the host's addresses only. In which order it was reserved there
/// makes no difference.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_port_is_steered_at_the_addresses_where_it_is_ours() {
    let mut host = Addresses::new("address");
    let all = Addresses::all();
    let ours = [all[0], all[1], all[3]];
    let check = |host: &mut Addresses, held: &[Option<PortReservation>; 3]| {
        let leased = || ours.iter().zip(held).filter(|(_, lease)| lease.is_some());
        for to in all {
            let is_ours = leased().any(|(at, _)| *at == to);
            assert_eq!(host.is_steered(to), is_ours, "{to}");
        }
    };
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    for coming in orders {
        for going in orders {
            let mut held = [None, None, None];
            for at in coming {
                held[at] = Some(host.listen(ours[at]));
                check(&mut host, &held);
            }
            held[going[0]] = None;
            check(&mut host, &held);
            held[going[0]] = Some(host.listen(ours[going[0]]));
            for at in going {
                check(&mut host, &held);
                held[at] = None;
            }
            check(&mut host, &held);
        }
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_port_may_be_steered_at_every_address() {
    let mut host = Addresses::new("every");
    let any = ["0.0.0.0:4420", "[::]:4420"].map(|any| any.parse::<SocketAddr>().unwrap());
    for order in [[0, 1], [1, 0]] {
        let [first, second] = order.map(|at| any[at]);
        let one = host.listen(first);
        let two = host.listen(second);
        for to in Addresses::all() {
            assert!(host.is_steered(to), "{to}");
        }
        drop(one);
        for to in Addresses::all() {
            assert_eq!(
                host.is_steered(to),
                to.is_ipv4() == second.is_ipv4(),
                "{to}"
            );
        }
        // A single address after the unspecified one of its family was released.
        let all = Addresses::all();
        let of_first = |to: &SocketAddr| to.is_ipv4() == first.is_ipv4();
        let again = all.into_iter().find(of_first).unwrap();
        let three = host.listen(again);
        for to in all {
            assert_eq!(host.is_steered(to), to == again || !of_first(&to), "{to}");
        }
        drop((two, three));
        assert!(!Addresses::all().iter().any(|to| host.is_steered(*to)));
    }
}

/// Reads the counters of the steering program, as another process does.
fn counters(namespace: &Namespace) -> SteeringCounters {
    namespace.run(|| rnic_xdp::steering::counters("west").unwrap())
}

/// Sends a frame for a MAC address, in a VLAN if one is stated. Returns the name of the counter
/// that it moved.
fn fate(one: &mut XdpInterface, west: &Namespace, mac: [u8; 6], vlan: Option<u16>) -> &'static str {
    let mut octets = frame(4420, 10);
    octets[..6].copy_from_slice(&mac);
    if let Some(vlan) = vlan {
        tag(&mut octets, vlan);
    }
    fate_of(one, west, &octets)
}

/// Puts a frame into a VLAN.
fn tag(octets: &mut Vec<u8>, vlan: u16) {
    octets.splice(12..12, [[0x81, 0x00], vlan.to_be_bytes()].concat());
}

/// Sends a frame. Returns the name of the counter that it moved.
fn fate_of(one: &mut XdpInterface, west: &Namespace, octets: &[u8]) -> &'static str {
    let before = counters(west);
    send(one, octets);
    one.tx.kick();
    let mut moved = None;
    eventually("the program sees a frame", || {
        // Neighbour discovery moves a counter too: `not_tcp`.
        let after = counters(west);
        let mut both = before.entries().zip(after.entries());
        let found = both.find(|((name, before), (_, after))| *name != "not_tcp" && after > before);
        moved = found.map(|((name, _), _)| name);
        moved.is_some()
    });
    moved.unwrap()
}

/// The kernel drops frames for another host, or in a VLAN for which this one has no device; so they
/// are not for us either. The device's address may change.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn only_frames_to_our_mac_address_and_vlan_are_steered() {
    let ours = [2, 0, 0, 0, 0, 2];
    let other = [2, 0, 0, 0, 0, 9];
    let (east, west) = pair("mac", 1);
    let mut one = open(&east, "east").unwrap();
    let (interface, net) = open_net(&west, InterfaceConfig::new("west"));
    let (bell, waker) = bell().unwrap();
    let (_host, end) = mailbox(Arc::new(StagTable::new(64, [1; 32])), 16, waker);
    let config = EngineConfig::default();
    let mut worker = west
        .run(|| Worker::new(interface, config, [2; 32], end, bell))
        .unwrap();
    for (local, in_other_vlan) in [
        ("10.77.0.2:4420", "not_steered"),
        ("0.0.0.0:4420", "other_host"),
    ] {
        let mut lease = None;
        eventually("the port is free", || {
            lease = west.run(|| net.listen(local.parse().unwrap())).ok();
            lease.is_some()
        });
        assert_eq!(fate(&mut one, &west, ours, None), "redirected");
        assert_eq!(fate(&mut one, &west, ours, Some(0)), "redirected");
        assert_eq!(fate(&mut one, &west, ours, Some(42)), in_other_vlan);
        for stranger in [other, [0xff; 6], [0x01, 0, 0x5e, 0, 0, 1]] {
            assert_eq!(fate(&mut one, &west, stranger, None), "other_host");
        }
    }
    let _lease = west.run(|| net.listen("10.77.0.2:4420".parse().unwrap()));
    west.ip("link set dev west address 02:00:00:00:00:09")
        .unwrap();
    eventually("the new address is known", || {
        worker.turn();
        fate(&mut one, &west, other, None) == "redirected"
    });
    assert_eq!(fate(&mut one, &west, ours, None), "other_host");
}

/// Makes a device remove tags, or leave them.
fn remove_tags(namespace: &Namespace, netdev: &str, state: &str) {
    let mut ethtool = namespace.command("ethtool");
    let done = ethtool.args(["-K", netdev, "rxvlan", state]).status();
    assert!(done.unwrap().success());
}

/// A frame for an address of a VLAN that arrives without a tag has lost it, or was sent without
/// one: the device's offload says which.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(vlan)), ignore = "needs a kernel with VLANs")]
fn a_frame_without_a_tag_is_of_a_vlan_while_tags_are_removed() {
    let (east, west) = pair("untagged", 1);
    let add = |vlan: u16| {
        west.ip(&format!(
            "link add link west name west.{vlan} type vlan id {vlan}"
        ))?;
        west.ip(&format!("addr add 10.77.7.2/24 dev west.{vlan}"))?;
        west.ip(&format!("link set dev west.{vlan} up"))
    };
    add(7).unwrap();
    let mut one = open(&east, "east").unwrap();
    let (interface, net) = open_net(&west, InterfaceConfig::new("west"));
    let (bell, waker) = bell().unwrap();
    let (_host, end) = mailbox(Arc::new(StagTable::new(64, [1; 32])), 16, waker);
    let config = EngineConfig::default();
    let _worker = west.run(|| Worker::new(interface, config, [2; 32], end, bell));

    let to: SocketAddr = "10.77.7.2:4420".parse().unwrap();
    let untagged = frame_to(to);
    let mut tagged = untagged.clone();
    tag(&mut tagged, 7);
    let lease = west.run(|| net.listen(to)).unwrap();
    for (state, expected) in [
        ("on", "redirected"),
        ("off", "not_steered"),
        ("on", "redirected"),
    ] {
        remove_tags(&west, "west", state);
        eventually("the offload is known", || {
            fate_of(&mut one, &west, &untagged) == expected
        });
        assert_eq!(fate_of(&mut one, &west, &tagged), "redirected");
    }

    // In two VLANs, the address does not say which it was.
    add(8).unwrap();
    eventually("the second VLAN is known", || {
        fate_of(&mut one, &west, &untagged) == "not_steered"
    });
    drop(lease);
    let refused = west.run(|| net.listen(to)).err().unwrap().to_string();
    assert!(
        refused.contains("in the VLANs 7 and 8 of west"),
        "{refused}"
    );
    remove_tags(&west, "west", "off");
    let mut lease = None;
    eventually("the port is free", || {
        lease = west.run(|| net.listen(to)).ok();
        lease.is_some()
    });
    assert_eq!(fate_of(&mut one, &west, &untagged), "not_steered");
    assert_eq!(fate_of(&mut one, &west, &tagged), "redirected");
}
