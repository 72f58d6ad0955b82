//! Two processes in two network namespaces, joined by a veth pair: everything through XDP and AF_XDP.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rnic_xdp::testing::{Namespace, VethEnd, is_root, veth_pair};
use serde_json::Value;

const SERVER_ADDRESS: &str = "10.88.0.1";

/// Two hosts.
struct Hosts {
    server: Namespace,
    client: Namespace,
}

impl Hosts {
    /// `None` where the test cannot run.
    fn new(test: &str) -> Option<Self> {
        if !is_root(test) {
            return None;
        }
        let (server, client) = (
            Namespace::new("srv").unwrap(),
            Namespace::new("cli").unwrap(),
        );
        veth_pair(
            VethEnd {
                namespace: &server,
                name: "rnic0",
                addresses: "10.88.0.1/24 fd88::1/64",
            },
            VethEnd {
                namespace: &client,
                name: "rnic0",
                addresses: "10.88.0.2/24 fd88::2/64",
            },
            2,
        )
        .unwrap();
        Some(Self { server, client })
    }

    /// Starts a server, and waits until it listens.
    fn serve(&self, line: &str) -> Server {
        let mut command = command(&self.server, line);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("listening") {
            line.clear();
            assert_ne!(
                said.read_line(&mut line).unwrap(),
                0,
                "the server does not come up"
            );
        }
        Server { child, said }
    }

    fn client(&self, line: &str) -> Output {
        command(&self.client, line).output().unwrap()
    }

