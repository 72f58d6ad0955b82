//! rnicd ends and starts again under its clients, and reads its configuration again.

use nix::sys::signal::Signal;

use crate::client::{ALICE, BOB, Client};
use crate::peer::{PORT, Peer};
use crate::rig::{NIC, PEER_NIC, Rig};

/// rnicd is killed this often, while clients transfer without a pause.
fn survive(restarts: u32) {
    // The kernel takes its time to remove the ports of clients that have ended.
    let mut rig = Rig::new(
        1500,
        "[defaults]\nports = 100\nframes = 1000000\nhugepages = \"1GiB\"\n",
    );
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let to_peer = format!("connect 10.9.0.2:{PORT}");
    let mut streaming = rig.open_client(ALICE);
    streaming.must(&to_peer);
    streaming.tell("stream 1");
    let (mut server, mut local) = (rig.open_client(ALICE), rig.open_client(BOB));
    let listener = server.must("listen 10.9.0.1:5000");
    server.tell("serve");
    local.must(&format!("connect {listener}"));
    local.tell("stream 2");
    let mut other = rig.open_client(BOB);

    for restart in 0..restarts {
        rig.kill();
        if restart % 2 == 0 {
            // What it asks for while rnicd is away it gets afterwards.
            other.tell(&to_peer);
            rig.start();
            other.answer().unwrap();
        } else {
            rig.start();
            other.must(&to_peer);
        }
        other.must("rounds 2 3");
        other.must("close");
        let mut new = rig.open_client(BOB);
        new.must(&to_peer);
        new.must("rounds 2 4");
        // The others have gone on meanwhile.
        for client in [&mut streaming, &mut local] {
            let rounds: u64 = client.ask("and").unwrap().parse().unwrap();
            assert!(rounds > 0);
            client.tell(&format!("stream {restart}"));
        }
    }
    for client in [&mut streaming, &mut local] {
        client.must("that will do");
        client.must("close");
    }
    assert_eq!(server.ask("that will do"), Ok("1".into()));
    drop((streaming, server, local, other));
    rig.wait_until_clean(&[5000]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn connections_survive_that_rnicd_is_killed() {
    survive(10);
}

#[test]
#[ignore = "takes a minute; `ci/test deaths` runs it"]
fn connections_survive_that_rnicd_is_killed_a_hundred_times() {
    survive(100);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_a_client_gave_up_while_rnicd_was_away_is_swept() {
    let mut rig = Rig::new(1500, "");
    let (mut kept, mut gone) = (rig.open_client(ALICE), rig.open_client(BOB));
    for port in [5000, 5001] {
        kept.must(&format!("listen 10.9.0.1:{port}"));
    }
    gone.must("listen 10.9.0.1:5002");
    assert_eq!(
        rig.leases(),
        ["10.9.0.1:5000", "10.9.0.1:5001", "10.9.0.1:5002"]
    );
    rig.kill();
    kept.must("unlisten-first");
    gone.kill();
    rig.start();
    rig.until("only what is still in use is leased", || {
        (rig.leases() == ["10.9.0.1:5001"]).then_some(())
    });
    // A new client may have what the others had.
    let mut new = rig.open_client(BOB);
    for port in [5000, 5002] {
        new.must(&format!("listen 10.9.0.1:{port}"));
    }
    let taken = new.ask("listen 10.9.0.1:5001").unwrap_err();
    assert!(taken.contains("5001"), "{taken}");
    drop((kept, new));
    rig.wait_until_clean(&[5000, 5001, 5002]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_waits_for_a_device_that_rnicd_cannot_share_yet() {
    let mut rig = Rig::new(1500, "");
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let mut client = rig.open_client(ALICE);
    client.must(&format!("connect 10.9.0.2:{PORT}"));
    rig.kill();
    rig.host.ip("link set dev nic down").unwrap();
    rig.launch();
    rig.until_log("nic cannot be shared now");
    rig.until_log("may be one of a device that is not shared now");
    rig.host.ip("link set dev nic up").unwrap();
    rig.until("rnicd shares it", || rig.shares_device().then_some(()));
    client.must("rounds 3 1");
    client.must("listen 10.9.0.1:5000");
    drop(client);
    rig.wait_until_clean(&[5000]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_lease_of_which_the_client_knows_nothing_is_swept() {
    let mut rig = Rig::new(1500, "");
    let mut client = rig.script(ALICE);
    client.must("lease_two");
    rig.kill();
    rig.start();
    assert_eq!(rig.leases(), ["10.9.0.1:5000", "10.9.0.1:5001"]);
    assert_eq!(client.must("come_back"), "adopted");
    assert_eq!(rig.leases(), ["10.9.0.1:5001"]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_that_dies_without_rnicd_leaves_nothing() {
    let mut rig = Rig::new(1500, "[defaults]\npeers = [\"10.9.0.0/24\"]\n");
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let mut client = rig.open_client(ALICE);
    client.must(&format!("connect 10.9.0.2:{PORT} 10.9.0.1:5003"));
    client.must("listen 10.9.0.1:5004");
    client.must("rounds 1 1");
    assert!(!rig.leftovers(&[5003, 5004]).is_empty());
    rig.kill();
    client.kill();
    rig.until("the kernel has removed the port", || {
        rig.devices().is_empty().then_some(())
    });
    rig.start();
    rig.wait_until_clean(&[5003, 5004]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_program_that_is_killed_and_started_again_has_what_it_had() {
    let rig = Rig::new(1500, "[defaults]\nports = 1\n");
    for _ in 0..20 {
        let mut client = rig.open_client(ALICE);
        client.must("listen 10.9.0.1:5000");
        let other = rig.client(ALICE).ask(&format!("open {NIC}")).unwrap_err();
        assert!(other.contains("may hold ports = 1"), "{other}");
        client.kill();
    }
    rig.wait_until_clean(&[5000]);
}

/// Returns whether a client may listen there, be it free or not.
fn may_listen(client: &mut Client, port: u16) -> bool {
    let answer = client.ask(&format!("listen 10.9.0.1:{port}"));
    client.must("unlisten");
    answer.map_or_else(|why| !why.contains("may listen on"), |_| true)
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_changed_configuration_counts_at_once_and_a_broken_one_does_not() {
    let rig = Rig::new(1500, "[defaults]\nlisten = [5000]\n");
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let mut client = rig.open_client(ALICE);
    client.must(&format!("connect 10.9.0.2:{PORT}"));
    assert!(may_listen(&mut client, 5000) && !may_listen(&mut client, 5001));

    rig.configure("[defaults]\nlisten = [5001]\n");
    rig.signal(Signal::SIGHUP);
    rig.until_log("was read again");
    assert!(!may_listen(&mut client, 5000) && may_listen(&mut client, 5001));

    rig.configure("[defaults]\nlisten = \"everywhere\"\n");
    rig.signal(Signal::SIGHUP);
    rig.until_log("the configuration stays as it was");
    assert!(rig.log().contains("rnicd.toml:5: "), "{}", rig.log());
    assert!(!may_listen(&mut client, 5000) && may_listen(&mut client, 5001));
    client.must("rounds 3 5");

    // A device that is shared no more is taken away from its clients.
    rig.write_configuration("socket_group = \"nogroup\"\n");
    rig.signal(Signal::SIGHUP);
    rig.until_log("nic is shared no more");
    let error = client.ask("rounds 1 6").unwrap_err();
    assert!(!error.is_empty());
    assert!(!rig.shares_device());
    rig.configure("");
    rig.signal(Signal::SIGHUP);
    rig.until("the device is shared again", || {
        rig.shares_device().then_some(())
    });
    let mut new = rig.open_client(ALICE);
    new.must(&format!("connect 10.9.0.2:{PORT}"));
    new.must("rounds 3 7");
}
