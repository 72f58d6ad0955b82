//! `rnic-ctl metrics`, and the dashboard that shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{Running, text};
use crate::ending::transfer;
use crate::exposition::Exposition;
use crate::world::{World, succeed};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/objects/metrics.txt");
const DASHBOARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/grafana/rnic.json");

/// What differs from run to run, or from host to host: versions, times, what the kernel itself
/// sends and receives, and whether there are hugepages.
const VARYING: [&str; 5] = [
    "_info{",
    "_seconds",
    "_kernel_",
    "\"not_tcp\"",
    "used{user=\"nobody\",resource=\"hugepages\"",
];

fn metrics(world: &World, options: &str) -> String {
    let output = succeed(&mut world.root(&format!("metrics {options}")));
    text(&output.stdout)
}

fn read(world: &World) -> Exposition {
    Exposition::read(&metrics(world, "--by-port 8"))
}

/// A host whose user nobody listens on a port.
fn listening() -> (World, Running) {
    let world = World::new("[[user]]\nname = \"nobody\"\nports = 2\n");
    let server = world.nobody("rping -s -a 10.77.0.1 --netdev nic");
    let server = Running::start(server).until_it_says("listening on");
    (world, server)
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn metrics_are_those_of_the_transcript() {
    let (world, _server) = listening();
    let printed = metrics(&world, "--by-port 1");
    Exposition::read(&printed);
    let lines = printed.lines().map(|line| {
        let varies = !line.starts_with('#') && VARYING.iter().any(|part| line.contains(part));
        let series = line.rsplit_once(' ').map_or(line, |(series, _)| series);
        match varies {
            true => format!(
                "{}\n",
                series.replace(env!("CARGO_PKG_VERSION"), "VERSION") + " N"
            ),
            false => format!("{line}\n"),
        }
    });
    let found: String = lines.collect();
    if std::env::var_os("RNIC_WRITE_TRANSCRIPT").is_some() {
        fs::write(FILE, &found).unwrap();
    }
    let expected = fs::read_to_string(FILE).unwrap();
    for (line, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {} of {FILE}", line + 1);
    }
    assert_eq!(found, expected);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn counters_are_those_of_stat() {
    let world = World::new("");
    let client = "rping -c -a 10.77.0.2 -C 1000000000";
    let _both = transfer(&world, "rping -s -a 10.77.0.2", client);
    // Frames fly all the time: what is read between two others lies between them.
    let before = world.ask("stat show 1");
    let metrics = read(&world);
    let after = world.ask("stat show 1");
    let between = |metric: &str, labels: &str, path: &str| {
        let [least, most] = [&before, &after].map(|stat| stat[0].pointer(path).unwrap().as_u64());
        let (user, port) = (
            r#"device="nic",user="nobody""#,
            r#"device="nic",port="1",user="nobody""#,
        );
        for (object, common) in [("user", user), ("port", port)] {
            let series = format!("rnic_{object}_{metric}_total{{{common}{labels}}}");
            let found = Some(metrics.value(&series) as u64);
            assert!(
                least <= found && found <= most,
                "{series}: {least:?} {found:?} {most:?}"
            );
        }
    };
    for (verdict, _) in before[0]["sent"].as_object().unwrap() {
        for unit in ["frames", "octets"] {
            let labels = format!(",verdict=\"{verdict}\"");
            between(
                &format!("sent_{unit}"),
                &labels,
                &format!("/sent/{verdict}/{unit}"),
            );
        }
    }
    between("received_frames", "", "/rx_frames");
    between("received_octets", "", "/rx_octets");
    assert!(before[0]["rx_octets"].as_u64() > Some(0), "{before}");
    assert_eq!(metrics.value("rnic_up"), 1.0);
    let ports = metrics.value(r#"rnic_user_quota_used{user="nobody",resource="ports"}"#);
    assert_eq!(
        (ports, metrics.value(r#"rnic_device_ports{device="nic"}"#)),
        (1.0, 1.0)
    );
    // Not asked for, no port is counted by itself.
    let brief = Exposition::read(&self::metrics(&world, ""));
    assert!(!brief.names.keys().any(|name| name.starts_with("rnic_port")));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn no_counter_of_a_user_goes_back() {
    let mut world = World::new("");
    let users = |world: &World| Exposition::read(&metrics(world, ""));
    let (server, client) = (
        "rping -s -a 10.77.0.2",
        "rping -c -a 10.77.0.2 -C 1000000000",
    );
    let both = transfer(&world, server, client);
    let first = users(&world);
    let sent = r#"rnic_user_sent_frames_total{device="nic",user="nobody",verdict="to_nic"}"#;
    assert!(first.value(sent) > 100.0);
    // The client is killed.
    drop(both);
    let is_over =
        |world: &World| (world.ask("port show") == Value::Array(Vec::new())).then_some(());
    world.until("the port ends", || is_over(&world));
    let ended = users(&world);
    ended.assert_not_back(&first);
    // Another port, of the same number, counts from zero.
    let both = transfer(&world, server, client);
    let second = users(&world);
    second.assert_not_back(&ended);
    assert!(second.value(sent) > ended.value(sent) + 100.0);
    // An administrator ends it.
    succeed(&mut world.root("client kill 1"));
    drop(both);
    let killed = users(&world);
    killed.assert_not_back(&second);
    // A client ends while no rnicd runs, and takes with it what the kernel says of its host end.
    let both = transfer(&world, server, client);
    let third = users(&world);
    world.stop();
    let down = Exposition::read(&metrics(&world, ""));
    assert_eq!((down.value("rnic_up"), down.names.len()), (0.0, 2));
    drop(both);
    world.until("the kernel has removed the port", || {
        let links = world.host.ip("-o link show type veth").unwrap();
        (!links.contains(": rnic")).then_some(())
    });
    world.restart();
    let fourth = world.until("rnicd shares the device again", || {
        let metrics = users(&world);
        metrics
            .names
            .contains_key("rnic_user_sent_frames_total")
            .then_some(metrics)
    });
    fourth.assert_not_back(&third);
    assert!(is_over(&world).is_some());
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn scrapers_get_metrics_and_other_users_none() {
    let (world, _server) = listening();
    let refused = world.nobody("metrics").output().unwrap();
    assert_eq!(refused.status.code(), Some(3));
    let said = text(&refused.stderr);
    assert!(said.contains("only root may"), "{said}");
    world.host.ip("link set dev lo up").unwrap();
    // Root without any capability, as rnic-metrics.service has it.
    let mut exporter = world.host.command("setpriv");
    exporter.args(["--bounding-set=-all", "--inh-caps=-all"]);
    exporter.arg(format!("{}/rnic-ctl", world.place()));
    exporter.args(["metrics", "--listen", "127.0.0.1:9752"]);
    exporter.env("RNICD_SOCKET", world.socket());
    let _exporter = Running::start(exporter).until_it_says("listening on 127.0.0.1:9752");
    let mut curl = world.host.command("curl");
    curl.args([
        "--silent",
        "--show-error",
        "--fail",
        "http://127.0.0.1:9752/metrics",
    ]);
    let scraped = text(&succeed(&mut curl).stdout);
    let ports = Exposition::read(&scraped).value(r#"rnic_device_ports{device="nic"}"#);
    assert_eq!(ports, 1.0);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_guide_has_every_metric_and_no_other() {
    let (world, _server) = listening();
    let metrics = read(&world);
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let guide = fs::read_to_string(guide).unwrap();
    let rows = guide
        .lines()
        .filter_map(|line| line.strip_prefix("| `rnic_"));
    let mut documented = BTreeMap::new();
    for row in rows {
        let mut cells = row.split('|');
        let name = format!(
            "rnic_{}",
            cells.next().unwrap().trim().trim_end_matches('`')
        );
        let labels = cells.next().unwrap().split(',');
        let labels = labels.map(|label| label.trim().trim_matches('`').to_owned());
        let labels: BTreeSet<_> = labels.filter(|label| !label.is_empty()).collect();
        assert_eq!(documented.insert(name, labels), None, "{row}");
    }
    let samples = metrics.samples.into_values();
    let there = samples.map(|sample| (sample.name, sample.labels.into_keys().collect()));
    assert_eq!(documented, there.collect());
}

/// All strings of a JSON value with one of these keys.
fn strings<'a>(value: &'a Value, keys: &[&str], found: &mut Vec<&'a str>) {
    match value {
        Value::Array(elements) => elements
            .iter()
            .for_each(|value| strings(value, keys, found)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(text) if keys.contains(&key.as_str()) => found.push(text),
                    _ => strings(value, keys, found),
                }
            }
        }
        _ => {}
    }
}

/// The names of metrics in an expression, each with the names of the labels that it selects by.
fn selectors(expression: &str) -> Vec<(&str, Vec<&str>)> {
    let starts = expression
        .match_indices("rnic_")
        .map(|(at, _)| &expression[at..]);
    starts
        .map(|rest| {
            let end = rest.find(|char: char| !char.is_ascii_lowercase() && char != '_');
            let (name, behind) = rest.split_at(end.unwrap_or(rest.len()));
            let inner = behind
                .strip_prefix('{')
                .and_then(|rest| rest.split_once('}'));
            let matchers = inner.map_or("", |(inner, _)| inner).split(", ");
            let labels = matchers.filter_map(|matcher| matcher.split(['=', '!']).next());
            (name, labels.filter(|label| !label.is_empty()).collect())
        })
        .collect()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_dashboard_asks_for_what_there_is() {
    let (world, _server) = listening();
    let metrics = read(&world);
    let dashboard = fs::read_to_string(Path::new(DASHBOARD)).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut expressions = Vec::new();
    strings(
        &dashboard,
        &["expr", "query", "definition"],
        &mut expressions,
    );
    expressions.retain(|expression| *expression != "prometheus");
    assert!(expressions.len() > 10, "{expressions:?}");
    for expression in expressions {
        let selectors = selectors(expression);
        assert!(!selectors.is_empty(), "{expression}");
        for (name, labels) in selectors {
            let sample = metrics.samples.values().find(|sample| sample.name == name);
            let sample = sample.unwrap_or_else(|| panic!("{expression}: there is no {name}"));
            // Prometheus itself adds the host.
            for label in labels.into_iter().filter(|label| *label != "instance") {
                let has = sample.labels.contains_key(label);
                assert!(has, "{expression}: {name} has no label {label}");
            }
            let is_counter = metrics.names[name];
            let is_rate = expression.contains("rate(") || expression.contains("increase(");
            let is_query = expression.starts_with("label_values(");
            // A rate of what is no counter has no sense, nor has a counter without one.
            assert!(is_query || is_counter == is_rate, "{expression}");
        }
    }
}
