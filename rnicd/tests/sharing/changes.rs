//! The device changes under rnicd and its clients.

use rnic_manager::Administrator;
use rnic_manager::states::PortState;

use crate::client::{ALICE, Client};
use crate::peer::{PORT, Peer};
use crate::rig::{NIC, PEER_NIC, Rig};

/// A client that transfers without a pause.
fn streaming(rig: &Rig, from: &str) -> Client {
    let mut client = rig.open_client(ALICE);
    client.must(&format!("connect 10.9.0.2:{PORT} {from}"));
    client.tell("stream 1");
    client
}

/// Checks that a client goes on after a change.
fn goes_on(client: &mut Client) {
    client.must("and");
    client.must("rounds 20 2");
    client.tell("stream 3");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_device_goes_down_and_up() {
    let rig = Rig::new(1500, "");
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let mut client = streaming(&rig, "0.0.0.0:0");
    for _ in 0..3 {
        let downs = rig.log().matches("nic is down").count();
        rig.host.ip("link set dev nic down").unwrap();
        rig.until("rnicd says that the device is down", || {
            (rig.log().matches("nic is down").count() > downs).then_some(())
        });
        rig.host.ip("link set dev nic up").unwrap();
        goes_on(&mut client);
    }
    // Ports are made, too.
    goes_on(&mut streaming(&rig, "0.0.0.0:0"));
}

/// Returns the MTU of a client's port.
fn mtu_of(rig: &Rig, client: &Client) -> u32 {
    let ports = Administrator::connect(&rig.socket())
        .unwrap()
        .ports()
        .unwrap();
    let own = |port: &&PortState| port.pid == client.pid() as i32;
    let port = ports.iter().find(own).unwrap();
    port.host_end.as_ref().unwrap().mtu
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_mtu_changes() {
    let rig = Rig::new(1500, "");
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let mut client = streaming(&rig, "0.0.0.0:0");
    let mut follower = rig.script(ALICE);
    follower.must("follow 10.9.0.2");
    follower.must("until_mtu 1500");
    for mtu in [1300, 1500, 1280, 1400, 3000] {
        for (namespace, netdev) in [(&rig.host, NIC), (&rig.far, PEER_NIC)] {
            let set = format!("link set dev {netdev} mtu {mtu}");
            namespace.ip(&set).unwrap();
        }
        follower.must(&format!("until_mtu {mtu}"));
        goes_on(&mut client);
        // A port has the MTU that the device had when it was made.
        let mut new = streaming(&rig, "0.0.0.0:0");
        goes_on(&mut new);
        assert_eq!([mtu_of(&rig, &client), mtu_of(&rig, &new)], [1500, mtu]);
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn an_address_goes_and_comes_back() {
    let rig = Rig::new(1500, "");
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let mut other = streaming(&rig, "0.0.0.0:0");
    let mut client = rig.open_client(ALICE);
    let from = "10.9.0.3:5000";
    let connected = client.ask(&format!("connect 10.9.0.2:{PORT} {from}"));
    assert!(connected.is_err(), "from an address that is not there");
    for _ in 0..3 {
        rig.host.ip("addr add 10.9.0.3/24 dev nic").unwrap();
        // That the path is unreachable may be on its way to the client still, for a connection that
        // had the address before.
        rig.until("the client connects from there", || {
            client
                .ask(&format!("connect 10.9.0.2:{PORT} 10.9.0.3:0"))
                .ok()
        });
        client.must("rounds 3 1");
        rig.host.ip("addr del 10.9.0.3/24 dev nic").unwrap();
        let before = rig.dropped_for_source();
        client.tell("rounds 3 2");
        rig.until("what the client sends is dropped", || {
            (rig.dropped_for_source() > before).then_some(())
        });
        rig.host.ip("addr add 10.9.0.3/24 dev nic").unwrap();
        client.answer().unwrap();
        client.must("close");
        rig.host.ip("addr del 10.9.0.3/24 dev nic").unwrap();
        goes_on(&mut other);
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_device_is_removed_and_comes_back() {
    let rig = Rig::new(1500, "[defaults]\nports = 2\n");
    let mut peer = Peer::serve(&rig.far, PEER_NIC);
    for time in 1..=3 {
        let mut client = streaming(&rig, "0.0.0.0:0");
        client.must("and");
        let mut idle = rig.open_client(ALICE);
        rig.host.ip("link del dev nic").unwrap();
        rig.until("rnicd says that the device is gone", || {
            let log = rig.log();
            let said = log.matches("nic is gone, and its ports with it");
            (said.count() == time).then_some(())
        });
        let error = client.ask("rounds 1 2").unwrap_err();
        assert!(!error.is_empty());
        let error = idle.ask("listen 10.9.0.1:5000").unwrap_err();
        assert!(error.contains("rnicd has taken the port away"), "{error}");
        drop(peer);
        rig.join(1500);
        peer = Peer::serve(&rig.far, PEER_NIC);
        rig.until("the device is shared again", || {
            rig.shares_device().then_some(())
        });
        // What it had is not counted any more: two ports are all that it may have.
        client.must("drop");
        client.must(&format!("open {NIC}"));
        client.must(&format!("connect 10.9.0.2:{PORT}"));
        client.must("rounds 3 3");
        drop((client, idle));
        rig.wait_until_clean(&[]);
    }
}

/// The kernel spreads the connections that it opens over all queues.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn queues_are_added() {
    let mut rig = Rig::new(1500, "");
    rig.have_queues(4);
    let mut server = rig.open_client(ALICE);
    server.must("listen 10.9.0.1:7000");
    server.tell("serve");
    let reaches = |count: u32| {
        let connect = format!(
            "import socket
for _ in range({count}): socket.create_connection(('10.9.0.1', 7000), 30)"
        );
        let mut client = rig.far.command("python3");
        client
            .args(["-c", &connect])
            .output()
            .unwrap()
            .status
            .success()
    };
    assert!(reaches(1));
    rig.set_queues(4);
    // On a queue without the program, the kernel refuses.
    rig.until("every queue is steered", || reaches(50).then_some(()));
    rig.until_log("nic has 4 receive queues now");
}
