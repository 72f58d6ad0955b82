//! What a client cannot do to rnicd itself: be root, be many, hold it up, or fill it.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rnic_manager::Administrator;
use rnic_manager::channel::{administration_socket, observation_socket};

use crate::client::{ALICE, BOB, Client, Home};
use crate::exchange::{Initiator, SOON};
use crate::peer::open;
use crate::rig::{NIC, PEER_NIC, Rig};

/// Longer than anybody waits for rnicd.
const LONG: &str = "600";

fn administrator(rig: &Rig) -> Administrator {
    Administrator::connect(&rig.socket()).unwrap()
}

/// Octets of memory that rnicd has.
fn memory(rig: &Rig) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", rig.pid())).unwrap();
    let mut lines = status.lines();
    let of = lines.find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    of.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_descriptor_whose_close_takes_long_holds_nobody_up() {
    let rig = Rig::new(1500, "");
    let mut attacker = rig.script_in(Home::Host, BOB);
    let taken = attacker.must(&format!("linger {LONG}"));
    assert_eq!(administrator(&rig).devices().unwrap().len(), 1);
    attacker.must(&format!("linger_in_an_answer {LONG}"));
    assert_eq!(administrator(&rig).devices().unwrap().len(), 1);
    let mut other = rig.open_client(ALICE);
    other.must("listen 10.9.0.1:0");
    eprintln!("it was {taken}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn root_of_a_container_is_a_user_like_any_other() {
    let rig = Rig::new(1500, "");
    let _alice = rig.open_client(ALICE);
    let refused = |client: &mut Client| {
        assert_eq!(client.must("administer"), ["not_permitted"; 5].join(" "));
        assert_eq!(client.must("end_port 1"), "refused");
        assert_eq!(client.must("show ports"), "0");
        assert_eq!(client.must("show devices"), "not_permitted");
    };
    for home in [Home::Host, Home::Container] {
        refused(&mut rig.script_in(home, 0));
    }
    // Nor if it is given the other socket, but is root of a user namespace of its own.
    let mut given = rig.script_in(Home::Container, 0);
    let path = administration_socket(&rig.socket());
    given.must(&format!("at {}", path.display()));
    refused(&mut given);
    assert_eq!(administrator(&rig).ports().unwrap().len(), 1);
    // Other users do not get there.
    for uid in [ALICE, BOB] {
        let mut other = rig.script_in(Home::Host, uid);
        other.must(&format!("at {}", path.display()));
        let why = other.ask("show ports").unwrap_err();
        assert!(why.contains("PermissionError"), "{why}");
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn observers_see_all_and_change_nothing() {
    let mut rig = Rig::new(1500, "");
    rig.kill();
    rig.write_configuration(&format!(
        "socket_group = \"nogroup\"\nobserver_group = \"nogroup\"\n[[device]]\nname = \"{NIC}\"\n"
    ));
    rig.start();
    let _alice = rig.open_client(ALICE);
    let mut bob = rig.script(BOB);
    assert_eq!(bob.must("show ports"), "0");
    bob.must(&format!(
        "at {}",
        observation_socket(&rig.socket()).display()
    ));
    for what in ["ports", "devices", "usage"] {
        assert_eq!(bob.must(&format!("show {what}")), "1", "{what}");
    }
    assert_eq!(bob.must("administer"), ["not_permitted"; 5].join(" "));
    assert_eq!(bob.must("end_port 1"), "refused");
    assert_eq!(bob.must("inspect 1 qp"), "refused");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn connections_that_say_nothing_end_and_keep_no_administrator_out() {
    let rig = Rig::new(1500, "");
    let before = rig.count_descriptors();
    let users: Vec<_> = (0..20)
        .map(|number| {
            let mut client = rig.script_in(Home::Host, 61_000 + number);
            client.must("crowd 300");
            client
        })
        .collect();
    assert_eq!(administrator(&rig).devices().unwrap().len(), 1);
    // One that comes later has its connections, too.
    rig.open_client(ALICE).must("listen 10.9.0.1:0");
    rig.until("they have ended", || {
        (rig.count_descriptors() <= before + 1).then_some(())
    });
    drop(users);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn subordinate_users_count_as_their_owner() {
    let rules = format!(
        "[[subordinate]]\nuid = {ALICE}\nfirst = 70000\ncount = 100\n[defaults]\nports = 2\n\
         [[user]]\nuid = 70050\nports = 1\n"
    );
    let mut rig = Rig::new(1500, &rules);
    let mut all: Vec<_> = [ALICE, 70_000, 70_099, 70_100, 70_050]
        .map(|uid| rig.script_in(Home::Host, uid))
        .into();
    let mut opened = all.iter_mut().map(|client| client.ask("open_one"));
    assert!(opened.next().unwrap().is_ok() && opened.next().unwrap().is_ok());
    let why = opened.next().unwrap().unwrap_err();
    assert!(why.contains("quota") && why.contains("65533"), "{why}");
    // Whoever is not among them, or has a rule of its own, counts by itself.
    assert!(opened.all(|one| one.is_ok()));
    let held = |rig: &Rig| {
        let users = administrator(rig).users().unwrap();
        let ports = users.iter().map(|user| (user.uid, user.resources[0].held));
        ports.filter(|(_, held)| *held > 0).collect::<Vec<_>>()
    };
    assert_eq!(held(&rig), [(ALICE, 2), (70_050, 1), (70_100, 1)]);
    // Also after a restart.
    rig.kill();
    rig.start();
    assert_eq!(held(&rig), [(ALICE, 2), (70_050, 1), (70_100, 1)]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn all_who_connect_at_the_socket_of_a_class_are_one_user() {
    let mut rig = Rig::new(1500, "");
    rig.kill();
    let mut socket = rig.socket();
    socket.set_file_name("pods");
    let socket = socket.join("socket").display().to_string();
    rig.configure(&format!(
        "[[class]]\nsocket = {socket:?}\nsocket_group = \"nogroup\"\nuid = 2000000001\n\
         [[user]]\nuid = 2000000001\nports = 1\n"
    ));
    rig.start();
    let pod = |uid: u32| {
        let mut client = rig.script_in(Home::Host, uid);
        client.must(&format!("at {socket}"));
        let opened = client.ask("open_one");
        (client, opened)
    };
    let (mut first, opened) = pod(60_001);
    opened.unwrap();
    let (_other, opened) = pod(60_002);
    let why = opened.unwrap_err();
    assert!(why.contains("quota") && why.contains("2000000001"), "{why}");
    // They see what is their own alone.
    assert_eq!(first.must("show ports"), "1");
    let (mut root, opened) = pod(0);
    assert!(opened.is_err());
    assert_eq!(root.must("show ports"), "0");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_a_client_makes_up_and_does_not_read_takes_no_memory() {
    let rig = Rig::new(1500, "");
    let before = memory(&rig);
    let mut attacker = rig.script(BOB);
    attacker.must("adopt_much 200");
    assert_eq!(administrator(&rig).ports().unwrap().len(), 1);
    let more = memory(&rig).saturating_sub(before);
    assert!(more < 24 << 20, "{more}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_that_reads_nothing_holds_one_descriptor_on_its_way() {
    let rig = Rig::new(1500, "");
    let mut attacker = rig.script(BOB);
    attacker.must("ask_for_pipes 4");
    // rnicd has been through all of them once it has answered some others.
    for _ in 0..8 {
        administrator(&rig);
    }
    rig.signal(Signal::SIGSTOP);
    let replies = attacker.must("count_replies");
    rig.signal(Signal::SIGCONT);
    assert_eq!(replies, "1");
    rig.until("it gets the next one", || {
        (attacker.must("count_replies") != "0").then_some(())
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn next_hops_are_looked_up_of_peers_alone() {
    let rig = Rig::new(1500, "[defaults]\npeers = [\"10.9.0.0/30\"]\n");
    let mut client = rig.script(BOB);
    assert_eq!(client.must("may_follow 10.9.0.77"), "not_permitted");
    assert_eq!(client.must("may_follow 10.9.0.2"), "yes");
    rig.until("the neighbour is looked up", || {
        let neighbours = rig.host.ip("neigh show").unwrap();
        assert!(!neighbours.contains("10.9.0.77"), "{neighbours}");
        neighbours.contains("10.9.0.2 ").then_some(())
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn next_hops_that_do_not_answer_are_few() {
    let rig = Rig::new(1500, "[defaults]\npeers = \"all\"\n");
    let mut client = rig.script(BOB);
    client.tell("pester follow");
    assert_eq!(client.answer().unwrap(), "begun");
    rig.until("it is refused more", || {
        rig.log().contains("a user follows at most").then_some(())
    });
    client.must("that will do");
    let neighbours = rig.host.ip("neigh show dev nic").unwrap();
    assert!(neighbours.lines().count() <= 300, "{neighbours}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_writes_few_lines_to_the_log() {
    let rig = Rig::new(1500, "");
    let mut client = rig.script(BOB);
    let began = Instant::now();
    client.must("adopt_often 1000");
    let most = 40 + began.elapsed().as_secs() as usize;
    let lines = rig.log().matches("is connected again").count();
    assert!((1..=most).contains(&lines), "{lines}");
    rig.until_log("were left out");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn without_rnicd_no_peer_comes_in_whom_a_policy_might_keep_out() {
    let mut rig = Rig::new(1500, "");
    let device = open(&rig.far, PEER_NIC);
    let mut server = rig.open_client(ALICE);
    server.must("listen 10.9.0.1:7000");
    server.tell("serve");
    let connect = || {
        let connect = || Initiator::connect(&device, "10.9.0.1:7000".parse().unwrap(), None);
        rig.far.run(connect)?.round(1)
    };
    connect().unwrap();
    rig.signal(Signal::SIGSTOP);
    let error = connect().unwrap_err();
    rig.signal(Signal::SIGCONT);
    assert!(error.contains("rejected"), "{error}");
    connect().unwrap();
    rig.kill();
    let error = rig.far.run(|| {
        Initiator::connect(&device, "10.9.0.1:7000".parse().unwrap(), None)
            .map(drop)
            .unwrap_err()
    });
    assert!(error.contains("rejected"), "{error}");
}

/// Whatever a client asks for without end, administrators are answered at once: the one thing here
/// that is measured. Of a machine that has other things to do, the best counts: tests beside this one
/// hold the kernel's lock of its network configuration, for which ports wait.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn administrators_are_answered_at_once_whatever_a_client_asks_for() {
    const AT_ONCE: Duration = Duration::from_millis(100);
    let rig = Rig::new(1500, "");
    let device = || {
        let began = Instant::now();
        assert_eq!(administrator(&rig).devices().unwrap().len(), 1);
        began.elapsed()
    };
    for kind in [
        "hello",
        "open_port",
        "adopt",
        "listen",
        "connect",
        "locate",
        "release",
        "admit",
        "follow",
        "forget",
        "show",
        "inspect",
        "garbage",
        "monitor",
        "set_user",
    ] {
        let mut attacker = rig.script(BOB);
        attacker.tell(&format!("pester {kind}"));
        assert_eq!(attacker.answer().unwrap(), "begun", "{kind}");
        let until = Instant::now() + 4 * SOON;
        loop {
            let mut tries: Vec<_> = (0..9).map(|_| device()).collect();
            tries.sort();
            let median = tries[tries.len() / 2];
            if median < AT_ONCE {
                eprintln!("{kind}: {median:?}, at most {:?}", tries[tries.len() - 1]);
                break;
            }
            assert!(Instant::now() < until, "{kind}: {tries:?}");
        }
        attacker.must("that will do");
        drop(attacker);
        rig.wait_until_clean(&[]);
    }
}
