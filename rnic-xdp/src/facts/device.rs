//! A network device: driver, queues, XDP modes, offloads.

use super::fact::{Fact, Verdict};
use super::offloads::{kernels, offloads};
use crate::device::drivers::{Driver, driver_name};
use crate::device::interface::numa::node_of;
use crate::device::interface::{
    InterfaceConfig, XdpInterface, ZeroCopy, deferred, largest_mtu_in_one_chunk, zero_copy_layout,
};
use crate::device::netlink::{
    Generic, Link, NetlinkError, RouteSocket, XdpFeatures, link_by_index, link_by_name,
};
use crate::device::queue_choice::{by_port, rules_left_behind};
use crate::device::steering::{Below, Mode, Owner, above};

const DEVICE: &str = "device";
const NATIVE_XDP: &str = "native XDP";
const ZERO_COPY: &str = "zero-copy";
const NO_ETHERNET: &str = "choose a device with Ethernet frames: tunnels, WireGuard and loopback have none; or TCP sockets of the kernel, which take \
     any that has an address (`--via kernel`)";

pub(super) fn facts(netdev: &str) -> Vec<Fact> {
    let link = RouteSocket::open().and_then(|mut socket| link_by_name(&mut socket, netdev));
    let link = match link {
        Ok(Some(link)) => link,
        Ok(None) => {
            let remedy = "`ip link` lists the devices of this network namespace";
            return vec![Fact::fail(DEVICE, format!("there is no {netdev}"), remedy)];
        }
        Err(error) => {
            return vec![Fact::fail(
                DEVICE,
                error.to_string(),
                "see the kernel's log",
            )];
        }
    };
    let features = Generic::open().and_then(|mut socket| socket.xdp_features(link.index));
    let mut facts = vec![
        device(&link),
        driver(&link),
        xdp(&link, &features),
        zero_copy(&link, &features),
    ];
    facts.extend([attached(&link), queues(&link)]);
    facts.extend(placement(&link));
    facts.extend(rules(&link));
    facts.push(mtu(&link, &features));
    facts.extend(checksums(&features));
    facts.extend(offloads(&link));
    let is_generic = facts
        .iter()
        .any(|fact| fact.name == NATIVE_XDP && fact.verdict != Verdict::Ok);
    facts.extend(kernels(&link, is_generic));
    facts.extend(numa(&link));
    facts.extend(interrupts(&link));
    facts
}

/// Opens the device, and adds what came of it to its facts. Where the driver has promised more than
/// it gives, the facts say what it gives.
pub(super) fn trial(netdev: &str, facts: &mut Vec<Fact>) {
    let name = "trial";
    let interface = match XdpInterface::open(&InterfaceConfig::new(netdev)) {
        Ok(interface) => interface,
        // The message has the remedy.
        Err(error) => {
            let text = error.to_string();
            let (found, remedy) = text
                .split_once(';')
                .unwrap_or((&text, "see the kernel's log"));
            facts.push(Fact::fail(name, found, remedy.trim()));
            return;
        }
    };
    let report = interface.report();
    let Some(link) = interface.device().map(|device| device.link()) else {
        return;
    };
    let opened = [
        match &report.mode {
            Mode::Native => None,
            Mode::Generic { reason } => Some(without_native(link, reason)),
        },
        match &report.zero_copy {
            ZeroCopy::On => None,
            ZeroCopy::Off(why) => Some(without_zero_copy(link, why)),
        },
    ];
    for opened in opened.into_iter().flatten() {
        if let Some(promised) = facts.iter_mut().find(|fact| fact.name == opened.name) {
            *promised = opened;
        }
    }
    facts.push(match report.mode {
        _ if report.mtu < report.link_mtu => Fact::warn(
            name,
            report.to_string(),
            "frames of several buffers need Linux 6.6, and zero-copy a driver that has them",
        ),
        Mode::Native => Fact::ok(name, report.to_string()),
        Mode::Generic { .. } => Fact::warn(
            name,
            report.to_string(),
            "a device with native XDP is faster, and does not reorder a kernel peer's segments",
        ),
    });
}

