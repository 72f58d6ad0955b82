//! What the rules of the configuration allow a user.

use rnicd::config::Limits;
use rnicd::policy::Policy;

use crate::{FILE, faults, read};

fn policy(text: &str) -> Policy {
    Policy::new(&read(&format!("socket_group = \"root\"\n{text}")))
        .unwrap_or_else(|faults| panic!("{faults}"))
}

#[test]
fn a_users_rule_comes_before_its_groups_and_these_before_the_defaults() {
    let policy = policy(
        r#"
        [[device]]
        name = "eth1"
        [[device]]
        name = "eth2"
        [defaults]
        ports = 1
        frames = 2
        listeners = 3
        [[group]]
        gid = 100
        ports = 4
        connections = 5
        rate = "1Gbit"
        devices = ["eth1"]
        listen = [1]
        peers = ["192.0.2.0/24"]
        hugepages = "1GiB"
        crc = "always"
        [[group]]
        gid = 101
        ports = 6
        connections = 4
        rate = "2Gbit"
        devices = ["eth2", "eth1"]
        listen = [2]
        peers = ["192.0.2.0/24", "192.0.3.0/24"]
        hugepages = "1MiB"
        crc = "optional"
        [[group]]
        gid = 102
        rate = "none"
        devices = "all"
        peers = "all"
        [[user]]
        uid = 1000
        ports = 2
        rate = "3Gbit"
        "#,
    );
    let shown = |uid, gids: &[u32]| {
        let limits = policy.limits(uid, gids).to_string();
        limits.replace('\n', "; ")
    };
    assert_eq!(
        shown(7, &[7]),
        "devices = \"all\"; queues = []; ports = 1; frames = 2; listen = [7174, \"18500-19999\"]; protected = []; listeners = 3; connections = 1024; \
         rate = \"1Gbit\"; peers = [\"on-link\"]; hugepages = \"128MiB\"; crc = \"always\"; "
    );
    // A group's rule holds also where the defaults allow more.
    assert_eq!(
        shown(7, &[7, 100]),
        "devices = [\"eth1\"]; queues = []; ports = 4; frames = 2; listen = [1]; protected = []; listeners = 3; connections = 5; rate = \"1Gbit\"; \
         peers = [\"192.0.2.0/24\"]; hugepages = \"1GiB\"; crc = \"always\"; "
    );
    let both = "ports = 6; frames = 2; listen = [1, 2]; protected = []; listeners = 3; connections = 5; rate = \"2Gbit\"; \
                peers = [\"192.0.2.0/24\", \"192.0.3.0/24\"]; hugepages = \"1GiB\"; crc = \"optional\"; ";
    assert_eq!(
        shown(7, &[100, 101]),
        format!("devices = [\"eth1\", \"eth2\"]; queues = []; {both}")
    );
    assert_eq!(
        shown(7, &[100, 101, 102]),
        "devices = \"all\"; queues = []; ports = 6; frames = 2; listen = [1, 2]; protected = []; listeners = 3; connections = 5; rate = \"none\"; \
         peers = \"all\"; hugepages = \"1GiB\"; crc = \"optional\"; "
    );
    assert_eq!(
        shown(1000, &[100, 101]),
        format!("devices = [\"eth1\", \"eth2\"]; queues = []; {both}")
            .replace("ports = 6", "ports = 2")
            .replace("2Gbit", "3Gbit")
    );
    // Who has set it: the rule whose value counts, or all that have a part in it.
    let limits = policy.limits(1000, &[100, 101]);
    let origins = [
        limits.ports.origin.to_string(),
        limits.hugepages.origin.to_string(),
        limits.listen.origin.to_string(),
    ];
    assert_eq!(
        origins,
        [
            "/etc/rnic/rnicd.toml:38",
            "/etc/rnic/rnicd.toml:19",
            "/etc/rnic/rnicd.toml:17,27"
        ]
    );
}

