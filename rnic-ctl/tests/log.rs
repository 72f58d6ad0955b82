//! The log: with `RUST_LOG=rnic=debug`, standard error says why a connection was not established,
//! on both sides. Through real XDP and AF_XDP on a veth pair.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use common::{Running, link, text};
use rnic_xdp::testing::Namespace;

/// The command with a log, or without.
fn rnic_ctl(namespace: &Namespace, netdev: &str, line: &str, log: Option<&str>) -> Command {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_rnic-ctl"));
    command.args(line.split_whitespace());
    command.args(["--netdev", netdev]);
    match log {
        Some(filter) => command.env("RUST_LOG", filter),
        None => command.env_remove("RUST_LOG"),
    };
    command
}

/// Returns whether a line comes from a crate and says this.
fn says(log: &str, target: &str, words: &str) -> bool {
    let mut lines = log.lines();
    lines.any(|line| line.contains(&format!(" {target}")) && line.contains(words))
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_log_says_why_connecting_failed() {
    let (_server, client) = link("logc", "theirs");
    for (address, reason) in [
        (
            "10.77.0.1",
            [("rnic_verbs", "connecting failed: connection refused")].as_slice(),
        ),
        (
            "10.77.0.9",
            &[
                ("rnic_xdp", "the neighbour 10.77.0.9 does not answer"),
                ("rnic_verbs", "connecting failed: no route to the peer"),
            ],
        ),
        (
            "192.0.2.9",
            &[("rnic_verbs", "cannot connect to 192.0.2.9:18515: no route")],
        ),
    ] {
        let line = format!("perf write-bw {address}");
        let run = |log| {
            let output = Running::start(rnic_ctl(&client, "theirs", &line, log)).finish(&line);
            assert_eq!(output.status.code(), Some(1), "{address}");
            (text(&output.stdout), text(&output.stderr))
        };
        let (stdout, log) = run(Some("rnic=debug"));
        for (target, words) in reason {
            assert!(says(&log, target, words), "{address}: {words}: {log}");
        }
        assert!(says(&log, "rnic_xdp", "opened theirs: "), "{log}");
        // Without a log there is the failure alone, in one line.
        let (stdout_without, failure) = run(None);
        assert_eq!(failure.lines().count(), 1, "{failure}");
        assert!(failure.starts_with("rnic-ctl: ") && log.contains(&failure));
        assert_eq!(stdout, stdout_without);
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn both_sides_log_a_rejection() {
    let (one, other) = link("logr", "theirs");
    let server = rnic_ctl(
        &one,
        "ours",
        "rping -s --reject go-away",
        Some("rnic=debug"),
    );
    let server = Running::start(server).until_it_says("listening");
    let line = "rping -c -a 10.77.0.1 -C 1";
    let client = rnic_ctl(&other, "theirs", line, Some("rnic=debug"));
    let client = text(&Running::start(client).finish(line).stderr);
    let server = text(&server.finish("the server").stderr);
    let words =
        "QP 0: the peer rejects the connection with an MPA Reply (7 octets of private data)";
    assert!(says(&client, "rnic_verbs", words), "{client}");
    for (target, words) in [
        ("rnic_verbs", "listening on 0.0.0.0:7174"),
        ("rnic_verbs", "asks to connect to 10.77.0.1:7174"),
        ("rnic_verbs", "rejects 10.77.0.2:"),
        (
            "rnic_xdp",
            "0.0.0.0:7174 is reserved in the kernel and steered",
        ),
    ] {
        assert!(says(&server, target, words), "{words}: {server}");
    }
}

/// A client that does not speak MPA makes no connection request, so that the application gets no
/// event of it.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_server_logs_a_client_that_fails_before_its_request() {
    let (one, other) = link("logs", "theirs");
    for log in [Some("rnic=debug"), None] {
        let server = rnic_ctl(&one, "ours", "perf write-bw", log);
        let server = Running::start(server).until_it_says("waiting for a client");
        let ended = other.run(|| {
            let mut client = TcpStream::connect(("10.77.0.1", 18515)).unwrap();
            let patience = Some(Duration::from_secs(60));
            client.set_read_timeout(patience).unwrap();
            client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            client.read(&mut [0; 100])
        });
        let reset = std::io::ErrorKind::ConnectionReset;
        assert!(matches!(ended, Ok(0)) || ended.is_err_and(|why| why.kind() == reset));
        server.interrupt();
        let output = server.finish("the server");
        assert_eq!(output.status.code(), Some(130));
        let said = text(&output.stderr);
        if log.is_none() {
            assert_eq!(said.lines().count(), 1, "{said}");
            continue;
        }
        let words = "connected to a listener and is refused: MPA start-up failed: ";
        assert!(says(&said, "rnic_core", words), "{said}");
        assert!(says(&said, "rnic_core", " 10.77.0.2:"), "{said}");
        for target in ["rnic_verbs", "rnic_xdp"] {
            assert!(says(&said, target, ""), "{target}: {said}");
        }
    }
}
