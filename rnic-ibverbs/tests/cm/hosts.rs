//! Two hosts, and the processes on them.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use rnic_xdp::testing::{Namespace, VethEnd, veth_pair};

/// Names the role that a process plays.
pub(crate) const ROLE: &str = "RNIC_TEST_ROLE";

/// The hosts' addresses.
pub(crate) const SERVER: &str = "10.78.0.1";
#[allow(dead_code, reason = "not every test with two hosts names the client")]
pub(crate) const CLIENT: &str = "10.78.0.2";

/// What a server prints when clients may come.
pub(crate) const READY: &str = "ready";

/// What has a process take TCP sockets of the kernel, on any interface.
#[allow(dead_code, reason = "not every test with two hosts is over sockets")]
pub(crate) const ANY_BY_SOCKETS: Choice = &[("RNIC_VIA", "kernel")];

/// The environment that chooses a process's devices.
type Choice<'a> = &'a [(&'a str, &'a str)];

/// Plays two roles against each other, each in a process of its own, over AF_XDP. Both must
/// succeed.
pub(crate) fn play(name: &str, server: &str, client: &str) {
    let devices = ["cm0", "cm1"].map(|netdev| [("RNIC_NETDEV", netdev)]);
    play_on(name, [&devices[0], &devices[1]], server, client);
}

/// Plays two roles against each other, on these devices of the server and of the client.
pub(crate) fn play_on(name: &str, devices: [Choice; 2], server: &str, client: &str) {
    let one = Namespace::new(&format!("{name}s")).unwrap();
    let other = Namespace::new(&format!("{name}c")).unwrap();
    let end = |namespace, name, addresses| VethEnd {
        namespace,
        name,
        addresses,
    };
    veth_pair(
        end(&one, "cm0", "10.78.0.1/24 fd78::1/64"),
        end(&other, "cm1", "10.78.0.2/24 fd78::2/64"),
        1,
    )
    .unwrap();
    let mut server = start(&one, devices[0], server);
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    wait_ready(&mut lines);
    let mut client = start(&other, devices[1], client);
    let mut said = String::new();
    let client_says = client.stdout.take().unwrap();
    BufReader::new(client_says)
        .read_to_string(&mut said)
        .unwrap();
    let client_done = client.wait().unwrap();
    let mut answered = String::new();
    if client_done.success() {
        lines.read_to_string(&mut answered).unwrap();
    } else {
        let _ = server.kill();
    }
    let server_done = server.wait().unwrap();
    assert!(client_done.success(), "the client failed:\n{said}");
    assert!(server_done.success(), "the server failed:\n{answered}");
}

fn start(host: &Namespace, device: Choice, role: &str) -> Child {
    let mut command: Command = host.command(std::env::current_exe().unwrap());
    command
        .args(["role", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env_remove("RNIC_NETDEV")
        .envs(device.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command.spawn().unwrap()
}

fn wait_ready(lines: &mut impl BufRead) {
    let mut before = String::new();
    loop {
        let mut line = String::new();
        let read = lines.read_line(&mut line).unwrap();
        assert_ne!(read, 0, "the server ended before it was ready:\n{before}");
        if line.trim() == READY {
            return;
        }
        before += &line;
    }
}
