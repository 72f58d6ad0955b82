//! A path with a narrow link behind a router: the kernel of the router says so, our engine hears it, and the kernel's
//! TCP at the other end gets every octet.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rnic_core::engine::{EngineConfig, link};
use rnic_core::memory::table::StagTable;
use rnic_core::testing::raw_peer::startup;
use rnic_core::wire::ddp::DdpSegment;
use rnic_core::wire::mpa::{Enhanced, Fpdu, StartupFrame, StartupKind};
use rnic_verbs::{
    ConnectionOptions, Device, Driver, HugePages, QpCaps, Region, RemoteAddress, SendRequest, Stag,
};
use rnic_xdp::testing::{Namespace, VethEnd, disable_offloads, is_root, veth_pair};
use rnic_xdp::{PortConfig, Worker, XdpNet, XdpPort, bell};

const SOON: Duration = Duration::from_secs(30);
const LEN: usize = 1 << 20;

/// `east` - router - `west`, with the second link narrow for what the router sends.
struct Path {
    east: Namespace,
    router: Namespace,
    west: Namespace,
}

impl Path {
    /// The MTU of the first link, and of the second in this direction. Back it is as wide as the first.
    fn new(wide: u32, narrow: u32) -> Self {
        let new = || Namespace::new("mtu").unwrap();
        let path = Self {
            east: new(),
            router: new(),
            west: new(),
        };
        let Self { east, router, west } = &path;
        let end = |namespace, name, addresses| VethEnd {
            namespace,
            name,
            addresses,
        };
        veth_pair(
            end(east, "east", "10.77.0.1/24 fd77::1/64"),
            end(router, "near", "10.77.0.254/24 fd77::254/64"),
            1,
        )
        .unwrap();
        veth_pair(
            end(router, "far", "10.88.0.254/24 fd88::254/64"),
            end(west, "west", "10.88.0.2/24 fd88::2/64"),
            1,
        )
        .unwrap();
        for (namespace, netdev) in [(router, "near"), (router, "far"), (west, "west")] {
            disable_offloads(namespace, netdev).unwrap();
        }
        for (namespace, netdev, mtu) in [
            (east, "east", wide),
            (router, "near", wide),
            (router, "far", narrow),
            (west, "west", wide),
        ] {
            namespace
                .ip(&format!("link set dev {netdev} mtu {mtu}"))
                .unwrap();
        }
        router.run(|| {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        });
        for (namespace, gateway) in [(east, "77"), (west, "88")] {
            let v4 = format!("route add default via 10.{gateway}.0.254");
            namespace.ip(&v4).unwrap();
            let v6 = format!("-6 route add default via fd{gateway}::254");
            namespace.ip(&v6).unwrap();
        }
        path
    }

    fn device(&self) -> Device {
        self.east.run(|| {
            let port = XdpPort::open(&PortConfig::new("east")).unwrap();
            let net = Arc::new(XdpNet::new(&port).unwrap());
            let (bell, waker) = bell().unwrap();
            let table = Arc::new(StagTable::new(64, [1; 32]));
            let (host, end) = link(table, 16, waker);
            let worker = Worker::new(port, EngineConfig::default(), [2; 32], end, bell).unwrap();
            Device::new(host, net, Driver::Inline(Box::new(worker)))
        })
    }
}

