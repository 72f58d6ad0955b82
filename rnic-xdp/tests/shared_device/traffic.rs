//! Frames through all programs.

use rnic_core::engine::Peers;
use rnic_manager::PoliceVerdict;
use rnic_xdp::shared::SharedSteering;
use rnic_xdp::steering::{Entry, Mode, ModeChoice};

use crate::bed::{Bed, REMOTE, at, frame, free};
use crate::endpoint::{Endpoint, eventually};

/// Sends frames to a client and from it. Each must be the next one that arrives: none is lost,
/// changed or doubled.
pub(crate) fn exchange(wire: &mut Endpoint, client: &mut Endpoint, local: &str) {
    for number in 0..200 {
        let there = frame(REMOTE, local, number);
        wire.send(&there);
        assert_eq!(client.receive_all(1), [there]);
        let back = frame(local, REMOTE, number);
        client.send(&back);
        assert_eq!(wire.receive_all(1), [back]);
    }
}

fn count(bed: &Bed, shared: &SharedSteering, port: u32, verdict: PoliceVerdict) -> u64 {
    let counters = bed.host.run(|| shared.counters(port)).unwrap();
    counters.get(verdict).frames
}

fn frames_pass_in(choice: ModeChoice) {
    let bed = Bed::new();
    let mut wire = bed.wire();
    let mut shared = bed.open(choice).unwrap();
    assert_eq!(*shared.mode() == Mode::Native, choice == ModeChoice::Native);
    let (_first, mut one, index) = bed.client(1);
    bed.add(&mut shared, 1, index, 4420);
    let (_second, mut two, index) = bed.client(2);
    bed.add(&mut shared, 2, index, 4421);
    bed.host.run(|| {
        let local = "127.0.0.1:4422".parse().unwrap();
        let entry = Entry { local, vlan: 0 };
        shared.add_lease(2, &entry, &Peers::all()).unwrap();
    });
    exchange(&mut wire, &mut one, "10.77.0.1:4420");
    exchange(&mut wire, &mut two, "10.77.0.1:4421");
    let received = bed.host.run(|| shared.steering_counters()).unwrap();
    assert_eq!((received.to_ports, received.no_port), (400, 0));

    // From client to client, at each kind of address, and to itself.
    for (number, destination) in ["10.77.0.1:4421", "127.0.0.1:4422"].into_iter().enumerate() {
        let over = frame("10.77.0.1:4420", destination, number as u32);
        one.send(&over);
        assert_eq!(two.receive_all(1), [over]);
    }
    let itself = frame("10.77.0.1:4420", "10.77.0.1:4420", 7);
    one.send(&itself);
    assert_eq!(one.receive_all(1), [itself]);

    // What it may not send goes nowhere: what it sends after that arrives first.
    for (number, source) in ["10.77.0.1:4421", "10.77.0.9:4420"].into_iter().enumerate() {
        one.send(&frame(source, REMOTE, number as u32));
    }
    one.send(&frame("10.77.0.1:4420", "10.77.0.1:80", 3));
    // Where nobody has leased the port, it comes back as a RST.
    let answers = one.receive_all(1);
    let (ports, flags) = (&answers[0][34..38], answers[0][47]);
    assert_eq!((ports, flags), (&[0, 80, 0x11, 0x44][..], 4));
    exchange(&mut wire, &mut one, "10.77.0.1:4420");
    let counts = |verdict| count(&bed, &shared, 1, verdict);
    assert_eq!(counts(PoliceVerdict::ToNic), 400);
    assert_eq!(counts(PoliceVerdict::ToPort), 3);
    assert_eq!(counts(PoliceVerdict::NotLeased), 1);
    assert_eq!(counts(PoliceVerdict::Source), 1);
    assert_eq!(counts(PoliceVerdict::Nobody), 1);
    assert_eq!(count(&bed, &shared, 2, PoliceVerdict::ToNic), 200);
    assert!(wire.receive().is_empty() && two.receive().is_empty());
    bed.host.run(|| shared.close()).unwrap();
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_pass_through_all_programs() {
    frames_pass_in(ModeChoice::Native);
}

/// On a device whose driver has no XDP all but the program on the client's end run in the kernel's
/// stack.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_pass_in_generic_mode() {
    frames_pass_in(ModeChoice::Generic);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_of_a_client_that_is_gone_reach_nobody() {
    let bed = Bed::new();
    let mut wire = bed.wire();
    let mut shared = bed.open(ModeChoice::Native).unwrap();
    let (first, mut one, index) = bed.client(1);
    bed.add(&mut shared, 1, index, 4420);
    exchange(&mut wire, &mut one, "10.77.0.1:4420");
    // The kernel takes the veth pair away with the namespace, once the socket is gone too.
    drop((first, one));
    let no_port = || bed.host.run(|| shared.steering_counters()).unwrap().no_port;
    eventually("the device is gone", || {
        wire.send(&frame(REMOTE, "10.77.0.1:4420", 0));
        no_port() > 0
    });
    // Another client takes its port and its lease, with new counters.
    let found = bed.host.run(|| shared.clients()).unwrap();
    assert_eq!(
        found.iter().map(|client| client.port).collect::<Vec<_>>(),
        [1]
    );
    bed.host.run(|| shared.remove_client(1)).unwrap();
    let (_again, mut one, index) = bed.client(1);
    bed.host.run(|| {
        shared.attach_police(index).unwrap();
        shared.add_client(1, index, &free()).unwrap();
    });
    assert_eq!(count(&bed, &shared, 1, PoliceVerdict::ToNic), 0);
    one.send(&frame("10.77.0.1:4420", REMOTE, 0));
    eventually("the frame is counted", || {
        count(&bed, &shared, 1, PoliceVerdict::NotLeased) == 1
    });
    bed.host.run(|| {
        let lease = shared.add_lease(1, &at(4420), &Peers::all());
        lease.unwrap();
    });
    let _ = wire.receive();
    exchange(&mut wire, &mut one, "10.77.0.1:4420");
}
