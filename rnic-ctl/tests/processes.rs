//! Devices that rnicd does not know, as `conn show` and `res show` see them: over sockets of the
//! kernel, which takes no right.

#[path = "common/mod.rs"]
mod common;

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, id};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rnic_xdp::testing::{Namespace, copy_program};
use serde_json::Value;

use common::{Running, link, text};

/// The longest time that anything may take, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(120);

fn rnic_ctl(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnic-ctl"));
    command.args(line.split_whitespace());
    command.env("RNICD_SOCKET", "/nowhere");
    command
}

/// Two ends of a connection over sockets, which goes on and on.
struct Transfer {
    server: Running,
    client: Running,
}

impl Transfer {
    fn start(tcp_port: u16) -> Self {
        let rping = |role: &str| {
            let options = format!("-a 127.0.0.1 -p {tcp_port} --netdev lo --via kernel");
            Running::start(rnic_ctl(&format!("rping {role} {options}")))
        };
        let server = rping("-s").until_it_says("listening");
        let client = rping("-c -C 1000000000");
        let shown = format!(
            "conn show pid {} state established --timeout 20",
            client.id()
        );
        until("it connects", || !run(&shown).stdout.is_empty());
        Self { server, client }
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: it does not happen");
        sleep(Duration::from_millis(10));
    }
}

fn run(line: &str) -> Output {
    rnic_ctl(line).output().unwrap()
}

/// Returns the only object of a list.
fn only(line: &str) -> Value {
    let output = run(&format!("-j {line} --timeout 20"));
    assert!(output.status.success(), "{line}: {output:?}");
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [object] = list.as_array().unwrap().as_slice() else {
        panic!("{line}: {list}");
    };
    object.clone()
}

#[test]
fn connections_over_sockets_are_shown_with_the_facts_of_the_kernel() {
    let transfer = Transfer::start(21741);
    let (server, client) = (transfer.server.id(), transfer.client.id());
    let one = only(&format!("conn show pid {client}"));
    let known = ["dev", "port", "via", "uid", "pid", "program"].map(|key| &one[key]);
    let uid = nix::unistd::geteuid().as_raw();
    assert_eq!(
        known,
        [
            &"lo".into(),
            &Value::Null,
            &"tcp".into(),
            &uid.into(),
            &client.into(),
            &"rnic-ctl".into()
        ]
    );
    let said = &one["client"];
    assert_eq!(
        (&said["remote"], &said["state"], &said["phase"]),
        (
            &"127.0.0.1:21741".into(),
            &"Established".into(),
            &"streaming".into()
        )
    );
    assert_eq!(said["mpa"]["crc"], true);
    let octets = |one: &Value| one["client"]["tcp"]["bytes_acked"].as_u64().unwrap();
    until("octets flow", || {
        let later = only(&format!("conn show pid {client} dev lo state established"));
        octets(&later) > octets(&one)
    });
    // The other end, and its other objects.
    let other = only(&format!("conn show pid {server}"));
    assert_eq!(other["client"]["remote"], said["local"]);
    let listener = only(&format!("res show listener pid {server}"));
    assert_eq!(listener["client"]["local"], "127.0.0.1:21741");
    let qp = only(&format!("res show qp state rts pid {server}"));
    assert_eq!(qp["client"]["local"], "127.0.0.1:21741");
    let lines = run(&format!("-d conn show pid {client} --timeout 20"));
    let lines = text(&lines.stdout);
    let lines: Vec<_> = lines.lines().collect();
    let begins = format!("uid {uid} pid {client} program rnic-ctl client: local 127.0.0.1:");
    assert!(lines[0].starts_with("dev lo via tcp user "), "{lines:?}");
    assert!(lines[0].contains(&begins), "{lines:?}");
    assert!(lines[1].starts_with("\tmpa 2 crc yes "), "{lines:?}");
    assert!(
        lines[2].contains(" rtt:") && lines[2].contains(" segs_in:"),
        "{lines:?}"
    );
}

