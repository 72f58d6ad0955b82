//! Offloads that change received segments.

use super::fact::Fact;
use crate::drivers::{Driver, Merging};
use crate::netlink::{Generic, Link, RouteSocket, addresses, links};
use crate::steering::Below;
use crate::vlans::{REMOVES_TAGS, first_confused, places};

const NONE: &str = "none that merges received segments";

pub(super) fn offloads(link: &Link) -> Vec<Fact> {
    let name = "offloads";
    // The kernel turns LRO off for a generic program.
    if let Ok(Some(below)) = Below::of(link) {
        return vec![match below.losses() {
            Some((lost, remedy)) => Fact::fail(name, lost, remedy),
            None => Fact::ok(name, NONE),
        }];
    }
    let active = Generic::open().and_then(|mut socket| socket.active_features(link.index));
    let Ok(active) = active else {
        return vec![Fact::ok(name, "not stated by the driver")];
    };
    let on = |feature: &str| active.iter().any(|found| found == feature);
    let turn_off = |feature: &str| format!("ethtool -K {} {feature} off", link.name);
    let mut facts = Vec::new();
    let merging = Driver::of(link).merging;
    for (feature, words, off) in [
        ("rx-lro", "LRO", "lro"),
        ("rx-gro-hw", "hardware GRO", "rx-gro-hw"),
    ] {
        if !on(feature) {
            continue;
        }
        facts.push(match merging {
            Merging::TurnsOff => Fact::ok(
                name,
                format!("{words} is on; the driver turns it off for XDP"),
            ),
            Merging::Refuses => {
                let found = format!("{words} is on: the driver refuses XDP with it");
                Fact::fail(name, found, turn_off(off))
            }
            Merging::GoesOn => {
                let found =
                    format!("{words} is on: it merges segments before the program sees them");
                Fact::fail(name, found, turn_off(off))
            }
        });
    }
    if let Some(confused) = on(REMOVES_TAGS).then(|| confused(link)).flatten() {
        let found = format!(
            "RX VLAN offload is on: it removes tags before the program sees them, and {confused}, where frames cannot be told apart"
        );
        facts.push(Fact::warn(name, found, turn_off("rxvlan")));
    }
    if facts.is_empty() {
        facts.push(Fact::ok(name, NONE));
    }
    facts
}

/// Returns an address that is in several places of a device, in words.
fn confused(link: &Link) -> Option<String> {
    let mut socket = RouteSocket::open().ok()?;
    let all = links(&mut socket).ok()?;
    let places = places(link.index, &all, &addresses(&mut socket).ok()?);
    first_confused(&link.name, &places)
}

#[cfg(test)]
mod tests {
    use crate::facts::Verdict;
    use crate::facts::device::{facts, find};
    use crate::port::{PortConfig, XdpPort};
    use crate::steering::ModeChoice;
    use crate::testing::{Namespace, VethEnd, is_root, veth_pair};

    /// Makes a bridge "above" over a device "one".
    fn below_a_bridge() -> Namespace {
        let namespace = Namespace::new("facts").unwrap();
        let end = |name| VethEnd {
            namespace: &namespace,
            name,
            addresses: "",
        };
        veth_pair(end("one"), end("other"), 1).unwrap();
        namespace.ip("link add above type bridge").unwrap();
        namespace.ip("link set dev one master above").unwrap();
        namespace.ip("link set dev above up").unwrap();
        namespace
    }

    #[test]
    fn the_master_of_other_devices_gets_no_native_program() {
        if !is_root("the_master_of_other_devices_gets_no_native_program") {
            return;
        }
        let namespace = below_a_bridge();
        let reason = "it is the master of one, where its frames arrive";
        let found = namespace.run(|| facts("above"));
        let native = find(&found, "native XDP");
        assert!(native.found.contains(reason), "{native:?}");
        let open = |netdev, mode| {
            let config = PortConfig {
                mode,
                ..PortConfig::new(netdev)
            };
            namespace.run(|| XdpPort::open(&config))
        };
        let port = open("above", ModeChoice::Auto).unwrap();
        let mode = port.report().mode.to_string();
        assert!(mode.contains(reason), "{mode}");
        // A device that is a part of another is opened natively, unless that one is.
        let found = namespace.run(|| facts("one"));
        assert_eq!(find(&found, "native XDP").verdict, Verdict::Ok);
        let part = find(&found, "device");
        assert!(part.found.contains("a part of above"), "{part:?}");
        let error = open("one", ModeChoice::Auto).err().unwrap();
        assert!(
            error.to_string().contains("drives above already"),
            "{error}"
        );
        drop(port);
        let error = open("above", ModeChoice::Native).err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(error.contains("take one out of it"), "{error}");
    }

    /// A bond has LRO on, whatever the devices below it have, and the kernel turns it off.
    #[test]
    fn what_is_merged_below_a_master_is_lost() {
        if !is_root("what_is_merged_below_a_master_is_lost") {
            return;
        }
        let namespace = below_a_bridge();
        let gro = |state| {
            let mut ethtool = namespace.command("ethtool");
            let done = ethtool.args(["-K", "one", "gro", state]).status();
            assert!(done.unwrap().success());
        };
        let look = || {
            let found = namespace.run(|| facts("above"));
            let config = PortConfig::new("above");
            let port = namespace.run(|| XdpPort::open(&config)).unwrap();
            (
                find(&found, "offloads").clone(),
                port.report().mode.to_string(),
            )
        };
        gro("on");
        let (offloads, mode) = look();
        let remedy = "ethtool -K one gro off";
        assert_eq!(offloads.verdict, Verdict::Fail);
        assert_eq!(offloads.remedy.as_deref(), Some(remedy));
        assert!(
            mode.contains("lost that one merges") && mode.contains(remedy),
            "{mode}"
        );
        gro("off");
        let (offloads, mode) = look();
        assert_eq!(offloads.verdict, Verdict::Ok, "{offloads:?}");
        assert!(!mode.contains("lost"), "{mode}");
    }
}