fn device(link: &Link) -> Fact {
    let found = format!("{}, {}", link.name, link.mac);
    if let Some(vlan) = link.vlan {
        let parent =
            RouteSocket::open().and_then(|mut socket| link_by_index(&mut socket, vlan.parent));
        let parent = parent
            .ok()
            .flatten()
            .map_or("the device that carries it".to_string(), |link| link.name);
        let remedy = format!("open {parent}: VLANs on it are followed by their routes");
        return Fact::warn(DEVICE, format!("{found}, VLAN {}", vlan.id), remedy);
    }
    if let Some(master) = above(link).map(|master| master.name) {
        let remedy = format!("open {master}, or take {} out of it", link.name);
        let found = format!("{found}, a part of {master}, which has its addresses and neighbours");
        return Fact::warn(DEVICE, found, remedy);
    }
    if !link.is_ethernet {
        let found = format!("{found}: no Ethernet device, so that nothing can arrive");
        return Fact::fail(DEVICE, found, NO_ETHERNET);
    }
    if link.up {
        Fact::ok(DEVICE, found)
    } else {
        Fact::fail(
            DEVICE,
            format!("{found}, down"),
            format!("ip link set dev {} up", link.name),
        )
    }
}

fn driver(link: &Link) -> Fact {
    let name = "driver";
    let Some(driver) = driver_name(link) else {
        return Fact::ok(name, "not stated by the kernel");
    };
    if Driver::of(link).faulty_zero_copy {
        let remedy = "it has had faults in zero-copy mode: frames lost that were passed to the kernel, queues stuck after a \
                      process was killed; keep the kernel current, or choose copying";
        return Fact::warn(name, driver, remedy);
    }
    Fact::ok(name, driver)
}

fn xdp(link: &Link, features: &Result<XdpFeatures, NetlinkError>) -> Fact {
    let name = NATIVE_XDP;
    // If they cannot be listed, the trial reports the error.
    if let Ok(Some(below)) = Below::of(link) {
        return without_native(link, &below.reason());
    }
    match features {
        Err(_) => Fact::warn(name, "not stated by the kernel", "open the device to see"),
        Ok(features) if features.native() && features.redirect() => {
            if let Some(why) = Driver::of(link).refuses_xdp_at(link.mtu) {
                return without_native(link, &why);
            }
            let buffers = if features.multi_buffer() {
                ", multi-buffer"
            } else {
                ""
            };
            Fact::ok(name, format!("yes{buffers}"))
        }
        Ok(_) => without_native(link, "its driver has none"),
    }
}

fn without_native(link: &Link, why: &str) -> Fact {
    Fact::warn(
        NATIVE_XDP,
        format!("no: {} gets generic XDP ({why})", link.name),
        "generic XDP is slower on real NICs and reorders a kernel peer's segments; lower the MTU, or use a device whose driver has XDP",
    )
}

fn zero_copy(link: &Link, features: &Result<XdpFeatures, NetlinkError>) -> Fact {
    let Ok(features) = features else {
        return Fact::warn(
            ZERO_COPY,
            "not stated by the kernel",
            "open the device to see",
        );
    };
    match zero_copy_layout(Driver::of(link), *features, link.mtu, true) {
        Ok(_) => Fact::ok(
            ZERO_COPY,
            format!(
                "yes, {} buffers a packet",
                features.zero_copy_segments.max(1)
            ),
        ),
        Err(why) => without_zero_copy(link, &why),
    }
}

fn without_zero_copy(link: &Link, why: &str) -> Fact {
    let found = format!("no: frames are copied once more ({why})");
    // Nothing can be done about a virtual device.
    if link.hardware.is_none() {
        return Fact::ok(ZERO_COPY, found);
    }
    let remedy = "what the reason names can be changed, or a driver with zero-copy AF_XDP be used (mlx5, ice, i40e, ixgbe, igc, ...)";
    Fact::warn(ZERO_COPY, found, remedy)
}

