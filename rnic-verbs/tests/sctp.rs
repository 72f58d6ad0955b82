//! Devices over the kernel's SCTP, if it has it, and what is said if not.

mod common;

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{End, SOON, until};
use rnic_core::connection::{Arrived, AssociationSocket, Associations, OutgoingChunk};
use rnic_core::engine::Net;
use rnic_core::ids::ListenerId;
use rnic_sockets::{KernelAssociation, KernelInterface, KernelNet, KernelSockets, Protocol};
use rnic_verbs::{
    Completion, CongestionAlgorithm, ConnectionOptions, Device, DeviceConfig, Driving, EndReason,
    Keepalive, OpenError, SendRequest, Via,
};
use rnic_xdp::testing::Namespace;

const ADDRESS: &str = "127.0.0.1:4420";
const MESSAGE: usize = 1000;

fn open() -> Result<Device, OpenError> {
    Device::open_with(&DeviceConfig {
        via: Via::Sctp,
        ..DeviceConfig::new("lo")
    })
}

/// Returns two devices on the loopback of a namespace.
fn devices() -> (Namespace, [Device; 2]) {
    let namespace = Namespace::new("sctp").unwrap();
    namespace.ip("link set lo up").unwrap();
    let devices = namespace.run(|| [open().unwrap(), open().unwrap()]);
    (namespace, devices)
}

/// What an end does with memory for a message each way.
impl End {
    fn post_recv(&mut self) {
        let place = self.mr.sge(MESSAGE, MESSAGE as u32);
        self.qp.post_recv(1, &[place]).unwrap();
    }

    fn send(&mut self, octet: u8) {
        self.mr.write(0, &[octet; MESSAGE]).unwrap();
        let message = [self.mr.sge(0, MESSAGE as u32)];
        self.qp
            .post_send(&SendRequest::send().memory(&message))
            .unwrap();
    }

    fn received(&self) -> Vec<u8> {
        self.mr.copy(MESSAGE, MESSAGE).unwrap()
    }
}

/// Returns the next completion of a receive. Sends complete meanwhile.
fn next_receive(devices: &[Device; 2], end: &mut End) -> Completion {
    until(devices, "a receive", || {
        let done = end.cq.poll_one()?;
        let done = end.qp.check(done).unwrap_or_else(|why| panic!("{why}"));
        (done.wr_id() == 1).then_some(done)
    })
}

/// Connects a new queue pair of each device.
fn connect(namespace: &Namespace, devices: &[Device; 2]) -> (End, End) {
    connect_with(namespace, devices, &ConnectionOptions::default())
}

fn connect_with(
    namespace: &Namespace,
    devices: &[Device; 2],
    options: &ConnectionOptions,
) -> (End, End) {
    let (mut client, mut server) = (
        End::new(&devices[0], 2 * MESSAGE),
        End::new(&devices[1], 2 * MESSAGE),
    );
    let qps = (&mut client.qp, &mut server.qp);
    common::connect([namespace; 2], devices, qps, ADDRESS, options);
    (client, server)
}

fn tc(namespace: &Namespace, arguments: &str) {
    let mut tc = Command::new("tc");
    let words = tc.args(arguments.split(' '));
    let done = namespace.run(|| words.output()).unwrap();
    assert!(done.status.success(), "tc {arguments}: {done:?}");
}

/// Drops the packets with a DATA chunk of stream 0: the first chunk, or behind a SACK.
fn drop_stream_0(namespace: &Namespace) {
    tc(namespace, "qdisc add dev lo root handle 1: prio");
    let data_at = |chunk: u8| {
        let stream = chunk + 8;
        format!("match u8 0 0xff at {chunk} match u16 0 0xffff at {stream}")
    };
    for chunks in [
        data_at(32),
        format!("match u8 3 0xff at 32 {}", data_at(48)),
    ] {
        let packets = format!("u32 match ip protocol 132 0xff {chunks}");
        let filter = "filter add dev lo parent 1: protocol ip";
        tc(namespace, &format!("{filter} {packets} action drop"));
    }
}

