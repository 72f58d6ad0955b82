//! What an administrator sets while rnicd runs.

use std::fs;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Instant;

use rnic_manager::Administrator;
use rnic_manager::protocol::{Answer, Ask, Change, Reason};

use crate::rig::{Rnicd, SOON, port_of_frames};

impl Rnicd {
    /// The file of what was set.
    fn set(&self) -> PathBuf {
        self.scratch.path("state/rnic-ctl.toml")
    }

    fn administrator(&self) -> Administrator {
        Administrator::connect(&self.scratch.path("socket")).unwrap()
    }

    /// Does what must succeed.
    fn must(&self, ask: Ask) {
        assert_eq!(self.root().ask(ask).0, Answer::Done);
    }

    /// Does what must be refused. Returns why.
    fn fails(&self, ask: Ask) -> String {
        self.root().is_refused(ask, Reason::Other)
    }
}

fn changes(words: &str) -> Vec<Change> {
    let words: Vec<_> = words.split_whitespace().collect();
    let pairs = words.chunks(2).map(|pair| Change {
        key: pair[0].to_owned(),
        value: (pair[1] != "default").then(|| pair[1].to_owned()),
    });
    pairs.collect()
}

fn set_user(user: &str, words: &str) -> Ask {
    Ask::SetUser {
        user: user.to_owned(),
        changes: changes(words),
    }
}

fn nic() -> String {
    "nic".to_owned()
}

fn add(words: &str) -> Ask {
    Ask::AddDevice {
        netdev: nic(),
        changes: changes(words),
    }
}

fn set(words: &str, force: bool) -> Ask {
    Ask::SetDevice {
        netdev: nic(),
        changes: changes(words),
        force,
    }
}

