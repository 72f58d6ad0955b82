//! What every command prints, compared with `transcript.txt`. `RNIC_WRITE_TRANSCRIPT=1` writes that
//! file anew. Those that show connections, make them or look at the host are in `live.rs`.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::common::{Running, text};
use crate::world::World;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/objects/transcript.txt");

/// Keys whose values differ from run to run, or from host to host: not all have hugepages. The
/// kernel itself sends and receives on the device.
const VARYING: [&str; 20] = [
    "hugepages",
    "hugepages_held",
    "clients_pid",
    "clients_connections",
    "devices_rx_frames_per_second",
    "devices_rx_octets_per_second",
    "devices_tx_frames_per_second",
    "devices_tx_octets_per_second",
    "pid",
    "since",
    "received_not_tcp",
    "kernel_ifindex",
    "kernel_xdp_program",
    "kernel_rx_packets",
    "kernel_rx_octets",
    "kernel_tx_packets",
    "kernel_tx_octets",
    "host_end_dev",
    "host_end_ifindex",
    "host_end_xdp_program",
];

fn replaced_in_text(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let mut key = "";
        let words = line.split(' ').map(|word| {
            let varies = VARYING.contains(&key);
            key = word;
            if varies { "#" } else { word }
        });
        words.collect::<Vec<_>>().join(" ") + "\n"
    });
    lines.collect()
}

/// `outer`: the keys of the objects around it, as text has them.
fn replace_in_json(value: &mut Value, outer: &str) {
    match value {
        Value::Array(elements) => {
            let elements = elements.iter_mut();
            elements.for_each(|element| replace_in_json(element, outer));
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                let key = format!("{outer}{key}");
                match VARYING.contains(&key.as_str()) && !value.is_object() {
                    true => *value = "#".into(),
                    false => replace_in_json(value, &format!("{key}_")),
                }
            }
        }
        _ => {}
    }
}

/// Returns JSON with the values replaced, in the lines that it had.
fn replaced_in_json(text: &str, pretty: bool) -> String {
    let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut out = String::new();
    for value in values {
        let mut value = value.unwrap();
        replace_in_json(&mut value, "");
        match pretty {
            true => writeln!(out, "{value:#}").unwrap(),
            false => writeln!(out, "{value}").unwrap(),
        }
    }
    assert_eq!(out.lines().count(), text.lines().count(), "{text}");
    out
}

/// Runs a command, and writes down what it prints.
fn record(transcript: &mut String, prompt: &str, line: &str, command: Command) {
    let output = Running::start(command).finish(line);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    // Errors are always indented.
    let is_pretty = line.starts_with("-jp") || !output.status.success();
    let printed = match line.starts_with("-j") {
        true => replaced_in_json(&stdout, is_pretty),
        false => replaced_in_text(&stdout),
    };
    writeln!(transcript, "{prompt} rnic-ctl {line}").unwrap();
    transcript.push_str(&printed);
    transcript.push_str(&stderr);
    match output.status.code() {
        Some(0) => {}
        code => writeln!(transcript, "exit code {}", code.unwrap()).unwrap(),
    }
    transcript.push('\n');
}

