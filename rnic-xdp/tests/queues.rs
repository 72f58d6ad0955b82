//! Devices with several queues and a worker for each, on veth pairs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rnic_verbs::{
    Access, ConnectionOptions, Cq, Device, DeviceConfig, Driving, HugePages, Mr, Qp, QpCaps,
    Region, SendRequest,
};
use rnic_xdp::testing::{Namespace, VethEnd, veth_pair};

mod common;

const SOON: Duration = Duration::from_secs(30);
const QUEUES: u32 = 4;
/// Octets of each memory region.
const LEN: usize = 300_000;

/// A device of several workers, in a namespace.
fn device(namespace: &Namespace, netdev: &str, workers: u32) -> Device {
    let config = DeviceConfig {
        driving: Driving::Threads {
            most: Some(workers),
            // There may be fewer CPUs than workers: those without work sleep at once.
            idle: Duration::ZERO,
            pin: false,
        },
        ..DeviceConfig::new(netdev)
    };
    namespace.run(|| Device::open_with(&config)).unwrap()
}

/// A queue pair with its completion queue and its memory.
struct End {
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(device: &Device) -> Self {
        let pd = device.pd();
        let cq = device.cq(64).unwrap();
        let qp = pd.qp(&cq, &cq, QpCaps::default()).unwrap();
        let region = Arc::new(Region::allocate(LEN, HugePages::None).unwrap());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(&region, access).unwrap();
        Self { cq, qp, mr }
    }

    /// Waits for the completion of a request.
    fn wait(&mut self, wr_id: u64) {
        let deadline = Instant::now() + SOON;
        loop {
            if let Some(completion) = self.cq.poll_one() {
                assert!(completion.is_success(), "{completion:?}");
                assert_eq!(completion.wr_id(), wr_id);
                return;
            }
            assert!(self.cq.wait(SOON).unwrap(), "request {wr_id} does not end");
            assert!(Instant::now() < deadline, "request {wr_id} does not end");
        }
    }
}

/// A device with its namespace and address.
struct Side<'a> {
    namespace: &'a Namespace,
    device: &'a Device,
    address: &'a str,
}

fn connect(client: &Side<'_>, server: &Side<'_>, port: u16) -> (End, End) {
    let address: SocketAddr = format!("{}:{port}", server.address).parse().unwrap();
    let listener = server
        .namespace
        .run(|| server.device.listen(address))
        .unwrap();
    let (mut near, mut far) = (End::new(client.device), End::new(server.device));
    let options = ConnectionOptions::default;
    client
        .namespace
        .run(|| near.qp.connect(address, None, options()))
        .unwrap();
    let request = listener.next_request(SOON).unwrap().expect("a request");
    request.accept(&mut far.qp, options()).unwrap();
    near.qp.wait_established(SOON).unwrap();
    far.qp.wait_established(SOON).unwrap();
    (near, far)
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LEN)
        .map(|at| (at * 7 + at / 251 + seed * 31) as u8)
        .collect()
}

/// Makes all connections write, send and read at once, and checks every octet.
fn exchange(pairs: &mut [(End, End)], round: usize) {
    let all = |end: &End| [end.mr.sge(0, LEN as u32)];
    for (number, (near, far)) in pairs.iter_mut().enumerate() {
        near.mr.write(0, &pattern(number + round)).unwrap();
        let write = SendRequest::write(far.mr.remote(0)).wr_id(1);
        near.qp.post_send(&write.memory(&all(near))).unwrap();
        far.qp.post_recv(2, &[far.mr.sge(0, 8)]).unwrap();
        let tell = SendRequest::send().inline(b"written!").wr_id(3);
        near.qp.post_send(&tell).unwrap();
    }
    let mut found = vec![0; LEN];
    for (number, (near, far)) in pairs.iter_mut().enumerate() {
        far.wait(2);
        far.mr.read(8, &mut found[8..]).unwrap();
        assert!(found[8..] == pattern(number + round)[8..], "pair {number}");
        near.wait(1);
        near.wait(3);
        far.mr.write(0, &pattern(number + round + 100)).unwrap();
    }
    for (near, far) in pairs.iter_mut() {
        let read = SendRequest::read(far.mr.remote(0)).wr_id(4);
        near.qp.post_send(&read.memory(&all(near))).unwrap();
    }
    for (number, (near, _)) in pairs.iter_mut().enumerate() {
        near.wait(4);
        near.mr.read(0, &mut found).unwrap();
        assert!(found == pattern(number + round + 100), "pair {number}");
    }
}

