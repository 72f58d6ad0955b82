//! The command between two network namespaces, through real XDP and AF_XDP on a veth pair.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use common::{Running, link, text};
use rnic_xdp::testing::{Namespace, VethEnd, disable_offloads, veth_pair};
use serde_json::Value;

fn rnic_ctl(namespace: &Namespace, netdev: &str, line: &str) -> Command {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_rnic-ctl"));
    command.args(line.split_whitespace());
    command.args(["--netdev", netdev]);
    command
}

/// Server and client of a test; returns the client's report.
fn perf(hosts: &(Namespace, Namespace), options: &str, address: &str) -> Value {
    let local = if address.contains(':') {
        "::"
    } else {
        "0.0.0.0"
    };
    let line = format!("perf {options} --local {local}");
    let server =
        Running::start(rnic_ctl(&hosts.0, "ours", &line)).until_it_says("waiting for a client");
    let line = format!("-j perf {options} {address}");
    let client = Running::start(rnic_ctl(&hosts.1, "theirs", &line)).succeed(options);
    let table = server.succeed(options);
    let report: Value = serde_json::from_str(&client).unwrap();
    let count = report["results"][0]["n_iterations"].to_string();
    assert!(
        table.contains(&count),
        "the server has the figures too: {table}"
    );
    report
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn perf_measures_and_verifies() {
    let hosts = link("perf", "theirs");
    for (options, address) in [
        ("write-bw -v -s 30000 -n 50 -q 3", "10.77.0.1"),
        ("read-bw -v -s 30000 -n 50", "fd77::1"),
        ("send-bw -v -s 3000 -n 200 --thread", "10.77.0.1"),
        ("write-lat -v -s 64 -n 100", "fd77::1"),
        ("read-lat -v -s 64 -n 100 --thread --idle 0", "10.77.0.1"),
        ("send-lat -v -s 64 -n 100", "10.77.0.1"),
        ("atomic-bw -v -n 300 -q 3", "10.77.0.1"),
        ("atomic-lat -v -n 100 --thread", "fd77::1"),
        (
            "write-bw -v -s 30000 -n 50 -q 5 --thread --workers 2 --pin",
            "10.77.0.1",
        ),
        (
            "send-bw -v -s 3000 -n 50 -q 5 --use-srq --thread --workers 2",
            "fd77::1",
        ),
    ] {
        let report = perf(&hosts, options, address);
        assert_eq!(report["test_info"]["verified"], true, "{report}");
    }
}

/// Passes octets on, some time after they came.
fn pass_on(mut from: TcpStream, mut to: TcpStream, late: Duration) {
    let (taken, given) = channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        for (at, octets) in given {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&octets).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            let due = Instant::now() + late;
            if taken.send((due, buffer[..len].to_vec())).is_err() {
                return;
            }
        }
    });
}

/// A relay of the kernel's TCP between two links. It acknowledges at once what it passes on later,
/// but for the first connection, in which the two ends speak of the test.
fn relay(listener: TcpListener, server: SocketAddr, late: Duration) {
    for (number, client) in listener.incoming().enumerate() {
        let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
        let late = if number == 0 { Duration::ZERO } else { late };
        let clones = (client.try_clone().unwrap(), server.try_clone().unwrap());
        pass_on(client, server, late);
        pass_on(clones.1, clones.0, Duration::ZERO);
    }
}

/// A Write completes when TCP has delivered it, and a relay may have it still: it is not placed yet
/// (RFC 5040 section 5.5).
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_a_relay_has_still_is_not_taken_for_corrupt() {
    let (one, middle) = link("late", "theirs");
    let other = Namespace::new("late").unwrap();
    let end = |namespace, name, addresses| VethEnd {
        namespace,
        name,
        addresses,
    };
    veth_pair(
        end(&other, "far", "10.78.0.1/24"),
        end(&middle, "near", "10.78.0.2/24"),
        2,
    )
    .unwrap();
    for netdev in ["theirs", "near"] {
        disable_offloads(&middle, netdev).unwrap();
    }
    let line = "perf write-bw --local 10.77.0.1";
    let server = Running::start(rnic_ctl(&one, "ours", line)).until_it_says("waiting for a client");
    let listener = middle.run(|| TcpListener::bind("10.78.0.2:18515").unwrap());
    // It ends with the process.
    let relay = move || relay(listener, "10.77.0.1:18515".parse().unwrap(), LATE);
    middle.run(move || thread::spawn(relay));
    let line = "-j perf write-bw -v -n 100 -s 20000 10.78.0.2";
    let client = Running::start(rnic_ctl(&other, "far", line)).succeed(line);
    let report: Value = serde_json::from_str(&client).unwrap();
    assert_eq!(report["test_info"]["verified"], true, "{report}");
    server.succeed(line);
}

