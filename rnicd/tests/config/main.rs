//! What the configuration says, and what is said of it.

mod rules;

use std::path::Path;

use rnic_xdp::steering::ModeChoice;
use rnicd::config::{Config, Limits, Rate, Who};

const FILE: &str = "/etc/rnic/rnicd.toml";

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new(FILE)).map_err(|faults| faults.to_string())
}

fn read(text: &str) -> Config {
    parse(text).unwrap_or_else(|faults| panic!("{faults}"))
}

/// What is said of a text: the lines without the file's name.
fn faults(text: &str) -> Vec<String> {
    let faults = parse(text).expect_err(text);
    let line = |line: &str| line.strip_prefix(FILE).expect(line)[1..].to_owned();
    faults.lines().map(line).collect()
}

#[test]
fn an_empty_file_is_the_defaults() {
    let config = read("");
    assert_eq!(config, Config::new(Path::new(FILE)));
    assert_eq!(
        config.to_string(),
        r#"socket = "/run/rnic/rnicd.sock"
socket_group = "rnic"
observer_group = "rnic-metrics"
automatic_ports = "61000-65535"

[defaults]
devices = "all"
queues = []
ports = 4
frames = 32768
listen = [7174, "18500-19999"]
protected = []
listeners = 64
connections = 1024
rate = "1Gbit"
peers = ["on-link"]
hugepages = "128MiB"
crc = "always"
"#
    );
}

