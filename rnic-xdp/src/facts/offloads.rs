//! Offloads that change received segments: LRO, GRO and the removal of VLAN tags. What GRO of
//! devices below merges ahead of a generic program is for `Stack` to say.

use super::fact::Fact;
use crate::device::drivers::{Driver, Merging};
use crate::device::netlink::{Generic, Link, RouteSocket, addresses, links};
use crate::device::steering::{Stack, for_kernels, joins_kernels};
use crate::device::vlans::{REMOVES_TAGS, first_confused, places};

const NONE: &str = "none that merges received segments";

pub(super) fn offloads(link: &Link) -> Vec<Fact> {
    let name = "offloads";
    // The kernel turns LRO off for a generic program, and does not merge on the device of one.
    if let Ok(stack) = Stack::below(link)
        && !stack.is_empty()
    {
        return vec![match (stack.losses(), stack.doubts()) {
            (Some((lost, remedy)), _) => Fact::fail(name, lost, remedy),
            (None, Some((doubt, remedy))) => Fact::warn(name, doubt, remedy),
            (None, None) => Fact::ok(name, NONE),
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

/// Reports what kernels on this host have to do to reach a device with a generic program.
pub(super) fn kernels(link: &Link, is_generic: bool) -> Option<Fact> {
    (is_generic && joins_kernels(link)).then(|| {
        let (found, remedy) = for_kernels(&link.name);
        Fact::warn("local kernels", found, remedy)
    })
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
    use crate::device::interface::{InterfaceConfig, XdpInterface};
    use crate::device::steering::ModeChoice;
    use crate::facts::device::{facts, find};
    use crate::facts::{Fact, Verdict};
    use crate::testing::{Namespace, VethEnd, veth_pair};

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
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    fn the_master_of_other_devices_gets_no_native_program() {
        let namespace = below_a_bridge();
        let reason = "it is the master of one, where its frames arrive";
        let found = namespace.run(|| facts("above"));
        let native = find(&found, "native XDP");
        assert!(native.found.contains(reason), "{native:?}");
        let open = |netdev, mode| {
            let config = InterfaceConfig {
                mode,
                ..InterfaceConfig::new(netdev)
            };
            namespace.run(|| XdpInterface::open(&config))
        };
        let interface = open("above", ModeChoice::Auto).unwrap();
        let mode = interface.report().mode.to_string();
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
        drop(interface);
        let error = open("above", ModeChoice::Native).err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(error.contains("take one out of it"), "{error}");
    }

    /// A bond has LRO on, whatever the devices below it have, and the kernel turns it off.
    #[test]
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    fn what_is_merged_below_a_master_is_lost() {
        let namespace = below_a_bridge();
        let gro = |state| {
            let mut ethtool = namespace.command("ethtool");
            let done = ethtool.args(["-K", "one", "gro", state]).status();
            assert!(done.unwrap().success());
        };
        let look = || {
            let found = namespace.run(|| facts("above"));
            let config = InterfaceConfig::new("above");
            let interface = namespace.run(|| XdpInterface::open(&config)).unwrap();
            (
                find(&found, "offloads").clone(),
                interface.report().mode.to_string(),
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

    /// Returns what `doctor` finds of the offloads below a device, and what the report of its interface
    /// has on the mode.
    fn look(namespace: &Namespace, netdev: &str) -> (Fact, String) {
        let found = namespace.run(|| facts(netdev));
        let config = InterfaceConfig::new(netdev);
        let interface = namespace.run(|| XdpInterface::open(&config)).unwrap();
        assert!(interface.has_partial_checksums(), "{netdev}");
        let kernels = find(&found, "local kernels");
        assert!(kernels.found.contains("on this host"), "{kernels:?}");
        (
            find(&found, "offloads").clone(),
            interface.report().mode.to_string(),
        )
    }

    /// The device does not do what it carries: merging is a matter of the one below.
    #[test]
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    fn what_is_merged_below_a_macvlan_or_a_tunnel_is_lost() {
        let namespace = Namespace::new("facts").unwrap();
        let other = Namespace::new("facts").unwrap();
        let end = |namespace, name| VethEnd {
            namespace,
            name,
            addresses: "10.77.0.1/24",
        };
        veth_pair(end(&namespace, "one"), end(&other, "other"), 1).unwrap();
        let make = |kind: &str| namespace.ip(&format!("link add {kind}")).unwrap();
        make("above link one type macvlan mode bridge");
        make("inside type vxlan id 7 remote 10.77.0.2 dstport 4789 dev one");
        make("routed type vxlan id 8 remote 10.77.0.2 dstport 4790");
        make("double link routed type macvlan mode bridge");
        make("away link one type macvlan mode bridge");
        for netdev in ["above", "inside", "routed", "double"] {
            let up = format!("link set dev {netdev} up");
            namespace.ip(&up).unwrap();
        }
        let gro = |netdev: &str, state: &str| {
            let mut ethtool = namespace.command("ethtool");
            let done = ethtool.args(["-K", netdev, "gro", state]).status();
            assert!(done.unwrap().success());
        };
        gro("routed", "off");
        for (state, verdict) in [("on", Verdict::Fail), ("off", Verdict::Ok)] {
            gro("one", state);
            for netdev in ["above", "inside", "routed", "double"] {
                let (offloads, mode) = look(&namespace, netdev);
                assert_eq!(offloads.verdict, verdict, "{netdev}: {offloads:?}");
                let remedy = "ethtool -K one gro off";
                let is_merging = verdict == Verdict::Fail;
                assert_eq!(offloads.remedy.is_some(), is_merging);
                assert_eq!(mode.contains(remedy), is_merging, "{netdev}: {mode}");
            }
        }
        // The end of a tunnel merges what it takes out.
        gro("routed", "on");
        let (offloads, _) = look(&namespace, "double");
        assert_eq!(offloads.remedy.unwrap(), "ethtool -K routed gro off");

        // What carries it is in another network namespace, where we cannot look.
        let there = other.name();
        namespace
            .ip(&format!("link set dev away netns {there}"))
            .unwrap();
        other.ip("link set dev away up").unwrap();
        let (offloads, mode) = look(&other, "away");
        assert_eq!(offloads.verdict, Verdict::Warn, "{offloads:?}");
        assert!(offloads.found.contains("another network namespace"));
        assert!(mode.contains("carries away"), "{mode}");
    }

    /// Frames of tunnels and of the loopback device are not for us: no Ethernet header, no MAC
    /// address.
    #[test]
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    fn a_device_without_ethernet_is_refused_with_the_remedy() {
        let namespace = Namespace::new("facts").unwrap();
        namespace.ip("tuntap add dev tun0 mode tun").unwrap();
        namespace.ip("tuntap add dev tap0 mode tap").unwrap();
        for netdev in ["tun0", "tap0"] {
            namespace.ip(&format!("link set dev {netdev} up")).unwrap();
        }
        for netdev in ["tun0", "lo"] {
            let error = namespace.run(|| XdpInterface::open(&InterfaceConfig::new(netdev)));
            let error = error.err().unwrap().to_string();
            assert!(error.contains("is no Ethernet device"), "{error}");
            assert!(error.contains("`--via kernel`"), "{error}");
            let found = namespace.run(|| facts(netdev));
            let device = find(&found, "device");
            assert_eq!(device.verdict, Verdict::Fail, "{device:?}");
            assert!(device.remedy.as_ref().unwrap().contains("`--via kernel`"));
        }
        let interface = namespace.run(|| XdpInterface::open(&InterfaceConfig::new("tap0")));
        assert!(interface.unwrap().has_partial_checksums());
    }
}
