//! An engine that writes to a peer on the kernel's TCP.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rnic_core::counters::TcpCounters;
use rnic_core::testing::raw_peer::startup;
use rnic_core::wire::ddp::DdpSegment;
use rnic_core::wire::mpa::{Enhanced, Fpdu, StartupFrame, StartupKind};
use rnic_verbs::{
    ConnectionOptions, Device, DeviceConfig, HugePages, QpCaps, Region, RemoteAddress, SendRequest,
    Stag,
};
use rnic_xdp::testing::Namespace;

const SOON: Duration = Duration::from_secs(30);
const LEN: usize = 1 << 20;

/// Opens a device on a port, driven inline.
pub(crate) fn device(namespace: &Namespace, config: &DeviceConfig) -> Device {
    namespace.run(|| Device::open_with(config)).unwrap()
}

/// The peer on the kernel's TCP: accepts one connection, and returns the payload of the Write to
/// it.
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

/// Listens in this namespace. A process that another test starts holds our last listener too, until
/// it runs its program.
fn listen(address: SocketAddr) -> TcpListener {
    let deadline = Instant::now() + SOON;
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other.unwrap(),
        }
    }
}

/// Writes a mebibyte, and checks that the peer gets every octet. Returns by how much the counters
/// of losses and path MTU grew.
pub(crate) fn write_to_kernel(
    device: &Device,
    ours: &Namespace,
    kernels: &Namespace,
    address: &str,
) -> TcpCounters {
    let address: SocketAddr = address.parse().unwrap();
    let listener = kernels.run(|| listen(address));
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
    ours.run(|| qp.connect_blocking(address, None, ConnectionOptions::default()))
        .unwrap();
    // A SYN may have been sent again while the neighbour was resolved.
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
    TcpCounters {
        timeouts: tcp.timeouts - before.timeouts,
        retransmits: tcp.retransmits - before.retransmits,
        mtu_reductions: tcp.mtu_reductions - before.mtu_reductions,
        ..TcpCounters::default()
    }
}