    /// Segments that the kernel's TCP of a namespace has seen, in and out.
    fn kernel_tcp(namespace: &Namespace) -> String {
        let output = namespace
            .command("cat")
            .arg("/proc/net/snmp")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text
            .lines()
            .filter(|line| line.starts_with("Tcp:"))
            .nth(1)
            .unwrap();
        line.split_whitespace()
            .skip(10)
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// XDP programs on both interfaces, in the words of `ip link`.
    fn programs(&self) -> [bool; 2] {
        [&self.server, &self.client]
            .map(|namespace| namespace.ip("link show dev rnic0").unwrap().contains("xdp"))
    }
}

/// A command in a namespace: `ip netns exec` becomes rnic-ctl itself, so that signals reach it.
fn command(namespace: &Namespace, line: &str) -> Command {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_rnic-ctl"));
    command
        .args(line.split_whitespace())
        .args(["--netdev", "rnic0"]);
    command
}

struct Server {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Server {
    /// Its exit code, and what it said.
    fn end(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                self.child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        (status.code(), said)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn every_perf_test_runs_and_the_kernels_tcp_sees_none_of_it() {
    let Some(hosts) = Hosts::new("every_perf_test_runs_and_the_kernels_tcp_sees_none_of_it") else {
        return;
    };
    let before = [&hosts.server, &hosts.client].map(Hosts::kernel_tcp);
    for (test, address) in [
        ("write-bw", SERVER_ADDRESS),
        ("read-bw", SERVER_ADDRESS),
        ("send-bw", SERVER_ADDRESS),
        ("write-lat", "fd88::1"),
        ("read-lat", SERVER_ADDRESS),
        ("send-lat", SERVER_ADDRESS),
    ] {
        let wildcard = if address.contains(':') {
            "--local ::"
        } else {
            ""
        };
        let server = hosts.serve(&format!("perf {test} {wildcard}"));
        let output = hosts.client(&format!("-j perf {test} -v -n 300 -s 10000 {address}"));
        let report = json(&output);
        assert_eq!(
            report["results"][0]["n_iterations"], 300,
            "{test}: {report}"
        );
        let (code, said) = server.end();
        assert_eq!(code, Some(0), "{test}: {said}");
        assert!(
            said.contains(" 10000 "),
            "{test}: the server shows the result too: {said}"
        );
    }
    let after = [&hosts.server, &hosts.client].map(Hosts::kernel_tcp);
    assert_eq!(before, after);
    assert_eq!(hosts.programs(), [false; 2]);
}

#[test]
fn sixty_four_connections() {
    let Some(hosts) = Hosts::new("sixty_four_connections") else {
        return;
    };
    for test in ["write-bw", "read-bw", "send-bw"] {
        let server = hosts.serve(&format!("perf {test}"));
        let output = hosts.client(&format!(
            "-j perf {test} -v -n 40 -q 64 -t 8 -s 3000 {SERVER_ADDRESS}"
        ));
        assert_eq!(
            json(&output)["results"][0]["n_iterations"],
            64 * 40,
            "{test}"
        );
        assert_eq!(server.end().0, Some(0), "{test}");
    }
}

#[test]
fn a_wrong_test_is_told_on_both_sides() {
    let Some(hosts) = Hosts::new("a_wrong_test_is_told_on_both_sides") else {
        return;
    };
    let server = hosts.serve("perf write-bw");
    let output = hosts.client(&format!("-j perf read-lat {SERVER_ADDRESS}"));
    assert_eq!(output.status.code(), Some(1));
    let why = json(&output)["error"].as_str().unwrap().to_owned();
    assert!(
        why.contains("the server runs write-bw, the client read-lat"),
        "{why}"
    );
    assert_eq!(server.end().0, Some(1));
}

#[test]
fn rping_there_and_back() {
    let Some(hosts) = Hosts::new("rping_there_and_back") else {
        return;
    };
    for thread in ["", "--thread"] {
        let server = hosts.serve(&format!("rping -s -a {SERVER_ADDRESS} -v {thread}"));
        let output = hosts.client(&format!(
            "-j rping -c -a {SERVER_ADDRESS} -C 20 -V -S 4000 {thread}"
        ));
        assert_eq!(json(&output)["pings"], 20);
        let (code, said) = server.end();
        assert_eq!(
            (code, said.matches("server ping data").count()),
            (Some(0), 20),
            "{said}"
        );
    }
}

#[test]
fn steering_and_doctor_tell_what_goes_on() {
    let Some(hosts) = Hosts::new("steering_and_doctor_tell_what_goes_on") else {
        return;
    };
    let doctor = command(&hosts.server, "-j doctor").output().unwrap();
    let report = json(&doctor);
    assert_eq!(doctor.status.success(), report["ok"] == true, "{report}");
    assert!(
        report["device"]
            .as_array()
            .unwrap()
            .iter()
            .any(|fact| fact["name"] == "driver"),
        "{report}"
    );

    let idle = command(&hosts.server, "-j steering").output().unwrap();
    assert_eq!(idle.status.code(), Some(1));

    let server = hosts.serve(&format!("rping -s -a {SERVER_ADDRESS} -p 7999"));
    let output = hosts.client(&format!(
        "rping -c -a {SERVER_ADDRESS} -p 7999 -C 5 --bad-rkey"
    ));
    assert_eq!(output.status.code(), Some(1));
    server.end();
    let server = hosts.serve(&format!("rping -s -a {SERVER_ADDRESS} -p 7999"));
    let report = json(&command(&hosts.server, "-j steering").output().unwrap());
    assert_eq!(report["steered"], serde_json::json!(["10.88.0.1:7999"]));
    // Nobody but us: the doctor does not disturb.
    let report = json(&command(&hosts.server, "-j doctor").output().unwrap());
    assert!(
        report["device"]
            .as_array()
            .unwrap()
            .iter()
            .all(|fact| fact["name"] != "trial"),
        "{report}"
    );
    server.signal(Signal::SIGINT);
    assert_eq!(server.end().0, Some(130));
}

#[test]
fn whoever_is_killed_leaves_nothing_and_the_other_side_notices() {
    let Some(hosts) = Hosts::new("whoever_is_killed_leaves_nothing_and_the_other_side_notices")
    else {
        return;
    };
    for signal in [Signal::SIGKILL, Signal::SIGINT] {
        for kill_server in [false, true] {
            let server = hosts.serve("perf write-bw");
            let mut client = command(
                &hosts.client,
                &format!("perf write-bw -D 60 {SERVER_ADDRESS}"),
            );
            let mut client = client
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(700));
            assert_eq!(hosts.programs(), [true; 2]);
            if kill_server {
                server.signal(signal);
            } else {
                kill(Pid::from_raw(client.id() as i32), signal).unwrap();
            }
            let began = Instant::now();
            let client_code = client.wait().unwrap().code();
            let (server_code, said) = server.end();
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "{signal:?} {kill_server}: {:?}",
                began.elapsed()
            );
            let killed = if signal == Signal::SIGKILL {
                None
            } else {
                Some(130)
            };
            let codes = if kill_server {
                (Some(1), killed)
            } else {
                (killed, Some(1))
            };
            assert_eq!(
                (client_code, server_code),
                codes,
                "{signal:?} {kill_server}: {said}"
            );
            assert_eq!(hosts.programs(), [false; 2], "{signal:?} {kill_server}");
        }
    }
}