fn attached(link: &Link) -> Fact {
    let name = "XDP program";
    let Some(attached) = link.xdp else {
        return Fact::ok(name, "none attached");
    };
    let (id, netdev) = (attached.program, &link.name);
    let (_, detach) = attached.attachment.words();
    match Owner::of(attached) {
        // Whether it can be opened meanwhile, the trial shows.
        Owner::Process(pid) => {
            let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
            Fact::ok(name, format!("an rnic process{pid} drives {netdev} now"))
        }
        Owner::Sharing => Fact::ok(name, format!("that of rnicd (id {id})")),
        Owner::Hidden => Fact::fail(
            name,
            format!("one with id {id} is attached, perhaps rnic's own: do not detach it"),
            "its name needs root (CAP_SYS_ADMIN): run doctor as root",
        ),
        Owner::Other(other) => Fact::fail(
            name,
            format!("\"{other}\" (id {id}) is attached"),
            format!(
                "stop the software that attached it, or `ip link set dev {netdev} {detach} off`; one that is held \
                 by a BPF link goes with `bpftool link detach`"
            ),
        ),
    }
}

fn queues(link: &Link) -> Fact {
    let name = "queues";
    match Generic::open().and_then(|mut socket| socket.channels(link.index)) {
        Ok(channels) => Fact::ok(
            name,
            format!("{} receive, {} transmit", channels.rx, channels.tx),
        ),
        Err(_) => Fact::ok(
            name,
            format!(
                "{} receive, {} transmit allocated",
                link.rx_queues, link.tx_queues
            ),
        ),
    }
}

/// Reports how connections reach their worker, if there can be several.
fn placement(link: &Link) -> Option<Fact> {
    let name = "placement";
    let counted = Generic::open().and_then(|mut socket| socket.channels(link.index));
    if counted.map_or(link.rx_queues, |channels| channels.rx) < 2 {
        return None;
    }
    let Err(why) = by_port(link) else {
        let found = "the local port of a connection chooses its queue (RSS, Toeplitz)";
        return Some(Fact::ok(name, found));
    };
    let found = format!("{why}; workers hand over the frames that come to the wrong one");
    Some(match link.hardware {
        // Nothing can be done about a virtual device, and most have the same queues at both ends.
        None => Fact::ok(name, found),
        Some(_) => {
            let remedy = "`ethtool -K {} ntuple on` lets rnic set a rule for each connection, if the driver can";
            Fact::warn(name, found, remedy.replace("{}", &link.name))
        }
    })
}

/// Reports whether rules of killed processes were left in the device.
fn rules(link: &Link) -> Option<Fact> {
    let left = rules_left_behind(link).ok().filter(|left| *left > 0)?;
    let found = format!("{left} in the device are left of a process that was killed");
    let remedy = "they go when an application next opens the device with rnic";
    Some(Fact::warn("ntuple rules", found, remedy))
}

fn mtu(link: &Link, features: &Result<XdpFeatures, NetlinkError>) -> Fact {
    let (name, mtu) = ("MTU", link.mtu);
    let largest = largest_mtu_in_one_chunk();
    if mtu <= largest {
        return Fact::ok(name, mtu.to_string());
    }
    match features {
        Ok(features) if features.multi_buffer() => {
            Fact::ok(name, format!("{mtu}, in frames of several buffers"))
        }
        _ => Fact::warn(
            name,
            format!("{mtu}, of which {largest} are used"),
            "the driver does not receive frames of several buffers, and an MTU that is used in full costs it less: lower \
             it to that",
        ),
    }
}

/// Reports what computes the checksums of sent segments. If the kernel states nothing, rnic does.
fn checksums(features: &Result<XdpFeatures, NetlinkError>) -> Option<Fact> {
    let features = features.as_ref().ok()?;
    let found = match features.tx_checksum() {
        true => "by the device, in frames of one buffer",
        false => "by rnic: the device does not offer it to AF_XDP (tx-checksum)",
    };
    Some(Fact::ok("TX checksums", found))
}

fn numa(link: &Link) -> Option<Fact> {
    link.hardware.as_ref()?;
    let found = match node_of(link) {
        Some(node) => format!("{node}: frames lie there, and `--pin` has workers run there"),
        None => "one for all".to_string(),
    };
    Some(Fact::ok("NUMA node", found))
}

