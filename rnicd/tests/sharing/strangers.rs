//! What clients may not have of others, whatever they lease: what the host forwards, what the
//! kernel chooses for itself, and peers that no rule gives them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use rnic_manager::Administrator;
use rnic_xdp::testing::{Namespace, VethEnd, veth_pair};

use crate::client::{ALICE, BOB};
use crate::exchange::{Initiator, SOON};
use crate::peer::{PORT, Peer, open};
use crate::rig::{PEER_NIC, Rig};

/// A host behind the one that shares: a pod, or a virtual machine.
struct Pod {
    namespace: Arc<Namespace>,
}

const POD: &str = "10.244.1.5";

impl Pod {
    /// Joins it to the host, which forwards from then on.
    fn new(rig: &Rig) -> Self {
        let namespace = Arc::new(Namespace::new("pod").unwrap());
        let end = |namespace, name, addresses| VethEnd {
            namespace,
            name,
            addresses,
        };
        let host = end(&rig.host, "pod0", "10.244.1.1/24");
        veth_pair(host, end(&namespace, "eth0", "10.244.1.5/24"), 1).unwrap();
        namespace.ip("route add default via 10.244.1.1").unwrap();
        rig.far.ip("route add 10.244.1.0/24 via 10.9.0.1").unwrap();
        set(&rig.host, "ipv4/conf/all/forwarding", "1");
        // The kernel must not see sums that only a device would complete.
        for (namespace, netdev) in [(&rig.far, PEER_NIC), (&namespace, "eth0")] {
            let mut ethtool = namespace.command("ethtool");
            ethtool.args(["-K", netdev, "tx", "off", "gso", "off", "tso", "off"]);
            assert!(ethtool.status().unwrap().success());
        }
        Self { namespace }
    }

    /// Echoes what comes on a TCP port, for two connections.
    fn echo(&self, port: u16) {
        let listen = || TcpListener::bind((POD, port)).unwrap();
        let listener = self.namespace.run(listen);
        std::thread::spawn(move || {
            for stream in listener.incoming().take(2).flatten() {
                std::thread::spawn(move || {
                    let (mut from, mut to) = (&stream, &stream);
                    std::io::copy(&mut from, &mut to)
                });
            }
        });
    }
}

fn set(namespace: &Namespace, setting: &str, value: &str) {
    let path = format!("/proc/sys/net/{setting}");
    namespace.run(|| std::fs::write(path, value)).unwrap();
}