#[test]
#[cfg_attr(sctp, ignore = "needs a kernel without SCTP")]
fn a_kernel_without_sctp_is_told_of() {
    let why = open().err().unwrap();
    assert!(matches!(why, OpenError::NoSctp), "{why}");
    assert!(why.to_string().contains("modprobe sctp"), "{why}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
#[cfg_attr(all(root, not(sctp)), ignore = "needs a kernel with SCTP")]
fn a_loss_on_one_queue_pair_does_not_hold_another() {
    let (namespace, devices) = devices();
    // It takes stream 0.
    let (mut held, mut held_peer) = connect(&namespace, &devices);
    let (mut client, mut server) = connect(&namespace, &devices);
    held_peer.post_recv();
    drop_stream_0(&namespace);
    held.send(99);
    for round in 0..20 {
        server.post_recv();
        client.send(round);
        next_receive(&devices, &mut server);
        assert!(server.received() == [round; MESSAGE]);
        client.post_recv();
        server.send(round + 100);
        next_receive(&devices, &mut client);
        assert!(client.received() == [round + 100; MESSAGE]);
    }
    assert!(held_peer.cq.poll_one().is_none() && held.cq.poll_one().is_none());
    tc(&namespace, "qdisc del dev lo root");
    next_receive(&devices, &mut held_peer);
    assert!(held_peer.received() == [99; MESSAGE]);
    let done = until(&devices, "the end of a Send", || held.cq.poll_one());
    assert!(done.is_success());
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
#[cfg_attr(all(root, not(sctp)), ignore = "needs a kernel with SCTP")]
fn queue_pairs_that_end_leave_the_association_to_the_others() {
    let (namespace, devices) = devices();
    let (mut client, mut server) = connect(&namespace, &devices);
    for round in 0..5 {
        let (mut first, mut second) = connect(&namespace, &devices);
        second.post_recv();
        first.send(round);
        next_receive(&devices, &mut second);
        first.qp.disconnect().unwrap();
        for end in [&mut first, &mut second] {
            until(&devices, "the end", || {
                end.qp.wait_ended(Duration::ZERO).unwrap()
            });
        }
        server.post_recv();
        client.send(round);
        next_receive(&devices, &mut server);
    }
}

/// What was built for a wider path is cut by SCTP, and then no more is.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
#[cfg_attr(all(root, not(sctp)), ignore = "needs a kernel with SCTP")]
fn a_path_may_become_narrower() {
    let (namespace, devices) = devices();
    namespace.ip("link set lo mtu 1500").unwrap();
    let (mut client, mut server) = connect(&namespace, &devices);
    for round in 0..60 {
        if round == 20 {
            namespace.ip("link set lo mtu 700").unwrap();
        }
        server.post_recv();
        client.send(round);
        next_receive(&devices, &mut server);
        assert!(server.received() == [round; MESSAGE]);
    }
}

/// Returns why a queue pair has ended, once it has.
fn end_of(devices: &[Device; 2], end: &mut End) -> EndReason {
    until(devices, "the end", || {
        end.qp.wait_ended(Duration::ZERO).unwrap()
    })
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
#[cfg_attr(all(root, not(sctp)), ignore = "needs a kernel with SCTP")]
fn a_session_fails_after_its_user_timeout_and_the_others_go_on() {
    let (namespace, devices) = devices();
    let options = ConnectionOptions {
        user_timeout: Some(Duration::from_secs(1)),
        ..ConnectionOptions::default()
    };
    let (mut client, mut server) = connect(&namespace, &devices);
    let (mut hasty, _hasty_peer) = connect_with(&namespace, &devices, &options);
    tc(&namespace, "qdisc add dev lo root netem loss 100%");
    let cut = Instant::now();
    server.post_recv();
    client.send(1);
    hasty.send(2);
    assert_eq!(end_of(&devices, &mut hasty), EndReason::TimedOut);
    assert!(cut.elapsed() >= Duration::from_secs(1));
    tc(&namespace, "qdisc del dev lo root");
    next_receive(&devices, &mut server);
    assert!(server.received() == [1; MESSAGE]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
#[cfg_attr(all(root, not(sctp)), ignore = "needs a kernel with SCTP")]
fn a_silent_peer_is_probed_and_one_that_is_gone_is_found_out() {
    let (namespace, devices) = devices();
    let options = ConnectionOptions {
        keepalive: Some(Keepalive {
            idle: Duration::from_millis(300),
            interval: Duration::from_millis(300),
            count: 4,
        }),
        ..ConnectionOptions::default()
    };
    let (mut client, mut server) = connect_with(&namespace, &devices, &options);
    let probes = || {
        let snapshot = devices[0].snapshot(SOON).unwrap().unwrap();
        snapshot.tcp.keepalives
    };
    // More than the peer may leave without an answer, and the kernel too.
    until(&devices, "20 probes", || (probes() >= 20).then_some(()));
    server.post_recv();
    client.send(1);
    next_receive(&devices, &mut server);
    let before = probes();
    tc(&namespace, "qdisc add dev lo root netem loss 100%");
    assert_eq!(end_of(&devices, &mut client), EndReason::TimedOut);
    assert!(probes() >= before + 4);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
#[cfg_attr(all(root, not(sctp)), ignore = "needs a kernel with SCTP")]
fn who_wants_several_workers_is_told_that_there_is_one() {
    let (namespace, _) = devices();
    let config = DeviceConfig {
        via: Via::Sctp,
        driving: Driving::Threads {
            most: Some(4),
            idle: Duration::ZERO,
            pin: false,
        },
        ..DeviceConfig::new("lo")
    };
    let device = namespace.run(|| Device::open_with(&config)).unwrap();
    let way = device.kernel().unwrap().to_string();
    assert!(way.contains("1 worker, not 4: an association"), "{way}");
    assert_eq!(device.workers(), 1);
}

/// Returns both ends of an association with a listener.
fn associate(
    interface: &KernelInterface,
    listens_at: SocketAddr,
) -> (KernelAssociation, KernelAssociation) {
    let net = KernelNet::new(interface, Protocol::Sctp, CongestionAlgorithm::Cubic);
    let mut sockets = KernelSockets::new().unwrap();
    let (at, listening) = net.listen(listens_at).unwrap();
    let listener = ListenerId(1);
    Associations::listen(&mut sockets, listener, &listening).unwrap();
    let to = match at.ip().is_unspecified() {
        true => SocketAddr::new(MANY_ADDRESSES[0].parse().unwrap(), at.port()),
        false => at,
    };
    let (_, from) = net.active(to, None, 0).unwrap();
    let mut client = Associations::connect(&mut sockets, &from, to, 0).unwrap();
    let deadline = Instant::now() + SOON;
    let server = loop {
        if let Some(accepted) = Associations::accept(&mut sockets, listener) {
            break accepted.socket;
        }
        assert!(Instant::now() < deadline, "no association");
    };
    let mut room = vec![0; 1 << 16];
    while client.receive(&mut room) != Ok(Arrived::Indication(1)) {
        assert!(Instant::now() < deadline, "no indication");
    }
    (client, server)
}

/// Addresses of a host that has several.
const MANY_ADDRESSES: [&str; 3] = ["10.79.0.1", "10.79.0.2", "10.79.0.3"];

/// Returns what the kernel tells in a column of a table of this namespace's SCTP.
fn column(table: &str, name: &str) -> Vec<u32> {
    let table = std::fs::read_to_string(format!("/proc/thread-self/net/sctp/{table}")).unwrap();
    let mut lines = table.lines().map(|line| line.replace(['<', '>', '-'], " "));
    let names = lines.next().unwrap();
    let from_end = |line: &str, at: usize| {
        let mut words = line.split_whitespace().rev();
        words.nth(at).unwrap().to_owned()
    };
    // The addresses before it are as many as there are.
    let at = names.split_whitespace().rev().position(|one| one == name);
    let at = at.unwrap_or_else(|| panic!("no {name} in {names}"));
    lines
        .map(|line| from_end(&line, at).parse().unwrap())
        .collect()
}

/// The kernel has no more retransmissions for an association than for its ways together.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
#[cfg_attr(all(root, not(sctp)), ignore = "needs a kernel with SCTP")]
fn an_association_of_several_ways_is_as_patient_as_its_sessions() {
    let (namespace, _) = devices();
    for address in MANY_ADDRESSES {
        namespace
            .ip(&format!("addr add {address}/32 dev lo"))
            .unwrap();
    }
    namespace.run(|| {
        let any = KernelInterface::open(None).unwrap();
        let (mut client, _server) = associate(&any, "0.0.0.0:0".parse().unwrap());
        let of_all = || column("assocs", "MAXRT").into_iter().max().unwrap();
        let of_each = || column("remaddr", "MAX_PATH_RTX").into_iter().max().unwrap();
        let ways = column("remaddr", "MAX_PATH_RTX").len();
        let own = (of_all(), of_each());
        // Three to the server, and one to the client.
        assert_eq!((ways, own), (4, (10, 5)));
        client.outlast(Some(Duration::from_secs(600)));
        let whole = of_all();
        assert!((120..150).contains(&whole), "{whole}");
        assert_eq!(of_each(), whole.div_ceil(3));
        // Probes without an answer count too.
        for _ in 0..30 {
            client.probe();
        }
        assert_eq!(of_all(), whole + 30);
        client.outlast(None);
        assert_eq!((of_all(), of_each()), (10 + 30, 14));
        let deadline = Instant::now() + SOON;
        while (of_all(), of_each()) != own {
            assert!(Instant::now() < deadline, "no answer to a probe");
            client.heard();
        }
    });
}

fn send(association: &mut impl AssociationSocket, octets: &[u8]) {
    let chunk = OutgoingChunk {
        stream: 0,
        protocol: 16,
        octets,
        urgent: true,
    };
    assert_eq!(association.send(&chunk), Ok(true));
}

/// The kernel gives back the memory of chunks also when the association fails: that acknowledges none
/// of them.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
#[cfg_attr(all(root, not(sctp)), ignore = "needs a kernel with SCTP")]
fn what_an_abort_drops_was_not_acknowledged() {
    let (namespace, _) = devices();
    namespace.run(|| {
        let interface = KernelInterface::open(Some("lo")).unwrap();
        let (mut client, mut server) = associate(&interface, ADDRESS.parse().unwrap());
        let deadline = Instant::now() + SOON;
        let mut room = vec![0; 1 << 16];
        send(&mut client, &[1; 700]);
        while client.acknowledged() == 0 {
            assert!(Instant::now() < deadline, "no acknowledgment");
        }
        // With octets that nobody has received, the kernel would abort by itself.
        while !matches!(server.receive(&mut room), Ok(Arrived::Chunk { .. })) {
            assert!(Instant::now() < deadline, "no chunk");
        }
        drop_stream_0(&namespace);
        send(&mut client, &[2; 700]);
        send(&mut client, &[3; 100]);
        server.abort();
        loop {
            assert_eq!(client.acknowledged(), 1);
            match client.receive(&mut room) {
                Ok(Arrived::Closed) => panic!("it was shut down in order"),
                Ok(_) => assert!(Instant::now() < deadline, "no end"),
                Err(_) => break,
            }
        }
        assert_eq!(client.acknowledged(), 1);
    });
}
