//! An administrator takes a lease away: what uses it ends at once, and says why.

use std::net::SocketAddr;

use rnic_manager::Administrator;

use crate::client::{ALICE, BOB};
use crate::exchange::Initiator;
use crate::peer::{PORT, Peer, open};
use crate::rig::{PEER_NIC, Rig};

/// Revokes a lease.
fn revoke(rig: &Rig, local: &str) {
    let local: SocketAddr = local.parse().unwrap();
    let mut administrator = Administrator::connect(&rig.socket()).unwrap();
    let leases = administrator.leases().unwrap();
    let lease = leases.iter().find(|lease| lease.local == local).unwrap();
    administrator.revoke(lease.port, local).unwrap();
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_connection_from_there_ends() {
    let rig = Rig::new(1500, "");
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let mut other = rig.open_client(BOB);
    other.must(&format!("connect 10.9.0.2:{PORT}"));
    let mut client = rig.open_client(ALICE);
    for local in ["10.9.0.1:6000", "[fd09::1]:6000"] {
        let to = match local.starts_with('[') {
            true => format!("[fd09::2]:{PORT}"),
            false => format!("10.9.0.2:{PORT}"),
        };
        // Twice from the same port: nothing is left of the first time.
        for seed in 0..2 {
            client.must(&format!("connect {to} {local}"));
            client.tell(&format!("stream {seed}"));
            revoke(&rig, local);
            let error = client.answer().unwrap_err();
            let why = format!("Disconnected(Revoked {{ lease: {local} }})");
            assert!(error.contains(&why), "{error}");
            assert!(client.ask("close").is_err(), "it has ended");
        }
    }
    other.must("rounds 20 1");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_listener_there_ends_with_its_connections() {
    let rig = Rig::new(1500, "");
    let device = open(&rig.far, PEER_NIC);
    let mut server = rig.open_client(ALICE);
    for local in ["10.9.0.1:7000", "0.0.0.0:7001"] {
        let listening = server.must(&format!("listen {local}"));
        server.tell("serve");
        let local: SocketAddr = listening.parse().unwrap();
        let to = SocketAddr::new([10, 9, 0, 1].into(), local.port());
        let connect = || Initiator::connect(&device, to, None);
        let mut end = rig.far.run(connect).unwrap();
        end.round(1).unwrap();
        revoke(&rig, &listening);
        let error = server.answer().unwrap_err();
        let why = format!("the lease of {local} was revoked by an administrator");
        assert!(error.contains(&why), "{error}");
        // The kernel answers what the peer sends there from now on.
        let error = end.round(2).unwrap_err();
        assert!(error.contains("Disconnected(Reset)"), "{error}");
        server.must("unlisten");
    }
}
