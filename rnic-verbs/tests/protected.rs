//! Two devices whose frames ESP protects, with associations that the kernel does not know of: it
//! need not have ESP.

mod common;

use std::num::NonZeroU32;
use std::time::Duration;

use common::{End, until};
use rnic_core::esp::{Algorithm, Keys, Mode, Sa, SaId};
use rnic_core::wire::encapsulation::UdpPorts;
use rnic_verbs::{ConnectionOptions, Device, DeviceConfig, Driving, SendRequest};
use rnic_xdp::testing::{Namespace, VethEnd, give_association, veth_pair};

const IF_ID: u32 = 0x524e;
const SIZE: usize = 100_000;
const QUEUES: u32 = 3;
const ADDRESSES: [&str; 2] = ["10.77.3.1", "10.77.3.2"];

/// Two namespaces, of which each protects what goes to the other. `netdevs` are their devices.
fn hosts(netdevs: [&str; 2], mtu: u16, mode: Mode, ports: Option<UdpPorts>) -> [Namespace; 2] {
    let hosts = [(); 2].map(|()| Namespace::new("esp").unwrap());
    let addresses = ADDRESSES.map(|address| format!("{address}/24"));
    let [one, other] = [0, 1].map(|host: usize| VethEnd {
        namespace: &hosts[host],
        name: netdevs[host],
        addresses: &addresses[host],
    });
    veth_pair(one, other, QUEUES).unwrap();
    for (host, netdev) in hosts.iter().zip(netdevs) {
        host.ip(&format!("link set dev {netdev} mtu {mtu}"))
            .unwrap();
    }
    for (from, to) in [(0, 1), (1, 0)] {
        let sa = Sa {
            id: SaId {
                spi: 0x1000 + from as u32,
                destination: ADDRESSES[to].parse().unwrap(),
            },
            source: ADDRESSES[from].parse().unwrap(),
            mode,
            algorithm: Algorithm::AesGcm,
            extended: true,
            encapsulation: ports,
            request: 1,
        };
        // A key of 16 octets, and a salt of 4.
        let keys = Keys::new(vec![from as u8 + 1; 20], Vec::new());
        for (host, direction) in [(from, "out"), (to, "in")] {
            give_association(netdevs[host], sa.clone(), keys.clone());
            let ends = format!("src {} dst {}", ADDRESSES[from], ADDRESSES[to]);
            let template = format!("tmpl {ends} proto esp reqid 1 mode {mode}");
            let policy = format!("{ends} proto tcp dir {direction} if_id {IF_ID} {template}");
            let added = hosts[host].ip(&format!("xfrm policy add {policy}"));
            added.unwrap();
        }
    }
    hosts
}

/// Moves octets both ways, by Writes and Reads, through devices that are protected. Returns how
/// many frames each has opened, and how many it has received.
fn exchange(netdevs: [&str; 2], mtu: u16, mode: Mode, ports: Option<UdpPorts>) -> [(u64, u64); 2] {
    let hosts = hosts(netdevs, mtu, mode, ports);
    let devices = [0, 1].map(|host: usize| {
        let mut config = DeviceConfig::new(netdevs[host]);
        config.interface.ipsec_if_id = NonZeroU32::new(IF_ID);
        config.interface.require_protection = true;
        hosts[host].run(|| Device::open_with(&config)).unwrap()
    });
    let [mut client, mut server] = [
        End::new(&devices[0], 2 * SIZE),
        End::new(&devices[1], 2 * SIZE),
    ];
    let (qps, options) = (
        (&mut client.qp, &mut server.qp),
        ConnectionOptions::default(),
    );
    let [near, far] = [&hosts[0], &hosts[1]];
    let listen = format!("{}:4420", ADDRESSES[1]);
    common::connect([near, far], &devices, qps, &listen, &options);

    let octets: Vec<u8> = (0..SIZE).map(|at| (at * 7 + at / 251) as u8).collect();
    client.mr.write(0, &octets).unwrap();
    let there = [client.mr.sge(0, SIZE as u32)];
    let back = [client.mr.sge(SIZE, SIZE as u32)];
    let remote = server.mr.remote(0);
    for request in [
        SendRequest::write(remote).memory(&there),
        SendRequest::read(remote).memory(&back),
    ] {
        client.qp.post_send(&request).unwrap();
        let done = until(&devices, "a completion", || client.cq.poll_one());
        assert!(done.is_success(), "{done:?}");
    }
    for (mr, at) in [(&server.mr, 0), (&client.mr, SIZE)] {
        let mut came = vec![0; SIZE];
        mr.read(at, &mut came).unwrap();
        assert!(came == octets, "other octets arrive");
    }
    devices.map(|device| {
        let snapshot = device.snapshot(Duration::from_secs(10)).unwrap().unwrap();
        (
            snapshot.engine.frames_opened,
            snapshot.engine.frames_received,
        )
    })
}

