//! What clients say of themselves, beside what rnicd knows of them.

use std::process::Command;

use serde_json::Value;

use crate::common::text;
use crate::ending::transfer;
use crate::world::{World, succeed};

fn signal(pid: u32, name: &str) {
    succeed(Command::new("kill").args([format!("-{name}"), pid.to_string()]));
}

/// Returns the only object of a list.
fn only(world: &World, line: &str) -> Value {
    let list = world.ask(line);
    let [object] = list.as_array().unwrap().as_slice() else {
        panic!("{line}: {list}");
    };
    object.clone()
}

fn stdout(mut command: Command) -> String {
    text(&succeed(&mut command).stdout)
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn clients_describe_their_objects_and_connections() {
    let world = World::new("");
    let client = "rping -c -a 10.77.0.2 -C 1000000000";
    let (_server, client) = transfer(&world, "rping -s -a 10.77.0.2", client);
    let lease = only(&world, "lease show 1")["lease"].clone();
    // What rnicd knows, and what the client says, which agree.
    let connection = only(&world, "conn show --timeout 20");
    assert_eq!(connection["port"], 1);
    assert_eq!(connection["user"], "nobody");
    assert_eq!(connection["pid"], client.id());
    let said = &connection["client"];
    assert_eq!(
        (&said["local"], &said["remote"]),
        (&lease, &"10.77.0.2:7174".into())
    );
    assert_eq!(
        (&said["state"], &said["phase"]),
        (&"Established".into(), &"streaming".into())
    );
    assert_eq!(
        (&said["mpa"]["crc"], &said["leased"]),
        (&true.into(), &Value::Null)
    );
    let octets = said["tcp"]["bytes_acked"].as_u64().unwrap();
    let later = only(&world, "conn show qpn 0 --timeout 20");
    assert!(later["client"]["tcp"]["bytes_acked"].as_u64().unwrap() > octets);
    let qp = only(
        &world,
        "res show qp state rts port 1 user 65534 --timeout 20",
    );
    assert_eq!(
        (&qp["client"]["local"], &qp["client"]["qpn"]),
        (&lease, &said["qpn"])
    );
    for other in ["state ERR", "user root", "qpn 9"] {
        let none = world.ask(&format!("res show qp {other} --timeout 20"));
        assert_eq!(none, Value::Array(Vec::new()), "{other}");
    }
    // What cannot be is an error.
    for (other, code, why) in [
        ("qp state foo", 2, "the states are INIT, RTR, RTS, "),
        ("qp port 2", 1, "you see no port 2; "),
        ("qp pid 1", 1, "you see no port of process 1; "),
        ("qp dev eth9", 1, "rnicd does not share eth9; "),
        ("mr user no-such-user", 1, "there is no user "),
        ("mr state rts", 2, "there is no filter \"state\"; "),
    ] {
        let mut command = world.root(&format!("res show {other}"));
        let output = command.output().unwrap();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!((output.status.code(), stdout.as_str()), (Some(code), ""));
        assert!(stderr.contains(why), "{other}: {stderr}");
    }
    let output = world.root("conn show state rts").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("the states are SynSent, SynReceived, Established, "));
    let mrs = world.ask("res show mr --timeout 20");
    assert!(!mrs.as_array().unwrap().is_empty());
    assert!(!mrs.to_string().contains("stag"));
    let lines = stdout(world.root("-d conn show --timeout 20"));
    let lines: Vec<_> = lines.lines().collect();
    let pid = client.id();
    let known =
        format!("dev nic port 1 user nobody uid 65534 pid {pid} program rnic-ctl client: local ");
    assert!(lines[0].starts_with(&known), "{lines:?}");
    assert!(lines[1].starts_with("\tmpa 2 crc yes "), "{lines:?}");
    // As `perf --tcp-info` writes it, in the words of `ss -ti`.
    for word in [
        "\tcubic ",
        " rto:",
        " rtt:",
        " cwnd:",
        " segs_in:",
        " lastsnd:",
        " snd_wnd:",
    ] {
        assert!(lines[2].contains(word), "{word}: {lines:?}");
    }
    assert_eq!(lines.len(), 3, "{lines:?}");
    // Whoever may not see the port sees nothing of its client.
    assert_eq!(
        stdout(world.nobody("conn show --timeout 20"))
            .lines()
            .count(),
        1
    );
    assert_eq!(stdout(world.user(12345, "conn show")), "");
    // A process that is stopped holds nobody up.
    signal(pid, "STOP");
    let output = world.root("res show qp --timeout 0.1").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let why = "no answer within 0.1 s; its process may be stopped";
    let note = format!("rnic-ctl: port 1 (pid {pid}, rnic-ctl): {why}\n");
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        (String::new(), note)
    );
    let output = world.root("-j conn show --timeout 0.1").output().unwrap();
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(1), String::new())
    );
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&list[0]["pid"], &list[0]["error"]),
        (&pid.into(), &why.into())
    );
    signal(pid, "CONT");
    only(&world, "conn show --timeout 20");
}