/// Returns for each worker: FPDUs received, frames handed over to other workers, and frames taken
/// over from them.
fn carried(device: &Device) -> Vec<(u64, u64, u64)> {
    (0..device.workers())
        .map(|worker| {
            let one = device
                .snapshot_of(worker, SOON)
                .unwrap()
                .expect("a snapshot");
            assert_eq!(one.tcp.resets_sent, 0, "worker {worker}");
            let engine = one.engine;
            (
                one.rdma.fpdus_received,
                engine.handed_over,
                engine.taken_over,
            )
        })
        .collect()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn every_worker_carries_connections_of_its_own_both_ways() {
    let (east, west) = common::pair("queue", QUEUES);
    let (client, server) = (device(&east, "east", QUEUES), device(&west, "west", QUEUES));
    let side = |namespace, device, address| Side {
        namespace,
        device,
        address,
    };
    let (east, west) = (
        side(&east, &client, "10.77.0.1"),
        side(&west, &server, "10.77.0.2"),
    );
    let mut pairs: Vec<_> = (0..8)
        .flat_map(|number| {
            [
                connect(&east, &west, 5000 + number),
                connect(&west, &east, 5000 + number),
            ]
        })
        .collect();
    exchange(&mut pairs, 0);
    for device in [&client, &server] {
        for (worker, (fpdus, handed, taken)) in carried(device).into_iter().enumerate() {
            assert!(fpdus > 100, "worker {worker} carried {fpdus} FPDUs");
            // A veth's peer replies on the queue on which it receives.
            assert_eq!((handed, taken), (0, 0), "worker {worker}");
        }
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn segments_on_another_queue_reach_the_worker_of_their_connection() {
    let (east, west) = common::pair("queue", QUEUES);
    // A single worker sends through one queue, so all that it sends comes to the first worker of
    // the other side.
    let (client, server) = (device(&east, "east", QUEUES), device(&west, "west", 1));
    let east = Side {
        namespace: &east,
        device: &client,
        address: "10.77.0.1",
    };
    let west = Side {
        namespace: &west,
        device: &server,
        address: "10.77.0.2",
    };
    let mut pairs: Vec<_> = (0..8)
        .map(|number| connect(&east, &west, 5000 + number))
        .collect();
    exchange(&mut pairs, 0);
    let carried = carried(&client);
    assert!(carried[0].1 > 300, "the first hands over: {carried:?}");
    for (worker, (fpdus, _, taken)) in carried.iter().enumerate().skip(1) {
        assert!(*fpdus > 100 && *taken > 100, "worker {worker}: {carried:?}");
    }
}

/// As many as large NICs have: each has a socket and rings, and few workers share them.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_hundred_and_twenty_eight_queues_are_shared_by_few_workers() {
    const MANY: u32 = 128;
    let (east, west) = common::pair("queue", MANY);
    let (client, server) = (device(&east, "east", QUEUES), device(&west, "west", QUEUES));
    assert_eq!((client.workers(), sockets(&east)), (QUEUES as usize, MANY));
    let ends = [(&east, &client, "10.77.0.1"), (&west, &server, "10.77.0.2")];
    let [near, far] = ends.map(|(namespace, device, address)| Side {
        namespace,
        device,
        address,
    });
    let mut pairs: Vec<_> = (0..8)
        .map(|number| connect(&near, &far, 5000 + number))
        .collect();
    exchange(&mut pairs, 0);
}

/// Makes all frames that a device forwards leave through one of its transmit queues.
fn send_through(namespace: &Namespace, netdev: &str, queue: u32, queues: u32) {
    let cpus = std::thread::available_parallelism().unwrap().get().min(32);
    let all = format!("{:x}", (1u64 << cpus) - 1);
    for other in 0..queues {
        let cpus = if other == queue { &all } else { "0" };
        let file = format!("/sys/class/net/{netdev}/queues/tx-{other}/xps_cpus");
        let mut shell = namespace.command("sh");
        shell.args(["-c", &format!("echo {cpus} > {file}")]);
        assert!(shell.status().unwrap().success(), "{file}");
    }
}

/// Two namespaces whose devices are joined by a bridge in a third.
fn bridged() -> (Namespace, Namespace, Namespace) {
    let new = || Namespace::new("queue").unwrap();
    let (east, middle, west) = (new(), new(), new());
    for (namespace, name, address, interface) in [
        (&east, "east", "10.77.0.1/24", "to-east"),
        (&west, "west", "10.77.0.2/24", "to-west"),
    ] {
        let end = |namespace, name, addresses| VethEnd {
            namespace,
            name,
            addresses,
        };
        veth_pair(
            end(namespace, name, address),
            end(&middle, interface, ""),
            QUEUES,
        )
        .unwrap();
    }
    middle.ip("link add between type bridge").unwrap();
    middle.ip("link set dev between up").unwrap();
    for interface in ["to-east", "to-west"] {
        middle
            .ip(&format!("link set dev {interface} master between"))
            .unwrap();
    }
    (east, middle, west)
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn connections_survive_a_change_of_their_queue() {
    let (east, middle, west) = bridged();
    let (client, server) = (device(&east, "east", QUEUES), device(&west, "west", QUEUES));
    let (near, far) = (
        Side {
            namespace: &east,
            device: &client,
            address: "10.77.0.1",
        },
        Side {
            namespace: &west,
            device: &server,
            address: "10.77.0.2",
        },
    );
    let mut pairs: Vec<_> = (0..8)
        .map(|number| connect(&near, &far, 5000 + number))
        .collect();
    for round in 0..QUEUES {
        send_through(&middle, "to-east", round, QUEUES);
        send_through(&middle, "to-west", (round + 1) % QUEUES, QUEUES);
        exchange(&mut pairs, round as usize);
    }
    for (name, device) in [("client", &client), ("server", &server)] {
        let carried = carried(device);
        let sum = |of: fn(&(u64, u64, u64)) -> u64| carried.iter().map(of).sum::<u64>();
        let (handed, taken) = (sum(|(_, handed, _)| *handed), sum(|(_, _, taken)| *taken));
        assert!(handed > 500, "{name}: {carried:?}");
        assert_eq!(handed, taken, "{name}: {carried:?}");
    }
}

/// Sets how many of its queues a device uses.
fn set_queues(namespace: &Namespace, netdev: &str, count: u32) {
    let count = count.to_string();
    let mut ethtool = namespace.command("ethtool");
    ethtool.args(["-L", netdev, "rx", &count, "tx", &count]);
    assert!(ethtool.status().unwrap().success(), "{netdev}: {count}");
}

/// Returns the number of AF_XDP sockets in a namespace.
fn sockets(namespace: &Namespace) -> u32 {
    let mut cat = namespace.command("cat");
    let shown = cat.arg("/proc/net/protocols").output().unwrap().stdout;
    let shown = String::from_utf8_lossy(&shown);
    let xdp = shown.lines().find(|line| line.starts_with("XDP "));
    let count = xdp.and_then(|line| line.split_whitespace().nth(2));
    count.and_then(|count| count.parse().ok()).unwrap()
}

/// Returns the id of the XDP program of a device.
fn program(namespace: &Namespace, netdev: &str) -> Option<String> {
    let shown = namespace.ip(&format!("-o link show dev {netdev}")).unwrap();
    let (_, behind) = shown.split_once("prog/xdp id ")?;
    behind.split_whitespace().next().map(str::to_string)
}

/// A veth sends no notification of new queues, and does not run on them the program that was
/// attached before.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn connections_go_on_over_queues_that_come_later() {
    let (east, middle, west) = bridged();
    set_queues(&middle, "to-east", 2);
    set_queues(&east, "east", 2);
    let (client, server) = (device(&east, "east", QUEUES), device(&west, "west", QUEUES));
    assert_eq!((client.workers(), sockets(&east)), (2, 2));
    let ends = [(&east, &client, "10.77.0.1"), (&west, &server, "10.77.0.2")];
    let [near, far] = ends.map(|(namespace, device, address)| Side {
        namespace,
        device,
        address,
    });
    let mut pairs: Vec<_> = (0..4)
        .map(|number| connect(&near, &far, 5000 + number))
        .collect();
    exchange(&mut pairs, 0);
    for (round, queues) in [(1, 3), (2, QUEUES)] {
        let before = program(&east, "east");
        set_queues(&east, "east", queues);
        common::eventually(
            "the new queue has a socket, and the program runs there",
            || sockets(&east) == queues && program(&east, "east") != before,
        );
        set_queues(&middle, "to-east", queues);
        send_through(&middle, "to-east", queues - 1, queues);
        exchange(&mut pairs, round);
    }
    for (worker, (_, handed, taken)) in carried(&client).into_iter().enumerate() {
        // All frames came to one queue, and later to another.
        assert!(handed > 100 && taken > 100, "worker {worker}");
    }
    connect(&far, &near, 6000);
}
