//! Leases that are revoked and ports that are ended, in the middle of a transfer.

use serde_json::Value;

use crate::common::{Running, text};
use crate::world::{World, succeed};

/// A client without rights, which transfers without end on port 1, and its server on the peer.
pub(crate) fn transfer(world: &World, server: &str, client: &str) -> (Running, Running) {
    let server = world.peers(&format!("{server} --netdev theirs"));
    let server = Running::start(server).until_it_says("listening on");
    let client = Running::start(world.nobody(&format!("{client} --netdev nic")));
    world.until("the client transfers", || {
        let ports = world.ask("stat show");
        let sent = ports[0]["sent"]["to_nic"]["frames"].as_u64();
        let received = ports[0]["rx_frames"].as_u64();
        (sent > Some(100) && received > Some(100)).then_some(())
    });
    (server, client)
}

/// What the steering program has of the device.
fn steered(world: &World) -> Vec<String> {
    let report = world.ask("steering --netdev nic");
    let entries = report["steered"].as_array().unwrap().iter();
    entries
        .map(|entry| entry.as_str().unwrap().to_owned())
        .collect()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_lease_that_was_revoked_ends_what_used_it() {
    let world = World::new("");
    // One connection: the end of another one would tell the client.
    let client = "rping -c -a 10.77.0.2 -C 1000000000";
    let (_server, client) = transfer(&world, "rping -s -a 10.77.0.2", client);
    let leases = world.ask("lease show 1");
    let local = leases[0]["lease"].as_str().unwrap();
    assert_eq!(steered(&world), [local]);
    succeed(&mut world.root(&format!("lease revoke 1 {local}")));
    assert_eq!(steered(&world), [""; 0]);
    assert_eq!(world.ask("lease"), Value::Array(Vec::new()));
    let output = client.finish("a client whose lease was revoked");
    assert!(!output.status.success());
    let said = text(&output.stderr);
    let why = format!("the lease of {local} was revoked by an administrator");
    assert!(said.contains(&why), "{said}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_port_that_was_ended_is_gone_from_the_kernel_and_its_number_is_free() {
    let world = World::new("");
    let client = "rping -c -a 10.77.0.2 -C 1000000000";
    let (_server, client) = transfer(&world, "rping -s -a 10.77.0.2", client);
    let rates = world.ask("stat watch 1 -n 1");
    for way in ["tx_frames", "tx_bits", "rx_frames", "rx_bits"] {
        let rate = rates[format!("{way}_per_second")].as_u64();
        assert!(rate > Some(0), "{rates}");
    }
    let port = &world.ask("port show 1")[0];
    let (pid, host_end) = (
        port["pid"].as_i64().unwrap(),
        port["host_end"]["dev"].as_str(),
    );
    let host_end = host_end.unwrap();
    assert!(world.host.ip("link").unwrap().contains(host_end));
    succeed(&mut world.root(&format!("client kill --pid {pid}")));
    assert_eq!(steered(&world), [""; 0]);
    for object in ["lease", "stat"] {
        assert_eq!(world.ask(object), Value::Array(Vec::new()), "{object}");
    }
    // It counts until its client has closed its socket.
    for port in world.ask("port show").as_array().unwrap() {
        assert_eq!(port["state"], "ending", "{port}");
    }
    world.until("the port is gone", || {
        let is_there = world.host.ip("link").unwrap().contains(host_end);
        let ports = world.ask("port show");
        (!is_there && ports == Value::Array(Vec::new())).then_some(())
    });
    let holding = world.ask("user show");
    let holding = holding.as_array().unwrap().iter();
    for user in holding.filter(|user| user["user"] == "nobody") {
        assert_eq!(user["ports"]["held"], 0, "{user}");
    }
    let output = client.finish("a client whose port was ended");
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("the network device is gone"), "{said}");

    let server = world.nobody("rping -s -a 10.77.0.1 --netdev nic");
    let _server = Running::start(server).until_it_says("listening on");
    assert_eq!(world.ask("port show")[0]["port"], 1);
}
