//! The host's policy: what IPsec policies demand, and who may connect.

use std::time::Duration;

use rnic_core::engine::NetError;
use rnic_verbs::{ConnectionOptions, Error, Peers, QpState};
use rnic_xdp::steering;

use crate::rig::{End, Rig, Runs};

/// Returns the policy that an error names.
fn policy_of<T>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Net(NetError::Protected { policy, .. })) => policy,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("no policy forbids it"),
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn where_a_policy_demands_protection_nothing_connects_or_listens() {
    let rig = Rig::new(1500, 1, Runs::Inline);
    let add = "xfrm policy add src 10.77.0.1 dst 10.77.0.2 proto tcp dir out priority 9 \
               tmpl proto esp mode transport";
    rig.east.ip(add).unwrap();
    let expected = "src 10.77.0.1 dst 10.77.0.2 dir out priority 9 tmpl proto esp mode transport";
    let mut end = End::new(&rig.client, 4096);
    let connect = |end: &mut End| {
        let to = "10.77.0.2:4420".parse().unwrap();
        let options = ConnectionOptions::default();
        rig.east.run(|| end.qp.connect(to, None, options))
    };
    assert_eq!(policy_of(connect(&mut end)), expected);
    assert_eq!(end.qp.state(), QpState::Init);
    let listen = |address: &str, peers| {
        let address = address.parse().unwrap();
        rig.east.run(|| rig.client.listen_to(address, peers))
    };
    assert_eq!(policy_of(listen("10.77.0.1:7000", Peers::all())), expected);
    assert_eq!(policy_of(listen("0.0.0.0:7000", Peers::all())), expected);
    let others = Peers::only(["10.77.0.128/25".parse().unwrap()]);
    listen("10.77.0.1:7000", others).unwrap();
    listen("[::]:7001", Peers::all()).unwrap();
    // The policy does not select other addresses.
    let (mut client, mut server) = rig.connect("[fd77::2]:4420", 4096);
    rig.exchange(&mut client, &mut server, 4096);
    rig.east.ip("xfrm policy flush").unwrap();
    let (mut client, mut server) = rig.connect("10.77.0.2:4420", 4096);
    rig.exchange(&mut client, &mut server, 4096);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn a_listener_follows_policies_as_they_change() {
    let rig = Rig::new(1500, 1, Runs::Inline);
    let address = "10.77.0.2:4420".parse().unwrap();
    let listener = rig.west.run(|| rig.server.listen(address)).unwrap();
    let reaches = || rig.reaches(&listener);
    assert!(reaches());
    let add = "xfrm policy add src 10.77.0.0/24 dst 10.77.0.2 dir in tmpl proto esp mode transport";
    rig.west.ip(add).unwrap();
    rig.until("policies are followed", || !reaches());
    rig.west.ip("xfrm policy flush").unwrap();
    rig.until("policies are followed", reaches);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_kernel_refuses_strangers_and_peers_connect() {
    let rig = Rig::new(1500, 1, Runs::Inline);
    for more in ["10.77.0.3/24", "fd77::3/64 nodad"] {
        rig.west.ip(&format!("addr add {more} dev west")).unwrap();
    }
    let counters = || rig.east.run(|| steering::counters("east")).unwrap();
    for (local, peer, stranger) in [
        ("10.77.0.1:4420", "10.77.0.2", "10.77.0.3"),
        ("[fd77::1]:4420", "fd77::2", "fd77::3"),
        ("0.0.0.0:4421", "10.77.0.2", "10.77.0.3"),
        ("[::]:4421", "fd77::2", "fd77::3"),
    ] {
        let local = local.parse().unwrap();
        let peers = Peers::only([peer.parse().unwrap()]);
        let listen = || rig.client.listen_to(local, peers);
        let listener = rig.east.run(listen).unwrap();
        let (host, port) = match local.is_ipv4() {
            true => ("10.77.0.1", local.port()),
            false => ("fd77::1", local.port()),
        };
        let before = counters();
        let connect = format!(
            "import socket; socket.create_connection(('{host}', {port}), 30, ('{stranger}', 0))"
        );
        let mut client = rig.west.command("python3");
        let client = client.args(["-c", &connect]).output().unwrap();
        let said = String::from_utf8_lossy(&client.stderr);
        assert!(said.contains("ConnectionRefusedError"), "{said}");
        let after = counters();
        assert_eq!(after.redirected, before.redirected);
        assert!(after.strangers > before.strangers, "{after:?}");

        let mut end = End::new(&rig.server, 4096);
        let to = std::net::SocketAddr::new(host.parse().unwrap(), port);
        let from = std::net::SocketAddr::new(peer.parse().unwrap(), 0);
        let options = ConnectionOptions::default();
        rig.west
            .run(|| end.qp.connect(to, Some(from), options))
            .unwrap();
        rig.until("a request", || {
            listener.next_request(Duration::ZERO).unwrap().is_some()
        });
    }
}
