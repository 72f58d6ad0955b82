//! What outlives a process, what the next one finds, and what stays when the sharing ends.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use aya::programs::loaded_programs;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use rnic_core::engine::Peers;
use rnic_xdp::OpenError;
use rnic_xdp::shared::{ClientPeers, ClientPolicy, LAYOUT, SharedClient, SharedSteering};
use rnic_xdp::steering::{Entry, ModeChoice};

use crate::bed::{Bed, REMOTE, at, frame, free, know_host};
use crate::endpoint::{Endpoint, eventually};
use crate::traffic::exchange;

/// The environment variables that tell the child process of [`all_goes_on_without_the_process`]
/// where the pins are to be, and which device is the client's.
const PINS: &str = "RNIC_TEST_PINS";
const CLIENT: &str = "RNIC_TEST_CLIENT";

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn all_goes_on_without_the_process() {
    if let Ok(pins) = std::env::var(PINS) {
        return share(&pins);
    }
    let bed = Bed::new();
    let mut wire = bed.wire();
    let (_first, mut one, index) = bed.client(1);
    let mut child = bed.host.command(std::env::current_exe().unwrap());
    child
        .args(["--exact", "life::all_goes_on_without_the_process"])
        .env(PINS, bed.bpffs.pins())
        .env(CLIENT, index.to_string());
    assert!(child.status().unwrap().success());
    exchange(&mut wire, &mut one, "10.77.0.1:4420");
}

/// The child: shares the device, and is killed as it is.
fn share(pins: &str) {
    let index = std::env::var(CLIENT).unwrap().parse().unwrap();
    let mut shared = SharedSteering::open("nic0", ModeChoice::Native, pins.as_ref()).unwrap();
    know_host(&mut shared);
    shared.add_client(1, index, &free()).unwrap();
    shared.attach_police(index).unwrap();
    shared.add_lease(1, &at(4420), &Peers::all()).unwrap();
    // No destructor runs.
    std::process::exit(0);
}

