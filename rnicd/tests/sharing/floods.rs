//! Clients that send as much as they can, fork, or stop in the middle, while another user's client
//! transfers.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rnic_manager::PoliceVerdict;

use crate::client::{ALICE, BOB, Client};
use crate::hostile::attack;
use crate::rig::{NIC, PEER_NIC, Rig};

/// Lets an attacker go on with something until another client has connected and transferred
/// meanwhile. Returns its answer.
fn meanwhile(rig: &Rig, attacker: &mut Client, line: &str) -> String {
    assert_eq!(attacker.must(line), "begun");
    let mut other = rig.open_client(ALICE);
    other.must("connect 10.9.0.2:4420");
    other.must("rounds 10 9");
    attacker.must("that will do")
}

/// An attacker sends frames as fast as the kernel takes them.
fn flood(kind: &str, may_be: impl Fn(PoliceVerdict) -> bool) {
    attack("", &[5005], |rig, attacker| {
        let own = rig.mac(&rig.host, NIC);
        let peer = rig.mac(&rig.far, PEER_NIC);
        let answer = meanwhile(rig, attacker, &format!("deluge {kind} {own} {peer}"));
        let (port, sent) = answer.split_once(' ').unwrap();
        let sent: u64 = sent.parse().unwrap();
        assert!(sent > 1000, "it sent only {sent}");
        let counts = rig.verdicts(port.parse().unwrap());
        assert!(
            counts.iter().all(|(verdict, _)| may_be(*verdict)),
            "{counts:?}"
        );
        // The veth may have dropped some before.
        let judged: u64 = counts.iter().map(|(_, count)| count).sum();
        assert!((1..=sent).contains(&judged), "{counts:?} of {sent}");
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_flood_of_forged_frames_harms_nobody() {
    use PoliceVerdict::{ToNic, ToPort};
    flood("forged", |verdict| !matches!(verdict, ToNic | ToPort));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_flood_of_valid_frames_harms_nobody() {
    flood("valid", |verdict| verdict == PoliceVerdict::ToNic);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn leases_without_end_harm_nobody() {
    attack("", &[], |rig, attacker| {
        let count = meanwhile(rig, attacker, "leases_on");
        assert!(count.parse::<u32>().unwrap() > 0);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn garbage_without_end_harms_nobody() {
    attack("", &[], |rig, attacker| {
        let count = meanwhile(rig, attacker, "garbage_on");
        assert!(count.parse::<u32>().unwrap() > 0);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn children_that_fight_for_one_port_harm_nobody() {
    attack("", &[], |rig, attacker| {
        let port = attacker.must("fork 5");
        let suffix = format!("-{port}@");
        let mut other = rig.open_client(ALICE);
        other.must("connect 10.9.0.2:4420");
        other.must("rounds 10 9");
        assert!(rig.devices().iter().any(|line| line.contains(&suffix)));
        assert_eq!(attacker.must("reap"), "5");
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_that_is_stopped_in_the_middle_harms_nobody_and_goes_on() {
    attack("", &[], |rig, _| {
        let mut stopped = rig.open_client(BOB);
        stopped.must("connect 10.9.0.2:4420");
        stopped.tell("rounds 40 5");
        let signal = |signal| {
            let pid = Pid::from_raw(stopped.pid().try_into().unwrap());
            kill(pid, signal).unwrap();
        };
        signal(Signal::SIGSTOP);
        let mut other = rig.open_client(ALICE);
        other.must("connect 10.9.0.2:4420");
        other.must("rounds 10 9");
        signal(Signal::SIGCONT);
        stopped.answer().unwrap();
        stopped.must("rounds 3 6");
    });
}
