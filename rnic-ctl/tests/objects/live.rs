//! What commands print of a connection that is there, what those print that make one, and what is
//! said of the host, compared with `live.txt`. `RNIC_WRITE_TRANSCRIPT=1` writes that file anew.
//! Numbers differ from run to run: `#` stands for each.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;

use serde_json::Value;

use crate::common::{Running, text};
use crate::ending::transfer;
use crate::transcript::compare;
use crate::world::{World, succeed};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/objects/live.txt");

/// What `ss -ti` leaves out where it is zero or not known: words, and those with another word
/// behind them.
const OPTIONAL: [&str; 10] = [
    "backoff:#",
    "ssthresh:#",
    "app_limited",
    "timer:#",
    "retrans:#/#",
    "unacked:#",
    "lost:#",
    "sacked:#",
    "reord_seen:#",
    "rcv_ooopack:#",
];
const OPTIONAL_PAIRS: [&str; 3] = ["send", "pacing_rate", "delivery_rate"];
/// The counters of a worker that are not zero in any run.
const COUNTED: [&str; 9] = [
    "frames_received:#",
    "frames_sent:#",
    "segments_received:#",
    "segments_sent:#",
    "octets_received:#",
    "octets_sent:#",
    "fpdus_received:#",
    "fpdus_sent:#",
    "octets_placed:#",
];
/// What differs from host to host, and what stands in its place.
const OF_HOST: [(&str, &str); 6] = [
    ("ordinary pages", "PAGES"),
    ("hugepages", "PAGES"),
    ("PAGES of # KiB", "PAGES"),
    ("PAGES of # MiB", "PAGES"),
    ("PAGES of # GiB", "PAGES"),
    (", NUMA node #", ""),
];
/// Keys of JSON that are true or false as it happens.
const BY_CHANCE: [&str; 1] = ["application_limited"];

/// Returns a word without its numbers. Addresses of the test stay.
fn without_numbers(word: &str) -> String {
    let (address, rest) = match word.split_once(':') {
        Some((address, rest)) if address.starts_with("10.77.0.") => (address, format!(":{rest}")),
        _ => ("", word.to_owned()),
    };
    let mut out = address.to_owned();
    for char in rest.chars() {
        let is_number = char.is_ascii_digit() || (char == '.' && out.ends_with('#'));
        match is_number {
            true if out.ends_with('#') => {}
            true => out.push('#'),
            false => out.push(char),
        }
    }
    out
}

/// Returns a line without its numbers, and without what is there by chance. Runs of blanks are one.
fn line(line: &str) -> String {
    let mut out = String::new();
    let mut words = line.split_whitespace().map(without_numbers);
    while let Some(word) = words.next() {
        if OPTIONAL_PAIRS.contains(&word.as_str()) {
            words.next();
        } else if out.starts_with("worker # ") && word.contains(':') {
            if COUNTED.contains(&word.as_str()) {
                write!(out, " {word}").unwrap();
            }
        } else if !OPTIONAL.contains(&word.as_str()) {
            let gap = if out.is_empty() { "" } else { " " };
            write!(out, "{gap}{word}").unwrap();
        }
    }
    let replace = |out: String, (from, to): &(&str, &str)| out.replace(from, to);
    OF_HOST.iter().fold(out, replace)
}

/// Replaces numbers, and `null`, which stands for one that is not known.
fn replace(value: &mut Value) {
    match value {
        Value::Array(elements) => elements.iter_mut().for_each(replace),
        Value::Object(fields) => {
            for (key, value) in fields {
                match BY_CHANCE.contains(&key.as_str()) {
                    true => *value = "#".into(),
                    false => replace(value),
                }
            }
        }
        Value::Number(_) | Value::Null => *value = "#".into(),
        Value::String(text) => *text = line(text),
        Value::Bool(_) => {}
    }
}

fn json(said: &str) -> String {
    let values = serde_json::Deserializer::from_str(said).into_iter::<Value>();
    let values = values.map(|value| {
        let mut value = value.unwrap();
        replace(&mut value);
        format!("{value}\n")
    });
    values.collect()
}

fn lines(said: &str) -> String {
    said.lines().map(|said| line(said) + "\n").collect()
}

/// Returns lines, or the objects of a list, in the order of their text.
fn sorted(printed: &str) -> String {
    if let Ok(Value::Array(mut objects)) = serde_json::from_str(printed) {
        objects.sort_by_key(Value::to_string);
        return format!("{}\n", Value::Array(objects));
    }
    let mut lines: Vec<_> = printed.lines().map(|line| format!("{line}\n")).collect();
    lines.sort();
    lines.concat()
}

/// Writes down what a command has printed.
fn write_down(transcript: &mut String, prompt: &str, said: (&str, &str, &str)) {
    let (line, stdout, stderr) = said;
    let printed = match line.starts_with("-j") {
        true => json(stdout),
        false => lines(stdout),
    };
    // Regions have their numbers at random, and are in their order.
    let printed = match line.contains("show mr") {
        true => sorted(&printed),
        false => printed,
    };
    let errors = lines(stderr);
    writeln!(transcript, "{prompt} rnic-ctl {line}\n{printed}{errors}").unwrap();
}

