//! What clients do: they connect, listen, and speak with each other and with themselves.

use std::net::SocketAddr;

use crate::client::{ALICE, BOB};
use crate::exchange::Initiator;
use crate::peer::{PORT, Peer, open};
use crate::rig::{NIC, PEER_NIC, Rig, VLAN};

/// The addresses of the host, and of the peer.
const NEAR: [&str; 2] = ["10.9.0.1", "[fd09::1]"];
const FAR: [&str; 2] = ["10.9.0.2", "[fd09::2]"];

/// A client connects to the peer at each of its addresses `far`, and the peer to the client at each
/// of `near`.
fn both_ways(rig: &Rig, near: &[&str], far: &[&str]) {
    let peer = Peer::serve(&rig.far, PEER_NIC);
    for (seed, address) in far.iter().enumerate() {
        let mut client = rig.open_client(ALICE);
        client.must(&format!("connect {address}:{PORT}"));
        client.must(&format!("rounds 20 {}", 100 * seed));
        client.must("close");
    }
    assert_eq!(peer.end(), far.len());

    let device = open(&rig.far, PEER_NIC);
    for address in near {
        let mut client = rig.open_client(BOB);
        let local = client.must(&format!("listen {address}:5000"));
        client.tell("serve");
        let local: SocketAddr = local.parse().unwrap();
        let connect = || Initiator::connect(&device, local, None);
        let mut end = rig.far.run(connect).unwrap();
        for seed in 0..20 {
            end.round(seed).unwrap();
        }
        end.close().unwrap();
        assert_eq!(client.ask("that will do"), Ok("1".into()));
    }
    rig.wait_until_clean(&[5000]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_connects_and_is_connected_to() {
    both_ways(&Rig::new(1500, ""), &NEAR, &FAR);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(vlan)), ignore = "needs a kernel with VLANs")]
fn a_client_connects_and_is_connected_to_over_a_vlan() {
    let rig = Rig::new(1500, "");
    rig.add_vlan();
    let [near, far] = [1, 2].map(|last| format!("10.9.{VLAN}.{last}"));
    both_ways(&rig, &[&near], &[&far]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_uses_jumbo_frames() {
    both_ways(&Rig::new(9000, ""), &NEAR, &FAR);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn clients_of_one_host_speak_with_each_other() {
    let rig = Rig::new(1500, "");
    for address in ["10.9.0.1", "[fd09::1]", "127.0.0.1", "[::1]"] {
        let (mut server, mut client) = (rig.open_client(ALICE), rig.open_client(BOB));
        let local = server.must(&format!("listen {address}:0"));
        server.tell("serve");
        client.must(&format!("connect {local}"));
        client.must("rounds 20 7");
        client.must("close");
        assert_eq!(server.ask("that will do"), Ok("1".into()));
    }
    rig.wait_until_clean(&[]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_program_speaks_with_itself() {
    let rig = Rig::new(1500, "");
    for devices in [1, 2] {
        for address in ["10.9.0.1", "127.0.0.1", "[::1]"] {
            let mut client = rig.open_client(ALICE);
            if devices == 2 {
                client.must(&format!("open {NIC}"));
            }
            let local = client.must(&format!("listen {address}:0"));
            client.must(&format!("talk {local} {devices}"));
        }
    }
    rig.wait_until_clean(&[]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn nobody_listens_at_a_local_port() {
    let rig = Rig::new(1500, "");
    let (mut server, mut client) = (rig.open_client(BOB), rig.open_client(ALICE));
    for address in ["10.9.0.1", "127.0.0.1", "[fd09::1]", "[::1]"] {
        // Where another client listens for others only.
        let others = if address.starts_with('[') {
            "2001:db8::/32"
        } else {
            "198.51.100.0/24"
        };
        let of_others = server.must(&format!("listen {address}:0 {others}"));
        for to in [format!("{address}:5001"), of_others] {
            let error = client.ask(&format!("try {to}")).unwrap_err();
            assert!(error.contains("connection refused"), "{to}: {error}");
        }
    }
    // It can still connect where somebody listens.
    let local = client.must("listen 127.0.0.1:0");
    client.must(&format!("talk {local} 3"));
}
