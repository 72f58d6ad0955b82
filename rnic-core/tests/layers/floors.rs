//! The floors of rnic-core and rnic-xdp: no import goes up.

use std::path::Path;

use crate::modules::{Crate, Import};
use crate::protocols::PROTOCOLS;
use crate::{short, workspace};

/// Files that may import each other and the floors below: by their path, or that of a directory
/// with all that is in it.
pub(super) type Floor = &'static [&'static str];

/// The floors of rnic-core, from the ground up. The protocol layers share one, and do not know each
/// other.
const FLOORS: [Floor; 11] = [
    &["ids", "time", "counters", "fast_paths", "sync"],
    &["wire"],
    &["memory"],
    &["esp"],
    &["verbs"],
    &PROTOCOLS,
    &["connection"],
    &["engine"],
    &["in_memory"],
    &["testing"],
    &["lib"],
];

/// What stands on the device in rnic-xdp: none of these knows another.
const ON_DEVICE: [&str; 4] = ["shared", "client", "capture", "facts"];

/// The floors of rnic-xdp, from the ground up.
const XDP_FLOORS: [Floor; 9] = [
    &[
        "device/automatic_ports",
        "device/clock",
        "device/directory",
        "device/lingering",
        "device/listening",
        "device/netlink",
        "device/process",
        "device/tx_checksum",
    ],
    &[
        "device/domains",
        "device/drivers",
        "device/error",
        "device/queue_choice",
        "device/policies",
        "device/vlans",
    ],
    &["device/icmp", "device/steering"],
    &["device/routes", "device/protection"],
    &["device/locals", "device/interface"],
    &["device/port_mapper", "device/protected"],
    &["device/mod", "device/reserve", "device/worker"],
    &["shared/programs", "client", "capture", "facts"],
    &["shared", "testing", "lib"],
];

/// The floor of a file, by the longest path that it begins with.
fn floor(file: &Path, source: &Path, floors: &[Floor]) -> usize {
    let path = file.strip_prefix(source).unwrap().with_extension("");
    let all = floors.iter().enumerate();
    let named = all.flat_map(|(floor, names)| names.iter().map(move |name| (floor, name)));
    let found = named.filter(|(_, name)| path.starts_with(name));
    let (floor, _) = found
        .max_by_key(|(_, name)| name.len())
        .unwrap_or_else(|| panic!("{path:?} has no floor: say on what it may stand"));
    floor
}

/// The imports that go up the floors, or from one of the strangers to another.
pub(super) fn astray<'a>(
    read: &'a Crate,
    source: &Path,
    floors: &[Floor],
    strangers: &[&str],
) -> Vec<&'a Import> {
    let stranger = |file: &Path| {
        let path = file.strip_prefix(source).unwrap().with_extension("");
        strangers.iter().find(|name| path.starts_with(name))
    };
    let is_astray = |import: &&Import| {
        let (from, to) = (&import.from, &import.to);
        let goes_up = floor(from, source, floors) < floor(to, source, floors);
        let knows_another = match (stranger(from), stranger(to)) {
            (Some(one), Some(other)) => one != other,
            _ => false,
        };
        !import.in_tests && (goes_up || knows_another)
    };
    read.imports.iter().filter(is_astray).collect()
}

/// Fails where an import of a crate goes astray, or there are too few to believe it.
fn check_floors(package: &str, floors: &[Floor], strangers: &[&str], fewest: usize) {
    let source = workspace().join(package).join("src");
    let read = Crate::read(&source.join("lib.rs"));
    assert!(
        read.imports.len() > fewest,
        "the search finds nothing any more"
    );
    let found = astray(&read, &source, floors, strangers);
    let found = found.into_iter().map(|import| {
        let (from, to) = (short(&import.from), short(&import.to));
        format!("{from} must not import {} of {to}", import.name)
    });
    let found: Vec<_> = found.collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn imports_go_down_the_floors() {
    check_floors("rnic-core", &FLOORS, &PROTOCOLS, 500);
}

#[test]
fn what_stands_on_the_device_does_not_know_each_other() {
    check_floors("rnic-xdp", &XDP_FLOORS, &ON_DEVICE, 300);
}