/// Sends batches both ways until told to end, each when the one before has arrived, which it does
/// only if no frame is lost.
fn flow(wire: &mut Endpoint, client: &mut Endpoint, end: &AtomicBool) -> u32 {
    let local = "10.77.0.1:4420";
    let mut number = 0;
    while !end.load(Ordering::Relaxed) {
        let batch = number..number + 16;
        let there: Vec<_> = batch
            .clone()
            .map(|number| frame(REMOTE, local, number))
            .collect();
        let back: Vec<_> = batch.map(|number| frame(local, REMOTE, number)).collect();
        for (there, back) in there.iter().zip(&back) {
            wire.send(there);
            client.send(back);
        }
        assert_eq!(client.receive_all(16), there);
        assert_eq!(wire.receive_all(16), back);
        number += 16;
    }
    number
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn another_process_takes_over_without_losing_a_frame() {
    let bed = Bed::new();
    let (mut wire, end) = (bed.wire(), AtomicBool::new(false));
    let mut shared = bed.open(ModeChoice::Native).unwrap();
    let (_first, mut one, index) = bed.client(1);
    bed.add(&mut shared, 1, index, 4420);
    let programs = |bed: &Bed| ["nic0", "h1"].map(|netdev| program_on(bed, netdev));
    let sent = thread::scope(|scope| {
        let sender = scope.spawn(|| flow(&mut wire, &mut one, &end));
        let mut seen = vec![programs(&bed)];
        let opened = (0..20)
            .map(|_| bed.open(ModeChoice::Auto))
            .try_for_each(|opened| {
                shared = opened?;
                seen.push(programs(&bed));
                Ok::<_, OpenError>(())
            });
        end.store(true, Ordering::Relaxed);
        opened.unwrap();
        let ids: BTreeSet<_> = seen.iter().flatten().collect();
        assert_eq!(ids.len(), 2 * 21, "each time both are new: {seen:?}");
        sender.join().unwrap()
    });
    let counters = bed.host.run(|| shared.counters(1)).unwrap();
    let total: u64 = counters.entries().map(|(_, count)| count.frames).sum();
    assert_eq!(total, u64::from(sent), "nothing was dropped");
    let received = bed.host.run(|| shared.steering_counters()).unwrap();
    assert_eq!(received.to_ports, u64::from(sent));
}

/// Returns the id of the XDP program of a device of the host.
fn program_on(bed: &Bed, netdev: &str) -> u32 {
    let shown = bed.host.ip(&format!("-d link show dev {netdev}")).unwrap();
    let mut words = shown
        .split_whitespace()
        .skip_while(|word| *word != "prog/xdp");
    let id = words
        .nth(2)
        .unwrap_or_else(|| panic!("no program: {shown}"));
    id.parse().unwrap()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn another_process_finds_clients_and_leases() {
    let bed = Bed::new();
    let _wire = bed.wire();
    let mut shared = bed.open(ModeChoice::Native).unwrap();
    let limited = ClientPolicy {
        mtu: 9000,
        rate: Some(1_250_000_000),
        burst: 100_000,
        peers: ClientPeers {
            on_link: true,
            listed: Peers::only(["10.0.0.0/8".parse().unwrap(), "fd00::1".parse().unwrap()]),
        },
    };
    let (_first, _one, index) = bed.client(1);
    let (_second, _two, other) = bed.client(1023);
    let six = Entry {
        local: "[fd00::1]:4420".parse().unwrap(),
        vlan: 4094,
    };
    let some = Peers::only([
        "10.8.0.0/16".parse().unwrap(),
        "10.9.0.0/16".parse().unwrap(),
    ]);
    bed.host.run(|| {
        shared.add_client(1, index, &limited).unwrap();
        shared.add_client(1023, other, &free()).unwrap();
        shared.add_lease(1, &at(4420), &some).unwrap();
        shared.add_lease(1, &six, &Peers::all()).unwrap();
        shared.add_lease(1023, &at(4421), &some).unwrap();
    });
    drop(shared);
    let mut shared = bed.open(ModeChoice::Native).unwrap();
    let client = |port, ifindex, policy| SharedClient {
        port,
        ifindex,
        policy,
    };
    let found = bed.host.run(|| shared.clients()).unwrap();
    let ours = found[0].policy.peers.listed.limits().unwrap();
    let same = |prefix| ours.contains(prefix);
    assert!(ours.len() == 2 && limited.peers.listed.limits().unwrap().iter().all(same));
    let peers = found[0].policy.peers.clone();
    let first = client(1, index, ClientPolicy { peers, ..limited });
    assert_eq!(found, [first, client(1023, other, free())]);
    let leases = |shared: &SharedSteering| {
        let mut found = shared.leases();
        found.sort();
        found
    };
    assert_eq!(leases(&shared), [(1, at(4420)), (1, six), (1023, at(4421))]);

    // One client goes with all that it has, and leaves the other's.
    shared.remove_client(1).unwrap();
    assert_eq!(leases(&shared), [(1023, at(4421))]);
    let found: Vec<_> = shared.clients().unwrap();
    assert_eq!(found, [client(1023, other, free())]);
    // The device itself, and the other client's.
    assert_eq!(entries(&bed, "steer_devices"), 2);
    assert_eq!(entries(&bed, "police_peers"), 0);
    assert_eq!(entries(&bed, "steer_peers"), 2);
    shared.remove_lease(1023, &at(4421)).unwrap();
    for map in ["steer_map", "steer_peers"] {
        assert_eq!(entries(&bed, map), 0, "{map}");
    }
    // What is not there any more can be removed again.
    shared.remove_client(1).unwrap();
}

/// Returns the number of entries of a pinned map.
fn entries(bed: &Bed, name: &str) -> usize {
    let path = bed.bpffs.pins().join(LAYOUT).join(name);
    let map = MapHandle::from_pinned_path(path).unwrap();
    // An array has all keys, with or without an entry.
    let is_there = |key: &Vec<u8>| map.lookup(key, MapFlags::ANY).unwrap().is_some();
    map.keys().filter(is_there).count()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn nothing_stays_when_the_sharing_ends() {
    let bed = Bed::new();
    let mut wire = bed.wire();
    let mut shared = bed.open(ModeChoice::Native).unwrap();
    let (first, mut one, index) = bed.client(1);
    bed.add(&mut shared, 1, index, 4420);
    exchange(&mut wire, &mut one, "10.77.0.1:4420");
    let programs = ["nic0", "h1"].map(|netdev| program_on(&bed, netdev));
    let is_loaded = |id| loaded_programs().any(|info| info.is_ok_and(|info| info.id() == id));
    assert!(programs.into_iter().all(is_loaded));
    bed.host.run(|| shared.close()).unwrap();
    assert!(!bed.bpffs.pins().exists());
    let shown = bed.host.ip("link show dev nic0").unwrap();
    assert!(!shown.contains("xdp"), "{shown}");
    eventually("the steering program is gone", || !is_loaded(programs[0]));
    // The client cannot send any more. Its program goes with its device.
    let shown = bed.host.ip("link show dev h1").unwrap();
    assert!(shown.contains("xdp"), "{shown}");
    one.send(&frame("10.77.0.1:4420", REMOTE, 0));
    drop((first, one));
    eventually("the client's program is gone", || !is_loaded(programs[1]));
    assert!(wire.receive().is_empty());
    // It can be shared again.
    let shared = bed.open(ModeChoice::Native).unwrap();
    assert!(shared.clients().unwrap().is_empty() && shared.leases().is_empty());
}

/// A device that lost its program, as by `ip link set dev nic0 xdp off`, gets it again.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_program_that_was_detached_is_attached_again() {
    let bed = Bed::new();
    let mut wire = bed.wire();
    let mut shared = bed.open(ModeChoice::Native).unwrap();
    let (_first, mut one, index) = bed.client(1);
    bed.add(&mut shared, 1, index, 4420);
    bed.host.ip("link set dev nic0 xdp off").unwrap();
    // A process that was killed while it made new pins leaves those.
    std::fs::create_dir(bed.bpffs.pins().join("unfinished")).unwrap();
    let _shared = bed.open(ModeChoice::Native).unwrap();
    exchange(&mut wire, &mut one, "10.77.0.1:4420");
}
