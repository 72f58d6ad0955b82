//! Clients that mean harm, while another user's client transfers.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rnic_manager::PoliceVerdict;

use crate::client::{ALICE, BOB, Client};
use crate::peer::{PORT, Peer};
use crate::rig::{NIC, PEER_NIC, Rig};

/// Lets an attacker do something while an honest client transfers. That client must not notice, and
/// nothing may be left.
pub(crate) fn attack(rules: &str, leases: &[u16], attack: impl FnOnce(&Rig, &mut Client)) {
    let rig = Rig::new(1500, rules);
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let mut honest = rig.open_client(ALICE);
    honest.must(&format!("connect 10.9.0.2:{PORT}"));
    honest.tell("stream 1");
    let mut attacker = rig.script(BOB);
    attack(&rig, &mut attacker);
    let rounds: u64 = honest.ask("and").unwrap().parse().unwrap();
    assert!(rounds > 0);
    // rnicd still serves: others, and those that it serves already.
    honest.must("listen 10.9.0.1:0");
    let mut new = rig.open_client(ALICE);
    new.must(&format!("connect 10.9.0.2:{PORT}"));
    for client in [&mut honest, &mut new] {
        client.must("rounds 3 2");
    }
    drop((honest, new, attacker));
    rig.wait_until_clean(leases);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn garbage_on_the_socket_harms_nobody() {
    attack("", &[], |_, attacker| {
        attacker.must("garbage 1 2000");
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_crowd_of_connections_leaves_room_for_others() {
    attack("", &[], |_, attacker| {
        let open: u32 = attacker.must("crowd 1000").parse().unwrap();
        assert_eq!(open, 256);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn connections_wait_while_there_are_no_descriptors() {
    attack("", &[], |rig, attacker| {
        rig.limit_descriptors(rig.count_descriptors() + 20);
        attacker.must("stand_in_line 40");
        rig.until_log("cannot accept connections now");
        rig.limit_descriptors(1024);
        // Those that wait are accepted, and whoever comes after them.
        rig.until("it serves again", || rig.shares_device().then_some(()));
        assert_eq!(rig.log().matches("cannot accept").count(), 1);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_is_anothers_is_refused() {
    attack("", &[], |_, attacker| {
        // The first port is the honest client's; there is no second one.
        for port in [1, 2] {
            let kinds = attacker.must(&format!("refusals {port}"));
            assert!(kinds.split(' ').all(|kind| kind == "refused"), "{kinds}");
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn only_root_changes_settings() {
    attack("", &[], |rig, attacker| {
        let reasons = attacker.must("administer");
        assert_eq!(reasons, ["not_permitted"; 5].join(" "));
        assert!(!rig.records().join("../../rnic-ctl.toml").exists());
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn leases_are_counted() {
    attack("[defaults]\nlisteners = 20\n", &[], |_, attacker| {
        assert_eq!(attacker.must("leases 100"), "20 20 20");
    });
}

/// What rnicd must tell a client is bounded, however fast it asks and reads.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn no_request_is_read_before_the_ends_of_leases_are_told() {
    attack("", &[], |_, attacker| {
        assert_eq!(attacker.must("adopt_in_a_row 5"), "0");
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_that_floods_and_reads_nothing_harms_nobody() {
    attack("", &[], |rig, attacker| {
        const MANY: u32 = 100_000;
        let taken = attacker.must(&format!("flood {MANY}"));
        // What it does not read bounds what is read of it.
        let bounded = |taken: &str| taken.parse::<u32>().unwrap() < MANY;
        assert!(taken.split(' ').all(bounded), "{taken}");
        // It can be stopped with all that still on its way.
        let pid = Pid::from_raw(attacker.pid().try_into().unwrap());
        kill(pid, Signal::SIGSTOP).unwrap();
        let mut other = rig.open_client(ALICE);
        other.must(&format!("connect 10.9.0.2:{PORT}"));
        other.must("rounds 3 9");
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_port_that_was_handed_over_goes_with_its_heir() {
    attack("", &[], |rig, attacker| {
        let answer = attacker.must("hand_over");
        let (port, heir) = answer.split_once(' ').unwrap();
        let suffix = format!("-{port}@");
        let is_there = || rig.devices().iter().any(|line| line.contains(&suffix));
        assert!(is_there(), "{:?}", rig.devices());
        kill(Pid::from_raw(heir.parse().unwrap()), Signal::SIGKILL).unwrap();
        rig.until("the port is gone", || (!is_there()).then_some(()));
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn forged_frames_are_dropped() {
    attack("", &[5005], |rig, attacker| {
        let own = rig.mac(&rig.host, NIC);
        let peer = rig.mac(&rig.far, PEER_NIC);
        let port = attacker.must(&format!("frames {own} {peer}"));
        let counts = rig.verdicts(port.parse().unwrap());
        use PoliceVerdict::*;
        let expected = [
            (ToNic, 1),
            (Truncated, 1),
            (Options, 1),
            (Fragment, 1),
            (NotTcp, 2),
            (Group, 2),
            (SourceMac, 2),
            (Priority, 2),
            (Length, 2),
            (Destination, 4),
            (Source, 1),
            (NotLeased, 1),
            (NextHop, 1),
            (Nobody, 1),
        ];
        assert_eq!(counts, expected);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn garbage_in_the_rings_harms_nobody() {
    attack("", &[], |_, attacker| {
        attacker.must("scribble 1 3000");
    });
}