fn remove(force: bool) -> Ask {
    Ask::RemoveDevice {
        netdev: nic(),
        force,
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_is_set_for_a_user_counts_at_once_and_after_a_kill() {
    let mut rnicd = Rnicd::start("set-user");
    let mut holder = rnicd.client();
    let (_, _of_first) = holder.open();
    rnicd.must(set_user("root", "ports 1 rate 1Gbit listen 7000,7005-7006"));
    let file = rnicd.set();
    let text = fs::read_to_string(&file).unwrap();
    let expected =
        "\n[[user]]\nuid = 0\nports = 1\nlisten = [7000, \"7005-7006\"]\nrate = \"1Gbit\"\n";
    assert!(text.ends_with(expected), "{text}");
    let over = format!("ports = 1 (set by rnic-ctl in {}:6)", file.display());
    for _ in 0..2 {
        // What is held stays.
        assert_eq!(rnicd.administrator().ports().unwrap().len(), 1);
        let refused = rnicd.client().is_refused(port_of_frames(32), Reason::Quota);
        assert!(refused.contains(&over), "{refused}");
        let users = rnicd.administrator().users().unwrap();
        let rate = users[0]
            .settings
            .iter()
            .find(|set| set.key == "rate")
            .unwrap();
        let set_by = format!("rnic-ctl in {}:8", file.display());
        assert_eq!((rate.value.as_str(), &rate.set_by), ("1Gbit", &set_by));
        rnicd.kill();
        rnicd.start_again();
    }
    rnicd.must(set_user("0", "ports default"));
    let (_, _of_second) = rnicd.client().open();
    let ask = Ask::ResetUser {
        user: "root".into(),
    };
    rnicd.must(ask.clone());
    assert!(!file.exists());
    let why = rnicd.fails(ask);
    assert!(why.starts_with("nothing was set for uid 0"), "{why}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_makes_no_sense_is_refused_in_the_words_of_check() {
    let rnicd = Rnicd::start("set-wrong");
    for (ask, expected) in [
        (
            set_user("0", "rate 10Gb"),
            "rate in [[user]] is wrong; it must be a rate in bit, kbit, Mbit, Gbit or Tbit each second, such as \"10Gbit\", or \"none\"",
        ),
        (
            set_user("0", "rat 10Gbit"),
            "unknown key \"rat\" in [[user]]; did you mean \"rate\"?",
        ),
        (
            set_user("0", "rat default"),
            "unknown key \"rat\" in [[user]]; did you mean \"rate\"?",
        ),
        (
            set_user("0", "rate none rate none"),
            "rate is there twice; say it once",
        ),
        (
            set_user("0", "ports 1\"\n"),
            "ports in [[user]] is wrong; it must be a number from 0 to 4294967295, such as 4",
        ),
        (
            set_user("0", "devices nic,eth9"),
            "no [[device]] has the name \"eth9\"; add it, or remove it here",
        ),
        (
            set_user("no-such-user", "ports 1"),
            "there is no user \"no-such-user\"; make one (`useradd no-such-user`), or remove the rule",
        ),
        (
            set("xdp_mode fast", false),
            "xdp_mode in [[device]] is wrong; it must be \"auto\", \"native\" or \"generic\"",
        ),
        (
            set("shared false", false),
            "unknown key \"shared\" in [[device]]; known are xdp_mode",
        ),
        (
            add(""),
            "rnicd shares nic already; `rnic-ctl dev set nic` changes how it does",
        ),
        (
            Ask::AddDevice {
                netdev: "eth9".into(),
                changes: Vec::new(),
            },
            "eth9 cannot be shared now: there is no network device eth9",
        ),
        (
            Ask::RemoveDevice {
                netdev: "eth9".into(),
                force: false,
            },
            "rnicd does not share eth9; `rnic-ctl dev show` lists what it shares",
        ),
    ] {
        let said = format!("{ask:?}");
        let why = rnicd.fails(ask);
        assert!(why.starts_with(expected), "{said}: {why}");
    }
    assert!(!rnicd.set().exists());
    assert_eq!(rnicd.administrator().devices().unwrap().len(), 1);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_device_is_shared_no_more_until_it_is_added_again() {
    let mut rnicd = Rnicd::start("set-device");
    let mut holder = rnicd.client();
    let (_, of_holder) = holder.open();
    let in_use = "nic has 1 port in use (`rnic-ctl port show`); ";
    for (ask, remedy) in [
        (remove(false), "`rnic-ctl dev del nic --force` ends them"),
        (
            set("xdp_mode generic", false),
            "a change of xdp_mode ends them: `rnic-ctl dev set nic ... --force` does it",
        ),
    ] {
        assert_eq!(rnicd.fails(ask), format!("{in_use}{remedy}"));
    }
    // This changes nothing, and ends nothing.
    rnicd.must(set("xdp_mode auto", false));
    assert_eq!(rnicd.administrator().ports().unwrap().len(), 1);
    rnicd.must(remove(true));
    for _ in 0..2 {
        let mut administrator = rnicd.administrator();
        assert!(administrator.devices().unwrap().is_empty());
        assert!(administrator.ports().unwrap().is_empty());
        let link = rnicd.namespaces[0].ip("-d link show dev nic").unwrap();
        assert!(!link.contains("prog/xdp"), "{link}");
        assert!(
            rnicd
                .fails(remove(true))
                .starts_with("rnicd does not share nic")
        );
        rnicd.kill();
        rnicd.start_as("shares ");
    }
    drop(of_holder);
    rnicd.must(add("xdp_mode generic"));
    for _ in 0..2 {
        let devices = rnicd.administrator().devices().unwrap();
        let set_by = format!("rnic-ctl in {}:", rnicd.set().display());
        let mode = &devices[0].settings[0];
        assert_eq!(
            (mode.key.as_str(), mode.value.as_str()),
            ("xdp_mode", "generic")
        );
        assert!(mode.set_by.starts_with(&set_by), "{mode:?}");
        rnicd.kill();
        rnicd.start_again();
    }
    let (_, _port) = rnicd.client().open();
    rnicd.must(set("xdp_mode default", true));
    assert!(rnicd.administrator().ports().unwrap().is_empty());
    assert!(!rnicd.set().exists());
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn another_number_of_associations_waits_until_nobody_has_a_port() {
    let rnicd = Rnicd::start("if-id");
    let file = rnicd.scratch.path("rnicd.toml");
    let rules = fs::read_to_string(&file).unwrap();
    let number = |number: u32| {
        let device = format!("name = \"nic\"\nipsec_if_id = {number}");
        let rules = rules.replacen("name = \"nic\"", &device, 1);
        let rule = "[[user]]\nuid = 0\nprotected = [7471]\n";
        fs::write(&file, format!("{rules}\n{rule}")).unwrap();
        rnicd.reload();
        rnicd.client().open()
    };
    let (grant, of_first) = number(7);
    assert_eq!(grant.ipsec_if_id, NonZeroU32::new(7));
    // A client is told what holds, not what is configured.
    let (grant, of_second) = number(8);
    assert_eq!(grant.ipsec_if_id, NonZeroU32::new(7));
    drop([of_first, of_second]);
    let until = Instant::now() + SOON;
    while !rnicd.administrator().ports().unwrap().is_empty() {
        assert!(Instant::now() < until, "the ports do not end");
    }
    let (grant, _port) = number(8);
    assert_eq!(grant.ipsec_if_id, NonZeroU32::new(8));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_damaged_file_of_what_was_set_is_named_and_stops_nothing() {
    let mut rnicd = Rnicd::start("set-damaged");
    let file = rnicd.set();
    let place = file.display();
    for (text, fault) in [
        ("[[user]", format!("{place}:1: this is no TOML: ")),
        (
            "[defaults]\nports = 9\n",
            format!("{place}:1: unknown key \"defaults\" in the file; "),
        ),
        (
            "[[user]]\nuid = 0\ndevices = [\"eth9\"]\n",
            format!("{place}:3: no [[device]] has the name \"eth9\"; add it, or remove it here"),
        ),
        ("\u{0}\u{1}", format!("{place}:1: this is no TOML: ")),
    ] {
        rnicd.kill();
        fs::write(&file, text).unwrap();
        // It shares what the configuration names.
        rnicd.start_again();
        let (_, _port) = rnicd.client().open();
        let remedy =
            format!("; correct {place} or remove it, then reload rnicd (`systemctl reload rnicd`)");
        let (code, said) = rnicd.command("--check");
        for said in [
            said.trim_end().to_owned(),
            rnicd.fails(set_user("0", "ports 1")),
        ] {
            let expected = format!("what rnic-ctl has set does not count: {fault}");
            assert!(
                said.starts_with(&expected) && said.ends_with(&remedy),
                "{said}"
            );
        }
        assert_eq!(code, Some(1));
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
    fs::remove_file(&file).unwrap();
    rnicd.reload();
    rnicd.must(set_user("0", "ports 0"));
    let refused = rnicd.client().is_refused(port_of_frames(32), Reason::Quota);
    assert!(refused.contains("may hold ports = 0"), "{refused}");
}