/// The other end, on the kernel's TCP: it accepts one connection and gathers what is written to it.
fn gather(listener: &TcpListener) -> Vec<u8> {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut received = Vec::new();
    let mut chunk = [0; 65_536];
    while received.len() < 20 || StartupFrame::parse(&received).unwrap().is_none() {
        let len = stream.read(&mut chunk).unwrap();
        assert!(len > 0, "closed during start-up");
        received.extend_from_slice(&chunk[..len]);
    }
    let reply = startup(&StartupFrame {
        kind: StartupKind::Reply,
        markers: false,
        crc: true,
        reject: false,
        enhanced_bit: true,
        reserved: 0,
        revision: 2,
        enhanced: Some(Enhanced::default()),
        private_data: &[],
    });
    stream.write_all(&reply).unwrap();
    received.clear();
    let mut data = Vec::new();
    while data.len() < LEN {
        let len = stream.read(&mut chunk).unwrap();
        assert!(len > 0, "closed after {} octets", data.len());
        received.extend_from_slice(&chunk[..len]);
        let mut at = 0;
        while let Some((fpdu, len)) = Fpdu::parse(&received[at..]) {
            data.extend_from_slice(DdpSegment::parse(fpdu.ulpdu).unwrap().payload);
            at += len;
        }
        received.drain(..at);
    }
    data
}

/// Writes a mebibyte through the router; says how many timeouts it took, and how often the segments became smaller.
fn write_through(path: &Path, device: &Device, address: &str) -> (u64, u64) {
    let address: SocketAddr = address.parse().unwrap();
    let listener = path.west.run(|| TcpListener::bind(address).unwrap());
    let far = std::thread::spawn(move || gather(&listener));

    let pd = device.pd();
    let mut cq = device.cq(16).unwrap();
    let mut qp = pd.qp(&cq, &cq, QpCaps::default()).unwrap();
    let region = Arc::new(Region::allocate(LEN, HugePages::None).unwrap());
    let mr = pd
        .register(&region, rnic_verbs::Access::LOCAL_WRITE)
        .unwrap();
    let data: Vec<u8> = (0..LEN).map(|at| (at * 7 + at / 251) as u8).collect();
    mr.write(0, &data).unwrap();
    path.east
        .run(|| qp.connect_blocking(address, None, ConnectionOptions::default()))
        .unwrap();
    // A SYN may have waited for neighbours.
    let before = device.snapshot(SOON).unwrap().unwrap().tcp;
    let there = RemoteAddress {
        stag: Stag(0x1234),
        offset: 0,
    };
    let sge = [mr.sge(0, LEN as u32)];
    qp.post_send(&SendRequest::write(there).memory(&sge).wr_id(1))
        .unwrap();
    let deadline = Instant::now() + SOON;
    let completion = loop {
        if let Some(completion) = cq.poll_one() {
            break completion;
        }
        assert!(Instant::now() < deadline, "the write does not end");
    };
    assert!(completion.is_success(), "{completion:?}");
    let tcp = device.snapshot(SOON).unwrap().unwrap().tcp;
    assert!(far.join().unwrap() == data, "every octet arrives");
    (
        tcp.timeouts - before.timeouts,
        tcp.mtu_reductions - before.mtu_reductions,
    )
}

#[test]
fn what_a_router_says_makes_segments_fit() {
    if !is_root("what_a_router_says_makes_segments_fit") {
        return;
    }
    // Frames of three chunks become ones of one, of two, or shorter ones of three.
    for (wide, narrow) in [(1500, 1300), (9000, 1500), (9000, 5000), (9000, 8500)] {
        let path = Path::new(wide, narrow);
        for address in ["10.88.0.2:4420", "[fd88::2]:4421"] {
            let device = path.device();
            let found = write_through(&path, &device, address);
            assert_eq!(found, (0, 1), "{address}, {wide} to {narrow}");
            // The next connection knows.
            let found = write_through(&path, &device, address);
            assert_eq!(found, (0, 0), "{address}, {wide} to {narrow}");
        }
    }
}

#[test]
fn a_router_that_says_nothing_is_found_out() {
    if !is_root("a_router_that_says_nothing_is_found_out") {
        return;
    }
    let path = Path::new(1500, 1300);
    // The router's word does not reach us: it has no way back.
    path.router.ip("rule add iif lo prohibit").unwrap();
    let (timeouts, reductions) = write_through(&path, &path.device(), "10.88.0.2:4420");
    assert!(timeouts >= 3 && reductions == 1, "{timeouts} {reductions}");
}