/// Sends something and waits for the same.
fn echoed(mut stream: &TcpStream) -> std::io::Result<()> {
    let mut octets = [0; 4];
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(b"pod?")?;
    stream.read_exact(&mut octets)?;
    assert_eq!(&octets, b"pod?");
    Ok(())
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_lease_of_any_address_takes_nothing_that_the_host_forwards() {
    let rig = Rig::new(1500, "");
    let pod = Pod::new(&rig);
    pod.echo(8443);
    let to: SocketAddr = (POD.parse::<std::net::IpAddr>().unwrap(), 8443).into();
    let connect = || rig.far.run(|| TcpStream::connect_timeout(&to, SOON));
    let before = connect().unwrap();
    echoed(&before).unwrap();
    let mut client = rig.open_client(BOB);
    client.must("listen 0.0.0.0:8443");
    client.tell("serve");
    // What is under way goes on, and new ones reach the pod.
    echoed(&before).unwrap();
    echoed(&connect().unwrap()).unwrap();
    // The lease is for the addresses of the host: those of its NIC, also one that it gets now.
    rig.host.ip("addr add 10.9.0.77/24 dev nic").unwrap();
    let device = open(&rig.far, PEER_NIC);
    for own in ["10.9.0.1:8443", "10.9.0.77:8443"] {
        let connect = || Initiator::connect(&device, own.parse().unwrap(), None);
        rig.far.run(connect).unwrap().round(1).unwrap();
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_host_that_forwards_shares_nothing_unless_told() {
    let mut rig = Rig::new(1500, "");
    let unshare = |rig: &mut Rig| {
        rig.kill();
        let mut command = rig.command();
        let status = rig.host.run(|| command.arg("--unshare").status());
        assert!(status.unwrap().success());
    };
    unshare(&mut rig);
    set(&rig.host, "ipv4/conf/all/forwarding", "1");
    rig.launch();
    rig.until_log("nic cannot be shared now: this host forwards packets for others");
    rig.until_log("Say forwarding = \"accept\"");
    assert!(!rig.shares_device());
    unshare(&mut rig);
    rig.configure("");
    let text = "socket_group = \"nogroup\"\n[[device]]\nname = \"nic\"\nforwarding = \"accept\"\n";
    rig.write_configuration(text);
    rig.start();
    // What it shares already goes on, with the next rnicd too.
    rig.configure("");
    rig.kill();
    rig.start();
    rig.until_log("it goes on as it was shared before");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn tcp_ports_that_nobody_chose_are_of_rnicds_own_range() {
    let rig = Rig::new(1500, "");
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let reserved = "/proc/sys/net/ipv4/ip_local_reserved_ports";
    let reserved = rig.host.run(|| std::fs::read_to_string(reserved)).unwrap();
    assert_eq!(reserved.trim(), "61000-65535");
    let mut client = rig.open_client(ALICE);
    client.must("listen 10.9.0.1:0");
    for _ in 0..3 {
        client.must(&format!("connect 10.9.0.2:{PORT}"));
    }
    let leases = rig.leases();
    assert_eq!(leases.len(), 4);
    for lease in leases {
        let lease: SocketAddr = lease.parse().unwrap();
        assert!((61000..=65535).contains(&lease.port()), "{lease}");
    }
}

/// A rule bounds what comes to a listener as it bounds what goes out, for whatever peers the client
/// has asked.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn peers_bound_what_arrives_at_a_listener() {
    let rules = format!("[[user]]\nuid = {BOB}\npeers = [\"10.9.0.3\"]\n");
    let rig = Rig::new(1500, &rules);
    let device = open(&rig.far, PEER_NIC);
    let mut servers = Vec::new();
    for (user, port) in [(ALICE, 7000), (BOB, 7001)] {
        let mut server = rig.open_client(user);
        server.must(&format!("listen 0.0.0.0:{port}"));
        server.must(&format!("listen 10.9.0.1:{} 10.9.0.0/16", port + 10));
        server.tell("serve");
        servers.push(server);
    }
    let connect = |port: u16| {
        let to = SocketAddr::new([10, 9, 0, 1].into(), port);
        rig.far.run(|| Initiator::connect(&device, to, None))
    };
    for port in [7000, 7010] {
        connect(port).unwrap();
    }
    for port in [7001, 7011] {
        assert!(connect(port).is_err(), "{port}");
    }
}

/// By default clients speak with hosts in the networks of the device alone, as these are at the
/// time.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn peers_on_the_link_are_those_of_the_moment() {
    let rig = Rig::new(1500, "[defaults]\npeers = [\"on-link\"]\n");
    rig.far.ip("addr add 10.10.0.2/24 dev peer0").unwrap();
    rig.far.ip("route add 10.9.0.0/24 dev peer0").ok();
    rig.host.ip("route add 10.10.0.0/24 dev nic").unwrap();
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let mut client = rig.open_client(ALICE);
    client.must(&format!("connect 10.9.0.2:{PORT}"));
    client.must("listen 10.9.0.1:0");
    client.must("rounds 2 1");
    // A route does not make a network of the device.
    let refused = client.ask(&format!("connect 10.10.0.2:{PORT}"));
    let refused = refused.unwrap_err();
    assert!(refused.contains("peers = [\"on-link\"]"), "{refused}");
    rig.host.ip("addr add 10.10.0.1/24 dev nic").unwrap();
    rig.until("the new network counts", || {
        client.ask(&format!("connect 10.10.0.2:{PORT}")).ok()
    });
    client.must("rounds 2 2");
    // An address that goes away for a moment, as when its lease is renewed, ends nothing.
    rig.host.ip("addr del 10.9.0.1/24 dev nic").unwrap();
    rig.until_log("10.9.0.1");
    rig.host.ip("addr add 10.9.0.1/24 dev nic").unwrap();
    client.must("rounds 2 3");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn no_user_takes_all_tcp_ports_that_are_chosen() {
    let mut rig = Rig::new(1500, "");
    let text = "socket_group = \"nogroup\"\nautomatic_ports = \"61000-61039\"\n[[device]]\nname = \"nic\"\n";
    rig.kill();
    rig.write_configuration(text);
    rig.start();
    let take = |uid: u32| {
        let mut client = rig.script(uid);
        let taken: u32 = client.must("chosen 60").parse().unwrap();
        (client, taken)
    };
    let (bob, alice) = (take(BOB), take(ALICE));
    // 3 * 11 > 40 - 11, and then 3 * 8 > 29 - 8.
    assert_eq!((bob.1, alice.1), (11, 8));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_listener_names_a_bounded_number_of_prefixes() {
    let rig = Rig::new(1500, "");
    let mut client = rig.script(BOB);
    assert_eq!(client.must("prefixes 64"), "lease");
    let refused = client.must("prefixes 65");
    assert!(refused.contains("at most 64 prefixes"), "{refused}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_next_rnicd_counts_listeners_as_listeners() {
    let mut rig = Rig::new(1500, "");
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let mut client = rig.open_client(ALICE);
    for port in [5000, 5001, 5002] {
        client.must(&format!("listen 10.9.0.1:{port}"));
    }
    client.must(&format!("connect 10.9.0.2:{PORT}"));
    client.must("unlisten-first");
    let held = |rig: &Rig| {
        let mut administrator = Administrator::connect(&rig.socket()).unwrap();
        let users = administrator.users().unwrap();
        let alice = users.into_iter().find(|user| user.uid == ALICE).unwrap();
        let of = |key: &str| {
            let mut resources = alice.resources.iter();
            resources
                .find(|holding| holding.resource == key)
                .unwrap()
                .held
        };
        (of("listeners"), of("connections"))
    };
    rig.until("it has given one back", || {
        (held(&rig) == (2, 1)).then_some(())
    });
    rig.kill();
    rig.start();
    rig.until("the next one counts the same", || {
        (held(&rig) == (2, 1)).then_some(())
    });
}
