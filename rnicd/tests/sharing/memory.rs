//! The memory of ports, and what of it counts.

use std::fs;

use rnic_manager::Administrator;

use crate::client::ALICE;
use crate::rig::{NIC, Rig};

/// Returns the hugepages of the host of a kind: `Total`, or `Free`.
pub(crate) fn hugepages(kind: &str) -> usize {
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let mut lines = memory.lines();
    let pages = lines.find_map(|line| line.strip_prefix(&format!("HugePages_{kind}:")));
    pages.unwrap().trim().parse().unwrap()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn ordinary_pages_do_not_count_against_hugepages() {
    // Less than any port has.
    let rig = Rig::new(1500, "[defaults]\nhugepages = \"1MiB\"\n");
    let mut client = rig.client(ALICE);
    let opened = client.ask(&format!("open {NIC}"));
    let administrator = || Administrator::connect(&rig.socket()).unwrap();
    match opened {
        Ok(_) => assert_eq!(administrator().ports().unwrap()[0].huge_octets, 0),
        Err(why) => {
            assert!(why.contains("may hold hugepages = 1MiB"), "{why}");
            assert!(hugepages("Total") > 0, "there is none to be had");
            rig.wait_until_clean(&[]);
        }
    }
    let users = administrator().users().unwrap();
    for user in users.iter().filter(|user| user.uid == ALICE) {
        let mut held = user.resources.iter();
        let held = held.find(|held| held.resource == "hugepages").unwrap();
        assert_eq!(held.held, 0);
    }
}
