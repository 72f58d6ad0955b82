//! `rnicd --unshare` leaves nothing of what rnicd has made.

use rnic_xdp::testing::Namespace;

use crate::rig::{Rnicd, listen};

/// The veth pairs of ports.
fn ports(host: &Namespace) -> Vec<String> {
    let links = host.ip("-o link show type veth").unwrap();
    let ports = links.lines().filter(|line| line.contains(": rnic"));
    ports.map(str::to_owned).collect()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn nothing_is_left_of_a_shared_device() {
    let mut rnicd = Rnicd::start("unshare");
    let mut client = rnicd.client();
    let (grant, _of_client) = client.open();
    client.lease(listen(grant.port, "10.77.0.1:7000"));
    let (scratch, host) = rnicd.kill();
    let pins = scratch.path("bpf/rnic");
    let records = scratch.path("state/ports");
    let set = scratch.path("state/rnic-ctl.toml");
    std::fs::write(&set, "# nothing").unwrap();
    let has_program = || {
        host.ip("-d link show dev nic")
            .unwrap()
            .contains("prog/xdp")
    };
    assert!(has_program() && pins.join("nic").exists() && records.join("nic/1.json").exists());
    assert_eq!(rnicd.command("--unshare"), (Some(0), String::new()));
    let (scratch, host) = (&rnicd.scratch, &rnicd.namespaces[0]);
    let link = host.ip("-d link show dev nic").unwrap();
    assert!(!link.contains("prog/xdp"), "{link}");
    // The client has its socket still.
    assert_eq!(ports(host), [""; 0]);
    assert!(!scratch.path("state/rnic-ctl.toml").exists());
    assert!(!scratch.path("bpf/rnic").exists() && !scratch.path("state/ports").exists());
    // There is nothing left to do, which is no error.
    assert_eq!(rnicd.command("--unshare"), (Some(0), String::new()));
    rnicd.start_again();
}

/// The socket of the other one can be elsewhere: what counts is what it would take away.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn an_rnicd_that_serves_has_its_state_and_its_pins_alone() {
    let mut rnicd = Rnicd::start("alone");
    let mut client = rnicd.client();
    let (grant, _of_client) = client.open();
    let places: [(&[_], _); 4] = [
        (&[], "state"),
        (&[("--socket", "other")], "state"),
        (&[("--socket", "other"), ("--pins", "bpf/other")], "state"),
        (&[("--socket", "other"), ("--state", "other")], "bpf/rnic"),
    ];
    for (replaced, taken) in places {
        let taken = rnicd.scratch.path(taken);
        let expected = format!(
            "another rnicd (pid {}) has {} already; end it first",
            rnicd.pid(),
            taken.display()
        );
        for options in [["--unshare"].as_slice(), &[]] {
            let (code, said) = rnicd.command_at(options, replaced);
            assert_eq!(code, Some(1), "{options:?} {replaced:?}");
            assert!(said.contains(&expected), "{said}");
        }
    }
    client.lease(listen(grant.port, "10.77.0.1:7000"));
    let (scratch, host) = (&rnicd.scratch, &rnicd.namespaces[0]);
    assert!(scratch.path("state/ports/nic/1.json").exists());
    assert_eq!(ports(host).len(), 1);
    // The kernel takes the lock back from one that is killed.
    rnicd.kill();
    rnicd.start_again();
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_is_left_of_a_device_that_is_gone_goes_too() {
    let mut rnicd = Rnicd::start("gone");
    let mut client = rnicd.client();
    let _of_client = client.open();
    let (scratch, host) = rnicd.kill();
    let pins = scratch.path("bpf/rnic");
    assert!(pins.join("nic").exists());
    host.ip("link del dev nic").unwrap();
    assert_eq!(ports(host).len(), 1);
    assert_eq!(rnicd.command("--unshare"), (Some(0), String::new()));
    assert_eq!(ports(&rnicd.namespaces[0]), [""; 0]);
    assert!(!rnicd.scratch.path("bpf/rnic").exists());
}

/// The kernel has it under another name, and its program is the same.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_device_that_was_renamed_is_freed_too() {
    let mut rnicd = Rnicd::start("renamed");
    let mut client = rnicd.client();
    let _of_client = client.open();
    let (_, host) = rnicd.kill();
    host.ip("link set dev nic name new").unwrap();
    let has_program = |host: &Namespace| {
        let link = host.ip("-d link show dev new").unwrap();
        link.contains("prog/xdp")
    };
    assert!(has_program(host));
    assert_eq!(rnicd.command("--unshare"), (Some(0), String::new()));
    let host = &rnicd.namespaces[0];
    assert!(!has_program(host));
    assert_eq!(ports(host), [""; 0]);
    assert!(!rnicd.scratch.path("bpf/rnic").exists());
}
