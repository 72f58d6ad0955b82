//! What is left of a port that has ended counts as long as somebody has it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rnic_manager::Administrator;
use rnic_manager::states::PortState;
use rnic_verbs::{HugePages, Region};

use crate::client::{ALICE, BOB, Client};
use crate::memory::hugepages;
use crate::rig::Rig;

/// A quota of one port.
const ONE: &str = "[defaults]\nports = 1\n";

fn administrator(rig: &Rig) -> Administrator {
    Administrator::connect(&rig.socket()).unwrap()
}

/// Returns what a user holds of a resource.
fn held(rig: &Rig, resource: &str) -> u64 {
    let users = administrator(rig).users().unwrap();
    let user = users.iter().find(|user| user.uid == BOB);
    let holding = |user: &rnic_manager::states::UserState| {
        let mut resources = user.resources.iter();
        resources
            .find(|held| held.resource == resource)
            .unwrap()
            .held
    };
    user.map_or(0, holding)
}

fn is_ending(rig: &Rig) {
    let ports = administrator(rig).all_ports().unwrap();
    assert!(
        matches!(
            ports.as_slice(),
            [PortState {
                port: 1,
                ending: true,
                uid: BOB,
                ..
            }]
        ),
        "{ports:?}"
    );
    assert!(administrator(rig).ports().unwrap().is_empty());
    assert_eq!((held(rig, "ports"), held(rig, "frames")), (1, 64 * 8 + 128));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_port_that_was_ended_counts_until_its_socket_is_closed() {
    let mut rig = Rig::new(1500, ONE);
    let mut client = rig.script(BOB);
    assert_eq!(client.must("open_one"), "1");
    administrator(&rig).end_port(1).unwrap();
    is_ending(&rig);
    assert!(administrator(&rig).end_port(1).is_err());
    let refused = client.must("ask_for 64 128 64");
    assert!(refused.contains("may hold ports = 1"), "{refused}");
    // Also for the next rnicd.
    rig.kill();
    rig.start();
    is_ending(&rig);
    // While nobody looks, too.
    client.must("let_go");
    rig.until("it is gone", || {
        administrator(&rig)
            .all_ports()
            .unwrap()
            .is_empty()
            .then_some(())
    });
    assert_eq!((held(&rig, "ports"), held(&rig, "frames")), (0, 0));
    let mut other = rig.script(BOB);
    other.must("open_one");
    administrator(&rig).end_port(1).unwrap();
    rig.kill();
    drop(other);
    rig.until("the kernel has removed it", || {
        rig.devices().is_empty().then_some(())
    });
    rig.start();
    assert!(administrator(&rig).all_ports().unwrap().is_empty());
    drop(client);
    rig.wait_until_clean(&[]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn memory_that_is_kept_is_empty_once_its_port_has_ended() {
    let mut rig = Rig::new(1500, ONE);
    let mut client = rig.script(BOB);
    let is_empty = |rig: &Rig, client: &mut Client| {
        rig.until("nothing counts any more", || {
            (held(rig, "ports") + held(rig, "hugepages") == 0).then_some(())
        });
        // No page, no way to another length, and zeroes for whoever still looks.
        assert_eq!(client.must("kept"), "0 0");
    };
    client.must("open_one");
    let octets: u64 = client.must("let_go").parse().unwrap();
    assert!(octets >= 2 << 20);
    is_empty(&rig, &mut client);
    // While rnicd is away, the keeper has it.
    client.must("open_one");
    rig.kill();
    client.must("let_go");
    rig.until("the kernel has removed the port", || {
        rig.devices().is_empty().then_some(())
    });
    rig.start();
    is_empty(&rig, &mut client);
    drop(client);
    rig.wait_until_clean(&[]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_transmit_ring_is_no_longer_than_its_frames() {
    let rig = Rig::new(1500, "");
    let mut client = rig.script(BOB);
    let refused = client.must("ask_for 64 256 1048576");
    assert!(
        refused.contains("tx_ring is 1048576; at most 256"),
        "{refused}"
    );
    assert_eq!(client.must("ask_for 64 256 256"), "port");
    assert_eq!(client.must("ask_for 64 32 128"), "port");
}

/// Opens a port on ordinary pages, for a user that may not have hugepages.
fn open_on_ordinary_pages(client: &mut Client) {
    let mut held = Vec::new();
    // Where a hugepage is free, the client is refused: hold all of them meanwhile.
    while let Err(why) = client.ask("open_one") {
        assert!(why.contains("may hold hugepages"), "{why}");
        for _ in 0..hugepages("Free") {
            held.push(Region::allocate(2 << 20, HugePages::Prefer).unwrap());
        }
    }
}

/// A program is in the middle of a write to its memory when its port ends, from a page that never
/// comes.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_write_that_does_not_end_holds_up_nobody_else() {
    // Hugepages cannot be written to.
    let rules = format!(
        "[defaults]\nhugepages = \"1GiB\"\nports = 2\n\
         [[user]]\nuid = {ALICE}\nhugepages = \"1MiB\"\n"
    );
    let mut rig = Rig::new(1500, &rules);
    let mut alice = rig.script(ALICE);
    open_on_ordinary_pages(&mut alice);
    let pid = administrator(&rig).ports().unwrap()[0].pid;
    let mut writer = Command::new("python3")
        .args(["-c", include_str!("stuck_write.py"), &pid.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut output = BufReader::new(writer.stdout.take().unwrap());
    output.read_line(&mut said).unwrap();
    assert_eq!(said, "writes\n");
    let ending = |rig: &Rig| {
        let ports = administrator(rig).all_ports().unwrap();
        ports.iter().map(|port| port.uid).collect::<Vec<_>>()
    };
    drop(alice);
    let others_go = |rig: &Rig| {
        let mut bob = rig.script(BOB);
        bob.must("open_one");
        drop(bob);
        rig.until("only the port of who writes is left", || {
            (ending(rig) == [ALICE]).then_some(())
        });
    };
    others_go(&rig);
    // rnicd can be ended, and the next one is not held up either.
    rig.kill();
    rig.start();
    others_go(&rig);
    drop(writer.stdin.take());
    writer.wait().unwrap();
    rig.wait_until_clean(&[]);
}

/// It takes long to free what somebody has mapped often: that is done beside the loop, and counts
/// until then.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn memory_that_is_mapped_often_holds_up_nobody() {
    let rig = Rig::new(1500, ONE);
    let mut client = rig.script(BOB);
    client.must("open_one");
    let is_huge = administrator(&rig).ports().unwrap()[0].huge_octets > 0;
    client.must("map_often 20000");
    let mut was_served = false;
    rig.until("all is freed", || {
        let ports = administrator(&rig).all_ports().unwrap();
        was_served |= ports.iter().any(|port| port.ending);
        ports.is_empty().then_some(())
    });
    // A hugepage goes before anybody looks.
    assert!(was_served || is_huge);
    assert_eq!(held(&rig, "ports"), 0);
}