#[test]
fn the_sample_says_what_the_defaults_are() {
    let sample = include_str!("../../rnicd.toml");
    assert_eq!(read(sample), read(""));
    let uncommented = |mark: &str| {
        let lines = sample.lines().map(|line| match line.strip_prefix(mark) {
            Some(rest) if !rest.starts_with([' ', '#']) && !rest.is_empty() => rest,
            _ => line,
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    let defaults = uncommented("#");
    assert_eq!(read(&defaults).to_string(), read("").to_string());
    for line in read("").to_string().lines() {
        assert!(defaults.contains(line), "the sample does not show {line}");
    }
    let examples = read(&uncommented("## "));
    let counts = [
        examples.devices.len(),
        examples.groups.len(),
        examples.users.len(),
    ];
    assert_eq!(counts, [1, 1, 1]);
}

const FULL: &str = r#"socket = '/run/a "b".sock'
socket_group = "root"
observer_group = "adm"
automatic_ports = "50000-50999"

[[class]]
socket = "/run/pods/rnicd.sock"
socket_group = "root"
uid = 2000000001

[[subordinate]]
name = "root"
first = 100000
count = 65536

[[device]]
name = "eth1"
shared = true
xdp_mode = "auto"
forwarding = "refuse"

[[device]]
name = "eth2"
shared = false
xdp_mode = "native"
forwarding = "accept"
ipsec_if_id = 0x524e

[[device]]
name = "eth3"
shared = true
xdp_mode = "generic"
forwarding = "refuse"

[defaults]
devices = []
queues = []
ports = 0
frames = 1
listen = []
protected = [7471, "40000-40063"]
listeners = 2
connections = 3
rate = "10Gbit"
peers = []
hugepages = "0B"
crc = "optional"

[[group]]
name = "root"
devices = ["eth1"]
ports = 5
rate = "1500kbit"

[[group]]
gid = 1000
devices = ["eth2", "eth1"]
frames = 6
listen = [7174, "8000-8999"]
rate = "none"

[[user]]
name = "root"
listen = [80]
peers = ["on-link", "192.0.2.0/24", "2001:db8::1"]
hugepages = "3GiB"

[[user]]
uid = 1000
rate = "1bit"
hugepages = "1025B"
crc = "always"
"#;

#[test]
fn everything_that_can_be_said_is_read_and_shown() {
    let config = read(FULL);
    assert_eq!(config.to_string(), FULL);
    let modes: Vec<_> = config
        .devices
        .iter()
        .map(|device| device.mode().value)
        .collect();
    assert_eq!(
        modes,
        [ModeChoice::Auto, ModeChoice::Native, ModeChoice::Generic]
    );
    assert_eq!(config.users[1].who.value, Who::Id(1000));
    assert_eq!(
        config.users[1].rule.rate.as_ref().map(|rate| rate.value),
        Some(Rate(Some(1)))
    );
    let origin = config.defaults.frames.origin.to_string();
    assert_eq!(origin, "/etc/rnic/rnicd.toml:39");
    assert_eq!(Limits::default().frames.origin.to_string(), "the default");
}

#[test]
fn every_fault_has_its_line_and_a_remedy() {
    for (text, expected) in [
        (
            "sokcet = 1",
            "1: unknown key \"sokcet\" in the file; did you mean \"socket\"?",
        ),
        (
            "\n\ncolour = 1",
            "3: unknown key \"colour\" in the file; known are socket, socket_group, observer_group, automatic_ports, class, subordinate, device, defaults, group, user",
        ),
        (
            "[defaults]\nport = 1",
            "2: unknown key \"port\" in [defaults]; did you mean \"ports\"?",
        ),
        (
            "[[user]]\nuid = 1\nbandwidth_out = [1]",
            "3: unknown key \"bandwidth_out\" in [[user]]; known are name, uid, devices, queues, ports, frames, listen, protected, listeners, \
             connections, rate, peers, hugepages, crc",
        ),
        (
            "socket = \"run/x\"",
            "1: socket in the file is wrong; it must be an absolute path of at most 107 octets, such as \"/run/rnic/rnicd.sock\"",
        ),
        (
            "socket_group = 7",
            "1: socket_group in the file is wrong; it must be the name of a group, such as \"rnic\"",
        ),
        (
            "automatic_ports = 61000",
            "1: automatic_ports in the file is wrong; it must be a range of TCP ports, such as \"61000-65535\"",
        ),
        (
            "automatic_ports = \"65535-61000\"",
            "1: automatic_ports in the file is wrong; it must be a range of TCP ports, such as \"61000-65535\"",
        ),
        (
            "[[device]]\nname = \"eth1\"\nforwarding = true",
            "3: forwarding in [[device]] is wrong; it must be \"refuse\" or \"accept\"",
        ),
        (
            "group = \"rnic\"",
            "1: group is no list of tables; write [[group]] above the keys of each",
        ),
        (
            "[group]",
            "1: group is no list of tables; write [[group]] above the keys of each",
        ),
        (
            "user = [1]",
            "1: user is no list of tables; write [[user]] above the keys of each",
        ),
        (
            "defaults = 1",
            "1: defaults is no table; write [defaults] above its keys",
        ),
        (
            "[[device]]\nxdp_mode = \"auto\"",
            "1: [[device]] has no name; it must be the name of a network device, such as \"eth1\"",
        ),
        (
            "[[device]]\nname = \"a/b\"",
            "2: name in [[device]] is wrong; it must be the name of a network device, such as \"eth1\"",
        ),
        (
            "[[device]]\nname = \"eth1\"\nshared = \"no\"",
            "3: shared in [[device]] is wrong; it must be true or false",
        ),
        (
            "[[device]]\nname = \"eth1\"\nxdp_mode = \"skb\"",
            "3: xdp_mode in [[device]] is wrong; it must be \"auto\", \"native\" or \"generic\"",
        ),
        (
            "[[device]]\nname = \"eth1\"\n[[device]]\nname = \"eth1\"",
            "3: [[device]] \"eth1\" is there twice, first at /etc/rnic/rnicd.toml:2; remove one",
        ),
        (
            "[[user]]\nports = 1",
            "1: [[user]] has neither name nor uid; say for whom it is",
        ),
        (
            "[[group]]\nname = \"a\"\ngid = 1",
            "1: [[group]] has both name and gid; remove one",
        ),
        (
            "[[group]]\ngid = 4294967295",
            "2: gid in [[group]] is wrong; it must be a number, such as gid = 1000",
        ),
        (
            "[[user]]\nname = \"\"",
            "2: name in [[user]] is wrong; it must be a name, such as \"alice\"",
        ),
    ] {
        assert_eq!(faults(text), [expected], "{text}");
    }
}

#[test]
fn what_is_wrong_in_a_list_is_named_with_its_line() {
    let text = "[defaults]\npeers = [\n  \"192.0.2.0/24\",\n  \"192.0.2.0/33\",\n]";
    let [fault] = faults(text).try_into().unwrap();
    let expected = "4: peers in [defaults] is wrong at \"192.0.2.0/33\"; it must be a list of ";
    assert!(fault.starts_with(expected), "{fault}");
}

#[test]
fn every_value_has_its_form() {
    let count = "a number from 0 to 4294967295, such as 4";
    let rate =
        "a rate in bit, kbit, Mbit, Gbit or Tbit each second, such as \"10Gbit\", or \"none\"";
    let memory = "an amount of memory in B, KiB, MiB, GiB or TiB, such as \"256MiB\"";
    let ports = "a list of TCP ports from 1 to 65535 and ranges, such as [7174, \"8000-8999\"]";
    let devices = "a list of devices, such as [\"eth1\"], or \"all\"";
    let peers = "a list of addresses, prefixes and \"on-link\", such as [\"192.0.2.0/24\", \"2001:db8::/32\"], or \"all\"";
    for (key, values, form) in [
        (
            "ports",
            &["-1", "4294967296", "1.5", "\"4\"", "[4]", "{}"][..],
            count,
        ),
        ("frames", &["true"], count),
        ("listeners", &["1979-05-27"], count),
        ("connections", &["nan"], count),
        (
            "rate",
            &[
                "10",
                "\"10\"",
                "\"10gbit\"",
                "\"10 Gbit/s\"",
                "\"0bit\"",
                "\"-1Gbit\"",
                "\"99999999999Tbit\"",
                "\"all\"",
            ],
            rate,
        ),
        (
            "crc",
            &["true", "\"on\"", "\"Always\"", "[]"],
            "\"always\" or \"optional\"",
        ),
        (
            "hugepages",
            &[
                "64",
                "\"64\"",
                "\"64MB\"",
                "\"MiB\"",
                "\"99999999TiB\"",
                "\"\"",
            ],
            memory,
        ),
        (
            "listen",
            &[
                "7174",
                "[0]",
                "[65536]",
                "[\"0-9\"]",
                "[\"9-8\"]",
                "[\"1-65536\"]",
                "[\"-9\"]",
                "[\"x\"]",
                "\"all\"",
                "[[1]]",
            ],
            ports,
        ),
        (
            "devices",
            &["\"eth1\"", "[1]", "[\"a b\"]", "[\"\"]"],
            devices,
        ),
        (
            "queues",
            &[
                "\"eth1:3\"",
                "\"all\"",
                "[3]",
                "[\"eth1\"]",
                "[\"eth1:\"]",
                "[\":3\"]",
                "[\"eth1:-1\"]",
                "[\"eth1:65536\"]",
                "[\"a b:3\"]",
            ],
            "a list of devices with the number of a queue each, such as [\"eth1:3\"], or []",
        ),
        (
            "peers",
            &["\"192.0.2.1\"", "[\"192.0.2.0/33\"]", "[1]"],
            peers,
        ),
    ] {
        for value in values {
            // What is wrong in a list is named.
            let element = value
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'));
            let element = element.filter(|_| form.starts_with("a list"));
            let at = element.map_or_else(String::new, |element| format!(" at {element}"));
            let expected = format!("2: {key} in [defaults] is wrong{at}; it must be {form}");
            assert_eq!(
                faults(&format!("[defaults]\n{key} = {value}")),
                [expected],
                "{key} = {value}"
            );
        }
    }
}

#[test]
fn all_faults_are_shown_at_once_in_the_order_of_lines() {
    let text = "[[user]]\nname = 1\nport = 2\n[defaults]\nrate = 3\n[[group]]\n";
    assert_eq!(
        faults(text),
        [
            "2: name in [[user]] is wrong; it must be a name, such as \"alice\"",
            "3: unknown key \"port\" in [[user]]; did you mean \"ports\"?",
            "5: rate in [defaults] is wrong; it must be a rate in bit, kbit, Mbit, Gbit or Tbit each second, such as \"10Gbit\", \
             or \"none\"",
            "6: [[group]] has neither name nor gid; say for whom it is",
        ]
    );
}

#[test]
fn what_is_no_toml_is_said_with_its_line() {
    for (text, line) in [
        ("\n[defaults\nports = 1", "2: this is no TOML: "),
        (
            "socket = \"/a\"\nsocket = \"/b\"",
            "2: this is no TOML: duplicate key",
        ),
        ("\n\nports = = 3", "3: this is no TOML: "),
        ("a = \"", "1: this is no TOML: "),
    ] {
        let said = faults(text);
        assert!(said[0].starts_with(line), "{text}: {said:?}");
        // What is left of the file is not looked at.
        let all = said.iter().all(|line| line.contains("this is no TOML"));
        assert!(all, "{text}: {said:?}");
    }
}
