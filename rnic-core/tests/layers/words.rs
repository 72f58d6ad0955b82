//! Which files may name what: the log, lists of all connections, and what carries the frames.

use std::fs;
use std::path::{Path, PathBuf};

use crate::source::{Token, tokens};
use crate::{files, workspace};

/// Where the state of all connections is asked for, which takes the longer the more there are: for
/// administrators and reports, and never to wait for the engine.
const SNAPSHOTS: [&str; 11] = [
    "rnic-core/src/engine/command",
    "rnic-core/src/engine/commands",
    "rnic-core/src/engine/facts",
    "rnic-core/src/engine/mod",
    "rnic-core/src/engine/owners/moving",
    "rnic-core/src/testing/host",
    "rnic-ctl/src/objects/metrics",
    "rnic-ctl/src/perf",
    "rnic-ctl/src/rping/server",
    "rnic-verbs/src/device",
    "rnic-verbs/src/inspector",
];

/// The files that write to the log: none of these is on the path of a frame.
const LOGS: &[&str] = &[
    "rnic-core/src/connection/refusals",
    "rnic-ctl/src/log",
    "rnic-ibverbs/src/adapter",
    "rnic-ibverbs/src/cm/request",
    "rnic-ibverbs/src/cm/table",
    "rnic-ibverbs/src/connections",
    "rnic-ibverbs/src/datagrams/links",
    "rnic-ibverbs/src/datagrams/mod",
    "rnic-ibverbs/src/label",
    "rnic-ibverbs/src/qp",
    "rnic-ibverbs/src/rendezvous",
    "rnic-manager/src/mappers/asking",
    "rnic-sockets/src/association",
    "rnic-sockets/src/net",
    "rnic-sockets/src/port",
    "rnic-sockets/src/sctp",
    "rnic-sockets/src/socket",
    "rnic-sockets/src/sockets",
    "rnic-verbs/src/config",
    "rnic-verbs/src/events",
    "rnic-verbs/src/listener",
    "rnic-verbs/src/open",
    "rnic-verbs/src/qp",
    "rnic-xdp/src/client/protection",
    "rnic-xdp/src/client/session",
    "rnic-xdp/src/device/interface/control",
    "rnic-xdp/src/device/interface/mod",
    "rnic-xdp/src/device/port_mapper",
    "rnic-xdp/src/device/protection",
    "rnic-xdp/src/device/reserve",
    "rnic-xdp/src/device/routes/mod",
    "rnic-xdp/src/device/steering/buffers",
    "rnic-xdp/src/device/vlans",
    "rnic-xdp/src/shared/device",
    "rnic-xdp/src/shared/device_host",
    "rnic-xdp/src/shared/device_news",
    "rnic-xdp/src/shared/device_queues",
    "rnic-xdp/src/shared/host_end",
    "rnic-xdp/src/shared/protection/giving",
    "rnic-xdp/src/shared/queue_ports",
    "rnicd/src",
];

/// The files that know what carries the frames of a device: in rnic-verbs only those that open it.
/// rnicd gives out the devices. What of rnic-ctl speaks with rnicd alone is not among them.
const PORTS: [&str; 17] = [
    "rnic-ctl/src/capture",
    "rnic-ctl/src/device",
    "rnic-ctl/src/doctor",
    "rnic-ctl/src/objects/sa",
    "rnic-ctl/src/objects/steer",
    "rnic-ctl/src/perf/counters",
    "rnic-ctl/src/programs",
    "rnic-ctl/src/steering",
    "rnic-verbs/src/config",
    "rnic-verbs/src/ipsec",
    "rnic-verbs/src/lib",
    "rnic-verbs/src/offers",
    "rnic-verbs/src/open",
    "rnic-verbs/src/open_error",
    "rnic-verbs/src/interface",
    "rnic-verbs/src/rdma/netdev",
    "rnicd/src",
];

/// The files that know of rnicd: in rnic-verbs only those that open a device. rnic-sockets has only
/// its descriptors, its bell and its questions to port mappers from there, and threads are started
/// by what is there.
const MANAGERS: [&str; 9] = [
    "rnic-ctl/src",
    "rnic-sockets/src",
    "rnic-verbs/src/config",
    "rnic-verbs/src/offers",
    "rnic-verbs/src/open",
    "rnic-verbs/src/open_error",
    "rnic-verbs/src/standby",
    "rnic-xdp/src",
    "rnicd/src",
];

/// Fails where any of `words` stands outside of `places`: files, or directories with all that is in
/// them.
fn confined(words: &[&str], places: &[&str]) {
    let has_any = |found: &[Token<'_>]| words.iter().any(|word| found.contains(&Token::Word(word)));
    let found = files_with(has_any);
    assert!(!found.is_empty(), "the search finds nothing any more");
    let astray = outside(&found, places);
    assert!(
        astray.is_empty(),
        "{astray:?}: {words:?} is confined to {places:?}"
    );
}

/// The source files of all crates whose tokens are such, by their paths in the workspace without
/// the extension.
pub(super) fn files_with(is_such: impl Fn(&[Token<'_>]) -> bool) -> Vec<PathBuf> {
    let members = [
        "rnic-core",
        "rnic-manager",
        "rnic-sockets",
        "rnic-xdp",
        "rnic-verbs",
        "rnic-ibverbs",
        "rnic-sysfs",
        "rnicd",
        "rnic-ctl",
    ];
    let sources = members.map(|member| files(&workspace().join(member).join("src")));
    let mut found = sources.concat();
    found.retain(|file| is_such(&tokens(&fs::read_to_string(file).unwrap())));
    let name = |file: PathBuf| file.strip_prefix(workspace()).unwrap().with_extension("");
    found.into_iter().map(name).collect()
}

/// Those of the files that lie in none of these places.
pub(super) fn outside(files: &[PathBuf], places: &[impl AsRef<Path>]) -> Vec<PathBuf> {
    let is_outside = |file: &&PathBuf| !places.iter().any(|place| file.starts_with(place));
    files.iter().filter(is_outside).cloned().collect()
}

#[test]
fn nothing_is_logged_on_the_way_of_a_frame() {
    confined(&["tracing", "tracing_subscriber"], LOGS);
}

#[test]
fn nobody_waits_for_a_list_of_all_connections() {
    confined(&["snapshot", "snapshot_of"], &SNAPSHOTS);
}

#[test]
fn verbs_know_the_interface_only_where_a_device_is_opened() {
    confined(&["rnic_xdp"], &PORTS);
}

#[test]
fn verbs_know_rnicd_only_where_a_device_is_opened() {
    confined(&["rnic_manager"], &MANAGERS);
}

/// Neither the engine nor what is said to rnicd stands on what carries the frames.
#[test]
fn xdp_stands_in_one_crate() {
    confined(&["aya", "libbpf_rs", "xsk_rs"], &["rnic-xdp/src"]);
}