#[test]
fn what_is_not_there_is_said() {
    let transfer = Transfer::start(21742);
    let client = transfer.client.id();
    // Another device, or another queue pair: nothing, which is no failure where rnicd is not wanted.
    let none = run(&format!("-j conn show pid {client} qpn 77 --timeout 20"));
    assert_eq!(
        (none.status.code(), text(&none.stdout).trim()),
        (Some(0), "[]")
    );
    for (line, code, why) in [
        (
            format!("conn show pid {client} dev eth9"),
            3,
            "no rnicd listens at /nowhere",
        ),
        (
            format!("conn show pid {client} --socket /nowhere"),
            3,
            "no rnicd listens at /nowhere",
        ),
        (
            format!("conn show pid {}", id()),
            3,
            "no process in this network namespace",
        ),
    ] {
        let output = run(&line);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(
            (output.status.code(), stdout.as_str()),
            (Some(code), ""),
            "{line}"
        );
        assert!(stderr.contains(why), "{line}: {stderr}");
    }
    // A process that is stopped holds nobody up.
    let signal = |name: &str| {
        let status = Command::new("kill")
            .args([name, &client.to_string()])
            .status();
        assert!(status.unwrap().success());
    };
    signal("-STOP");
    let output = run(&format!("conn show pid {client} --timeout 0.1"));
    assert_eq!(output.status.code(), Some(1));
    let why =
        format!("rnic-ctl: pid {client}: no answer within 0.1 s; its process may be stopped\n");
    assert_eq!(text(&output.stderr), why);
    signal("-CONT");
    only(&format!("conn show pid {client}"));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: processes of several users")]
fn users_see_their_own_processes_and_root_sees_all() {
    // Where other users may run it.
    let directory = std::env::temp_dir().join(format!("rnic-processes-{}", id()));
    std::fs::create_dir_all(&directory).unwrap();
    let command = directory.join("rnic-ctl");
    copy_program(env!("CARGO_BIN_EXE_rnic-ctl"), &command);
    let as_user = |uid: u32, line: &str| {
        let mut command = Command::new(&command);
        command
            .args(line.split_whitespace())
            .env("RNICD_SOCKET", "/nowhere");
        command.uid(uid).gid(uid);
        command
    };
    let serving = "rping -s -a 127.0.0.1 -p 21743 --netdev lo --via kernel";
    let server = Running::start(as_user(54321, serving)).until_it_says("listening");
    let pid = server.id();
    let asks = format!("res show listener pid {pid} --timeout 20");
    for uid in [0, 54321] {
        let output = as_user(uid, &asks).output().unwrap();
        assert!(
            text(&output.stdout).contains("user 54321 pid "),
            "{uid}: {output:?}"
        );
    }
    let output = as_user(12345, &asks).output().unwrap();
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(3), "")
    );
    // The process itself answers no stranger, who may ask by other means.
    for (uid, hears) in [(54321, true), (12345, false)] {
        let mut asking = Command::new("python3");
        asking.args(["-c", ASK, &pid.to_string()]).uid(uid).gid(uid);
        let output = asking.output().unwrap();
        let said = text(&output.stdout);
        assert_eq!(said.contains("listener"), hears, "{uid}: {output:?}");
        assert!(said.ends_with("end\n"), "{uid}: {output:?}");
    }
    let _ = std::fs::remove_dir_all(&directory);
}

/// A program that asks each process that has a device for its listeners, and prints the answers.
const ASK: &str = r#"
import socket, struct, sys
for line in open("/proc/net/unix"):
    name = line.split()[-1]
    if not name.startswith("@rnic/device/") or line.split()[3] != "00010000":
        continue
    asking = socket.socket(socket.AF_UNIX)
    try:
        asking.connect("\0" + name[1:])
    except ConnectionError:
        continue
    of = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    if struct.unpack("3i", of)[0] != int(sys.argv[1]):
        continue
    try:
        asking.sendall(b'{"what":"listener","within":20000}\n')
        while said := asking.recv(65536):
            print(said.decode())
    except ConnectionError:
        pass
print("end")
"#;

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn an_interface_of_one_process_is_shown_in_its_namespace() {
    let (here, there) = link("processes", "theirs");
    let inside = |namespace: &Namespace, line: &str| {
        let mut command = namespace.command(env!("CARGO_BIN_EXE_rnic-ctl"));
        command.args(line.split_whitespace());
        command.env("RNICD_SOCKET", "/nowhere");
        command
    };
    let serving = "rping -s -a 10.77.0.1 --netdev ours --via xdp";
    let server = Running::start(inside(&here, serving)).until_it_says("listening");
    let asks = "res show listener --timeout 20";
    let output = inside(&here, asks).output().unwrap();
    let line = text(&output.stdout);
    let known = format!("dev ours via xdp user root pid {} program ", server.id());
    assert!(line.starts_with(&known), "{output:?}");
    assert!(
        line.ends_with(" client: local 10.77.0.1:7174 waiting 0\n"),
        "{output:?}"
    );
    let output = inside(&there, asks).output().unwrap();
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(3), "")
    );
}
