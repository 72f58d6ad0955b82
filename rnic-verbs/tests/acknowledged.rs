//! Over sockets of the kernel, requests complete although the peer has nothing to send.

mod common;

use std::fs::read_to_string;

use common::{End, until};
use rnic_verbs::{ConnectionOptions, Device, DeviceConfig, SendRequest, Via};
use rnic_xdp::testing::Namespace;

const ADDRESS: &str = "127.0.0.1:4420";
const SIZE: usize = 64;
const ROUNDS: u64 = 10;

fn open() -> Device {
    Device::open_with(&DeviceConfig {
        via: Via::Kernel,
        ..DeviceConfig::new("lo")
    })
    .unwrap()
}

/// Returns a client and a server that are connected.
fn connect(namespace: &Namespace, devices: &[Device; 2]) -> [End; 2] {
    let [mut client, mut server] = [End::new(&devices[0], SIZE), End::new(&devices[1], SIZE)];
    let options = ConnectionOptions::default();
    let qps = (&mut client.qp, &mut server.qp);
    common::connect([namespace; 2], devices, qps, ADDRESS, &options);
    [client, server]
}

/// Has both ends send a message to the other, so that their kernels wait for octets to acknowledge
/// with.
fn exchange(devices: &[Device; 2], ends: &mut [End; 2]) {
    for [from, to] in [[0, 1], [1, 0]] {
        let place = ends[to].mr.sge(0, SIZE as u32);
        ends[to].qp.post_recv(1, &[place]).unwrap();
        let send = SendRequest::send().inline(&[1; SIZE]).unsignaled();
        ends[from].qp.post_send(&send).unwrap();
        until(devices, "a receive", || ends[to].cq.poll_one());
    }
}

/// Returns how many acknowledgments the kernel has sent that it had delayed.
fn delayed(namespace: &Namespace) -> u64 {
    let counters = namespace.run(|| read_to_string("/proc/thread-self/net/netstat").unwrap());
    let mut lines = counters.lines().map(str::split_whitespace);
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut counters = names.zip(values);
    let found = counters.find(|(name, _)| *name == "DelayedACKs").unwrap();
    found.1.parse().unwrap()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
fn a_write_behind_answers_does_not_wait_for_a_delayed_acknowledgment() {
    let namespace = Namespace::new("acks").unwrap();
    namespace.ip("link set lo up").unwrap();
    let devices = namespace.run(|| [open(), open()]);
    let mut ends = connect(&namespace, &devices);
    let there = ends[1].mr.remote(0);
    let before = delayed(&namespace);
    for _ in 0..ROUNDS {
        for _ in 0..10 {
            exchange(&devices, &mut ends);
        }
        let [client, _] = &mut ends;
        let piece = [client.mr.sge(0, SIZE as u32)];
        let write = SendRequest::write(there).memory(&piece);
        client.qp.post_send(&write).unwrap();
        let done = until(&devices, "a Write", || client.cq.poll_one());
        client.qp.check(done).unwrap();
    }
    // A host that stands still for 40 ms makes one.
    let delayed = delayed(&namespace) - before;
    assert!(delayed < ROUNDS / 2, "{delayed} of {ROUNDS} Writes waited");
}