/// Runs a command, which must succeed, and writes down what it prints.
fn record(transcript: &mut String, prompt: &str, line: &str, mut command: Command) {
    let output = succeed(&mut command);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    write_down(transcript, prompt, (line, &stdout, &stderr));
}

/// The findings of doctor: what is found on a host is of that host.
fn findings(said: &str) -> String {
    let said: Value = serde_json::from_str(said).unwrap();
    let parts = said.as_object().unwrap().iter();
    let lines = parts.map(|(part, facts)| {
        let facts = facts.as_array().into_iter().flatten();
        let names = facts.map(|fact| {
            let keys: Vec<_> = fact.as_object().unwrap().keys().cloned().collect();
            format!("{} ({})", fact["name"].as_str().unwrap(), keys.join(" "))
        });
        format!("{part}: {}\n", names.collect::<Vec<_>>().join(", "))
    });
    lines.collect()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn every_command_says_what_it_did_of_what_is_alive() {
    let world = World::new("");
    let mut transcript = String::new();
    let log = &mut transcript;
    let monitor = Running::start(world.root("monitor")).until_it_says("listening");
    let with_json = Running::start(world.root("-j monitor")).until_it_says("listening");

    // Each server serves one client.
    for (server, client) in [
        ("rping -s -a 10.77.0.2", "rping -c -a 10.77.0.2 -C 2 -V -v"),
        ("-j rping -s -a 10.77.0.2", "-j rping -c -a 10.77.0.2 -C 2"),
        (
            "perf write-lat -s 64",
            "perf write-lat -s 64 -n 10 --tcp-info --counters 10.77.0.2",
        ),
        (
            "perf read-bw -s 64",
            "-j perf read-bw -s 64 -n 10 --tcp-info --counters 10.77.0.2",
        ),
    ] {
        let serving = Running::start(world.peers(&format!("{server} --netdev theirs")));
        world.until("the peer listens", || {
            let steering = world.peers("-j steering --netdev theirs").output().ok()?;
            let steering: Value = serde_json::from_slice(&steering.stdout).ok()?;
            (!steering["steered"].as_array()?.is_empty()).then_some(())
        });
        record(
            log,
            "$",
            client,
            world.nobody(&format!("{client} --netdev nic")),
        );
        let output = serving.finish("the server");
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{stdout}{stderr}");
        write_down(log, "peer#", (server, &stdout, &stderr));
    }

    let client = "rping -c -a 10.77.0.2 -C 1000000000";
    let (_server, client) = transfer(&world, "rping -s -a 10.77.0.2", client);
    let file = format!("{}/frames.pcapng", world.place());
    let capture = format!("capture -i nic -c 2 -w {file}");
    for line in [
        "conn show --timeout 20",
        "-d conn show --timeout 20",
        "-j conn show --timeout 20",
        "res show --timeout 20",
        "-j res show --timeout 20",
        "res show qp --timeout 20",
        "-d res show qp --timeout 20",
        "-j res show qp --timeout 20",
        "res show pd --timeout 20",
        "-j res show pd --timeout 20",
        "res show cq --timeout 20",
        "-j res show cq --timeout 20",
        "res show mr --timeout 20",
        "-j res show mr --timeout 20",
        "steering --netdev nic",
        "-j steering --netdev nic",
        "steer show",
        "-j steer show",
        &capture,
        &format!("-j {capture}"),
    ] {
        record(log, "#", line, world.root(line));
    }
    const DOCTOR: &str = "-j doctor --netdev nic --no-trial";
    let said = succeed(&mut world.root(DOCTOR)).stdout;
    writeln!(log, "# rnic-ctl {DOCTOR}\n{}", findings(&text(&said))).unwrap();

    const IN_TEXT: &str = "doctor --netdev nic --no-trial";
    let said = succeed(&mut world.root(IN_TEXT)).stdout;
    writeln!(log, "# rnic-ctl {IN_TEXT}").unwrap();
    for said in text(&said).lines() {
        // A verdict, a name, and what is found; remedies stand below.
        let name = match said.strip_prefix("  ") {
            Some(finding) => finding.get(6..20).unwrap_or_default().trim(),
            None => said,
        };
        if !name.is_empty() {
            writeln!(log, "{name}").unwrap();
        }
    }
    log.push('\n');

    drop(client);
    world.until("the port ends with its client", || {
        (world.ask("port") == Value::Array(Vec::new())).then_some(())
    });
    for (mut monitor, line) in [(monitor, "monitor"), (with_json, "-j monitor")] {
        // The last of five clients.
        while monitor.said().matches("port_ended").count() < 5 {
            monitor = monitor.until_it_says_more();
        }
        monitor.interrupt();
        let said = monitor.succeed("monitor");
        // Each kind of event once: their order is that of processes.
        let mut events = String::new();
        write_down(&mut events, "#", (line, &said, ""));
        let (prompt, events) = events.split_once('\n').unwrap();
        let events: BTreeSet<_> = events.lines().collect();
        let events: Vec<_> = events.into_iter().collect();
        writeln!(log, "{prompt}{}\n", events.join("\n")).unwrap();
    }
    // Not every kernel lets programs stand at its functions.
    let transcript: String = transcript
        .replace(&world.place(), "/PLACE")
        .split_inclusive('\n')
        .filter(|line| !line.contains("this kernel has no program stand at its function"))
        .collect();
    compare(&transcript, FILE);
}