#[test]
fn queues_of_several_groups_are_granted_together() {
    let policy = policy(
        "[[device]]\nname = \"eth1\"\n[[group]]\ngid = 100\nqueues = [\"eth1:3\", \"eth1:0\"]\n\
         [[group]]\ngid = 101\nqueues = [\"eth1:3\", \"eth1:4\"]\n[[user]]\nuid = 1000\nqueues = []\n",
    );
    let shown = |uid, gids: &[u32]| policy.limits(uid, gids).queues.value.to_string();
    assert_eq!(shown(7, &[7]), "[]");
    assert_eq!(shown(7, &[100]), "[\"eth1:3\", \"eth1:0\"]");
    assert_eq!(
        shown(7, &[100, 101]),
        "[\"eth1:3\", \"eth1:0\", \"eth1:4\"]"
    );
    assert_eq!(shown(1000, &[100, 101]), "[]");
}

#[test]
fn names_become_numbers() {
    let policy =
        policy("[[user]]\nname = \"root\"\nports = 9\n[[group]]\nname = \"root\"\nframes = 8");
    assert_eq!(policy.socket_gid(), 0);
    assert_eq!(policy.limits(0, &[5]).ports.value.0, 9);
    assert_eq!(policy.limits(5, &[5, 0]).frames.value.0, 8);
    assert_eq!(policy.limits(5, &[5]), Limits::default());
}

#[test]
fn names_that_this_host_does_not_know_are_faults() {
    let said = |text: &str| Policy::new(&read(text)).unwrap_err().to_string();
    let text = r#"socket_group = "no such"
[[device]]
name = "eth1"
[defaults]
devices = ["eth2"]
[[group]]
name = "none either"
devices = ["eth1", "eth3"]
[[user]]
name = "nor he"
[[user]]
uid = 0
[[user]]
name = "root"
[[user]]
uid = 5
queues = ["eth1:0", "eth4:1"]
"#;
    let expected = [
        "1: there is no group \"no such\"; make one (`groupadd --system no such`), or name another",
        "5: no [[device]] has the name \"eth2\"; add it, or remove it here",
        "7: there is no group \"none either\"; make one (`groupadd --system none either`), or name another",
        "8: no [[device]] has the name \"eth3\"; add it, or remove it here",
        "10: there is no user \"nor he\"; make one (`useradd nor he`), or remove the rule",
        "14: [[user]] for 0 is there twice, first at /etc/rnic/rnicd.toml:12; make them one",
        "17: no [[device]] has the name \"eth4\"; add it, or remove it here",
    ];
    let expected = expected.map(|line| format!("{FILE}:{line}"));
    assert_eq!(said(text), expected.join("\n"));
}

#[test]
fn what_is_protected_needs_a_number_of_its_own() {
    let device = |name: &str, number: &str| format!("[[device]]\nname = \"{name}\"\n{number}\n");
    let number = device("eth1", "ipsec_if_id = 0x524e");
    let rule = "[[user]]\nuid = 1000\nprotected = [7471, \"40000-40063\"]\n";
    let limits = policy(&[&number, rule].concat()).limits(1000, &[]);
    let protected = limits.protected.value;
    assert!(protected.contains(7471) && protected.contains(40063) && !protected.contains(40064));
    let said = |text: &str| {
        let text = format!("socket_group = \"root\"\n{text}");
        Policy::new(&read(&text)).unwrap_err().to_string()
    };
    let none = said(&[&device("eth1", ""), rule].concat());
    assert!(none.contains("no [[device]] has an ipsec_if_id"), "{none}");
    let twice = said(&[number.clone(), device("eth2", "ipsec_if_id = 21070")].concat());
    assert!(
        twice.contains("another device has the ipsec_if_id 0x524e too"),
        "{twice}"
    );
    let automatic = said(&[&number, "[defaults]\nprotected = [\"60000-61000\"]\n"].concat());
    assert!(
        automatic.contains("automatic_ports (61000-65535)"),
        "{automatic}"
    );
    for bad in ["0", "-1", "\"0x524e\"", "4294967296", "1.5"] {
        let said = faults(&device("eth1", &format!("ipsec_if_id = {bad}")));
        assert!(
            said[0].contains("a number from 1 to 0xffffffff"),
            "{said:?}"
        );
    }
}