/// Compares what was written down with a file.
pub(crate) fn compare(transcript: &str, file: &str) {
    if std::env::var_os("RNIC_WRITE_TRANSCRIPT").is_some() {
        fs::write(file, transcript).unwrap();
    }
    let expected = fs::read_to_string(file).unwrap();
    for (line, (found, expected)) in transcript.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {} of {file}", line + 1);
    }
    assert_eq!(transcript, expected);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn every_command_prints_what_it_did() {
    let world = World::new("[[user]]\nname = \"nobody\"\nports = 2\n");
    let server = world.nobody("rping -s -a 10.77.0.1 --netdev nic");
    let server = Running::start(server).until_it_says("listening on");
    let mut transcript = String::new();
    let place = world.place();
    for line in [
        "dev show",
        "-d d s nic",
        "-j dev",
        "dev show eth9",
        "port show",
        "port show dev nic user nobody",
        "-j p s user root",
        "port show user no-such-user",
        "port show colour red",
        "port show dev eth9",
        "-d p s 1",
        "-jp port show 1",
        "port show 9",
        "lease",
        "-j l s 1",
        "lease show 9",
        "lease show 1 dev nic",
        "lease show user root",
        "stat show user nobody",
        "stat show pid 1",
        "steer show port 1",
        "steer show user root",
        "steer show nic port 9",
        "user show nobody",
        "-d u s 65534",
        "-jp user show nobody",
        "user show no-such-user",
        "stat",
        "res --timeout 20",
        "-j res show port",
        "res show qp --timeout 20",
        "res show listener --timeout 20",
        "-j r s listener user nobody --timeout 20",
        "res show listener dev eth9 --timeout 20",
        "res show pd colour red",
        "res show cq port",
        "res show qp state foo",
        "conn show state rts",
        "conn show port 99",
        "conn show user no-such-user",
        "conn show --timeout 20",
        "conn show --timeout 0",
        "-d stat show 1",
        "steer show",
        "-j steer s nic",
        "steer show lo",
        "steer show eth9",
        "-j s s",
        "stat watch -n 1",
        "-j stat watch 1 -n 1",
        "lease revoke 1 10.77.0.1:7175",
        "lease revoke 9 10.77.0.1:7174",
        "-j client kill 9",
        "client kill --pid 1",
        "port show --socket /nowhere",
        "client",
        "port kill",
        "user set nobody rate 1Gbit listen 1024-2000,7174",
        "-d user show nobody",
        "-j user show nobody",
        "user set nobody rate fast",
        "-j user set nobody rates 1Gbit",
        "user set nobody rate",
        "user set nobody rate none ports",
        "user set no-such-user rate none",
        "user set nobody rate default",
        "user show nobody",
        "user del nobody",
        "-j user del nobody",
        "dev add nic",
        "dev add eth9",
        "dev add lo",
        "-j dev set nic xdp_mode fast",
        "dev set nic xdp_mode generic",
        "dev del nic",
        "dev del eth9",
        "top",
        "-j top",
        "top -b -d 0",
        "-j top -b -n 1",
    ] {
        record(&mut transcript, "#", line, world.root(line));
    }
    for line in [
        "port show",
        "-j lease show",
        "stat show",
        "dev show",
        "user show",
        "-j user show nobody",
        "user show root",
        "steer show",
        "monitor",
        "-j res show listener --timeout 20",
        "lease revoke 1 10.77.0.1:7174",
        "-jp client kill 1",
        "dev add eth9",
        "dev set nic xdp_mode generic",
        "dev del nic --force",
        "user set nobody rate none",
        "-j user del nobody",
        "-j top -b -n 1",
    ] {
        record(&mut transcript, "$", line, world.nobody(line));
    }
    for line in ["-j port show", "lease", "res show listener --timeout 20"] {
        record(&mut transcript, "other$", line, world.user(12345, line));
    }
    for line in ["lease revoke 1 10.77.0.1:7174", "lease"] {
        record(&mut transcript, "#", line, world.root(line));
    }
    // It ends by itself when its lease has, and its port with it.
    drop(server);
    let until_no_port = || {
        world.until("the port ends with its client", || {
            (world.ask("port") == Value::Array(Vec::new())).then_some(())
        });
    };
    until_no_port();
    let server = world.nobody("rping -s -a 10.77.0.1 --netdev nic");
    let _server = Running::start(server).until_it_says("listening on");
    for line in [
        "client kill 1",
        "-j port",
        "dev set nic xdp_mode generic",
        "dev show",
        "dev del nic",
        "-j dev show",
        "dev add nic xdp_mode native",
        "dev show",
    ] {
        record(&mut transcript, "#", line, world.root(line));
        // Until its process has closed the socket, the port is there, and ending.
        if line == "client kill 1" {
            until_no_port();
        }
    }
    compare(&transcript.replace(&place, "/PLACE"), FILE);
}
