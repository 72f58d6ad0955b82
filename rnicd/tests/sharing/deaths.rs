//! Clients that are killed leave nothing behind.

use std::time::Duration;

use crate::client::{ALICE, BOB};
use crate::peer::{PORT, Peer};
use crate::rig::{NIC, PEER_NIC, Rig};

/// The TCP ports of the clients.
const FIRST_PORT: u16 = 5000;
const PORTS: u16 = 8;

/// Kills so many clients, each somewhere on its way, and looks whether anything is left.
fn kill(clients: u16) {
    let mut rig = Rig::new(1500, "[defaults]\npeers = [\"10.9.0.0/24\"]\n");
    let peer = Peer::serve(&rig.far, PEER_NIC);
    let mut living = rig.open_client(ALICE);
    living.must(&format!("connect 10.9.0.2:{PORT}"));
    living.tell("stream 1");
    let mut random = fastrand::Rng::with_seed(0x5eed);
    for number in 0..clients {
        let port = FIRST_PORT + number % PORTS;
        let way = [
            format!("open {NIC}"),
            format!("listen 10.9.0.1:{port} 10.9.0.2"),
            format!("connect 10.9.0.2:{PORT}"),
            "rounds 2 7".to_owned(),
            "unlisten".to_owned(),
            "stream 8".to_owned(),
        ];
        let mut client = rig.client(BOB);
        let done = random.usize(..way.len());
        for line in &way {
            client.tell(line);
        }
        for line in &way[..done] {
            // The port of one that was killed just before may be there still.
            if let Err(why) = client.answer() {
                let expected = why.contains("ports") || why.contains("in use");
                let follows = why.contains("no device is open");
                assert!(
                    expected || follows || line.starts_with("unlisten"),
                    "{line}: {why}"
                );
            }
        }
        std::thread::sleep(Duration::from_micros(random.u64(..5000)));
        let without_rnicd = random.u8(..) < 10;
        if without_rnicd {
            rig.kill();
        }
        client.kill();
        if without_rnicd {
            rig.start();
        }
    }
    let rounds: u64 = living.ask("and").unwrap().parse().unwrap();
    assert!(rounds > 0);
    living.must("rounds 3 9");
    drop(living);
    let ports: Vec<_> = (FIRST_PORT..FIRST_PORT + PORTS).collect();
    rig.wait_until_clean(&ports);
    // Those that got as far as the peer were many.
    let connected = peer.end();
    assert!(
        connected > usize::from(clients / 4),
        "only {connected} connected"
    );
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn clients_that_are_killed_leave_nothing() {
    kill(100);
}

#[test]
#[ignore = "takes a minute; `ci/test deaths` runs it"]
fn a_thousand_clients_that_are_killed_leave_nothing() {
    kill(1000);
}