/// Reports whether interrupts are deferred: by busy polling, or by the administrator.
fn interrupts(link: &Link) -> Option<Fact> {
    let name = "interrupts";
    let deferred = deferred(link);
    let changed: Vec<_> = deferred.iter().filter(|(_, value)| value != "0").collect();
    if changed.is_empty() {
        return (!deferred.is_empty()).then(|| Fact::ok(name, "not deferred"));
    }
    let found: Vec<_> = changed
        .iter()
        .map(|(path, value)| {
            let file = path.file_name().unwrap_or_default();
            format!("{} {value}", file.to_string_lossy())
        })
        .collect();
    let found = format!("deferred ({})", found.join(", "));
    if link.xdp.is_some() {
        return Some(Fact::ok(name, found));
    }
    let restore = changed
        .iter()
        .map(|(path, _)| format!("echo 0 > {}", path.display()));
    let restore: Vec<_> = restore.collect();
    Some(Fact::warn(
        name,
        format!(
            "{found}, and no XDP program runs: left by an rnic process that was killed, unless the administrator has set it"
        ),
        restore.join("; "),
    ))
}

#[cfg(test)]
pub(super) fn find<'a>(facts: &'a [Fact], name: &str) -> &'a Fact {
    facts.iter().find(|fact| fact.name == name).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::steering::ModeChoice;
    use crate::testing::{Namespace, VethEnd, veth_pair};

    fn opened(netdev: &str) -> Fact {
        let mut facts = facts(netdev);
        trial(netdev, &mut facts);
        facts.pop().unwrap()
    }

    #[test]
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    fn a_veth_is_described() {
        let namespace = Namespace::new("facts").unwrap();
        let end = |name| VethEnd {
            namespace: &namespace,
            name,
            addresses: "",
        };
        veth_pair(end("one"), end("other"), 2).unwrap();
        let found = namespace.run(|| facts("one"));
        for fact in &found {
            assert_eq!(
                fact.remedy.is_none(),
                fact.verdict == Verdict::Ok,
                "{fact:?}"
            );
        }
        assert_eq!(find(&found, "driver").found, "veth");
        assert_eq!(find(&found, "queues").found, "2 receive, 2 transmit");
        assert_eq!(find(&found, "MTU").found, "1500");
        let placement = &find(&found, "placement").found;
        assert!(placement.contains("not supported"), "{placement}");
        assert_eq!(find(&found, "native XDP").verdict, Verdict::Ok);
        assert!(find(&found, "zero-copy").found.starts_with("no"));
        assert_eq!(find(&found, "XDP program").found, "none attached");
        let trial = namespace.run(|| opened("one"));
        assert_eq!(trial.verdict, Verdict::Ok, "{trial:?}");

        namespace.ip("link set dev one mtu 9000").unwrap();
        namespace.ip("link set dev one down").unwrap();
        let found = namespace.run(|| facts("one"));
        assert_eq!(find(&found, "MTU").verdict, Verdict::Ok);
        assert_eq!(
            find(&found, "MTU").found,
            "9000, in frames of several buffers"
        );
        assert_eq!(find(&found, "device").verdict, Verdict::Fail);
        let trial = namespace.run(|| opened("one"));
        assert_eq!(
            trial.remedy.as_deref(),
            Some("`ip link set dev one up` starts it")
        );
        assert_eq!(namespace.run(|| facts("absent"))[0].verdict, Verdict::Fail);
    }

    #[test]
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    fn a_port_in_use_is_not_taken_for_another_program() {
        let namespace = Namespace::new("facts").unwrap();
        namespace.ip("link add bridge0 type bridge").unwrap();
        namespace.ip("link set dev bridge0 up").unwrap();
        namespace.run(|| {
            let config = InterfaceConfig {
                mode: ModeChoice::Generic,
                ..InterfaceConfig::new("bridge0")
            };
            let _port = XdpInterface::open(&config).unwrap();
            let found = facts("bridge0");
            assert_eq!(find(&found, "native XDP").verdict, Verdict::Warn);
            let program = find(&found, "XDP program");
            let own = std::process::id();
            let expected = format!("an rnic process (pid {own}) drives bridge0 now");
            assert_eq!(program.found, expected);
        });
    }
}