/// Frames of 9,000 octets take several chunks of a device's memory.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn all_that_devices_send_each_other_is_protected() {
    let in_udp = Some(UdpPorts {
        source: 4500,
        destination: 4500,
    });
    for (number, (mtu, mode, ports)) in [
        (1500, Mode::Transport, None),
        (9000, Mode::Transport, None),
        (1500, Mode::Tunnel, None),
        (9000, Mode::Tunnel, None),
        (1500, Mode::Transport, in_udp),
        (9000, Mode::Tunnel, in_udp),
    ]
    .into_iter()
    .enumerate()
    {
        let netdevs = [format!("near{number}"), format!("far{number}")];
        let [near, far] = [&netdevs[0], &netdevs[1]];
        for (opened, received) in exchange([near, far], mtu, mode, ports) {
            assert!(
                opened > 10,
                "{mtu}, {mode}, {ports:?}: {opened} frames were opened"
            );
            assert_eq!(
                opened, received,
                "{mtu}, {mode}, {ports:?}: some came in the clear"
            );
        }
    }
}

/// A device that protects frames has a worker for each queue, and all of them have the associations.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn workers_share_associations() {
    const PAIRS: usize = 6;
    const ROUNDS: usize = 30;
    let netdevs = ["nearworkers", "farworkers"];
    let hosts = hosts(netdevs, 1500, Mode::Transport, None);
    let devices = [0, 1].map(|host: usize| {
        let mut config = DeviceConfig::new(netdevs[host]);
        config.interface.ipsec_if_id = NonZeroU32::new(IF_ID);
        config.interface.require_protection = true;
        config.driving = Driving::Threads {
            most: Some(QUEUES),
            idle: Duration::ZERO,
            pin: false,
        };
        hosts[host].run(|| Device::open_with(&config)).unwrap()
    });
    let [near, far] = [&hosts[0], &hosts[1]];
    assert_eq!(devices[0].workers(), QUEUES as usize);
    let mut ends: Vec<_> = (0..PAIRS)
        .map(|pair| {
            let [mut client, mut server] = [0, 1].map(|host: usize| End::new(&devices[host], SIZE));
            let listen = format!("{}:{}", ADDRESSES[1], 4420 + pair);
            let qps = (&mut client.qp, &mut server.qp);
            let options = ConnectionOptions::default();
            common::connect([near, far], &devices, qps, &listen, &options);
            [client, server]
        })
        .collect();
    for round in 0..ROUNDS {
        let octets = |pair: usize| (0..SIZE).map(move |at| (at * 7 + pair + round) as u8);
        for (pair, [client, server]) in ends.iter_mut().enumerate() {
            let (from, to) = if round % 2 == 0 {
                (client, server)
            } else {
                (server, client)
            };
            from.mr.write(0, &octets(pair).collect::<Vec<_>>()).unwrap();
            let there = [from.mr.sge(0, SIZE as u32)];
            let request = SendRequest::write(to.mr.remote(0)).memory(&there);
            from.qp.post_send(&request).unwrap();
        }
        for (pair, [client, server]) in ends.iter_mut().enumerate() {
            let (from, to) = if round % 2 == 0 {
                (client, server)
            } else {
                (server, client)
            };
            let done = until(&devices, "a completion", || from.cq.poll_one());
            assert!(done.is_success(), "{done:?}");
            let mut came = vec![0; SIZE];
            to.mr.read(0, &mut came).unwrap();
            assert!(came.iter().copied().eq(octets(pair)), "other octets arrive");
        }
    }
    for device in &devices {
        let soon = Duration::from_secs(10);
        let engines = (0..device.workers()).map(|worker| device.snapshot_of(worker, soon));
        let opened: Vec<_> = engines
            .map(|one| one.unwrap().unwrap().engine.frames_opened)
            .collect();
        let busy = opened.iter().filter(|opened| **opened > 100).count();
        assert!(busy > 1, "one worker opens all: {opened:?}");
    }
}
