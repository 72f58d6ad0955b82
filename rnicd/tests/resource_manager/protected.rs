//! TCP ports whose traffic ESP protects, and who is told of the keys.

use std::fs;
use std::time::Instant;

use rnic_manager::protocol::{Ask, Notice, Reason, VERSION};

use crate::rig::{RULES, Rnicd, SOON, listen};

/// rnicd with a number of associations and rules.
fn start(name: &str, rules: &str) -> Rnicd {
    let rnicd = Rnicd::start(name);
    configure(&rnicd, rules);
    rnicd
}

fn configure(rnicd: &Rnicd, rules: &str) {
    let device = RULES.replacen("name = \"nic\"", "name = \"nic\"\nipsec_if_id = 7", 1);
    let file = rnicd.scratch.path("rnicd.toml");
    fs::write(file, format!("{device}\n{rules}")).unwrap();
    rnicd.reload();
}

const PROTECTED: &str =
    "[[user]]\nuid = 0\nports = 4\nframes = 2000\nlisteners = 9\nprotected = [7001]\n";

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn what_is_protected_for_a_user_is_leased_protected_or_not_at_all() {
    let rnicd = start("protected", PROTECTED);
    let mut old = rnicd.client_of(VERSION - 1);
    let (grant, _port) = old.open();
    let why = old.is_refused(listen(grant.port, "10.77.0.1:7001"), Reason::NotPermitted);
    assert!(
        why.contains("TCP port 7001 is `protected`") && why.contains("upgrade it"),
        "{why}"
    );
    let from = Ask::Connect {
        port: grant.port,
        remote: "10.77.0.2:7000".parse().unwrap(),
        local: Some("10.77.0.1:7001".parse().unwrap()),
    };
    assert!(
        old.is_refused(from, Reason::NotPermitted)
            .contains("upgrade it")
    );
    old.lease(listen(grant.port, "10.77.0.1:7000"));

    let mut new = rnicd.client();
    let (grant, _port) = new.open();
    new.lease(listen(grant.port, "10.77.0.1:7001"));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn what_is_protected_for_others_is_nobody_elses() {
    let rnicd = start("others", "[[user]]\nuid = 1234\nprotected = [7001]\n");
    let mut client = rnicd.client();
    let (grant, _port) = client.open();
    let why = client.is_refused(listen(grant.port, "10.77.0.1:7001"), Reason::NotPermitted);
    assert!(why.contains("for other users"), "{why}");
    client.lease(listen(grant.port, "10.77.0.1:7000"));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn a_lease_in_the_clear_ends_when_it_is_to_be_protected() {
    let rnicd = start("reload", PROTECTED);
    let mut client = rnicd.client();
    let (grant, _port) = client.open();
    let port = grant.port;
    let clear = client.lease(listen(port, "10.77.0.1:7002"));
    let protected = client.lease(listen(port, "10.77.0.1:7001"));
    configure(&rnicd, &PROTECTED.replace("[7001]", "[\"7001-7002\"]"));
    let revoked = |local| Notice::Revoked { port, local };
    loop {
        let notice = client.notice();
        assert_ne!(notice, revoked(protected));
        if notice == revoked(clear) {
            break;
        }
    }
    client.lease(listen(port, "10.77.0.1:7002"));
}

/// A client that reads nothing is told later what has changed: of ports that it has then.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn nobody_is_told_of_a_port_that_is_anothers_now() {
    let rnicd = start("reused", PROTECTED);
    let [ours, theirs] = ["10.77.0.1", "10.77.0.2"];
    let policy = format!(
        "xfrm policy add src {ours} dst {theirs} proto tcp sport 7001 dir out if_id 7 \
         tmpl src {ours} dst {theirs} proto esp reqid 1 mode transport"
    );
    rnicd.namespaces[0].ip(&policy).unwrap();
    // More answers than its socket takes, and no more requests.
    const MANY: u32 = 320;
    let mut silent = rnicd.client();
    let (grant, of_silent) = silent.open();
    for _ in 0..MANY {
        silent.send(Ask::Adopt {
            port: grant.port,
            token: grant.token,
            leases: Vec::new(),
        });
    }
    // rnicd serves all in turn: behind so many requests of another it goes no further.
    let mut next = rnicd.client();
    for _ in 0..MANY {
        next.ask(listen(grant.port, "10.77.0.1:7001"));
    }
    drop(of_silent);
    let until = Instant::now() + SOON;
    let (_ports, port) = loop {
        let (other, descriptors) = next.open();
        if other.port == grant.port {
            break (descriptors, other.port);
        }
        assert!(Instant::now() < until, "the port does not end");
        drop(descriptors);
    };
    next.lease(listen(port, "10.77.0.1:7001"));
    let protections = |notices: Vec<Notice>| {
        let told = notices.into_iter().filter_map(|notice| match notice {
            Notice::Protection { protection, .. } => Some(protection.demands.len()),
            _ => None,
        });
        told.max()
    };
    // Whoever has it is told of the policy.
    next.send(listen(port, "10.77.0.1:7003"));
    assert_eq!(protections(next.answers()), Some(1));
    let mut told = silent.answers();
    // It is told of changes when there is nothing to answer.
    for _ in 0..2 {
        silent.send(listen(port, "10.77.0.1:7001"));
        told.extend(silent.answers());
    }
    assert_eq!(protections(told).unwrap_or(0), 0);
}