/// Long against the time between the last completion and the answer of the server.
const LATE: Duration = Duration::from_millis(500);

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_each_queue_counted_is_shown_on_request() {
    let hosts = link("count", "theirs");
    let options = "send-bw -s 3000 -n 200 -q 4 --thread --workers 2 --counters";
    let report = perf(&hosts, options, "10.77.0.1");
    let workers = report["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 2);
    for (number, worker) in workers.iter().enumerate() {
        let queues = worker["queues"].as_array().unwrap();
        assert_eq!((queues.len(), &queues[0]["queue"]), (1, &number.into()));
        let received = queues[0]["frames_received"].as_u64().unwrap();
        // The queues are asked first.
        let handled = worker["engine"]["frames_received"].as_u64().unwrap();
        assert!(received > 0 && received <= handled, "{worker}");
        for name in ["rx_invalid_descriptors", "tx_invalid_descriptors"] {
            assert_eq!(queues[0][name], 0, "{name}");
        }
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn rping_pings_in_both_families() {
    let (one, other) = link("ping", "theirs");
    for address in ["10.77.0.1", "fd77::1"] {
        let line = format!("rping -s -a {address} -v");
        let server = Running::start(rnic_ctl(&one, "ours", &line)).until_it_says("listening");
        let line = format!("rping -c -a {address} -C 5 -V -v");
        let said = Running::start(rnic_ctl(&other, "theirs", &line)).succeed("the client");
        assert_eq!(said.matches("ping data: rdma-ping-").count(), 5, "{said}");
        let said = server.succeed("the server");
        assert_eq!(said.matches("server ping data: ").count(), 5, "{said}");
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_learns_why_it_is_refused() {
    let (one, other) = link("why", "theirs");
    let server = rnic_ctl(&one, "ours", "perf write-bw");
    let server = Running::start(server).until_it_says("waiting for a client");
    let client = rnic_ctl(&other, "theirs", "perf read-bw 10.77.0.1");
    let client = Running::start(client).finish("the client");
    assert_eq!(client.status.code(), Some(1));
    let words = text(&client.stderr);
    assert!(words.contains("start both with the same test"), "{words}");
    assert_eq!(server.finish("the server").status.code(), Some(1));

    // Without a server, the kernel answers.
    let nobody = rnic_ctl(&other, "theirs", "perf write-bw 10.77.0.1");
    let nobody = Running::start(nobody).finish("the client");
    assert_eq!(nobody.status.code(), Some(1));
    assert!(text(&nobody.stderr).contains("nobody listens"));
}

/// Runs a test without end until `what` has happened to the client's interface. Returns the output
/// of both sides, the server's first.
fn perf_until(name: &str, options: &str, what: impl FnOnce(&Namespace, &Running)) -> [Output; 2] {
    let (one, other) = link(name, "theirs");
    let server = rnic_ctl(&one, "ours", &format!("perf {options}"));
    let server = Running::start(server).until_it_says("waiting for a client");
    let line = format!("perf {options} -D 3600 10.77.0.1");
    let client = Running::start(rnic_ctl(&other, "theirs", &line)).until_it_says("Data verified");
    std::thread::sleep(Duration::from_millis(300));
    what(&other, &client);
    let client = client.finish("the client");
    [server.finish("the server"), client]
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn perf_ends_at_once_on_both_sides_when_the_interfaces_are_removed() {
    for options in ["write-bw", "send-lat --thread", "write-lat"] {
        let outputs = perf_until("del", options, |client, _| {
            client.ip("link del dev theirs").unwrap();
        });
        for output in outputs {
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{options}: {said}");
            assert!(said.contains("the network device is gone"), "{said}");
        }
    }
}

/// Seconds of processor time that a process has used: fields 14 and 15 of its status, in
/// hundredths.
fn processor_time(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields = status.rsplit_once(')').unwrap().1.split_whitespace();
    let ticks = fields
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<f64>().unwrap());
    ticks.sum::<f64>() / 100.0
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn perf_without_a_link_rests_and_ends_with_a_message() {
    let mut used = 0.0;
    let outputs = perf_until("down", "write-bw", |namespace, client| {
        namespace.ip("link set dev theirs down").unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let before = processor_time(client.id());
        std::thread::sleep(Duration::from_secs(4));
        used = processor_time(client.id()) - before;
    });
    assert!(used < 1.0, "{used} s of the processor in 4 s");
    for output in outputs {
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("has lost its link"), "{said}");
        assert!(said.contains("the peer does not answer"), "{said}");
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_signal_ends_perf_without_a_link() {
    let mut sides = Vec::new();
    for options in ["write-bw", "send-bw --thread"] {
        let (one, other) = link("sig", "theirs");
        let server = rnic_ctl(&one, "ours", &format!("perf {options}"));
        let server = Running::start(server).until_it_says("waiting for a client");
        let line = format!("perf {options} -D 3600 10.77.0.1");
        let client = rnic_ctl(&other, "theirs", &line);
        let client = Running::start(client).until_it_says("Data verified");
        std::thread::sleep(Duration::from_millis(300));
        other.ip("link set dev theirs down").unwrap();
        sides.extend([(server, one), (client, other)]);
    }
    // Long enough for every message to be waiting for its acknowledgment. The connections time out
    // after 30 s.
    std::thread::sleep(Duration::from_secs(10));
    for (side, _) in &sides {
        side.interrupt();
    }
    let asked = Instant::now();
    // None may be without its interface, which goes with a namespace.
    let (sides, _namespaces): (Vec<_>, Vec<_>) = sides.into_iter().unzip();
    for side in sides {
        let output = side.finish("an interrupted side");
        assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    }
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(15), "it took {took:?}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_that_wants_too_much_is_refused() {
    let (one, other) = link("much", "theirs");
    let server = rnic_ctl(&one, "ours", "perf write-bw --max-memory 8 --max-qps 2");
    let server = Running::start(server).until_it_says("waiting for a client");
    let client = |options: &str| {
        let line = format!("perf write-bw -n 20 {options} 10.77.0.1");
        Running::start(rnic_ctl(&other, "theirs", &line)).finish(options)
    };
    for (greedy, option) in [("-q 3", "--max-qps"), ("-s 16777216", "--max-memory")] {
        let refused = client(greedy);
        assert_eq!(refused.status.code(), Some(1), "{greedy}");
        let words = text(&refused.stderr);
        assert!(
            words.contains("refused by the server") && words.contains(option),
            "{words}"
        );
    }
    // The server reports the refusals too, and goes on.
    assert!(client("-q 2 -s 1048576").status.success());
    let output = server.finish("the server");
    assert!(output.status.success());
    let words = text(&output.stderr);
    assert!(
        words.contains("--max-qps") && words.contains("--max-memory"),
        "{words}"
    );
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn an_ipsec_policy_holds_unless_it_is_ignored() {
    let hosts = link("ipsec", "theirs");
    let add = "xfrm policy add src 10.77.0.2 dst 10.77.0.1 dir out tmpl proto esp mode transport";
    hosts.1.ip(add).unwrap();
    let policy = "src 10.77.0.2 dst 10.77.0.1 dir out priority 0 tmpl proto esp mode transport";
    let client = rnic_ctl(&hosts.1, "theirs", "perf write-bw 10.77.0.1");
    let client = Running::start(client).finish("the client");
    assert_eq!(client.status.code(), Some(1));
    let said = text(&client.stderr);
    assert!(
        said.contains(policy) && said.contains("--ignore-ipsec"),
        "{said}"
    );
    perf(&hosts, "write-bw -s 3000 -n 50 --ignore-ipsec", "10.77.0.1");

    let doctor = Running::start(rnic_ctl(&hosts.1, "theirs", "doctor --no-trial"));
    let said = text(&doctor.finish("doctor").stdout);
    assert!(said.contains(policy), "{said}");
    assert!(
        said.contains("firewall") && said.contains("apply to rnic's connections"),
        "{said}"
    );
}
